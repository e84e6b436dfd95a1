package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edm/traffic"
)

// TLS 1.3 with client certificates: whoever has one is served, whoever has
// none is refused and counted.
func TestTLS(t *testing.T) {
	t.Parallel()
	d, ca := startTLS(t)
	with, err := tls.LoadX509KeyPair(ca.issue("client", x509.ExtKeyUsageClientAuth))
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
	d, ca := startTLS(t)
	clientCert, clientKey := ca.issue("client", x509.ExtKeyUsageClientAuth)
	r := startUnbound(t, "dnstap-ip: "+strings.Replace(d.tls, ":", "@", 1), "dnstap-tls: yes",
		`dnstap-tls-server-name: "edm.test"`,
		fmt.Sprintf("dnstap-tls-cert-bundle: %q", filepath.Join(ca.dir, "ca.crt")),
		fmt.Sprintf("dnstap-tls-client-cert-file: %q", clientCert),
		fmt.Sprintf("dnstap-tls-client-key-file: %q", clientKey))
	compare(t, d, r, 0)
}

// startTLS starts edm with an input that wants client certificates, and the
// authority that it trusts.
func startTLS(t testing.TB) (*daemon, *authority) {
	t.Helper()
	ca := newAuthority(t, t.TempDir())
	cert, key := ca.issue("server", x509.ExtKeyUsageServerAuth)
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", wellKnownFile(t)))
	d.set(t, fmt.Sprintf("input_tls = %q", d.tls),
		fmt.Sprintf("input_tls_cert_file = %q", cert),
		fmt.Sprintf("input_tls_key_file = %q", key),
		fmt.Sprintf("input_tls_client_ca_file = %q", filepath.Join(ca.dir, "ca.crt")))
	d.start(t)
	return d, ca
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
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
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
