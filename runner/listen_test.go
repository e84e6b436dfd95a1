package runner

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	golangdnstap "github.com/dnstap/golang-dnstap"
	framestream "github.com/farsightsec/golang-framestream"
	"github.com/miekg/dns"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// An authority makes certificates.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a certificate authority; its certificate is in ca.pem of
// dir.
func newAuthority(t testing.TB, dir string) *authority {
	a := &authority{t: t, dir: dir}
	a.key, a.cert = a.issue("ca", nil)
	return a
}

// issue makes a certificate for name and 127.0.0.1, in name.pem and name.key.
func (a *authority) issue(name string, parent *authority) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	fatal := func(err error) {
		if err != nil {
			a.t.Helper()
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: parent == nil,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, signerKey := template, key
	if parent != nil {
		signer, signerKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signerKey)
	fatal(err)
	cert, err := x509.ParseCertificate(der)
	fatal(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	fatal(err)
	fatal(os.WriteFile(a.path(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fatal(os.WriteFile(a.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return key, cert
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// client returns the configuration of a client that trusts a, and shows the
// certificate of that name, unless it is "".
func (a *authority) client(name string) *tls.Config {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1"}
	c.RootCAs.AddCert(a.cert)
	if name != "" {
		cert, err := tls.LoadX509KeyPair(a.path(name+".pem"), a.path(name+".key"))
		if err != nil {
			a.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c
}

// A front is the first stage alone, on real sockets of all three kinds.
type front struct {
	*reception
	*authority
	unix, tcp, tls string // addresses
	stop           chan struct{}
	done           chan struct{} // closed when run has returned
	once           sync.Once
}

// newFront listens. setUp changes the configuration first.
func newFront(t testing.TB, r *reception, setUp func(*Config)) *front {
	t.Helper()
	f := &front{reception: r, authority: newAuthority(t, socketDir(t)), stop: make(chan struct{}), done: make(chan struct{})}
	f.issue("server", f.authority)
	cfg := DefaultConfig()
	cfg.InputUnix = f.path("dnstap.sock")
	cfg.InputTCP, cfg.InputTLS = "127.0.0.1:0", "127.0.0.1:0"
	cfg.InputTLSCertFile, cfg.InputTLSKeyFile = f.path("server.pem"), f.path("server.key")
	if setUp != nil {
		setUp(&cfg)
	}
	files, err := loadTLS(&cfg, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := openInputs(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.unix, f.tcp, f.tls = inputs[0].Addr().String(), inputs[1].Addr().String(), inputs[2].Addr().String()
	l := &listening{inputs: inputs, limit: cfg.MaxConnections, shared: &r.reading, tls: files.inputTLS}
	go func() { l.run(f.stop); close(f.done) }()
	t.Cleanup(f.end)
	return f
}

// end stops listening and waits until every stream has ended. Somebody has to
// take the chunks.
func (f *front) end() {
	f.t.Helper()
	f.once.Do(func() { close(f.stop) })
	select {
	case <-f.done:
		f.takers.Wait()
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		f.t.Fatalf("run does not return\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

// dialEach calls g with a way to connect by each kind of socket.
func (f *front) dialEach(t *testing.T, g func(t *testing.T, dial func() net.Conn)) {
	for _, kind := range []string{"unix", "tcp", "tls"} {
		t.Run(kind, func(t *testing.T) {
			g(t, func() net.Conn {
				t.Helper()
				switch kind {
				case "unix":
					return dial(t, "unix", f.unix)
				case "tcp":
					return dial(t, "tcp", f.tcp)
				}
				conn := tls.Client(dial(t, "tcp", f.tls), f.client(""))
				if err := conn.Handshake(); err != nil {
					t.Fatal(err)
				}
				return conn
			})
		})
	}
}

func (r *reception) until(t testing.TB, frames int) {
	t.Helper()
	until(t, fmt.Sprintf("%d frames", frames), func() bool { return len(r.taken()) >= frames })
}

func TestInputs(t *testing.T) {
	r := newReception(262144, 10)
	f := newFront(t, r, nil)
	r.take()
	want := 0
	f.dialEach(t, func(t *testing.T, dial func() net.Conn) {
		frames := [][]byte{[]byte("one"), make([]byte, 100_000), make([]byte, 262144), []byte("two")}
		p := newPeer(t, dial())
		p.open()
		p.send(framed(frames...))
		p.finish()
		want += 4

		p = newPeer(t, dial()) // without READY
		p.send(startFrame, framed(frames...), stopFrame)
		p.closed()
		want += 4

		p = newPeer(t, dial()) // without STOP
		p.open()
		p.send(framed(frames[0]))
		p.Close()
		want++
		r.until(t, want)
	})
	f.end()
	if got := r.ended(); got["stop"] != 6 || got["eof"]+got["error"] != 3 {
		t.Errorf("streams ended: %v", got)
	}
	for _, input := range []string{"input_unix", "input_tcp", "input_tls"} {
		if n := counted(t, r.metrics.connectsTotal.WithLabelValues(input)); n != 3 {
			t.Errorf("%v connections by %s", n, input)
		}
	}
	for _, e := range r.log.entries("resolver connected") {
		if e["input"] == nil || (e["peer"] == nil) != (e["input"] == "input_unix") {
			t.Errorf("logged %v", e)
		}
	}
}

// The same as in a bubble, with real sockets and TLS: nobody takes anything.
// One of several tries is in time, however busy the machine is.
func TestAnswersInTimeWhileNobodyTakes(t *testing.T) {
	r := newReception(262144, 1)
	f := newFront(t, r, nil)
	frames := 0
	f.dialEach(t, func(t *testing.T, dial func() net.Conn) {
		best := func(what string, try func() time.Duration) {
			t.Helper()
			var took []time.Duration
			for range 5 {
				took = append(took, try())
			}
			if slices.Min(took) > 100*time.Millisecond {
				t.Errorf("%s after %v", what, took)
			}
		}
		best("ACCEPT", func() time.Duration {
			p := newPeer(t, dial())
			began := time.Now()
			p.send(readyFrame)
			return p.expect(framestream.CONTROL_ACCEPT).Sub(began)
		})
		best("FINISH", func() time.Duration {
			p := newPeer(t, dial())
			p.open()
			p.send(framed([]byte("x")))
			time.Sleep(20 * time.Millisecond) // so that the frame is read before
			p.send(framed([]byte("y")))
			frames += 2
			began := time.Now()
			p.send(stopFrame)
			return p.expect(framestream.CONTROL_FINISH).Sub(began)
		})
	})
	r.take()
	f.end()
	if n := len(r.taken()); n != frames {
		t.Errorf("%d frames of %d", n, frames)
	}
}

// After FINISH a TLS peer is told that this is the end. Without that, some take
// it for an attack.
func TestTLSEndsWithCloseNotify(t *testing.T) {
	r := newReception(600, 10)
	f := newFront(t, r, nil)
	r.take()
	raw := &recorder{Conn: dial(t, "tcp", f.tls)}
	conn := tls.Client(raw, f.client(""))
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(slices.Concat(readyFrame, startFrame, stopFrame)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("after %d octets: %v", len(got), err)
	}
	want := append(control(framestream.CONTROL_ACCEPT, "protobuf:dnstap.Dnstap"), control(framestream.CONTROL_FINISH)...)
	if !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	// crypto/tls does without. The last record is an encrypted alert: two octets,
	// one for its type and a tag of 16.
	if alert := []byte{23, 3, 3, 0, 2 + 1 + 16}; !bytes.HasPrefix(raw.b[max(0, len(raw.b)-24):], alert) {
		t.Errorf("the stream ends in %x", raw.b[max(0, len(raw.b)-24):])
	}
}

// A recorder keeps what is read.
type recorder struct {
	net.Conn
	b []byte
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.b = append(r.b, p[:n]...)
	return n, err
}

// What does not speak Frame Streams is sent away at once, and one line says
// what it may be.
func TestWrongProtocols(t *testing.T) {
	f := func(name, input, reason string, speak func(net.Conn)) {
		t.Run(input+" "+name, func(t *testing.T) {
			r := newReception(262144, 1)
			f := newFront(t, r, nil)
			r.take()
			address := map[string]string{"unix": f.unix, "tcp": f.tcp, "tls": f.tls}[input]
			conn := dial(t, strings.Replace(input, "tls", "tcp", 1), address)
			ended := make(chan error, 1)
			go func() {
				speak(conn)
				_, err := io.Copy(io.Discard, conn)
				ended <- err
			}()
			select {
			case <-ended: // it may be a reset: not all was read
			case <-time.After(handshakeTimeout - time.Second):
				t.Fatalf("the connection is still open\n%s", r.log)
			}
			conn.Close()
			f.end()
			if reason == "" {
				reason, _ = r.log.entries("")[0]["reason"].(string)
			}
			r.checkRefused(t, reason)
			entry := r.log.entries("")[0]
			if entry["level"] != "warn" || entry["input"] != "input_"+input {
				t.Errorf("logged %v", entry)
			}
		})
	}
	say := func(b ...byte) func(net.Conn) { return func(c net.Conn) { c.Write(b) } }
	text := func(s string) func(net.Conn) { return say([]byte(s)...) }
	hello := func(c net.Conn) { tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake() }

	for _, plain := range []string{"tcp", "unix"} {
		f("TLS hello", plain, "tls", hello)
		f("HTTP", plain, "http", text("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		f("text", plain, "text", text("hello\n"))
	}
	f("TLS hello of version 1.2", "tcp", "tls", func(c net.Conn) {
		tls.Client(c, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}).Handshake()
	})
	f("HTTP/2", "tcp", "http", text("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f("POST", "tcp", "http", text("POST /v1 HTTP/1.0\r\n\r\n{}"))
	f("SSH", "tcp", "text", text("SSH-2.0-OpenSSH_9.2\r\n"))
	f("JSON", "tcp", "text", text(`{"type":"MESSAGE"}`+"\n"))
	f("DNS over TCP", "tcp", "no_start", say(0, 29, 0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0))
	f("data frames without START", "tcp", "no_start", say(framed([]byte("\x0a\x02ns\x78\x01"))...))
	captures, err := filepath.Glob("../testdata/captures/*.pb")
	if err != nil || len(captures) == 0 {
		t.Fatalf("captures: %v, %v", captures, err)
	}
	for _, path := range captures {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f(filepath.Base(path), "tcp", "protobuf", say(b...))
		f(filepath.Base(path), "tls", "protobuf", say(b...))
	}
	for _, n := range []int{4, 33, 64, 100} { // a length that is a printable character
		identity := strings.Repeat("n", n)
		f(fmt.Sprintf("protobuf with an identity of %d", n), "tcp", "protobuf", say(response(t, "x.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Identity = []byte(identity) })...))
	}
	fstrm, err := os.ReadFile("../testdata/captures/fstrm-test.fstrm")
	if err != nil {
		t.Fatal(err)
	}
	f("another content type", "tcp", "content_type", say(fstrm...))
	f("plain Frame Streams", "tls", "plain", say(readyFrame...))
	f("plain Frame Streams, unidirectional", "tls", "plain", say(slices.Concat(startFrame, framed([]byte("x")))...))
	f("HTTP", "tls", "http", text("GET / HTTP/1.1\r\n\r\n"))
	f("text", "tls", "text", text("hello world\n"))
	random := mathrand.NewChaCha8([32]byte{1})
	for i := range 5 {
		b := make([]byte, 200)
		random.Read(b)
		f(fmt.Sprintf("random octets %d", i), "tcp", "", say(b...))
		f(fmt.Sprintf("random octets %d", i), "tls", "", say(b...))
	}
}

func TestTLSPeers(t *testing.T) {
	f := func(name, reason string, ca bool, client func(a *authority) *tls.Config) {
		t.Run(name, func(t *testing.T) {
			r := newReception(600, 1)
			f := newFront(t, r, func(cfg *Config) {
				if ca {
					cfg.InputTLSClientCAFile = filepath.Join(filepath.Dir(cfg.InputUnix), "ca.pem")
				}
			})
			r.take()
			conn := tls.Client(dial(t, "tcp", f.tls), client(f.authority))
			conn.SetDeadline(time.Now().Add(patience))
			_, err := conn.Write(slices.Concat(readyFrame, startFrame, framed([]byte("x")), stopFrame))
			if err == nil {
				_, err = io.ReadAll(conn)
			}
			f.end()
			if (err == nil) != (reason == "") {
				t.Errorf("the client has %v", err)
			}
			if reason != "" {
				r.checkRefused(t, reason)
				return
			}
			if n := len(r.taken()); n != 1 {
				t.Errorf("%d frames of 1", n)
			}
		})
	}
	anyone := func(a *authority) *tls.Config { return a.client("") }
	f("no client CA", "", false, anyone)
	f("TLS 1.2", "tls_handshake", false, func(a *authority) *tls.Config {
		c := a.client("")
		c.MaxVersion = tls.VersionTLS12
		return c
	})
	f("client certificate, not asked for", "", false, func(a *authority) *tls.Config {
		a.issue("client", a)
		return a.client("client")
	})
	f("client certificate", "", true, func(a *authority) *tls.Config {
		a.issue("client", a)
		return a.client("client")
	})
	f("no client certificate", "tls_handshake", true, anyone)
	f("client certificate of another CA", "tls_handshake", true, func(a *authority) *tls.Config {
		other := newAuthority(a.t, socketDir(a.t))
		other.issue("client", other)
		c := a.client("")
		c.Certificates = other.client("client").Certificates
		// Whatever the server asks for.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.Certificates[0], nil }
		return c
	})
	f("a client that does not know the server's CA", "tls_handshake", false, func(*authority) *tls.Config { return &tls.Config{ServerName: "127.0.0.1"} })
}

// A gatherer lets writes gather, and sends them in large pieces when told to.
type gatherer struct {
	net.Conn
	gather bool
	b      []byte
}

func (g *gatherer) Write(p []byte) (int, error) {
	if !g.gather {
		return g.Conn.Write(p)
	}
	g.b = append(g.b, p...)
	return len(p), nil
}

// TLS records as small as a frame are taken in as fast as large ones.
func TestTLSRecordSizes(t *testing.T) {
	n := 100_000
	if testing.Short() || raceEnabled {
		n = 20_000
	}
	frame := make([]byte, 120)
	f := func(name string, perRecord int) {
		t.Run(name, func(t *testing.T) {
			r := newReception(262144, 10)
			f := newFront(t, r, nil)
			r.take()
			g := &gatherer{Conn: dial(t, "tcp", f.tls)}
			config := f.client("")
			config.DynamicRecordSizingDisabled = true
			conn := tls.Client(g, config)
			p := newPeer(t, conn)
			p.open()
			g.gather = true // encrypted beforehand, so that the receiver alone is measured
			record := framed(slices.Repeat([][]byte{frame}, perRecord)...)
			for range n / perRecord {
				p.send(record)
			}
			g.gather = false
			began := time.Now()
			if _, err := g.Conn.Write(g.b); err != nil {
				t.Fatal(err)
			}
			r.until(t, n)
			rate := float64(n) / time.Since(began).Seconds()
			t.Logf("%.0f frames/s", rate)
			// Race detection and a busy machine take a good part of what there is;
			// a reader that waits between records would do 250.
			least := 50_000.0
			if raceEnabled {
				least = 5000
			}
			if rate < least {
				t.Errorf("%.0f frames/s, want %.0f", rate, least)
			}
			p.finish()
			f.end()
			if got := len(r.taken()); got != n {
				t.Errorf("%d frames of %d", got, n)
			}
			if per := n / r.chunks; per < 100 {
				t.Errorf("%d frames in a chunk", per)
			}
		})
	}
	f("a frame a record", 1)
	f("100 frames a record", 100)
}

// The end of a TLS stream comes together with its last frames.
func TestTLSFramesAndEndAtOnce(t *testing.T) {
	r := newReception(600, 1)
	f := newFront(t, r, nil)
	r.take()
	g := &gatherer{Conn: dial(t, "tcp", f.tls)}
	conn := tls.Client(g, f.client(""))
	p := newPeer(t, conn)
	p.open()
	until(t, "START to be read", func() bool { return len(r.log.entries("resolver connected")) == 1 })
	g.gather = true
	p.send(framed([]byte("one")))
	p.send(framed([]byte("two")))
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	g.Conn.SetWriteDeadline(time.Time{}) // CloseWrite lets no more writes through
	if _, err := g.Conn.Write(g.b); err != nil {
		t.Fatal(err)
	}
	p.closed()
	f.end()
	if n := len(r.taken()); n != 2 {
		t.Errorf("%d frames of 2", n)
	}
	if ends := r.ended(); ends["eof"] != 1 {
		t.Errorf("streams ended: %v", ends)
	}
}

// A TLS record comes an octet at a time.
func TestTLSInSmallPieces(t *testing.T) {
	r := newReception(600, 0)
	f := newFront(t, r, nil)
	r.take()
	g := &gatherer{Conn: dial(t, "tcp", f.tls)}
	p := newPeer(t, tls.Client(g, f.client("")))
	p.open()
	g.gather = true
	stream, frames := sampleStream()
	p.send(stream[len(startFrame):])
	g.gather = false
	for i := range g.b {
		if i%16 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
		if _, err := g.Conn.Write(g.b[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	p.expect(framestream.CONTROL_FINISH)
	f.end()
	if got := r.taken(); !slices.EqualFunc(got, frames, bytes.Equal) {
		t.Errorf("got %d frames, want %d", len(got), len(frames))
	}
}

// A frame that is too large is never held in memory.
func TestOversizedFrameTakesNoMemory(t *testing.T) {
	r := newReception(512, 1)
	f := newFront(t, r, nil)
	r.take()
	p := newPeer(t, dial(t, "unix", f.unix))
	p.open()
	p.send(framed([]byte("before")))
	r.until(t, 1)
	piece := make([]byte, 64<<10)
	const pieces = 16 << 20 / (64 << 10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		p.Write([]byte{1, 0, 0, 0}) // 16 MiB
		for range pieces {
			if _, err := p.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.send(framed([]byte("after")))
	r.until(t, 2)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d octets were allocated while 64 MiB were skipped", n)
	}
	p.finish()
	f.end()
	if ends := r.metrics.ends(); ends["dropped_oversize"] != 4 || ends["received"] != 4 {
		t.Errorf("frames: %v", ends)
	}
}

// On a stream of 20 000 frames a second there is one wake-up for many of them.
func TestPacedStreamGathers(t *testing.T) {
	r := newReception(262144, 100)
	f := newFront(t, r, nil)
	r.take()
	p := newPeer(t, dial(t, "unix", f.unix))
	p.open()
	const n = 10_000
	frame := framed(make([]byte, 150))
	began := time.Now()
	for sent := 0; sent < n; {
		due := min(n, int(time.Since(began)*20_000/time.Second))
		for ; sent < due; sent++ {
			p.send(frame)
		}
		time.Sleep(50 * time.Microsecond)
	}
	p.finish()
	took := time.Since(began)
	f.end()
	if got := len(r.taken()); got != n {
		t.Errorf("%d frames of %d", got, n)
	}
	if rate := float64(r.chunks) / took.Seconds(); rate > 500 {
		t.Errorf("%d chunks in %v", r.chunks, took)
	}
}

func TestMaxConnections(t *testing.T) {
	r := newReception(600, 1)
	f := newFront(t, r, func(cfg *Config) { cfg.MaxConnections = 3 })
	r.take()
	var peers []*peer
	for _, conn := range []net.Conn{dial(t, "unix", f.unix), dial(t, "tcp", f.tcp), tls.Client(dial(t, "tcp", f.tls), f.client(""))} {
		p := newPeer(t, conn)
		p.open()
		peers = append(peers, p)
	}
	for _, conn := range []net.Conn{dial(t, "unix", f.unix), dial(t, "tcp", f.tcp), dial(t, "tcp", f.tls)} {
		newPeer(t, conn).closed()
	}
	if n := counted(t, r.metrics.refusal("too_many_connections")); n != 3 {
		t.Errorf("%v refusals of 3", n)
	}
	peers[1].finish() // makes room for one
	until(t, "room for a connection", func() bool {
		conn := dial(t, "tcp", f.tcp)
		conn.Write(readyFrame)
		_, err := conn.Read(make([]byte, 1))
		return err == nil
	})
	peers[0].send(framed([]byte("x")))
	peers[0].finish()
	peers[2].finish()
	f.end()
	if n := len(r.taken()); n != 1 {
		t.Errorf("%d frames of 1", n)
	}
}

// Whoever reaches one input may use all connections but those that are kept for
// the others, and those of another input get theirs, whatever came before.
func TestConnectionsKeptForEachInput(t *testing.T) {
	f := func(limit int, inputs, want string) {
		t.Helper()
		l := &listening{limit: limit, conns: make(map[*connection]struct{}), open: make(map[string]int)}
		for name := range strings.FieldsSeq(inputs) {
			l.inputs = append(l.inputs, input{name: name})
		}
		var got []string
		for _, in := range l.inputs { // one after the other takes what it can
			for l.roomLocked(in.name) {
				l.conns[new(connection)] = struct{}{}
				l.open[in.name]++
			}
			got = append(got, fmt.Sprint(l.open[in.name]))
		}
		if strings.Join(got, " ") != want || len(l.conns) != limit {
			t.Errorf("%d connections by %s: %q, want %s", limit, inputs, got, want)
		}
	}
	f(256, "unix", "256")
	f(256, "tcp unix", "224 32")
	f(256, "tcp tls unix", "192 32 32")
	f(8, "tcp unix", "7 1")
	f(3, "tcp unix", "2 1")
	f(3, "tcp tls unix", "1 1 1")
	f(2, "tcp unix", "1 1")
	f(1, "tcp unix", "1 0") // there is not one for each
	f(1, "unix", "1")
	f(1_000_000, "tcp tls unix", "750000 125000 125000")
}

// A crowd at one input does not keep a resolver out that uses another, and when
// the crowd is gone there is room for as many again.
func TestCrowdAtOneInput(t *testing.T) {
	const limit, kept = 24, 2 * 3 // for the unix socket and for TLS
	r := newReception(600, 1)
	f := newFront(t, r, func(cfg *Config) { cfg.MaxConnections = limit })
	r.take()
	connected := func() int {
		var m dto.Metric
		if err := r.metrics.connections.WithLabelValues("input_tcp").Write(&m); err != nil {
			t.Fatal(err)
		}
		return int(m.GetGauge().GetValue())
	}
	for range 2 {
		var crowd []net.Conn
		for range 2 * limit {
			crowd = append(crowd, dial(t, "tcp", f.tcp)) // and says nothing
		}
		until(t, "the crowd to take all it can", func() bool { return connected() == limit-kept })
		local := newPeer(t, dial(t, "unix", f.unix))
		local.open()
		local.finish()
		for _, conn := range crowd {
			conn.Close()
		}
		until(t, "the crowd to be gone", func() bool { return connected() == 0 })
	}
	if n, want := counted(t, r.metrics.refusal("too_many_connections")), 2*(limit+kept); int(n) != want {
		t.Errorf("%v refused, want %d", n, want)
	}
}

// A limit of open files that is too low is said, with both numbers.
func TestWarnOfFiles(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	f := func(maxConnections int, want string) {
		t.Helper()
		var book logBook
		warnOfFiles(NewLogger(&book, false), maxConnections)
		if got := book.String(); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%d connections: logged %q, want %q", maxConnections, got, want)
		}
	}
	f(256, "")
	f(1000-otherFiles, "")
	f(1001-otherFiles, `"limit":1000,"needed":1001`)
	f(1_000_000, `"limit":1000,"needed":1000600`)
}

// What a peer does or does not do holds up no stop; and what it had sent by
// then is taken in.
func TestStopWithPeersOfAllKinds(t *testing.T) {
	r := newReception(600, 100)
	f := newFront(t, r, nil)
	r.take()
	dial(t, "unix", f.unix)                                                   // says nothing
	dial(t, "tcp", f.tls)                                                     // nor here
	dial(t, "tcp", f.tls).Write([]byte{22, 3, 1, 2, 0, 1})                    // the start of a TLS hello
	dial(t, "tcp", f.tcp).Write(readyFrame[:9])                               // part of READY
	dial(t, "tcp", f.tcp).Write(readyFrame)                                   // no START
	dial(t, "tcp", f.tcp).Write(slices.Concat(startFrame, []byte{0, 0, 2}))   // part of a length
	newPeer(t, dial(t, "unix", f.unix)).open()                                // idle
	newPeer(t, tls.Client(dial(t, "tcp", f.tls), f.client(""))).open()        // idle
	newPeer(t, dial(t, "tcp", f.tcp)).send(startFrame, framed([]byte("one"))) // no STOP
	busy := newPeer(t, dial(t, "unix", f.unix))
	busy.open()
	go func() {
		for {
			if _, err := busy.Write(framed([]byte("x"))); err != nil {
				return
			}
		}
	}()
	until(t, "all to be connected", func() bool { return len(r.log.entries("resolver connected")) == 5 })
	last := newPeer(t, dial(t, "unix", f.unix))
	last.open()
	until(t, "the last one to be connected", func() bool { return len(r.log.entries("resolver connected")) == 6 })
	for range 300 {
		last.send(framed([]byte("last")))
	}
	began := time.Now()
	f.end()
	if took := time.Since(began); took > handshakeTimeout-time.Second {
		t.Errorf("the streams ended after %v\n%s", took, r.log)
	}
	var lasts int
	for _, frame := range r.taken() {
		if string(frame) == "last" {
			lasts++
		}
	}
	if lasts != 300 {
		t.Errorf("%d frames of the 300 that were there before the stop", lasts)
	}
	if got := r.ended(); got["shutdown"] != 6 {
		t.Errorf("streams ended: %v", got)
	}
	if _, err := os.Lstat(f.unix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// A failing listener fails once, and then gives what it is given.
type failingListener struct {
	net.Listener
	conns chan net.Conn
	fail  int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fail > 0 {
		l.fail--
		return nil, errors.New("too many open files")
	}
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l *failingListener) Close() error { close(l.conns); return nil }

// Accept fails for a while, as it does without file descriptors: it is tried
// again, and the log is not flooded.
func TestAcceptFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReception(600, 1)
		r.take()
		in := &failingListener{conns: make(chan net.Conn), fail: 5}
		l := &listening{inputs: []input{{in, "input_tcp", false}}, limit: 10, shared: &r.reading}
		stop := make(chan struct{})
		go l.run(stop)
		ours, theirs := net.Pipe()
		began := time.Now()
		in.conns <- ours
		if took := time.Since(began); took < 4*time.Second || took > 10*time.Second {
			t.Errorf("accepted after %v", took)
		}
		p := newPeer(t, theirs)
		p.open()
		p.finish()
		close(stop)
		synctest.Wait()
		time.Sleep(time.Second)
		if n := len(r.log.entries("a connection could not be accepted")); n != 5 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

func TestInputsThatCannotBeOpened(t *testing.T) {
	taken := busyAddress(t)
	f := func(want string, setUp func(*Config)) {
		t.Helper()
		cfg := DefaultConfig()
		cfg.InputUnix = filepath.Join(socketDir(t), "s")
		setUp(&cfg)
		inputs, err := openInputs(&cfg)
		if err == nil || !strings.HasPrefix(err.Error(), want) || len(inputs) != 0 {
			t.Errorf("got %v, %v, want %s", inputs, err, want)
		}
		if _, err := os.Lstat(cfg.InputUnix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket of the input that could be opened is left: %v", err)
		}
	}
	f("input_tcp: ", func(cfg *Config) { cfg.InputTCP = taken })
	f("input_tls: ", func(cfg *Config) { cfg.InputTCP, cfg.InputTLS = "127.0.0.1:0", taken })
	f("input_unix: ", func(cfg *Config) { cfg.InputUnix = filepath.Join(t.TempDir(), "absent", "s") })
}

// busyAddress returns an address on which something listens.
func busyAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// A sender that makes two small writes of each frame, as unbound does, fills
// its socket with few octets. It must not wait for a reader that waits for more.
func TestSmallWritesAreNotHeldUp(t *testing.T) {
	const n = 20_000
	r := newReception(262144, 10)
	f := newFront(t, r, nil)
	r.take()
	try := func(t *testing.T, input, address string, size int) float64 {
		p := newPeer(t, dial(t, input, address))
		p.open()
		frame := framed(make([]byte, size))
		began := time.Now()
		for range n {
			if _, err := p.Write(frame[:4]); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Write(frame[4:]); err != nil {
				t.Fatal(err)
			}
		}
		p.finish()
		return n / time.Since(began).Seconds()
	}
	g := func(input, address string, size int) {
		t.Run(fmt.Sprintf("%s, frames of %d", input, size), func(t *testing.T) {
			var rates []float64
			for range 5 { // the machine may be busy
				rates = append(rates, try(t, input, address, size))
				if slices.Max(rates) > 40_000 {
					return
				}
			}
			t.Errorf("%.0f frames a second", rates)
		})
	}
	g("unix", f.unix, 60)
	g("unix", f.unix, 150)
	g("unix", f.unix, 400)
	g("tcp", f.tcp, 60)
	g("tcp", f.tcp, 400)
}
