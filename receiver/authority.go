package receiver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

const tlsVersion = tls.VersionTLS13

// An Authority issues certificates. They are good in any year that a test may
// think it is.
type Authority struct {
	PEM  []byte // its own certificate
	Pool *x509.CertPool

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority() *Authority {
	a := &Authority{Pool: x509.NewCertPool()}
	template := a.template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.cert = template
	var der []byte
	der, a.key = a.issue(template)
	a.cert = must(x509.ParseCertificate(der))
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.Pool.AddCert(a.cert)
	return a
}

// Issue makes a certificate of a host or a node, for both ends of a
// connection, and returns it with its key, both in PEM.
func (a *Authority) Issue(name string) (cert, key []byte) {
	template := a.template(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, private := a.issue(template)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(private))})
}

// Server is TLS 1.3 for a host, and takes clients with a certificate of the
// authority only, by HTTP/1.1 or 2.
func (a *Authority) Server(host string) *tls.Config {
	return &tls.Config{
		MinVersion:   tlsVersion,
		Certificates: []tls.Certificate{must(tls.X509KeyPair(a.Issue(host)))},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    a.Pool,
		NextProtos:   []string{"h2", "http/1.1"},
	}
}

func (a *Authority) template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2190, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// issue makes a certificate and its key; the authority signs its own with that.
func (a *Authority) issue(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	key = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	signer := a.key
	if signer == nil {
		signer = key
	}
	return must(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, signer)), key
}

// must is for what fails only without a source of randomness.
func must[T any](v T, err error) T {
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return v
}
