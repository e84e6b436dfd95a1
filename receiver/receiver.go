// Package receiver is a stand-in for the receiver that histograms are uploaded
// to, for tests. It takes what the real one takes and is at least as strict,
// so an upload that passes here passes there.
//
//	receiver.go   a request → its status; what was taken is kept
//	signature.go  HTTP message signatures (RFC 9421) and structured fields (RFC 8941)
//	authority.go  certificates, and a server of TLS 1.3 that asks for them
//
// Nothing here is shared with the code that makes the requests: it is written
// from the specifications, so that the two agree only if both are right.
package receiver

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Path is where uploads go.
const Path = "/api/v1/aggregate/histogram"

const (
	contentType  = "application/vnd.apache.parquet"
	longestBody  = 64 << 20
	aheadAtMost  = 5 * time.Second
	oldAtMost    = 24 * time.Hour
	digestMember = "sha-256"
)

// A Receiver takes uploads of the nodes whose keys it knows. It is an
// http.Handler. Its exported fields must not change once it serves.
type Receiver struct {
	Keys map[string]ed25519.PublicKey // by key id
	Now  func() time.Time             // its clock; nil is the clock

	mu       sync.Mutex
	taken    []Taken        // guarded by mu
	digests  map[string]int // guarded by mu; how often each was taken
	statuses []int          // guarded by mu; given, in order
}

// A Taken is an upload as it was taken.
type Taken struct {
	KeyID     string
	Label     string   // of the signature
	Covered   []string // by the signature, in order
	Created   time.Time
	Interval  string // Aggregate-Interval
	Digest    string // Content-Digest
	UserAgent string
	Proto     string // HTTP/1.1, HTTP/2.0
	Body      []byte
}

// Taken returns what was taken, in order, what came again once only.
func (r *Receiver) Taken() []Taken {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.taken)
}

// Times returns how often the bytes of a digest were taken.
func (r *Receiver) Times(digest string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.digests[digest]
}

// Statuses returns the statuses given, in order.
func (r *Receiver) Statuses() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.statuses)
}

// A refusal is a status with its reason.
type refusal struct {
	status int
	reason string
}

func (e refusal) Error() string { return e.reason }

func refuse(status int, format string, args ...any) error {
	return refusal{status, fmt.Sprintf(format, args...)}
}

func (r *Receiver) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// ServeHTTP answers 201 to a good upload, also if it came before from whatever
// node; 401 if it is not signed well, 422 for a bad interval, 400 and others
// for the rest. It answers nothing to a body that is cut.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Date", r.now().UTC().Format(http.TimeFormat))
	taken, err := r.check(req)
	status, text := http.StatusCreated, ""
	if err != nil {
		refused, ok := errors.AsType[refusal](err)
		if !ok {
			panic(http.ErrAbortHandler)
		}
		status, text = refused.status, fmt.Sprintf(`{"detail":%q}`, refused.reason)
		w.Header().Set("Content-Type", "application/json")
	}
	r.mu.Lock()
	r.statuses = append(r.statuses, status)
	if err == nil {
		if r.digests == nil {
			r.digests = make(map[string]int)
		}
		if r.digests[taken.Digest]++; r.digests[taken.Digest] == 1 {
			r.taken = append(r.taken, taken)
		}
	}
	r.mu.Unlock()
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// check says what is wrong with an upload: with a refusal, or another error if
// it did not come whole.
func (r *Receiver) check(req *http.Request) (Taken, error) {
	switch {
	case req.URL.Path != Path || req.URL.RawQuery != "":
		return Taken{}, refuse(http.StatusNotFound, "there is nothing at %s", req.URL)
	case req.Method != http.MethodPost:
		return Taken{}, refuse(http.StatusMethodNotAllowed, "%s is not POST", req.Method)
	case req.TLS == nil || req.TLS.Version < tlsVersion || len(req.TLS.PeerCertificates) == 0:
		return Taken{}, refuse(http.StatusForbidden, "it takes TLS 1.3 and a client certificate")
	case req.ContentLength < 0 || len(req.TransferEncoding) > 0:
		return Taken{}, refuse(http.StatusBadRequest, "the body has no length")
	case len(req.Header["Content-Length"]) != 1 || req.Header.Get("Content-Length") != strconv.FormatInt(req.ContentLength, 10):
		return Taken{}, refuse(http.StatusBadRequest, "the length of the body is not given once: %q", req.Header["Content-Length"])
	case !slices.Equal(req.Header["Content-Type"], []string{contentType}):
		return Taken{}, refuse(http.StatusBadRequest, "the content type is %q", req.Header["Content-Type"])
	case req.ContentLength > longestBody:
		return Taken{}, refuse(http.StatusRequestEntityTooLarge, "%d octets are too many", req.ContentLength)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return Taken{}, err
	}
	taken := Taken{UserAgent: req.UserAgent(), Proto: req.Proto, Body: body}
	signature, err := parseSignature(req.Header)
	if err == nil {
		err = r.verify(signature, req.Header)
	}
	if err != nil {
		return Taken{}, refuse(http.StatusUnauthorized, "the signature: %v", err)
	}
	taken.KeyID, taken.Label, taken.Covered, taken.Created = signature.keyID, signature.label, signature.covered, signature.created
	if taken.Digest, err = checkDigest(req.Header, body); err != nil {
		return Taken{}, refuse(http.StatusBadRequest, "the digest: %v", err)
	}
	if taken.Interval, err = checkInterval(req.Header["Aggregate-Interval"]); err != nil {
		return Taken{}, refuse(http.StatusUnprocessableEntity, "the interval: %v", err)
	}
	return taken, nil
}

// verify checks a signature of fields.
func (r *Receiver) verify(s *signature, fields http.Header) error {
	key, known := r.Keys[s.keyID]
	if !known {
		return fmt.Errorf("the key %q is not known", s.keyID)
	}
	if !slices.Contains(s.covered, "content-digest") {
		return errors.New("it does not cover content-digest")
	}
	switch age := r.now().Sub(s.created); {
	case age > oldAtMost:
		return fmt.Errorf("it is %v old", age)
	case age < -aheadAtMost:
		return fmt.Errorf("it is of the future, by %v", -age)
	}
	base, err := s.base(fields)
	if err != nil {
		return err
	}
	if !ed25519.Verify(key, base, s.value) {
		return errors.New("it is not of these fields and this key")
	}
	return nil
}

// checkDigest checks Content-Digest (RFC 9530) and returns it.
func checkDigest(fields http.Header, body []byte) (string, error) {
	values := fields["Content-Digest"]
	if len(values) != 1 {
		return "", fmt.Errorf("it is given %d times", len(values))
	}
	p := parser{rest: values[0]}
	name, err := p.key()
	if err != nil {
		return "", err
	}
	if name != digestMember || !p.skip("=") {
		return "", fmt.Errorf("it is %q, not one of %s", values[0], digestMember)
	}
	digest, err := p.byteSequence()
	if err != nil {
		return "", err
	}
	if sum := sha256.Sum256(body); p.rest != "" || !bytes.Equal(digest, sum[:]) {
		return "", errors.New("it is not that of the body")
	}
	return values[0], nil
}

var interval = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)/PT(\d+H)?(\d+M)?(\d+S)?$`)

// checkInterval checks that an interval is a start and a duration of ISO 8601,
// and returns it.
func checkInterval(values []string) (string, error) {
	if len(values) != 1 {
		return "", fmt.Errorf("it is given %d times", len(values))
	}
	m := interval.FindStringSubmatch(values[0])
	if m == nil || m[2]+m[3]+m[4] == "" {
		return "", fmt.Errorf("%q is not a start and a duration", values[0])
	}
	if _, err := time.Parse(time.RFC3339, m[1]); err != nil {
		return "", err
	}
	return values[0], nil
}
