package output

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/miekg/dns"
)

var testMinute = time.Date(2026, 11, 30, 10, 20, 0, 0, time.UTC).Unix() / 60

// testNames are names in wire form that are hard to write down.
func testNames(t testing.TB) [][]byte {
	label := func(l string) []byte { return slices.Concat([]byte{byte(len(l))}, []byte(l), []byte("\x03com\x00")) }
	all := [][]byte{{0}, wire(t, "new.example.com."), wire(t, "1-2_3=4/5.example.")}
	for _, l := range []string{
		"tab\there", "line\nfeed", "nul\x00", `quote"`, `back\slash`, "dot.inside", "\xff\xfe", "\xc3\xbc", "sp ace", "\x7f", "'@;()$*<>&\u2028",
		strings.Repeat("\x00", 63), strings.Repeat(`"`, 63), strings.Repeat(`\`, 63), strings.Repeat(".", 63), strings.Repeat("\x80", 63),
	} {
		all = append(all, label(l))
	}
	every := make([]byte, 0, 256)
	for c := range 256 {
		if c >= 'A' && c <= 'Z' {
			continue
		}
		every = append(every, byte(c))
	}
	for chunk := range slices.Chunk(every, 60) {
		all = append(all, label(string(chunk)))
	}
	for _, c := range []string{"a", `"`, `\`, "\x00", "\xff", "."} { // 255 octets, the longest
		l := strings.Repeat(c, 63)
		name := slices.Concat([]byte{63}, []byte(l), []byte{63}, []byte(l), []byte{63}, []byte(l), []byte{61}, []byte(l[:61]), []byte{0})
		if len(name) != 255 {
			t.Fatal(len(name))
		}
		all = append(all, name)
	}
	return append(all, wire(t, strings.Repeat("a.", 127)))
}

func TestPayload(t *testing.T) {
	f := func(e Event, want string) {
		t.Helper()
		e.Minute = testMinute
		if got := string(e.appendPayload([]byte("before"))); got != "before"+want {
			t.Errorf("payload %s\nwant    %s", got[6:], want)
		}
	}
	f(Event{Name: wire(t, "new.example.com."), Flags: 33152, Type: 1, Class: 1},
		`{"flags":33152,"qclass":1,"qname":"new.example.com.","qtype":1,"timestamp":"2026-11-30T10:20:00Z","type":"new_qname","version":0}`)
	f(Event{Name: []byte{0}, Flags: 65535, Type: 65535, Class: 65535},
		`{"flags":65535,"qclass":65535,"qname":".","qtype":65535,"timestamp":"2026-11-30T10:20:00Z","type":"new_qname","version":0}`)
	f(Event{Name: []byte("\x03a.b\x03c\"d\x03e\\f\x03g\th\x02\xc3\xbc\x04\x00\n <\x00")},
		`{"flags":0,"qclass":0,"qname":"a\\.b.c\\\"d.e\\\\f.g\\009h.\\195\\188.\\000\\010\\ <.","qtype":0,"timestamp":"2026-11-30T10:20:00Z","type":"new_qname","version":0}`)
}

// The payloads of all hard names, byte for byte.
func TestPayloadGolden(t *testing.T) {
	var b []byte
	for i, name := range testNames(t) {
		e := Event{Name: name, Flags: uint16(i), Type: 1, Class: 1, Minute: testMinute}
		b = append(e.appendPayload(b), '\n')
	}
	golden := filepath.Join("testdata", "events.jsonl")
	if *update {
		if err := os.WriteFile(golden, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("payloads differ from %s", golden)
	}
	for line := range bytes.Lines(want) {
		checkSchema(t, bytes.TrimSuffix(line, []byte("\n")))
	}
}

// checkSchema checks a payload as the analyst reads it, which refuses what it
// does not know, and returns the name in wire form.
func checkSchema(t testing.TB, payload []byte) []byte {
	t.Helper()
	if !utf8.Valid(payload) || bytes.ContainsAny(payload, "\n\r") {
		t.Fatalf("not a line of UTF-8: %q", payload)
	}
	var p struct {
		Flags     *uint16    `json:"flags"`
		Qclass    *uint16    `json:"qclass"`
		Qname     *string    `json:"qname"`
		Qtype     *uint16    `json:"qtype"`
		Timestamp *time.Time `json:"timestamp"`
		Type      string     `json:"type"`
		Version   *int       `json:"version"`
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%q: %v", payload, err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("%q: something follows", payload)
	}
	if p.Flags == nil || p.Qclass == nil || p.Qname == nil || p.Qtype == nil || p.Timestamp == nil || p.Type != "new_qname" || p.Version == nil || *p.Version != 0 {
		t.Fatalf("%q: a member is missing", payload)
	}
	if p.Timestamp.Second() != 0 || !bytes.Contains(payload, []byte(`:00Z"`)) {
		t.Errorf("%q: the time is not a minute in UTC", payload)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil || len(members) != 7 {
		t.Errorf("%q: %d members, %v", payload, len(members), err)
	}
	if !strings.HasSuffix(*p.Qname, ".") || strings.ContainsAny(*p.Qname, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t.Errorf("%q: the name is not as it should be", payload)
	}
	return wire(t, *p.Qname)
}

func FuzzPayload(f *testing.F) {
	for _, name := range testNames(f) {
		f.Add(name, uint16(33152), uint16(1), uint16(1), testMinute)
	}
	f.Fuzz(func(t *testing.T, b []byte, flags, qtype, class uint16, minute int64) {
		name := make([]byte, 0, 256)
		for len(b) > 0 { // any bytes make a name: lengths and labels
			n := 1 + int(b[0])%63
			b = b[1:]
			n = min(n, len(b), 253-len(name))
			if n <= 0 {
				break
			}
			name = append(append(name, byte(n)), lower(b[:n])...)
			b = b[n:]
		}
		name = append(name, 0)
		minute = (minute%(200*365*24*60) + 200*365*24*60) % (200 * 365 * 24 * 60)
		e := Event{Name: name, Flags: flags, Type: qtype, Class: class, Minute: minute}
		payload := e.appendPayload(nil)
		if got := checkSchema(t, payload); !bytes.Equal(got, name) {
			t.Errorf("%q reads as %q, want %q", payload, got, name)
		}
		// miekg/dns writes the same presentation form.
		want, _, err := dns.UnpackDomainName(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		var p struct{ Qname string }
		if err := json.Unmarshal(payload, &p); err != nil || p.Qname != want {
			t.Errorf("name %q, want %q (%v)", p.Qname, want, err)
		}
		plain := func(r rune) bool {
			return !strings.ContainsRune("-/_=.abcdefghijklmnopqrstuvwxyz0123456789", r)
		}
		if got := e.storable(); got != (want != "." && !strings.ContainsFunc(want, plain)) {
			t.Errorf("storable is %v for %q", got, want)
		}
	})
}

// lower makes a copy with the letters A to Z, and no other octet, in lower case.
func lower(b []byte) []byte {
	c := bytes.Clone(b)
	for i, x := range c {
		if x >= 'A' && x <= 'Z' {
			c[i] = x + 'a' - 'A'
		}
	}
	return c
}

func TestStorable(t *testing.T) {
	f := func(name string, want bool) {
		t.Helper()
		if got := (&Event{Name: []byte(name)}).storable(); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	f("\x00", false)
	f("\x01a\x00", true)
	f("\x09-/_=az09a\x03com\x00", true)
	f("\x01.\x00", false) // presented with a backslash
	f("\x01*\x03com\x00", false)
	f("\x03com\x01\x00\x00", false)
	f("\x03a b\x00", false)
	f("\x02\xc3\xbc\x00", false)
}

// awkward are key ids that JSON or HTML escape.
var awkward = []string{"node.example", "a", `quote"back\slash`, "<script>&", "ünïcödé-名前", "\u2028", strings.Repeat("k", 300), " "}

func keyNamed(t testing.TB, id string) *SigningKey {
	t.Helper()
	k, err := parseSigningKey([]byte(jwkText("kid", id)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// jwx, with the public key alone, verifies every event.
func TestSigned(t *testing.T) {
	for _, id := range awkward {
		public := publicKey(t, id)
		s := newSigner(keyNamed(t, id))
		var dst []byte
		for i, name := range testNames(t) {
			e := Event{Name: name, Flags: uint16(i), Type: 1, Class: 1, Minute: testMinute}
			dst = s.appendSigned(dst[:0], &e)
			checkSigned(t, dst, public, id, e.appendPayload(nil))
		}
	}
}

// checkSigned checks an envelope: its form, its header and its signature.
func checkSigned(t testing.TB, envelope []byte, public jwk.Key, id string, payload []byte) {
	t.Helper()
	set := jwk.NewSet()
	if err := set.AddKey(public); err != nil {
		t.Fatal(err)
	}
	got, err := jws.Verify(envelope, jws.WithJSON(), jws.WithKeySet(set, jws.WithRequireKid(true)))
	if err != nil {
		t.Fatalf("%v: %s", err, envelope)
	}
	if !bytes.Equal(got, payload) {
		t.Errorf("payload %q, want %q", got, payload)
	}
	var form struct{ Payload, Protected, Signature *string }
	d := json.NewDecoder(bytes.NewReader(envelope))
	d.DisallowUnknownFields()
	if err := d.Decode(&form); err != nil || form.Payload == nil || form.Protected == nil || form.Signature == nil {
		t.Fatalf("not the flattened form (%v): %s", err, envelope)
	}
	if bytes.ContainsAny(envelope, "\n\r =") {
		t.Errorf("padding or line ends: %s", envelope)
	}
	header, err := base64.RawURLEncoding.DecodeString(*form.Protected)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]string
	if err := json.Unmarshal(header, &members); err != nil || len(members) != 2 || members["alg"] != "EdDSA" || members["kid"] != id {
		t.Errorf("header %q (%v)", header, err)
	}
	if prefix := []byte(`{"alg":"EdDSA","kid":"`); !bytes.HasPrefix(header, prefix) {
		t.Errorf("header %q", header)
	}
}

// publicKey is the public half of the test key, as jwx has it.
func publicKey(t testing.TB, id string) jwk.Key {
	t.Helper()
	private, err := jwk.ParseKey([]byte(jwkText("kid", id)))
	if err != nil {
		t.Fatal(err)
	}
	public, err := private.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if alg, ok := public.Algorithm(); !ok || alg != jwa.EdDSA() {
		t.Fatalf("algorithm %v", alg)
	}
	return public
}

// A changed octet anywhere in payload, header or signature is noticed, so the
// signature is over what it should be.
func TestSignedOver(t *testing.T) {
	e := Event{Name: wire(t, "new.example.com."), Minute: testMinute}
	envelope := newSigner(testKey).appendSigned(nil, &e)
	if _, err := open(envelope, testKey); err != nil {
		t.Fatal(err)
	}
	for part := range bytes.SplitSeq(envelope, []byte(`"`)) {
		if len(part) < 20 { // not one of the three values
			continue
		}
		at := bytes.Index(envelope, part)
		for i := at; i < at+len(part)-1; i++ { // the last may hold unused bits
			changed := bytes.Clone(envelope)
			if changed[i] = 'A'; envelope[i] == 'A' {
				changed[i] = 'B'
			}
			if _, err := open(changed, testKey); err == nil {
				t.Errorf("octet %d: not noticed", i)
			}
		}
	}
}

// What is signed with RFC 8037's key is what RFC 8037 appendix A.4 says.
func TestSignRFC8037(t *testing.T) {
	const input = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
	const want = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
	if got := base64.RawURLEncoding.EncodeToString(testKey.sign([]byte(input))); got != want {
		t.Errorf("signature %s", got)
	}
}

func TestSignAllocations(t *testing.T) {
	s := newSigner(testKey)
	e := Event{Name: wire(t, "new.example.com."), Minute: testMinute}
	dst := s.appendSigned(nil, &e)
	if n := testing.AllocsPerRun(100, func() { dst = s.appendSigned(dst[:0], &e) }); n > 1 { // the signature
		t.Errorf("%v allocations for an event", n)
	}
}

// BenchmarkSigned compares an event, ready to be sent, with its signature alone.
func BenchmarkSigned(b *testing.B) {
	e := Event{Name: wire(b, "new.example.com."), Flags: 33152, Type: 1, Class: 1, Minute: testMinute}
	s := newSigner(testKey)
	packet := appendPublish(nil, s, &e, publishHeader{testKey.Topic(), 1, 1})
	b.Run("signature", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ed25519.Sign(testKey.private, s.input)
		}
	})
	b.Run("packet", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			packet = appendPublish(packet[:0], s, &e, publishHeader{testKey.Topic(), 1, 1})
		}
	})
	b.Logf("a packet of %d octets", len(packet))
}
