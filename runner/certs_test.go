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
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// An issuer is a certificate with its key, in PEM and as made.
type issuer struct {
	t         testing.TB
	cert      *x509.Certificate
	private   *ecdsa.PrivateKey
	chain     []byte // from the leaf on, without the root
	certPEM   []byte
	keyPEM    []byte
	authority *issuer // nil: signed by itself
}

var serial = big.NewInt(0)

// issue makes a certificate, as change has it.
func issue(t testing.TB, by *issuer, name string, change func(*x509.Certificate)) *issuer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial = new(big.Int).Add(serial, big.NewInt(1))
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true,
	}
	change(template)
	i := &issuer{t: t, private: private, authority: by}
	parent, signer := template, private
	if by != nil {
		parent, signer = by.cert, by.private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	if i.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	i.certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	i.keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	i.chain = i.certPEM
	if by != nil && by.authority != nil {
		i.chain = slices.Concat(i.certPEM, by.chain)
	}
	return i
}

func authorityCert(c *x509.Certificate) {
	c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
}

// serverCert is for broker.test and 127.0.0.1.
func serverCert(c *x509.Certificate) {
	c.DNSNames, c.IPAddresses = []string{"broker.test"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
}

// leafCert is for a client and for a server.
func leafCert(c *x509.Certificate) {
	serverCert(c)
	c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
}

// put writes a file in place, as of a minute ago: it has settled. Each is as of
// a moment later than the one before.
func put(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

// A pair is a certificate and its key in files that are read again.
type pair struct {
	t         testing.TB
	cert, key string
	logs      *observer.ObservedLogs
	r         *reread[*tls.Certificate]
}

func newPair(t testing.TB, i *issuer) *pair {
	t.Helper()
	dir := t.TempDir()
	p := &pair{t: t, cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	put(t, p.cert, i.chain)
	put(t, p.key, i.keyPEM)
	var core zapcore.Core
	core, p.logs = observer.New(zap.DebugLevel)
	var err error
	if p.r, err = readCertificate(zap.New(core), p.cert, p.key); err != nil {
		t.Fatal(err)
	}
	return p
}

// has checks which certificate is in use, and that so many lines were logged
// since the last call, whoever often it is asked for.
func (p *pair) has(i *issuer, lines int) {
	p.t.Helper()
	for range 3 {
		if got := p.r.get().Leaf; !got.Equal(i.cert) {
			p.t.Errorf("the certificate in use is %v, want %v", got.SerialNumber, i.cert.SerialNumber)
		}
	}
	if got := p.logs.TakeAll(); len(got) != lines {
		p.t.Errorf("%d lines in the log, want %d: %v", len(got), lines, got)
	}
}

func TestReread(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	one, two, three := issue(t, root, "one", leafCert), issue(t, root, "two", leafCert), issue(t, root, "three", leafCert)
	p := newPair(t, one)
	p.has(one, 0)
	put(t, p.cert, two.certPEM) // half of a pair
	p.has(one, 1)
	put(t, p.key, two.keyPEM)
	p.has(two, 1)

	put(t, p.key, three.keyPEM) // the other half first
	p.has(two, 1)
	put(t, p.cert, three.certPEM)
	p.has(three, 1)

	put(t, p.cert, one.certPEM[:100])
	p.has(three, 1)
	put(t, p.cert, nil)
	p.has(three, 0) // it cannot be used for the same reason
	put(t, p.cert, []byte("garbage\n"))
	p.has(three, 0)
	put(t, p.cert, three.certPEM) // as it was
	p.has(three, 1)

	if err := os.Remove(p.key); err != nil {
		t.Fatal(err)
	}
	p.has(three, 1)
	put(t, p.key, three.keyPEM)
	p.has(three, 1)

	// Replaced by renaming, both.
	put(t, p.cert+".new", one.certPEM)
	put(t, p.key+".new", one.keyPEM)
	for _, path := range []string{p.cert, p.key} {
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	p.has(one, 1)
}

// What was written a moment ago is not looked at: more may come. After that
// moment it is, by itself.
func TestRereadSettles(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	one, two := issue(t, root, "one", leafCert), issue(t, root, "two", leafCert)
	p := newPair(t, one)
	for _, f := range []struct {
		path    string
		content []byte
	}{{p.cert, []byte("garbage")}, {p.cert, two.certPEM}, {p.key, two.keyPEM}} {
		if err := os.WriteFile(f.path, f.content, 0o600); err != nil {
			t.Fatal(err)
		}
		p.has(one, 0)
	}
	until(t, "the new certificate", func() bool { return p.r.get().Leaf.Equal(two.cert) })
	p.has(two, 1)

	// A clock that was set back does not hold it up.
	put(t, p.cert, one.certPEM)
	put(t, p.key, one.keyPEM)
	year := time.Now().AddDate(1, 0, 0)
	for _, path := range []string{p.cert, p.key} {
		if err := os.Chtimes(path, year, year); err != nil {
			t.Fatal(err)
		}
	}
	p.has(one, 1)
}

// What was not settled at the start is read once more.
func TestRereadYoungAtFirst(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	one, two := issue(t, root, "one", leafCert), issue(t, root, "two", leafCert)
	for len(two.certPEM) != len(one.certPEM) {
		two = issue(t, root, "two", leafCert)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	moment := time.Now()
	write := func(i *issuer) {
		put(t, cert, i.certPEM)
		put(t, key, i.keyPEM)
		for _, path := range []string{cert, key} {
			if err := os.Chtimes(path, moment, moment); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(one)
	r, err := readCertificate(zap.NewNop(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	write(two) // the same size at the same moment
	if !r.get().Leaf.Equal(one.cert) {
		t.Error("it is read before it has settled")
	}
	until(t, "the other certificate", func() bool { return r.get().Leaf.Equal(two.cert) })
}

// A file that cannot be read for a while, here a folder is in its place, is read
// when it can be.
func TestRereadPermission(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	one, two := issue(t, root, "one", leafCert), issue(t, root, "two", leafCert)
	p := newPair(t, one)
	put(t, p.cert, two.certPEM)
	if err := os.Remove(p.key); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.key, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(p.key, old, old); err != nil {
		t.Fatal(err)
	}
	p.has(one, 1)
	if err := os.Remove(p.key); err != nil {
		t.Fatal(err)
	}
	put(t, p.key, two.keyPEM)
	p.has(two, 1)
}

func TestRereadAtFirst(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	one, two := issue(t, root, "one", leafCert), issue(t, root, "two", leafCert)
	dir := t.TempDir()
	f := func(cert, key []byte, want string) {
		t.Helper()
		put(t, filepath.Join(dir, "c"), cert)
		put(t, filepath.Join(dir, "k"), key)
		_, err := readCertificate(zap.NewNop(), filepath.Join(dir, "c"), filepath.Join(dir, "k"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v, want %q with the path", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("it shows the key: %v", err)
		}
	}
	f(one.certPEM, two.keyPEM, "does not match")
	f(one.keyPEM, one.certPEM, "PEM")
	f(nil, one.keyPEM, "PEM")
	if _, err := readCertificate(zap.NewNop(), filepath.Join(dir, "absent"), filepath.Join(dir, "k")); !os.IsNotExist(err) {
		t.Errorf("absent: %v", err)
	}
	put(t, filepath.Join(dir, "k"), []byte("no"))
	if _, err := readAuthorities(zap.NewNop(), filepath.Join(dir, "k")); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("no authority: %v", err)
	}
}

// authoritiesOf makes a pool that is read again of a file with them.
func authoritiesOf(t testing.TB, all ...*issuer) (*reread[*x509.CertPool], string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	putAuthorities(t, path, all...)
	r, err := readAuthorities(zap.NewNop(), path)
	if err != nil {
		t.Fatal(err)
	}
	return r, path
}

func putAuthorities(t testing.TB, path string, all ...*issuer) {
	t.Helper()
	var b []byte
	for _, i := range all {
		b = append(b, i.certPEM...)
	}
	put(t, path, b)
}

// handshake shakes hands, and passes an octet each way: in TLS 1.3 a client
// learns what the server thinks of its certificate only then.
func handshake(t testing.TB, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(patience))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer b.Close()
		c := tls.Server(b, server)
		if _, serverErr = io.ReadFull(c, make([]byte, 1)); serverErr == nil {
			_, serverErr = c.Write([]byte{1})
		}
	})
	c := tls.Client(a, client)
	if _, clientErr = c.Write([]byte{1}); clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	a.Close()
	wg.Wait()
	return clientErr, serverErr
}

// The check that is made with a pool of the moment is exactly that of
// crypto/tls: whatever one refuses, the other refuses for the same reason.
func TestClientTLSIsStrict(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	middle := issue(t, root, "middle", authorityCert)
	foreign := issue(t, nil, "foreign", authorityCert)
	twin := issue(t, nil, "root", authorityCert) // the same name, another key
	f := func(what, host string, leaf *issuer, chain []byte, accepted bool) {
		t.Helper()
		cert, err := tls.X509KeyPair(chain, leaf.keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		server := &tls.Config{Certificates: []tls.Certificate{cert}}
		pool := x509.NewCertPool()
		pool.AddCert(root.cert)
		want, _ := handshake(t, &tls.Config{RootCAs: pool, ServerName: host}, server)
		authorities, _ := authoritiesOf(t, root)
		got, _ := handshake(t, clientTLS(host, authorities, nil), server)
		if (want == nil) != accepted {
			t.Errorf("%s: crypto/tls says %v", what, want)
		}
		if (got == nil) != accepted {
			t.Errorf("%s: %v", what, got)
		}
		if got != nil && want != nil && !strings.HasSuffix(want.Error(), got.Error()) {
			t.Errorf("%s: %v, crypto/tls says %v", what, got, want)
		}
	}
	usual := func(what, host string, accepted bool, by *issuer, change func(*x509.Certificate)) {
		t.Helper()
		leaf := issue(t, by, "leaf", func(c *x509.Certificate) { serverCert(c); change(c) })
		f(what, host, leaf, leaf.chain, accepted)
	}
	same := func(*x509.Certificate) {}
	usual("good", "broker.test", true, root, same)
	usual("upper case", "BROKER.test", true, root, same)
	usual("final dot", "broker.test.", true, root, same)
	usual("address", "127.0.0.1", true, root, same)
	usual("with an intermediate", "broker.test", true, middle, same)
	usual("wrong host", "other.test", false, root, same)
	usual("wrong address", "127.0.0.2", false, root, same)
	usual("subdomain", "a.broker.test", false, root, same)
	usual("wildcard", "a.broker.test", true, root, func(c *x509.Certificate) { c.DNSNames = []string{"*.broker.test"} })
	usual("wildcard too deep", "a.b.broker.test", false, root, func(c *x509.Certificate) { c.DNSNames = []string{"*.broker.test"} })
	usual("common name only", "leaf", false, root, func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, nil })
	usual("address as a name", "127.0.0.1", false, root, func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{"127.0.0.1"}, nil })
	usual("expired", "broker.test", false, root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	usual("not yet", "broker.test", false, root, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	usual("for clients", "broker.test", false, root, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	usual("for any", "broker.test", true, root, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	usual("for nothing named", "broker.test", true, root, func(c *x509.Certificate) { c.ExtKeyUsage = nil })
	usual("foreign authority", "broker.test", false, foreign, same)
	usual("authority with the same name", "broker.test", false, twin, same)
	usual("signed by itself", "broker.test", false, nil, same)
	usual("by what is no authority", "broker.test", false, issue(t, root, "leaf", leafCert), same)
	usual("unknown critical extension", "broker.test", false, root, func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}
	})
	usual("authority only for others", "broker.test", false, issue(t, root, "constrained", func(c *x509.Certificate) {
		authorityCert(c)
		c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"other.test"}
	}), same)
	usual("authority for clients", "broker.test", false, issue(t, root, "clients", func(c *x509.Certificate) {
		authorityCert(c)
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}), same)
	usual("intermediate expired", "broker.test", false, issue(t, root, "old", func(c *x509.Certificate) {
		authorityCert(c)
		c.NotAfter = time.Now().Add(-time.Minute)
	}), same)
	leaf := issue(t, middle, "leaf", serverCert)
	f("intermediate missing", "broker.test", leaf, leaf.certPEM, false)
	f("intermediate and strangers", "broker.test", leaf, slices.Concat(leaf.certPEM, foreign.certPEM, middle.certPEM, root.certPEM), true)
	stranger := issue(t, foreign, "leaf", serverCert)
	f("its own root is sent along", "broker.test", stranger, slices.Concat(stranger.certPEM, foreign.certPEM), false)
}

func TestClientTLSVersion(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	leaf := issue(t, root, "leaf", serverCert)
	cert, err := tls.X509KeyPair(leaf.chain, leaf.keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	authorities, _ := authoritiesOf(t, root)
	client := clientTLS("broker.test", authorities, nil)
	if err, _ := handshake(t, client, &tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is accepted")
	}
	// Without a pool there is that of the system, and crypto/tls checks.
	if c := clientTLS("broker.test", nil, nil); c.InsecureSkipVerify || c.ServerName != "broker.test" || c.MinVersion != tls.VersionTLS13 {
		t.Error("without authorities, nobody checks")
	}
	if err, _ := handshake(t, clientTLS("broker.test", nil, nil), &tls.Config{Certificates: []tls.Certificate{cert}}); err == nil {
		t.Error("the system knows the test's authority")
	}
}

// Each handshake has the files of its moment: authorities and certificates, at
// both ends.
func TestTLSFollowsFiles(t *testing.T) {
	old, young := issue(t, nil, "old", authorityCert), issue(t, nil, "young", authorityCert)
	server, client := newPair(t, issue(t, old, "server", serverCert)), newPair(t, issue(t, old, "client", leafCert))
	serverPool, serverCA := authoritiesOf(t, old)
	clientPool, clientCA := authoritiesOf(t, old)
	serverConfig, clientConfig := serverTLS(server.r, serverPool), clientTLS("broker.test", clientPool, client.r)
	f := func(what string, clientGood, serverGood bool) {
		t.Helper()
		gotClient, gotServer := handshake(t, clientConfig, serverConfig)
		if (gotClient == nil) != clientGood || (gotServer == nil) != serverGood {
			t.Errorf("%s: client says %v, server says %v", what, gotClient, gotServer)
		}
	}
	renew := func(p *pair, i *issuer) {
		put(t, p.cert, i.chain)
		put(t, p.key, i.keyPEM)
	}
	f("at first", true, true)
	renew(server, issue(t, young, "server", serverCert))
	f("a server of another authority", false, false)
	putAuthorities(t, clientCA, old, young)
	f("which the client knows now", true, true)
	renew(client, issue(t, young, "client", leafCert))
	f("a client of another authority", false, false)
	putAuthorities(t, serverCA, young)
	f("which the server knows now", true, true)
	putAuthorities(t, clientCA, old)
	f("which the client knows no more", false, false)
	put(t, clientCA, []byte("garbage"))
	f("and garbage changes nothing", false, false)
	putAuthorities(t, clientCA, young)
	f("in the end", true, true)
	middle := issue(t, young, "middle", authorityCert)
	renew(client, issue(t, middle, "client", leafCert))
	renew(server, issue(t, middle, "server", serverCert))
	f("with an intermediate", true, true)
	put(t, client.cert, nil)
	put(t, server.cert, nil)
	f("the last good ones", true, true)
}

// While files are rewritten in place, in small steps, every handshake works,
// with the old certificate or the new one.
func TestTLSDuringRewrite(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	server, client := newPair(t, issue(t, root, "server", serverCert)), newPair(t, issue(t, root, "client", leafCert))
	serverPool, serverCA := authoritiesOf(t, root)
	serverConfig, clientConfig := serverTLS(server.r, serverPool), clientTLS("broker.test", serverPool, client.r)
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	var last [2]*issuer
	turn, rewritten := make(chan struct{}), make(chan struct{})
	inSteps := func(path string, content []byte) { inSteps(t, path, content, turn) }
	go func() {
		defer close(rewritten)
		for round := range rounds {
			last = [2]*issuer{issue(t, root, "server", serverCert), issue(t, root, "client", leafCert)}
			for i, p := range []*pair{server, client} {
				if round%2 == 0 {
					inSteps(p.cert, last[i].chain)
					inSteps(p.key, last[i].keyPEM)
				} else {
					inSteps(p.key, last[i].keyPEM)
					inSteps(p.cert, last[i].chain)
				}
			}
			inSteps(serverCA, root.certPEM)
		}
	}()
	n := 0
	for done := false; !done; n++ {
		select { // a step for each handshake, at the same time
		case <-rewritten:
			done = true
		case turn <- struct{}{}:
		}
		if a, b := handshake(t, clientConfig, serverConfig); a != nil || b != nil {
			t.Fatalf("handshake %d: %v, %v", n, a, b)
		}
	}
	for i, p := range []*pair{server, client} {
		until(t, "the last certificate", func() bool { return p.r.get().Leaf.Equal(last[i].cert) })
	}
	if lines := server.logs.Len(); lines > 8*rounds {
		t.Errorf("%d lines in the log of %d changes", lines, rounds)
	}
}

// inSteps writes over a file in place, a few octets at a time, and truncates it
// at the end: no state in between is a certificate.
func inSteps(t testing.TB, path string, content []byte, turn <-chan struct{}) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	for chunk := range slices.Chunk(content, 97) {
		<-turn
		if _, err := f.Write(chunk); err != nil {
			t.Error(err)
		}
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		t.Error(err)
	}
}

func TestNotAfter(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	at := func(d time.Duration) *issuer {
		return issue(t, root, "leaf", func(c *x509.Certificate) { leafCert(c); c.NotAfter = time.Now().Add(d) })
	}
	one, two := at(time.Hour), at(-time.Hour)
	p := newPair(t, one)
	if got := notAfter(p.r); got != float64(one.cert.NotAfter.Unix()) {
		t.Errorf("%v", got)
	}
	put(t, p.cert, two.certPEM)
	put(t, p.key, two.keyPEM)
	if got := notAfter(p.r); got != float64(two.cert.NotAfter.Unix()) {
		t.Errorf("after the change: %v", got)
	}
	// The leaf counts, not what follows it.
	middle := issue(t, root, "middle", func(c *x509.Certificate) { authorityCert(c); c.NotAfter = time.Now().Add(time.Minute) })
	three := issue(t, middle, "leaf", leafCert)
	put(t, p.cert, three.chain)
	put(t, p.key, three.keyPEM)
	if got := notAfter(p.r); got != float64(three.cert.NotAfter.Unix()) {
		t.Errorf("with an intermediate: %v", got)
	}
}

// What Core does not like about a key that works is said, once.
func TestWarnOfKey(t *testing.T) {
	root := issue(t, nil, "root", authorityCert)
	f := func(jwk string, client *issuer, want ...string) {
		t.Helper()
		dir := t.TempDir()
		path := func(name string) string { return filepath.Join(dir, name) }
		put(t, path("key"), []byte(jwk))
		put(t, path("tls.crt"), client.chain)
		put(t, path("tls.key"), client.keyPEM)
		put(t, path("ca.crt"), root.certPEM)
		cfg := &Config{MQTTSigningKeyFile: path("key"), MQTTClientCertFile: path("tls.crt"), MQTTClientKeyFile: path("tls.key"), MQTTCAFile: path("ca.crt")}
		if err := cfg.MQTTServer.UnmarshalText([]byte("broker.test")); err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.DebugLevel)
		files, err := loadTLS(cfg, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		if files.key.ID != "node.test" || files.mqttTLS == nil || files.certificates["mqtt_client_cert_file"] == nil {
			t.Errorf("files: %+v", files)
		}
		var got []string
		for _, e := range logs.TakeAll() {
			got = append(got, e.Level.String()+": "+e.Message)
		}
		for _, w := range want {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "warn: ") && strings.Contains(s, w) }) {
				t.Errorf("no warning with %q: %q", w, got)
			}
		}
		if len(got) != len(want) {
			t.Errorf("warnings %q, want %q", got, want)
		}
	}
	good := `{"alg":"EdDSA","crv":"Ed25519","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A","kid":"node.test","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	noAlg := strings.Replace(good, `"alg":"EdDSA",`, "", 1)
	f(good, issue(t, root, "node.test", leafCert))
	f(good, issue(t, root, "other", func(c *x509.Certificate) { leafCert(c); c.DNSNames = []string{"x", "node.test"} }))
	f(good, issue(t, root, "other", leafCert), "different nodes")
	f(noAlg, issue(t, root, "node.test", leafCert), "no algorithm")
	f(noAlg, issue(t, root, "other", leafCert), "no algorithm", "different nodes")
}

// All that is wrong with the files is said at once, each with its setting.
func TestLoadTLSErrors(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c", "d"} {
		put(t, filepath.Join(dir, name), []byte("garbage"))
	}
	cfg := &Config{
		InputTLS: "127.0.0.1:1", InputTLSCertFile: filepath.Join(dir, "a"), InputTLSKeyFile: filepath.Join(dir, "b"), InputTLSClientCAFile: filepath.Join(dir, "absent"),
		MQTTCAFile: filepath.Join(dir, "c"), MQTTClientCertFile: filepath.Join(dir, "a"), MQTTClientKeyFile: filepath.Join(dir, "b"), MQTTSigningKeyFile: filepath.Join(dir, "d"),
	}
	if err := cfg.MQTTServer.UnmarshalText([]byte("broker.test")); err != nil {
		t.Fatal(err)
	}
	_, err := loadTLS(cfg, zap.NewNop())
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"input_tls_cert_file: ", "input_tls_client_ca_file: ", "mqtt_ca_file: ", "mqtt_client_cert_file: ", "mqtt_signing_key_file: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if lines := bytes.Count([]byte(err.Error()), []byte("\n")) + 1; lines != 5 {
		t.Errorf("%d lines: %v", lines, err)
	}
}
