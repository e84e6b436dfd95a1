package output

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"edm/receiver"
)

const postHost = "receiver.test"

var postAuthority = sync.OnceValue(receiver.NewAuthority)

// A post is an uploader and its receiver, with TLS between them over a pipe, so
// that it works by the clock of a bubble, too. Fields in the first group may be
// set until start.
type post struct {
	t        testing.TB
	o        UploaderOptions
	receiver *receiver.Receiver
	serve    http.HandlerFunc // in front of the receiver; nil is none
	dial     func() (net.Conn, error)
	onlyHTTP1,
	noURL bool
	answerIn time.Duration

	dir      string // of the outbox and the others
	contents map[string]string
	wake     chan struct{}
	closing  chan struct{}
	ended    chan struct{}
	conns    chan net.Conn
	waitFor  func() // Run to return

	mu      sync.Mutex
	tries   []time.Time // all below guarded by mu
	now     int         // tries under way at the receiver
	states  []string
	folders []string
	codes   map[string]int
	settled map[string]error // by path
	deleted [3]int
	clocks  []time.Duration
}

func newPost(t testing.TB) *post {
	p := &post{
		t: t, dir: t.TempDir(), contents: map[string]string{}, codes: map[string]int{}, settled: map[string]error{},
		wake: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}), conns: make(chan net.Conn),
	}
	p.receiver = &receiver.Receiver{Keys: map[string]ed25519.PublicKey{testKey.ID: testKey.private.Public().(ed25519.PublicKey)}}
	p.o = UploaderOptions{
		Key: func() *SigningKey { return testKey }, Version: "1.2.3", Histograms: p.dir, Sessions: filepath.Join(p.dir, "sessions"),
		Wake: p.wake, Grace: 3 * time.Second,
	}
	for _, dir := range []string{OutboxFolder, SentFolder, RefusedFolder, "sessions"} {
		if err := os.Mkdir(filepath.Join(p.dir, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	p.dial = p.pipe
	return p
}

// pipe makes a connection to the server.
func (p *post) pipe() (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

// put writes a histogram into the outbox, at once and whole.
func (p *post) put(name, content string) {
	p.t.Helper()
	temp := filepath.Join(p.dir, "new")
	write(p.t, temp, content)
	if err := os.Rename(temp, filepath.Join(p.dir, OutboxFolder, name)); err != nil {
		p.t.Fatal(err)
	}
	p.contents[name] = content
}

// A pipeListener accepts the other ends of pipes.
type pipeListener struct{ p *post }

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.p.conns:
		return c, nil
	case <-l.p.ended:
		return nil, net.ErrClosed
	}
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *post) noted(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// start runs the uploader, and the receiver.
func (p *post) start() {
	p.t.Helper()
	server := &http.Server{TLSConfig: postAuthority().Server(postHost), ErrorLog: log.New(io.Discard, "", 0)}
	if p.onlyHTTP1 {
		server.TLSConfig.NextProtos, server.TLSNextProto = []string{"http/1.1"}, map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.noted(func() {
			p.tries = append(p.tries, time.Now())
			if p.now++; p.now > 1 {
				p.t.Errorf("there are %d tries at once", p.now)
			}
		})
		defer p.noted(func() { p.now-- })
		if p.serve != nil {
			p.serve(w, req)
		} else {
			p.receiver.ServeHTTP(w, req)
		}
	})
	cert, key := postAuthority().Issue(testKey.ID)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		p.t.Fatal(err)
	}
	if !p.noURL {
		p.o.URL = &url.URL{Scheme: "https", Host: postHost}
	}
	p.o.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: postHost, RootCAs: postAuthority().Pool, Certificates: []tls.Certificate{pair}}
	p.o.State = func(err error) { p.noted(func() { p.states = append(p.states, text(err)) }) }
	p.o.Folders = func(err error) { p.noted(func() { p.folders = append(p.folders, text(err)) }) }
	p.o.Answered = func(code string) { p.noted(func() { p.codes[code]++ }) }
	p.o.Settled = func(path string, refusal error) { p.noted(func() { p.settled[path] = refusal }) }
	p.o.Deleted = func(why Deletion, n int) { p.noted(func() { p.deleted[why] += n }) }
	p.o.Clock = func(ahead time.Duration) { p.noted(func() { p.clocks = append(p.clocks, ahead) }) }
	u := NewUploader(p.o)
	if u.client != nil {
		u.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return p.dial() }
	}
	if p.answerIn > 0 {
		u.wait = p.answerIn
	}
	served, ran := make(chan struct{}), make(chan struct{})
	go func() {
		server.ServeTLS(pipeListener{p}, "", "")
		close(served)
	}()
	go func() {
		u.Run(p.closing)
		close(ran)
	}()
	p.t.Cleanup(func() {
		p.stop()
		<-ran
		close(p.ended)
		server.Close()
		<-served
	})
	p.waitFor = func() { <-ran }
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// stop tells the uploader to end.
func (p *post) stop() {
	select {
	case <-p.closing:
	default:
		close(p.closing)
	}
}

// runToEnd runs the uploader as long as the receiver takes something.
func (p *post) runToEnd() {
	p.t.Helper()
	p.start()
	p.stop()
	p.waitFor()
}

// whole checks that each file that was ever put is in exactly one place, and
// returns how many are in the outbox, in sent and in refused. The receiver has
// the octets of those that were sent.
func (p *post) whole() (outbox, sent, refused int) {
	p.t.Helper()
	has := map[string]bool{}
	for _, taken := range p.receiver.Taken() {
		has[string(taken.Body)] = true
	}
	found := map[string]int{}
	counts := map[string]int{}
	for _, dir := range []string{OutboxFolder, SentFolder, RefusedFolder} {
		entries, err := os.ReadDir(filepath.Join(p.dir, dir))
		if err != nil {
			p.t.Fatal(err)
		}
		for _, e := range entries {
			want, ok := p.contents[e.Name()]
			if !ok {
				continue
			}
			b, err := os.ReadFile(filepath.Join(p.dir, dir, e.Name()))
			if err != nil || string(b) != want {
				p.t.Errorf("%s in %s is not what it was: %v", e.Name(), dir, err)
			}
			if dir == SentFolder && !has[want] {
				p.t.Errorf("%s is in %s and the receiver has not got it", e.Name(), dir)
			}
			found[e.Name()]++
			counts[dir]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.contents)) {
		if found[name] != 1 {
			p.t.Errorf("%s is in %d places", name, found[name])
		}
	}
	return counts[OutboxFolder], counts[SentFolder], counts[RefusedFolder]
}

func (p *post) checkWhole(outbox, sent, refused int) {
	p.t.Helper()
	if o, s, r := p.whole(); o != outbox || s != sent || r != refused {
		p.t.Errorf("%d in the outbox, %d sent, %d refused; want %d, %d and %d\n%q", o, s, r, outbox, sent, refused, p.states[:min(3, len(p.states))])
	}
}

func (p *post) checkCodes(want map[string]int) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !maps.Equal(p.codes, want) {
		p.t.Errorf("answers %v, want %v; %q", p.codes, want, p.states[:min(3, len(p.states))])
	}
}

// hijack takes over the connection of a request.
func hijack(t testing.TB, w http.ResponseWriter) net.Conn {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		panic(http.ErrAbortHandler)
	}
	return conn
}

var errRefusedConn = errors.New("connection refused")
