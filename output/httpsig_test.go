package output

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// The three requests of the reference come out octet for octet: each has its
// own components, order and label. The last is what edm sends.
func TestSignFieldsReference(t *testing.T) {
	var file struct {
		Seed    string `json:"seed_b64url"`
		Vectors []struct {
			Name    string
			Headers map[string]string
		}
	}
	b, err := os.ReadFile("testdata/http-signature.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	seed, err := base64.RawURLEncoding.DecodeString(file.Seed)
	if err != nil {
		t.Fatal(err)
	}
	key := &SigningKey{ID: "alpha-edge.dev.example.test", private: ed25519.NewKeyFromSeed(seed)}
	f := func(vector int, label string, names ...string) {
		t.Helper()
		want := file.Vectors[vector].Headers
		var covered []component
		for _, name := range names {
			covered = append(covered, component{name, want[name]})
		}
		input, signature := signFields(label, covered, time.Unix(1796032860, 999), key)
		if input != want["signature-input"] || signature != want["signature"] {
			t.Errorf("%s:\n%s\n%s\nwant\n%s\n%s", file.Vectors[vector].Name, input, signature, want["signature-input"], want["signature"])
		}
	}
	f(0, "client", "content-type", "content-length", "content-digest")
	f(1, "client", "content-type", "content-digest", "content-length", "aggregate-interval")
	f(2, signatureLabel, "content-type", "content-length", "content-digest", "aggregate-interval")

	// The same by what a try is made of, except for its clock.
	body, err := base64.StdEncoding.DecodeString("UEFSMXJlZmVyZW5jZS1ib2R5UEFSMQ==")
	if err != nil {
		t.Fatal(err)
	}
	p := newPost(t)
	p.o.Key = func() *SigningKey { return key }
	p.put("dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet", string(body))
	p.receiver.Keys = map[string]ed25519.PublicKey{key.ID: key.private.Public().(ed25519.PublicKey)}
	var got http.Header
	p.serve = func(w http.ResponseWriter, req *http.Request) {
		got = req.Header.Clone()
		p.receiver.ServeHTTP(w, req)
	}
	p.runToEnd()
	want := file.Vectors[2].Headers
	for _, name := range []string{"content-type", "content-length", "content-digest", "aggregate-interval"} {
		if got.Get(name) != want[name] {
			t.Errorf("%s: %q, want %q", name, got.Get(name), want[name])
		}
	}
	input, _, _ := strings.Cut(want["signature-input"], "1796032860")
	if !strings.HasPrefix(got.Get("signature-input"), input) {
		t.Errorf("signature-input is %q", got.Get("signature-input"))
	}
}

func TestSignsRequests(t *testing.T) {
	f := func(id string, good bool) {
		t.Helper()
		if err := (&SigningKey{ID: id}).SignsRequests(); (err == nil) != good {
			t.Errorf("%q: %v", id, err)
		}
	}
	f("node.example", true)
	f(`a "b" \c ~`, true)
	f("nöde", false)
	f("a\tb", false)
	f("a\x7f", false)
	f("\xff", false)
}
