package output

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Made from a constant seed, which is not secret.
const (
	testSeed   = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"
	testPublic = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
)

// testKey is the key of RFC 8037 appendix A.1.
var testKey = func() *SigningKey {
	k, err := parseSigningKey([]byte(jwkText("kid", "node.example")))
	if err != nil {
		panic(err)
	}
	return k
}()

// jwkText returns a good key with some members replaced: names and values in turn.
// A value of "" leaves the member out.
func jwkText(change ...string) string {
	members := map[string]string{
		"alg": "EdDSA", "crv": "Ed25519", "d": testSeed, "iss": "issuer", "kid": "node", "kty": "OKP", "x": testPublic,
	}
	for i := 0; i < len(change); i += 2 {
		if members[change[i]] = change[i+1]; change[i+1] == "" {
			delete(members, change[i])
		}
	}
	b, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestSigningKey(t *testing.T) {
	good := func(input, id string, noAlg bool) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "datakey-priv.json")
		if err := os.WriteFile(path, []byte(input), 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := ReadSigningKey(path)
		if err != nil {
			t.Errorf("%s: %v", input, err)
			return
		}
		if k.ID != id || k.NoAlg != noAlg || k.Topic() != "events/up/"+id+"/new_qname" {
			t.Errorf("%s: key id %q, no alg %v, topic %q", input, k.ID, k.NoAlg, k.Topic())
		}
		public, err := base64.RawURLEncoding.DecodeString(testPublic)
		if err != nil {
			t.Fatal(err)
		}
		if !ed25519.Verify(public, []byte("message"), k.sign([]byte("message"))) {
			t.Errorf("%s: signs with another key", input)
		}
	}
	good(jwkText(), "node", false)
	good(" \n"+jwkText()+"\n", "node", false)
	good(jwkText("alg", "Ed25519"), "node", false) // RFC 9864
	good(jwkText("alg", ""), "node", true)
	good(jwkText("iss", ""), "node", false)
	good(jwkText("use", "sig", "extra", "member"), "node", false)
	good(jwkText("kid", "a b\"\\<ü>.example"), "a b\"\\<ü>.example", false)
	good(jwkText("kid", "$node"), "$node", false)

	bad := func(input, want string) {
		t.Helper()
		k, err := parseSigningKey([]byte(input))
		if err == nil {
			t.Errorf("%s: accepted, as %q", input, k.ID)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q does not say %q", input, err, want)
		} else {
			checkError(t, err)
		}
	}
	bad(jwkText("d", ""), "public key")
	bad(jwkText("d", "AAAA"), "32 octets")
	bad(jwkText("d", testSeed+"AAAA"), "32 octets")
	bad(jwkText("d", testSeed[:42]), "32 octets")
	bad(jwkText("d", strings.Repeat("%", 43)), "32 octets")
	bad(jwkText("x", ""), "does not belong")
	bad(jwkText("x", testSeed), "does not belong")
	bad(jwkText("x", testPublic[:42]), "does not belong")
	bad(jwkText("crv", "Ed448"), `"Ed448"`)
	bad(jwkText("crv", ""), "curve")
	bad(jwkText("crv", testSeed), "not shown")
	bad(jwkText("kty", testSeed), "not shown")
	bad(jwkText("alg", testSeed), "not shown")
	bad(jwkText("crv", "X25519"), `"X25519"`)
	bad(jwkText("kty", "EC", "crv", "P-256"), `"P-256"`)
	bad(jwkText("kty", "oct"), `"oct"`)
	bad(jwkText("alg", "ES256"), `"ES256"`)
	bad(jwkText("kid", ""), "no key id")
	for _, kid := range []string{"a/b", "a+", "#", "nul\x00", "line\nfeed", "\x7f", "\u0085", strings.Repeat("k", 65500)} {
		bad(jwkText("kid", kid), "level of an MQTT topic")
	}
	for _, garbage := range []string{
		"", "null", "[]", "17", `"text"`, "{", "{}" + jwkText(), jwkText() + jwkText(), jwkText()[:40], "-----BEGIN PRIVATE KEY-----\nnothing\n", "\xff\xfe\x00",
		strings.Replace(jwkText(), `"`+testSeed+`"`, `{"`+testSeed+`":1}`, 1),
		strings.Replace(jwkText(), `"`+testSeed+`"`, `["`+testSeed+`"]`, 1),
		strings.Replace(jwkText(), `"`+testSeed+`"`, testSeed, 1),
		strings.Replace(jwkText(), `"node"`, `7`, 1),
	} {
		bad(garbage, "")
	}
	bad(`{"keys":[`+jwkText()+`]}`, "set of keys")

	if _, err := ReadSigningKey(filepath.Join(t.TempDir(), "absent")); !os.IsNotExist(err) {
		t.Errorf("an absent file: %v", err)
	}
}

// checkError checks that an error is a line of text without the key.
func checkError(t testing.TB, err error) {
	t.Helper()
	text := err.Error()
	if strings.Contains(text, testSeed[:20]) || strings.Contains(text, testSeed[22:42]) {
		t.Errorf("an error holds the key: %s", text)
	}
	if strings.ContainsAny(text, "\n\r") || !utf8.ValidString(text) {
		t.Errorf("an error is not a line of text: %q", text)
	}
}

// A key is a secret that somebody prints by mistake some day.
func TestSigningKeyPrinted(t *testing.T) {
	seed, err := base64.RawURLEncoding.DecodeString(testSeed)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{testKey, *testKey} {
			text := fmt.Sprintf(format, v)
			for _, secret := range []string{testSeed, fmt.Sprintf("%x", seed), strings.Trim(fmt.Sprintf("%d", seed), "[]")} {
				if strings.Contains(text, secret) {
					t.Errorf("%s of %T prints the key", format, v)
				}
			}
		}
	}
}

func FuzzSigningKey(f *testing.F) {
	f.Add([]byte(jwkText()))
	f.Add([]byte(jwkText("kid", "a/b")))
	f.Add([]byte(jwkText("alg", "")))
	f.Add([]byte(`{"keys":[` + jwkText() + `]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseSigningKey(b)
		if err != nil {
			if !strings.Contains(err.Error(), "key id") { // which the input may have put the seed in
				checkError(t, err)
			}
			return
		}
		if k.ID == "" || strings.ContainsAny(k.ID, "/+#\x00") || !utf8.ValidString(k.Topic()) || len(k.Topic()) > 65535 {
			t.Errorf("a key with the id %q", k.ID)
		}
		message := []byte("message")
		if !ed25519.Verify(k.private.Public().(ed25519.PublicKey), message, k.sign(message)) {
			t.Error("what it signs cannot be verified")
		}
	})
}
