package output

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	uploadPath    = "api/v1/aggregate/histogram"
	parquetType   = "application/vnd.apache.parquet"
	responseWait  = 60 * time.Second
	idleTimeout   = 30 * time.Second // so that each minute's connection has the certificates of the day
	longestAnswer = 4 << 10
	longestHeader = 64 << 10
	longestReason = 200
	clockMargin   = 5 * time.Second // what Core forgives
)

// What a receiver's answer means for the file.
const (
	failed    = iota // it is kept, and tried again later
	delivered        // it goes to SentFolder
	refused          // it goes to RefusedFolder
	unread           // it could not be read; the receiver knows nothing of it
	cancelled        // we stop
)

// An answer is what came of one try to upload a file.
type answer struct {
	verdict    int
	info       fs.FileInfo // of the file that was sent
	code       string      // the status, "timeout" or "error"
	err        error       // unless delivered
	retryAfter time.Duration
	ahead      time.Duration // our clock of the receiver's, if it does not take our signature
}

// errStalled ends a try.
var errStalled = errors.New("the receiver neither took nor sent anything for too long")

// A fileError is a failure of our own disk in the middle of a try.
type fileError struct{ error }

func (e fileError) Unwrap() error { return e.error }

// newClient makes a client of HTTP/1.1 and 2. It asks nothing of the
// environment and follows no redirects.
func newClient(o *UploaderOptions) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSClientConfig:        o.TLS,
			TLSHandshakeTimeout:    connectTimeout,
			ForceAttemptHTTP2:      true, // it would be off with a TLS configuration of ours
			DisableCompression:     true,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: longestHeader,
		},
	}
}

// try uploads a file once. It returns when the receiver has answered, when
// nothing has moved for u.wait, or when ctx ends.
//
// The file stays open from the digest to the last octet sent, so both are of
// the same bytes whatever becomes of its name.
func (u *Uploader) try(ctx context.Context, f finished) (a answer) {
	file, info, err := openFinished(filepath.Join(u.outbox, f.name))
	if err != nil {
		return answer{verdict: unread, err: err}
	}
	defer file.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(u.wait, func() { cancel(errStalled) })
	defer stall.Stop()
	moved := func() { stall.Reset(u.wait) }

	hash := sha256.New()
	n, err := io.Copy(hash, &upload{io.NewSectionReader(file, 0, info.Size()), ctx, moved})
	if err == nil && n != info.Size() {
		err = fileError{fmt.Errorf("%s became shorter while it was read", file.Name())}
	}
	if err != nil {
		return u.fault(ctx, info, err)
	}
	body := &upload{io.NewSectionReader(file, 0, info.Size()), ctx, moved}
	res, err := u.client.Do(u.request(ctx, f.iv, body, hash.Sum(nil)))
	if err != nil {
		return u.fault(ctx, info, err)
	}
	defer res.Body.Close()
	// An answer counts when all of it is there, or as much as is read of it.
	text, err := io.ReadAll(io.LimitReader(res.Body, longestAnswer))
	if err != nil {
		return u.fault(ctx, info, fmt.Errorf("the answer %s ends early: %w", short(res.Status), err))
	}
	return judge(res, text, info)
}

// request makes the request of a try, signed now.
func (u *Uploader) request(ctx context.Context, iv Interval, body *upload, digest []byte) *http.Request {
	key, size := u.o.Key(), body.Size()
	covered := []component{
		{"content-type", parquetType},
		{"content-length", strconv.FormatInt(size, 10)},
		{"content-digest", "sha-256=" + byteSequence(digest)},
		{"aggregate-interval", iv.String()},
	}
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           u.target,
		Header:        make(http.Header),
		Body:          body,
		ContentLength: size, // with it nothing is sent in chunks
	}).WithContext(ctx)
	if size == 0 {
		req.Body = http.NoBody // or the length would be taken for unknown
	}
	for _, c := range covered {
		req.Header.Set(c.name, c.value)
	}
	input, signature := signFields(signatureLabel, covered, time.Now(), key)
	req.Header.Set("Signature-Input", input)
	req.Header.Set("Signature", signature)
	req.Header.Set("User-Agent", "edm/"+u.o.Version)
	return req
}

// An upload is a file on its way. Each read of it shows that something moves.
type upload struct {
	*io.SectionReader
	ctx   context.Context
	moved func()
}

func (b *upload) Read(p []byte) (int, error) {
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	b.moved()
	n, err := b.SectionReader.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, os.ErrClosed) { // closed: the try is over
		err = fileError{err}
	}
	return n, err
}

func (b *upload) Close() error { return nil }

// fault says what a try that got no answer has come to.
func (u *Uploader) fault(ctx context.Context, info fs.FileInfo, err error) answer {
	a := answer{info: info, code: "error", err: err}
	cause := context.Cause(ctx)
	ne, isNet := errors.AsType[net.Error](err)
	_, isFile := errors.AsType[fileError](err)
	switch {
	case cause == errStalled:
		a.code, a.err = "timeout", fmt.Errorf("%w (%v)", errStalled, u.wait)
	case cause != nil:
		a.verdict = cancelled
	case isFile:
		a.verdict = unread
	case isNet && ne.Timeout():
		a.code = "timeout"
	}
	if ue, ok := errors.AsType[*url.Error](a.err); ok {
		a.err = ue.Err // without the URL, which is in the settings
	}
	if text := a.err.Error(); len(text) > 2*longestReason { // it may quote what came
		a.err = errors.New(text[:2*longestReason] + "…")
	}
	return a
}

// judge says what an answer means.
func judge(res *http.Response, text []byte, info fs.FileInfo) answer {
	a := answer{info: info, code: strconv.Itoa(res.StatusCode)}
	reason := short(res.Status)
	if t := strings.TrimSpace(string(text)); t != "" {
		reason += ": " + short(t)
	}
	switch res.StatusCode {
	case http.StatusCreated:
		a.verdict = delivered
		return a
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		a.verdict = refused
	case http.StatusUnauthorized:
		if a.ahead = clockAhead(res.Header.Get("Date"), time.Now()); a.ahead != 0 {
			reason += fmt.Sprintf("; our clock and its are %v apart", a.ahead.Abs().Round(time.Second))
		}
	}
	a.err = errors.New(reason)
	a.retryAfter = retryAfter(res.Header.Get("Retry-After"), time.Now())
	return a
}

// short quotes the beginning of what somebody else wrote.
func short(s string) string {
	if len(s) > longestReason {
		return strconv.Quote(s[:longestReason]) + "…"
	}
	return strconv.Quote(s)
}

// clockAhead returns by how much our clock is ahead of the one that made a
// Date, which has whole seconds; 0 if that is little, or if there is no Date.
func clockAhead(date string, now time.Time) time.Duration {
	t, err := http.ParseTime(date)
	if err != nil {
		return 0
	}
	ahead := now.Sub(t)
	if ahead > 0 {
		ahead = max(0, ahead-time.Second)
	}
	if ahead.Abs() <= clockMargin {
		return 0
	}
	return ahead
}

// retryAfter returns how long a receiver asks to be left alone, in seconds or
// until a date: at most longestBackoff.
func retryAfter(field string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(field, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, longestBackoff)
	}
	if t, err := http.ParseTime(field); err == nil {
		return min(max(0, t.Sub(now)), longestBackoff)
	}
	return 0
}
