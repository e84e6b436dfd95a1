package receiver

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// An example is a signed request of the reference.
type example struct {
	Name    string
	Body    []byte            `json:"body_b64"`
	Headers map[string]string `json:"headers"`
	Base    string            `json:"signature_base"`
}

func reference(t testing.TB) (ed25519.PublicKey, []example) {
	t.Helper()
	var file struct {
		Public  string `json:"public_b64url"`
		Vectors []example
	}
	b, err := os.ReadFile("../output/testdata/http-signature.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	public, err := base64.RawURLEncoding.DecodeString(file.Public)
	if err != nil || len(file.Vectors) != 3 {
		t.Fatal(err, len(file.Vectors))
	}
	return public, file.Vectors
}

func (e *example) fields() http.Header {
	h := http.Header{}
	for name, value := range e.Headers {
		h.Set(name, value)
	}
	return h
}

const (
	referenceKeyID   = "alpha-edge.dev.example.test"
	referenceCreated = 1796032860
)

func referenceReceiver(public ed25519.PublicKey) *Receiver {
	return &Receiver{
		Keys: map[string]ed25519.PublicKey{referenceKeyID: public},
		Now:  func() time.Time { return time.Unix(referenceCreated, 0) },
	}
}

// The reference was made by another implementation, so this tells that the
// stand-in is right.
func TestReference(t *testing.T) {
	public, examples := reference(t)
	r := referenceReceiver(public)
	for _, e := range examples {
		fields := e.fields()
		s, err := parseSignature(fields)
		if err != nil {
			t.Errorf("%s: %v", e.Name, err)
			continue
		}
		if base, err := s.base(fields); err != nil || string(base) != e.Base {
			t.Errorf("%s: the base is\n%s\nwant\n%s\n%v", e.Name, base, e.Base, err)
		}
		if err := r.verify(s, fields); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
		if _, err := checkDigest(fields, e.Body); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
}

func TestSignatureRefused(t *testing.T) {
	public, examples := reference(t)
	r := referenceReceiver(public)
	f := func(field, old, new, want string) {
		t.Helper()
		fields := examples[2].fields()
		value := fields.Get(field)
		if !strings.Contains(value, old) {
			t.Fatalf("there is no %q in %q", old, value)
		}
		fields.Set(field, strings.Replace(value, old, new, 1))
		s, err := parseSignature(fields)
		if err == nil {
			err = r.verify(s, fields)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s with %q for %q: %v, want %q", field, new, old, err, want)
		}
	}
	f("Content-Type", "parquet", "parquet2", "not of these fields")
	f("Content-Length", "22", "23", "not of these fields")
	f("Content-Digest", "d/", "e/", "not of these fields")
	f("Aggregate-Interval", "PT1M", "PT2M", "not of these fields")
	f("Signature", "W3c6", "X3c6", "not of these fields")
	f("Signature", "sig1", "sig2", "no signature of label")
	f("Signature", ":W3c6", "W3c6", "no byte sequence")
	f("Signature", "==:", "=:", "illegal base64")
	f("Signature", "==:", "==:, sig2=:AA==:", "more in Signature")
	f("Signature-Input", "sig1=", "sig1", "not an inner list")
	f("Signature-Input", "sig1=", "Sig1=", "is no key")
	f("Signature-Input", ";created=1796032860", "", "no parameter created")
	f("Signature-Input", ";alg=\"ed25519\"", "", "no parameter alg")
	f("Signature-Input", `;keyid="alpha-edge.dev.example.test"`, "", "no parameter keyid")
	f("Signature-Input", `;keyid="alpha`, `;keyid="beta`, "is not known")
	f("Signature-Input", `"ed25519"`, `"rsa-v1_5-sha256"`, "the algorithm is")
	f("Signature-Input", `"ed25519"`, `"ed25519";nonce="1"`, "nonce is not known")
	f("Signature-Input", `"ed25519"`, `"ed25519";alg="ed25519"`, "given twice")
	f("Signature-Input", "1796032860", "1796032861", "not of these fields")
	f("Signature-Input", "1796032860", "1796032866", "of the future, by 6s")
	f("Signature-Input", "1796032860", "1795946459", "24h0m1s old")
	f("Signature-Input", "1796032860", "01796032860", "not an integer")
	f("Signature-Input", "1796032860", "1796032860.5", "not an integer")
	f("Signature-Input", "1796032860", `"1796032860"`, "not an integer")
	f("Signature-Input", `"content-digest" `, "", "does not cover content-digest")
	f("Signature-Input", `"content-digest"`, `"content-digest";sf`, "has parameters")
	f("Signature-Input", `"content-digest"`, `"Content-Digest"`, "not a field's name")
	f("Signature-Input", `"content-digest"`, `"@method"`, "not a field's name")
	f("Signature-Input", `"content-length"`, `"content-digest"`, "there twice")
	f("Signature-Input", `"content-length"`, `"content-lengths"`, "which there is not")
	f("Signature-Input", `" "`, `"  "`, "no string")
	f("Signature-Input", `" "`, `""`, "no space")
}

func TestDigestAndIntervalRefused(t *testing.T) {
	digest := func(want string, values ...string) {
		t.Helper()
		if _, err := checkDigest(http.Header{"Content-Digest": values}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", values, err, want)
		}
	}
	empty := "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
	if _, err := checkDigest(http.Header{"Content-Digest": {empty}}, nil); err != nil {
		t.Error(err)
	}
	digest("0 times")
	digest("2 times", empty, empty)
	digest("not that of the body", empty+", sha-512=:AA==:")
	digest("not that of the body", strings.Replace(empty, "47", "57", 1))
	digest("not one of sha-256", strings.Replace(empty, "256", "512", 1))

	span := func(value string, good bool) {
		t.Helper()
		if _, err := checkInterval([]string{value}); (err == nil) != good {
			t.Errorf("%q: %v", value, err)
		}
	}
	span("2026-11-30T10:00:00Z/PT1M", true)
	span("2026-11-30T10:00:00Z/PT1H2M3S", true)
	span("2026-11-30T10:00:00Z/PT0S", true)
	span("2026-11-30T10:00:00Z/PT", false)
	span("2026-11-31T10:00:00Z/PT1M", false)
	span("2026-11-30T10:00:00/PT1M", false)
	span("2026-11-30T10:00:00+00:00/PT1M", false)
	span("2026-11-30T10:00:00Z/60S", false)
	span("2026-11-30T10:00:00Z/2026-11-30T10:01:00Z", false)
	span("", false)
}

// Whatever is in the fields, the stand-in says yes or no. What it takes as a
// signature is written as the specification would write it.
func FuzzSignature(f *testing.F) {
	_, examples := reference(f)
	for _, e := range examples {
		f.Add(e.Headers["signature-input"], e.Headers["signature"])
	}
	f.Fuzz(func(t *testing.T, input, value string) {
		s, err := parseSignature(http.Header{"Signature-Input": {input}, "Signature": {value}})
		if err != nil {
			return
		}
		var covered []string
		for _, c := range s.covered {
			covered = append(covered, fmt.Sprintf("%q", c))
		}
		if again := "(" + strings.Join(covered, " ") + ")"; !strings.HasPrefix(s.params, again) {
			t.Errorf("%q is not written %q", s.params, again)
		}
		if again := s.label + "=:" + base64.StdEncoding.EncodeToString(s.value) + ":"; again != value {
			t.Errorf("%q is not written %q", value, again)
		}
	})
}

func TestStatus(t *testing.T) {
	public, examples := reference(t)
	r := referenceReceiver(public)
	f := func(n int, change func(req *http.Request), want int) {
		t.Helper()
		e := &examples[n]
		req := httptest.NewRequest("POST", "https://host"+Path, bytes.NewReader(e.Body))
		req.TLS = &tls.ConnectionState{Version: tls.VersionTLS13, PeerCertificates: []*x509.Certificate{{}}}
		req.Header = e.fields()
		change(req)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		if w.Code != want {
			t.Errorf("%d %s, want %d", w.Code, w.Body, want)
		}
	}
	field := func(name, value string) func(req *http.Request) {
		return func(req *http.Request) { req.Header.Set(name, value) }
	}
	none := func(*http.Request) {}
	f(0, none, 201)
	f(1, none, 201) // the same octets
	f(2, none, 201)
	if taken := r.Taken(); len(taken) != 1 || r.Times(taken[0].Digest) != 3 || taken[0].Label != "client" {
		t.Errorf("taken %+v", taken)
	}
	f(2, func(req *http.Request) { req.URL.Path += "/" }, 404)
	f(2, func(req *http.Request) { req.URL.RawQuery = "a=b" }, 404)
	f(2, func(req *http.Request) { req.Method = "PUT" }, 405)
	f(2, func(req *http.Request) { req.TLS = nil }, 403)
	f(2, func(req *http.Request) { req.TLS.PeerCertificates = nil }, 403)
	f(2, func(req *http.Request) { req.TLS.Version = tls.VersionTLS12 }, 403)
	f(2, func(req *http.Request) { req.ContentLength = -1 }, 400)
	f(2, func(req *http.Request) { req.TransferEncoding = []string{"chunked"} }, 400)
	f(2, field("Content-Length", "23"), 400)
	f(2, field("Content-Type", contentType+"; charset=utf-8"), 400)
	f(2, func(req *http.Request) { req.Header.Add("Content-Type", contentType) }, 400)
	f(2, func(req *http.Request) { req.ContentLength = 1 << 30; req.Header.Set("Content-Length", "1073741824") }, 413)
	f(2, func(req *http.Request) { req.Body = io.NopCloser(strings.NewReader("PAR1reference-bodyPAR2")) }, 400)
	f(2, field("Aggregate-Interval", "2026-11-30T10:00:00Z/PT2M"), 401) // is signed
	f(0, field("Aggregate-Interval", "2026-11-30T10:00:00Z/1M"), 422)
	f(0, func(req *http.Request) { req.Header.Del("Aggregate-Interval") }, 422)
	f(2, func(req *http.Request) { req.Header.Del("Signature") }, 401)
	f(2, func(req *http.Request) { req.Header.Add("Signature", "sig2=:AA==:") }, 401)
	if n := len(r.Taken()); n != 1 {
		t.Errorf("%d were taken", n)
	}

	r.Now = func() time.Time { return time.Unix(referenceCreated, 0).Add(25 * time.Hour) }
	f(2, none, 401)
}
