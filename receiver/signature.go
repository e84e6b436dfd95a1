package receiver

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A signature is one of RFC 9421, of header fields only.
type signature struct {
	label   string
	covered []string // components, in order
	params  string   // the whole value of the member of Signature-Input, for the base
	created time.Time
	keyID   string
	value   []byte
}

// parseSignature reads Signature-Input and Signature. It takes one signature,
// with each of the parameters created, keyid and alg once and no other.
func parseSignature(fields http.Header) (*signature, error) {
	input, value := fields["Signature-Input"], fields["Signature"]
	if len(input) != 1 || len(value) != 1 {
		return nil, fmt.Errorf("there are %d of Signature-Input and %d of Signature", len(input), len(value))
	}
	s := &signature{}
	p := parser{rest: input[0]}
	var err error
	if s.label, err = p.key(); err != nil {
		return nil, err
	}
	if !p.skip("=") {
		return nil, fmt.Errorf("%q is not an inner list", s.label)
	}
	s.params = p.rest
	if s.covered, err = p.components(); err != nil {
		return nil, err
	}
	if err = s.parameters(&p); err != nil {
		return nil, err
	}
	if p.rest != "" {
		return nil, fmt.Errorf("there is more in Signature-Input: %q", p.rest)
	}
	p = parser{rest: value[0]}
	label, err := p.key()
	if err != nil {
		return nil, err
	}
	if label != s.label || !p.skip("=") {
		return nil, fmt.Errorf("there is no signature of label %q", s.label)
	}
	if s.value, err = p.byteSequence(); err != nil {
		return nil, err
	}
	if p.rest != "" {
		return nil, fmt.Errorf("there is more in Signature: %q", p.rest)
	}
	return s, nil
}

// parameters reads the parameters of the inner list.
func (s *signature) parameters(p *parser) error {
	seen := map[string]bool{}
	for p.skip(";") {
		name, err := p.key()
		if err != nil {
			return err
		}
		if seen[name] || !p.skip("=") {
			return fmt.Errorf("the parameter %s is given twice, or has no value", name)
		}
		seen[name] = true
		switch name {
		case "created":
			var n int64
			n, err = p.integer()
			s.created = time.Unix(n, 0)
		case "keyid":
			s.keyID, err = p.string()
		case "alg":
			var alg string
			if alg, err = p.string(); err == nil && alg != "ed25519" {
				err = fmt.Errorf("the algorithm is %q", alg)
			}
		default:
			err = fmt.Errorf("the parameter %s is not known", name)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"created", "keyid", "alg"} {
		if !seen[name] {
			return fmt.Errorf("there is no parameter %s", name)
		}
	}
	return nil
}

// base makes the signature base (section 2.5).
func (s *signature) base(fields http.Header) ([]byte, error) {
	var b []byte
	for _, name := range s.covered {
		values := fields.Values(name)
		if len(values) == 0 {
			return nil, fmt.Errorf("it covers %s, which there is not", name)
		}
		trimmed := make([]string, len(values))
		for i, v := range values {
			trimmed[i] = strings.Trim(v, " \t")
		}
		b = fmt.Appendf(b, "\"%s\": %s\n", name, strings.Join(trimmed, ", "))
	}
	return fmt.Appendf(b, "\"@signature-params\": %s", s.params), nil
}

// A parser reads structured fields (RFC 8941, section 4.2) from their start,
// and takes only what section 4.1 would write.
type parser struct{ rest string }

// skip reads a literal, if it is next.
func (p *parser) skip(literal string) (ok bool) {
	p.rest, ok = strings.CutPrefix(p.rest, literal)
	return ok
}

// span cuts off what is made of some characters.
func (p *parser) span(in func(c byte) bool) string {
	n := 0
	for n < len(p.rest) && in(p.rest[n]) {
		n++
	}
	var s string
	s, p.rest = p.rest[:n], p.rest[n:]
	return s
}

func lower(c byte) bool { return c >= 'a' && c <= 'z' }
func digit(c byte) bool { return c >= '0' && c <= '9' }

func (p *parser) key() (string, error) {
	key := p.span(func(c byte) bool { return lower(c) || digit(c) || strings.IndexByte("_-.*", c) >= 0 })
	if key == "" || !lower(key[0]) && key[0] != '*' {
		return "", fmt.Errorf("%q is no key", key)
	}
	return key, nil
}

func (p *parser) integer() (int64, error) {
	sign := ""
	if p.skip("-") {
		sign = "-"
	}
	digits := p.span(digit)
	n, err := strconv.ParseInt(sign+digits, 10, 64)
	if err != nil || len(digits) > 15 || strconv.FormatInt(n, 10) != sign+digits || strings.HasPrefix(p.rest, ".") {
		return 0, fmt.Errorf("%s%s is not an integer", sign, digits)
	}
	return n, nil
}

func (p *parser) string() (string, error) {
	if !p.skip(`"`) {
		return "", errors.New("there is no string where one is due")
	}
	var b []byte
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return string(b), nil
		case c == '\\':
			if i++; i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return "", errors.New("a backslash in a string stands before neither itself nor a quote")
			}
			b = append(b, p.rest[i])
		case c < 0x20 || c > 0x7e:
			return "", fmt.Errorf("the octet %#x is in a string", c)
		default:
			b = append(b, c)
		}
	}
	return "", errors.New("a string does not end")
}

func (p *parser) byteSequence() ([]byte, error) {
	if !p.skip(":") {
		return nil, errors.New("there is no byte sequence where one is due")
	}
	text, rest, ok := strings.Cut(p.rest, ":")
	if !ok {
		return nil, errors.New("a byte sequence does not end")
	}
	p.rest = rest
	return base64.StdEncoding.Strict().DecodeString(text)
}

// components reads an inner list of names of header fields.
func (p *parser) components() (names []string, err error) {
	if !p.skip("(") {
		return nil, errors.New("there is no inner list where one is due")
	}
	for !p.skip(")") {
		if len(names) > 0 && !p.skip(" ") {
			return nil, errors.New("there is no space between two components")
		}
		name, err := p.string()
		switch {
		case err != nil:
			return nil, err
		case name == "" || name[0] == '@' || name != strings.ToLower(name):
			return nil, fmt.Errorf("the component %q is not a field's name", name)
		case slices.Contains(names, name):
			return nil, fmt.Errorf("the component %q is there twice", name)
		case strings.HasPrefix(p.rest, ";"):
			return nil, fmt.Errorf("the component %q has parameters", name)
		}
		names = append(names, name)
	}
	return names, nil
}
