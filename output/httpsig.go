package output

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
)

// HTTP message signatures (RFC 9421) with Ed25519, of header fields only.

// signatureLabel names the one signature of a request.
const signatureLabel = "sig1"

// A component is a header field that a signature covers: its name in lower
// case, and its value without blanks around it.
type component struct{ name, value string }

// signFields signs components, in their order, and returns the values of the
// fields Signature-Input and Signature. The key must have passed SignsRequests.
func signFields(label string, covered []component, created time.Time, key *SigningKey) (input, signature string) {
	// The signature base (section 2.5): a line for each component, and one for
	// the signature's own parameters, which has no line end.
	var base strings.Builder
	names := make([]string, len(covered))
	for i, c := range covered {
		names[i] = `"` + c.name + `"`
		base.WriteString(names[i] + ": " + c.value + "\n")
	}
	params := fmt.Sprintf(`(%s);created=%d;keyid="%s";alg="ed25519"`,
		strings.Join(names, " "), created.Unix(), stringEscapes.Replace(key.ID))
	base.WriteString(`"@signature-params": ` + params)
	return label + "=" + params, label + "=" + byteSequence(key.sign([]byte(base.String())))
}

// stringEscapes makes the inside of a string of RFC 8941, section 3.3.3.
var stringEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// byteSequence is binary data in a header field (RFC 8941, section 3.3.5).
func byteSequence(b []byte) string { return ":" + base64.StdEncoding.EncodeToString(b) + ":" }

// SignsRequests says why the key cannot sign requests, or nil: its id stands in
// a header field, which takes printable ASCII only.
func (k *SigningKey) SignsRequests() error {
	if strings.ContainsFunc(k.ID, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return errors.New("its key id has characters other than printable ASCII, which cannot stand in a signature")
	}
	return nil
}
