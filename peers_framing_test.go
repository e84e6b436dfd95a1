package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	framestream "github.com/farsightsec/golang-framestream"

	"edm/traffic"
)

// A second implementation of Frame Streams, Farsight's fstrm, on the other
// side of ours: its sender sends to edm, its receiver takes what our sender
// sends. And the transports below.

const contentType = "protobuf:dnstap.Dnstap"

// replayInto runs fstrm_replay and returns when it has ended, after FINISH.
func replayInto(t *testing.T, file, content string, to ...string) error {
	t.Helper()
	args := append([]string{"-t", content, "-r", file}, to...)
	out, err := exec.Command(need(t, "fstrm_replay", "fstrm-bin"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestFstrmReplay(t *testing.T) {
	t.Parallel()
	need(t, "fstrm_replay", "fstrm-bin")
	f := func(pool *traffic.Pool, network func(*daemon) []string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "traffic.fstrm")
		if err := pool.WriteFile(file); err != nil {
			t.Fatal(err)
		}
		d := startResolverEDM(t)
		if err := replayInto(t, file, contentType, network(d)...); err != nil {
			t.Fatal(err)
		}
		want := pool.Counts()
		m := d.await(t, float64(want.Frames), "edm_processed_dnstap_total")
		if got := checkConservation(t, m); got != float64(want.Frames) {
			t.Errorf("%v frames arrived, want %d", got, want.Frames)
		}
		for result, n := range map[string]int{
			"well_known": want.Kinds[traffic.WellKnown],
			"session":    want.Kinds[traffic.Seen] + want.Kinds[traffic.Novel],
		} {
			if got := sum(m, "edm_frames_total", fmt.Sprintf("result=%q", result)); got != float64(n) {
				t.Errorf("%v frames counted as %s, want %d", got, result, n)
			}
		}
		if got := sum(m, "edm_frames_dropped_total"); got != float64(want.Kinds[traffic.Malformed]) {
			t.Errorf("%v frames dropped, want %d", got, want.Kinds[traffic.Malformed])
		}
		d.stop(t)
		if got, n := len(readAll(t, d.sessionFiles(t))), want.Kinds[traffic.Seen]+want.Kinds[traffic.Novel]; got != n {
			t.Errorf("%d session rows, want %d", got, n)
		}
	}
	pool := smallTraffic(t)
	f(pool, func(d *daemon) []string { return []string{"-u", d.socket} })
	f(pool, func(d *daemon) []string {
		host, port, _ := net.SplitHostPort(d.tcp)
		return []string{"-a", host, "-p", port}
	})
}

// smallTraffic is 5000 frames, some of them damaged, for the well-known names
// of the tests.
func smallTraffic(t testing.TB) *traffic.Pool {
	t.Helper()
	pool, err := traffic.Build(traffic.Config{
		Seed: 7, Frames: 5000, SeenNames: 300, Clients: 400, V6Share: 0.3,
		WellKnown:      []string{"mail.example.com.", "www.example.com.", ".wild.example.org."},
		WellKnownShare: 0.5, SeenShare: 0.3,
		QueryShare: 0.05, ResolverShare: 0.05, MalformedShare: 0.02,
	})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// A stream of another content type is refused, and the log says so.
func TestForeignContent(t *testing.T) {
	t.Parallel()
	need(t, "fstrm_replay", "fstrm-bin")
	d := startResolverEDM(t)
	replayInto(t, "testdata/captures/fstrm-test.fstrm", "test:hello", "-u", d.socket)
	m := d.await(t, 1, "edm_handshake_failures_total")
	if got := sum(m, "edm_handshake_failures_total"); got != 1 {
		t.Errorf("%v failures counted, want 1", got)
	}
	if got := sum(m, "edm_processed_dnstap_total"); got != 0 {
		t.Errorf("%v frames counted, want none", got)
	}
	if n := strings.Count(d.output.String(), "test:hello"); n != 1 {
		t.Errorf("%d lines name the content type, want 1\n%s", n, d.log())
	}
}

// fstrm_capture receives what our own sender sends.
func TestFstrmCapture(t *testing.T) {
	t.Parallel()
	path := need(t, "fstrm_capture", "fstrm-bin")
	pool := smallTraffic(t)
	f := func(network, address string, args ...string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "captured.fstrm")
		p := run(t, exec.Command(path, append(args, "-t", contentType, "-w", file)...))
		var conn net.Conn
		until(t, func() (up bool) {
			c, err := net.Dial(network, address)
			conn = c
			return err == nil
		}, p.log)
		s, err := traffic.Open(conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(pool.Framed(0, pool.Len())); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil { // waits for FINISH
			t.Fatal(err)
		}
		p.terminate(t, patience)
		frames := readFrames(t, file)
		if len(frames) != pool.Len() {
			t.Fatalf("%d frames captured, want %d", len(frames), pool.Len())
		}
		for i, got := range frames {
			if _, want := pool.Frame(i); !bytes.Equal(got, want) {
				t.Fatalf("frame %d: %x, want %x", i, got, want)
			}
		}
	}
	socket := filepath.Join(t.TempDir(), "s")
	f("unix", socket, "-u", socket)
	port := freePort(t)
	f("tcp", local(port), "-a", "127.0.0.1", "-p", fmt.Sprint(port))
}

// readFrames reads a Frame Streams file whole.
func readFrames(t testing.TB, path string) [][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := framestream.NewDecoder(f, &framestream.DecoderOptions{ContentType: []byte(contentType), MaxPayloadSize: 1 << 20})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var frames [][]byte
	for {
		frame, err := d.Decode()
		if err == io.EOF {
			return frames
		}
		if err != nil {
			t.Fatalf("%s: frame %d: %v", path, len(frames), err)
		}
		frames = append(frames, bytes.Clone(frame))
	}
}

// A sender that dies inside a frame: what came whole is used, the half frame
// is counted, and the next sender is served.
func TestHalfFrame(t *testing.T) {
	t.Parallel()
	d := startResolverEDM(t)
	pool := smallTraffic(t)
	s := openStream(t, dial(t, "unix", d.socket))
	framed := pool.Framed(0, 10)
	if _, err := s.Write(framed[:len(framed)-5]); err != nil {
		t.Fatal(err)
	}
	d.await(t, 9, "edm_processed_dnstap_total")
	s.abort()
	m := d.await(t, 10, "edm_processed_dnstap_total") // the cut frame counts too
	checkConservation(t, m)
	s = openStream(t, dial(t, "unix", d.socket))
	if _, err := s.Write(pool.Framed(0, 10)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	m = d.await(t, 20, "edm_processed_dnstap_total")
	if got := checkConservation(t, m); got != 20 {
		t.Errorf("%v frames, want 20", got)
	}
	d.stop(t)
}

// A stream is a traffic.Sender whose connection a test can break.
type stream struct {
	*traffic.Sender
	conn net.Conn
}

func (s stream) abort() { s.conn.Close() }

func openStream(t testing.TB, conn net.Conn) stream {
	t.Helper()
	s, err := traffic.Open(conn)
	if err != nil {
		t.Fatal(err)
	}
	return stream{s, conn}
}

func dial(t testing.TB, network, address string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TLS 1.3 with client certificates: unbound and our own sender are served,
// whoever has none is refused and counted.
func TestTLS(t *testing.T) {
	t.Parallel()
	need(t, "unbound", "unbound")
	list := filepath.Join(t.TempDir(), "well-known.txt")
	write(t, list, testWellKnown)
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", list))
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	ca.issue("server", x509.ExtKeyUsageServerAuth)
	ca.issue("client", x509.ExtKeyUsageClientAuth)
	d.set(t, fmt.Sprintf("input_tls = %q", d.tls),
		fmt.Sprintf("input_tls_cert_file = %q", dir+"/server.crt"),
		fmt.Sprintf("input_tls_key_file = %q", dir+"/server.key"),
		fmt.Sprintf("input_tls_client_ca_file = %q", dir+"/ca.crt"))
	d.start(t)

	with, err := tls.LoadX509KeyPair(dir+"/client.crt", dir+"/client.key")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	config := func(certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: roots, ServerName: "edm.test", Certificates: certs}
	}
	pool := smallTraffic(t)
	s := openStream(t, tls.Client(dial(t, "tcp", d.tls), config(with)))
	if _, err := s.Write(pool.Framed(0, 100)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d.await(t, 100, "edm_processed_dnstap_total")

	failures := 0
	refused := func(what string, talk func(net.Conn) error) {
		t.Helper()
		before := strings.Count(d.output.String(), "\n")
		if talk(dial(t, "tcp", d.tls)) == nil {
			t.Errorf("%s: served", what)
		}
		failures++
		if got := sum(d.await(t, float64(failures), "edm_handshake_failures_total"), "edm_handshake_failures_total"); got != float64(failures) {
			t.Errorf("%s: %v failures counted, want %d", what, got, failures)
		}
		until(t, func() bool { return strings.Count(d.output.String(), "\n") > before }, func() string { return what + ": no line in the log" })
	}
	talkTLS := func(c *tls.Config) func(net.Conn) error {
		return func(conn net.Conn) error {
			_, err := traffic.Open(tls.Client(conn, c)) // waits for ACCEPT
			return err
		}
	}
	refused("no certificate", talkTLS(config()))
	other := newAuthority(t, t.TempDir())
	foreign, err := tls.LoadX509KeyPair(other.issue("client", x509.ExtKeyUsageClientAuth))
	if err != nil {
		t.Fatal(err)
	}
	foreignConfig := config()
	foreignConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &foreign, nil }
	refused("a certificate of another authority", talkTLS(foreignConfig))
	old := config(with)
	old.MaxVersion = tls.VersionTLS12
	refused("TLS 1.2", talkTLS(old))
	refused("no TLS", func(conn net.Conn) error { _, err := traffic.Open(conn); return err })
	d.stop(t)
}

// Debian's unbound sends over TLS with a client certificate.
func TestUnboundTLS(t *testing.T) {
	t.Parallel()
	need(t, "unbound", "unbound")
	list := filepath.Join(t.TempDir(), "well-known.txt")
	write(t, list, testWellKnown)
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", list))
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	serverCert, serverKey := ca.issue("server", x509.ExtKeyUsageServerAuth)
	clientCert, clientKey := ca.issue("client", x509.ExtKeyUsageClientAuth)
	d.set(t, fmt.Sprintf("input_tls = %q", d.tls),
		fmt.Sprintf("input_tls_cert_file = %q", serverCert),
		fmt.Sprintf("input_tls_key_file = %q", serverKey),
		fmt.Sprintf("input_tls_client_ca_file = %q", dir+"/ca.crt"))
	d.start(t)
	r := startUnbound(t, "dnstap-ip: "+strings.Replace(d.tls, ":", "@", 1), "dnstap-tls: yes",
		`dnstap-tls-server-name: "edm.test"`,
		fmt.Sprintf("dnstap-tls-cert-bundle: %q", dir+"/ca.crt"),
		fmt.Sprintf("dnstap-tls-client-cert-file: %q", clientCert),
		fmt.Sprintf("dnstap-tls-client-key-file: %q", clientKey))
	compare(t, d, r, 0)
}

// An authority issues certificates into a folder.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, dir string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	a.issue("ca")
	return a
}

// issue writes name.crt and name.key and returns their paths. The first
// certificate is the authority's own.
func (a *authority) issue(name string, usage ...x509.ExtKeyUsage) (cert, key string) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{"edm.test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  usage,
	}
	if a.key == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		a.cert, a.key = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	if template.IsCA {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	write(a.t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(a.t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
	return cert, key
}
