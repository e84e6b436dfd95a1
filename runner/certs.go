package runner

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"edm/output"
)

// A stamp tells whether a file was written again.
type stamp struct {
	size    int64
	changed time.Time
}

// settling is how long a file must not have changed before it is read: while it
// is written it may look whole, and be half of the old one and half of the new
// one. It is also longer than a tick of any file system's clock, so that every
// later change shows in the stamp.
const settling = time.Second

// A reread is a value made of files, which is made again when they change.
// Nobody signals that they did, and they are not replaced at one moment: while
// what they hold makes no value, the old one stays.
type reread[T any] struct {
	files []string
	parse func(contents [][]byte) (T, error)
	log   *zap.Logger

	// All guarded by mu.
	mu       sync.Mutex
	stamps   []stamp  // of contents
	contents [][]byte // that value was made of
	problem  string   // with what the files hold now; empty if there is none
	value    T
}

// newReread makes the value for the first time, of what is there.
func newReread[T any](log *zap.Logger, parse func([][]byte) (T, error), files ...string) (*reread[T], error) {
	r := &reread[T]{files: files, parse: parse, log: log}
	stamps, settled, err := r.stat()
	if err != nil {
		return nil, err
	}
	if settled { // else it is read once more
		r.stamps = stamps
	}
	if r.contents, err = r.read(); err == nil {
		r.value, err = r.parse(r.contents)
	}
	return r, err
}

// stat returns the stamps of the files, and whether all have settled.
func (r *reread[T]) stat() (stamps []stamp, settled bool, err error) {
	settled = true
	for _, path := range r.files {
		info, err := os.Stat(path)
		if err != nil {
			return nil, false, err
		}
		stamps = append(stamps, stamp{info.Size(), info.ModTime()})
		age := time.Since(info.ModTime())
		settled = settled && (age < 0 || age >= settling) // the clock may have been set back
	}
	return stamps, settled, nil
}

// read returns what the files hold.
func (r *reread[T]) read() (contents [][]byte, err error) {
	contents = make([][]byte, len(r.files))
	for i, path := range r.files {
		if contents[i], err = readFile(path); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

// get returns the value, of the files as they are or as they were last good.
func (r *reread[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch changed, err := r.readLocked(); {
	case changed:
		r.problem = ""
		r.log.Info("a changed file was read", zap.Strings("files", r.files))
	case err != nil && err.Error() != r.problem:
		r.problem = err.Error()
		r.log.Warn("a changed file cannot be used, what it held before stays in use", zap.Error(err))
	}
	return r.value
}

// readLocked makes the value anew if the files hold something else, or had a
// problem.
func (r *reread[T]) readLocked() (changed bool, err error) {
	stamps, settled, err := r.stat()
	if err != nil || !settled || r.problem == "" && slices.Equal(stamps, r.stamps) {
		return false, err
	}
	contents, err := r.read()
	if err != nil {
		return false, err
	}
	if after, _, err := r.stat(); err != nil || !slices.Equal(stamps, after) {
		return false, err // they change right now
	}
	if r.problem == "" && slices.EqualFunc(contents, r.contents, bytes.Equal) {
		r.stamps = stamps
		return false, nil
	}
	value, err := r.parse(contents)
	if err != nil {
		return false, err
	}
	r.stamps, r.contents, r.value = stamps, contents, value
	return true, nil
}

// follow makes r what other is, which was made of other files.
func (r *reread[T]) follow(other *reread[T]) {
	other.mu.Lock()
	defer other.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files, r.parse = other.files, other.parse
	r.stamps, r.contents, r.value, r.problem = other.stamps, other.contents, other.value, other.problem
}

// readCertificate makes a certificate that is read again of its file and that
// of its key.
func readCertificate(log *zap.Logger, certFile, keyFile string) (*reread[*tls.Certificate], error) {
	return newReread(log, func(contents [][]byte) (*tls.Certificate, error) {
		cert, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("%s with the key in %s: %w", certFile, keyFile, err)
		}
		return &cert, nil
	}, certFile, keyFile)
}

// readAuthorities makes a pool of authorities that is read again of its file.
func readAuthorities(log *zap.Logger, file string) (*reread[*x509.CertPool], error) {
	return newReread(log, func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, fmt.Errorf("%s: there is no certificate in PEM in it", file)
		}
		return pool, nil
	}, file)
}

// notAfter returns when a certificate ends, in seconds since 1970.
func notAfter(r *reread[*tls.Certificate]) float64 {
	return float64(r.get().Leaf.NotAfter.Unix())
}

// serverTLS is TLS 1.3 with a certificate, and with authorities that clients
// must show a certificate of, unless they are nil. Each handshake has those of
// its moment.
func serverTLS(cert *reread[*tls.Certificate], clients *reread[*x509.CertPool]) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert.get()}}
			if clients != nil {
				c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, clients.get()
			}
			return c, nil
		},
	}
}

// clientTLS is TLS 1.3 towards host, with the authorities of the system or
// others, and with a certificate unless it is nil. Each handshake has those of
// its moment.
func clientTLS(host string, authorities *reread[*x509.CertPool], cert *reread[*tls.Certificate]) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host}
	if cert != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert.get(), nil }
	}
	if authorities != nil {
		// A Config has one pool for ever. So the check that is made with it is
		// made by us instead, the same one, with the pool of the moment.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error {
			o := x509.VerifyOptions{DNSName: host, Roots: authorities.get(), Intermediates: x509.NewCertPool()}
			for _, cert := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(o)
			return err
		}
	}
	return c
}

// tlsFiles are the certificates, authorities and keys that cfg names.
type tlsFiles struct {
	inputTLS *tls.Config // nil without input_tls
	mqttTLS  *tls.Config // nil without mqtt_server
	key      *output.SigningKey
	httpTLS  *tls.Config // nil without http_url
	httpKey  *output.SigningKey

	certificates map[string]*reread[*tls.Certificate] // by setting
	authorities  map[string]*reread[*x509.CertPool]
}

// follow makes the certificates and authorities those of other, which was loaded
// later. Which there are does not change.
func (f *tlsFiles) follow(other *tlsFiles) {
	for setting, r := range f.certificates {
		if o := other.certificates[setting]; o != nil {
			r.follow(o)
		}
	}
	for setting, r := range f.authorities {
		if o := other.authorities[setting]; o != nil {
			r.follow(o)
		}
	}
}

// loadTLS reads them. The error joins all that is wrong.
func loadTLS(cfg *Config, log *zap.Logger) (*tlsFiles, error) {
	f := &tlsFiles{certificates: make(map[string]*reread[*tls.Certificate]), authorities: make(map[string]*reread[*x509.CertPool])}
	var errs []error
	certificate := func(setting, cert, key string) (r *reread[*tls.Certificate]) {
		if cert == "" || key == "" {
			return nil
		}
		r, err := readCertificate(log, cert, key)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
			return nil
		}
		f.certificates[setting] = r
		return r
	}
	authorities := func(setting, file string) (r *reread[*x509.CertPool]) {
		if file == "" {
			return nil
		}
		r, err := readAuthorities(log, file)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
			return nil
		}
		f.authorities[setting] = r
		return r
	}
	if cfg.InputTLS != "" {
		f.inputTLS = serverTLS(certificate("input_tls_cert_file", cfg.InputTLSCertFile, cfg.InputTLSKeyFile),
			authorities("input_tls_client_ca_file", cfg.InputTLSClientCAFile))
	}
	if server := cfg.MQTTServer.URL; server != nil {
		cert := certificate("mqtt_client_cert_file", cfg.MQTTClientCertFile, cfg.MQTTClientKeyFile)
		f.mqttTLS = clientTLS(server.Hostname(), authorities("mqtt_ca_file", cfg.MQTTCAFile), cert)
		key, err := output.ReadSigningKey(cfg.MQTTSigningKeyFile)
		if err != nil {
			errs = append(errs, fmt.Errorf("mqtt_signing_key_file: %w", err))
		} else {
			f.key = key
			warnOfKey(log, key, cert)
		}
	}
	if cfg.HTTPURL != "" {
		base, err := url.Parse(cfg.HTTPURL)
		if err != nil {
			panic("BUG: http_url was not checked: " + err.Error())
		}
		cert := certificate("http_client_cert_file", cfg.HTTPClientCertFile, cfg.HTTPClientKeyFile)
		f.httpTLS = clientTLS(base.Hostname(), authorities("http_ca_file", cfg.HTTPCAFile), cert)
		key, err := output.ReadSigningKey(cfg.HTTPSigningKeyFile)
		if err == nil {
			err = key.SignsRequests()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("http_signing_key_file: %w", err))
		} else {
			f.httpKey = key
			if cfg.HTTPSigningKeyFile != cfg.MQTTSigningKeyFile {
				warnOfKey(log, key, cert)
			}
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return f, nil
}

// warnOfKey says what Core will not like about a key that works.
func warnOfKey(log *zap.Logger, key *output.SigningKey, cert *reread[*tls.Certificate]) {
	if key.NoAlg {
		log.Warn("the signing key says no algorithm: Core drops the events of a node that is enrolled like that", zap.String("kid", key.ID))
	}
	if cert == nil {
		return
	}
	leaf := cert.get().Leaf
	if leaf.Subject.CommonName != key.ID && !slices.Contains(leaf.DNSNames, key.ID) {
		log.Warn("the signing key and the client certificate are of different nodes: what is sent with them may be refused",
			zap.String("kid", key.ID), zap.String("certificate", leaf.Subject.CommonName))
	}
}
