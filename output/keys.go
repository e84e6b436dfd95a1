package output

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
)

// longestID leaves room for the rest of a topic, which has up to 65535 octets.
const longestID = 65000

// A SigningKey signs events and uploads. It is what is enrolled for this node:
// an Ed25519 private key with its key id, the name that Core knows the node by.
type SigningKey struct {
	ID    string
	NoAlg bool // the file says no algorithm: Core refuses what such a node sends

	private ed25519.PrivateKey
}

// ReadSigningKey reads a JWK (RFC 7517, 8037) from a file.
func ReadSigningKey(path string) (*SigningKey, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := parseSigningKey(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

func parseSigningKey(b []byte) (*SigningKey, error) {
	var j struct {
		Kty string          `json:"kty"`
		Crv string          `json:"crv"`
		Alg string          `json:"alg"`
		Kid string          `json:"kid"`
		D   string          `json:"d"`
		X   string          `json:"x"`
		Set json.RawMessage `json:"keys"`
	}
	// The error of encoding/json may quote the input, which is a secret.
	if json.Unmarshal(b, &j) != nil {
		return nil, errors.New("it is not a JWK: no JSON object, or a member of another type")
	}
	switch {
	case j.Set != nil:
		return nil, errors.New("it is a set of keys, give the file of one private key")
	case j.Kty != "OKP" || j.Crv != "Ed25519":
		return nil, fmt.Errorf("it is a key of type %s and curve %s, edm signs with OKP and Ed25519", shown(j.Kty), shown(j.Crv))
	case j.Alg != "" && j.Alg != "EdDSA" && j.Alg != "Ed25519":
		return nil, fmt.Errorf("it is for the algorithm %s, edm signs with EdDSA", shown(j.Alg))
	case j.D == "":
		return nil, errors.New("it is the public key, signing takes the private one (with a member \"d\")")
	case j.Kid == "":
		return nil, errors.New("it has no key id (\"kid\"), which names the node")
	case strings.ContainsAny(j.Kid, "/+#") || strings.ContainsFunc(j.Kid, unicode.IsControl) || len(j.Kid) > longestID:
		return nil, fmt.Errorf("its key id %.100q cannot be a level of an MQTT topic", j.Kid)
	}
	seed, err := base64.RawURLEncoding.DecodeString(j.D)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, errors.New("its private part (\"d\") is not 32 octets in base64url")
	}
	k := &SigningKey{ID: j.Kid, NoAlg: j.Alg == "", private: ed25519.NewKeyFromSeed(seed)}
	public, err := base64.RawURLEncoding.DecodeString(j.X)
	if err != nil || !bytes.Equal(public, k.private.Public().(ed25519.PublicKey)) {
		return nil, errors.New("its public part (\"x\") does not belong to its private part (\"d\")")
	}
	return k, nil
}

// shown quotes what should be the name of a type, a curve or an algorithm. What
// is longer may be the key in the wrong place.
func shown(s string) string {
	if len(s) > 16 {
		return "(not shown)"
	}
	return strconv.Quote(s)
}

// Topic is the MQTT topic of the events of this node.
func (k *SigningKey) Topic() string { return "events/up/" + k.ID + "/new_qname" }

// Format keeps the private key out of what is printed, with any verb.
func (k SigningKey) Format(f fmt.State, _ rune) { io.WriteString(f, k.ID) }

func (k *SigningKey) sign(message []byte) []byte { return ed25519.Sign(k.private, message) }
