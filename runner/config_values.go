package runner

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// A FileMode is written as octal digits in quotes: "0660".
type FileMode fs.FileMode

func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil {
		return fmt.Errorf("%s is not an octal mode", quote(string(text)))
	}
	if n > 0o777 {
		return fmt.Errorf("%s is not an octal mode up to 0777", quote(string(text)))
	}
	*m = FileMode(n)
	return nil
}

func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// HistogramHash says what a client is hashed by in the sketches of histograms.
type HistogramHash uint8

const (
	HashPseudonym HistogramHash = iota // of one operator only: the key is in it
	HashAddress                        // can be merged with other operators' sketches, and tested for an address
)

var histogramHashes = []string{HashPseudonym: "pseudonym", HashAddress: "address"}

func (h *HistogramHash) UnmarshalText(text []byte) error {
	for i, s := range histogramHashes {
		if s == string(text) {
			*h = HistogramHash(i)
			return nil
		}
	}
	return fmt.Errorf(`%s is neither "pseudonym" nor "address"`, quote(string(text)))
}

func (h HistogramHash) String() string { return histogramHashes[h] }

// A Duration is written as Go does it, in quotes: "30s", "2160h".
type Duration time.Duration

func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%s is not a duration such as \"30s\" or \"24h\"", quote(string(text)))
	}
	if v < 0 {
		return fmt.Errorf("%s is less than nothing", quote(string(text)))
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// A ServerURL is where an MQTT broker is. Its URL has a scheme and a port.
type ServerURL struct{ URL *url.URL }

// mqttPorts are the schemes of a broker and their usual ports.
var mqttPorts = map[string]string{
	"mqtts": "8883", "tls": "8883", "ssl": "8883",
	"mqtt": "1883", "tcp": "1883",
	"wss": "443", "ws": "80",
}

func (s *ServerURL) UnmarshalText(text []byte) error {
	*s = ServerURL{}
	if len(text) == 0 {
		return nil
	}
	full := string(text)
	if !strings.Contains(full, "://") {
		full = "mqtts://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Hostname() == "" {
		return fmt.Errorf("%s is neither host, host:port nor a URL", quoteURL(string(text)))
	}
	port, known := mqttPorts[u.Scheme]
	switch {
	case strings.Contains(u.Hostname(), ":") && u.Host[0] != '[':
		return fmt.Errorf("the IPv6 address in %s needs brackets around it", quoteURL(string(text)))
	case !known:
		return fmt.Errorf("the scheme %s is none of mqtts, tls, ssl, mqtt, tcp, wss, ws", quote(u.Scheme))
	case u.User != nil:
		return errors.New("a user or password cannot be given: edm shows a client certificate")
	case u.Path != "" && u.Path != "/" && u.Scheme[0] != 'w', u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("%s has more than a host and a port", quoteURL(string(text)))
	case u.Port() == "":
		u.Host += ":" + port
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port of %s is not 1 to 65535", quoteURL(string(text)))
	}
	*s = ServerURL{u}
	return nil
}

func (s ServerURL) String() string {
	if s.URL == nil {
		return ""
	}
	return s.URL.String()
}

// A Secret does not show itself: printed with any verb, logged or marshalled, it
// is "(secret)". Convert it to get at its bytes.
type Secret string

func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(secret)"
}

// Format is for %x, %q and %#v, which pass String by.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// assign puts a value as TOML has it (string, int64, bool, …) into a field of
// Config. The field is undefined after an error.
func assign(field reflect.Value, value any) error {
	expected := func(what string) error {
		if field.Type() == reflect.TypeFor[Secret]() {
			return fmt.Errorf("expected %s", what) // whatever it is, it may be the secret
		}
		return fmt.Errorf("expected %s, got %s", what, describe(value))
	}
	if u, ok := field.Addr().Interface().(encoding.TextUnmarshaler); ok {
		s, ok := value.(string)
		if !ok {
			return expected("a string")
		}
		return u.UnmarshalText([]byte(s))
	}
	switch field.Kind() {
	case reflect.String:
		s, ok := value.(string)
		if !ok {
			return expected("a string")
		}
		if strings.ContainsRune(s, 0) {
			return fmt.Errorf("%s holds a zero byte", quote(s))
		}
		field.SetString(s)
	case reflect.Bool:
		b, ok := value.(bool)
		if !ok {
			return expected("true or false")
		}
		field.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, ok := value.(int64)
		if !ok {
			return expected("a whole number")
		}
		if field.OverflowInt(n) {
			return fmt.Errorf("%d is too large", n)
		}
		field.SetInt(n)
	default:
		panic("BUG: a setting of type " + field.Type().String())
	}
	return nil
}

// valueOfFlag turns the text of a flag into the value it would be in the file: the
// text itself where a string is wanted, else what TOML reads there. Text that is
// no value stays text, for assign to refuse.
func valueOfFlag(field reflect.Value, text string) any {
	_, parsesItself := field.Addr().Interface().(encoding.TextUnmarshaler)
	if parsesItself || field.Kind() == reflect.String {
		return text
	}
	var doc struct{ V any }
	if strings.ContainsAny(text, "\n#") {
		return text
	}
	if _, err := toml.Decode("V = "+text, &doc); err != nil {
		return text
	}
	return doc.V
}

// describe names a value for someone who wrote another kind than was wanted.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return "the string " + quote(v)
	case int64:
		return fmt.Sprintf("the number %d", v)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return fmt.Sprintf("the number %.1f", v)
		}
		return fmt.Sprintf("the number %g", v)
	case bool:
		return strconv.FormatBool(v)
	case time.Time:
		return "a date or time"
	case []any:
		return "a list"
	case map[string]any, []map[string]any:
		return "a table"
	}
	panic(fmt.Sprintf("BUG: a TOML value of type %T", value))
}

// quoteURL quotes a URL without the user and the password that may be in it.
func quoteURL(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		s = "…" + s[at:]
	}
	return quote(s)
}

// quote quotes s on one line, and cuts it where it gets too long to read.
func quote(s string) string {
	const longest = 120
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "…"
	}
	return strconv.Quote(s)
}
