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

// settling is how long after it was changed a file may change again without
// its stamp saying so: the clock of a file system is coarse.
const settling = 2 * time.Second

// stampOf returns the zero stamp, which no file has, for one that was changed
// right now.
func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil || time.Since(info.ModTime()) < settling {
		return stamp{}, err
	}
	return stamp{info.Size(), info.ModTime()}, nil
}

// A reread is a value made of files, which is made again when they change.
// Nobody signals that they did, and they are not replaced at one moment: while
// what they hold makes no value, the old one stays.
type reread[T any] struct {
	files []string
	parse func(contents [][]byte) (T, error)
	log   *zap.Logger

	// All guarded by mu.
	mu       sync.Mutex
	stamps   []stamp  // of contents; the zero stamp if they are to be read again
	contents [][]byte // as they were last read
	problem  string   // with them; empty if value was made of them
	value    T
}

// newReread makes the value for the first time.
func newReread[T any](log *zap.Logger, parse func([][]byte) (T, error), files ...string) (*reread[T], error) {
	r := &reread[T]{files: files, parse: parse, log: log, stamps: make([]stamp, len(files)), contents: make([][]byte, len(files))}
	if _, err := r.readLocked(); err != nil { // nobody else has r yet
		return nil, err
	}
	return r, nil
}

// readLocked makes the value if what the files hold has changed. It is to be
// called again soon after an error.
func (r *reread[T]) readLocked() (changed bool, err error) {
	stamps := make([]stamp, len(r.files))
	for i, path := range r.files {
		if stamps[i], err = stampOf(path); err != nil {
			return false, err
		}
	}
	if r.problem == "" && slices.Equal(stamps, r.stamps) && !slices.Contains(stamps, stamp{}) {
		return false, nil
	}
	contents := make([][]byte, len(r.files))
	for i, path := range r.files {
		if contents[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	if r.problem == "" && slices.EqualFunc(contents, r.contents, bytes.Equal) {
		r.stamps = stamps
		return false, nil
	}
	value, err := r.parse(contents)
	if err != nil {
		return false, fmt.Errorf("%s: %w", r.files[0], err)
	}
	r.stamps, r.contents, r.value = stamps, contents, value
	return true, nil
}

// get returns the value, of the files as they are or as they were last good.
func (r *reread[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch changed, err := r.readLocked(); {
	case err != nil && err.Error() != r.problem:
		r.problem = err.Error()
		r.log.Warn("a changed file cannot be used, what it held before stays in use", zap.Error(err))
	case err == nil && changed:
		r.problem = ""
		r.log.Info("a changed file was read", zap.Strings("files", r.files))
	}
	return r.value
}

// readCertificate makes a certificate that is read again of its file and that
// of its key.
func readCertificate(log *zap.Logger, certFile, keyFile string) (*reread[*tls.Certificate], error) {
	return newReread(log, func(contents [][]byte) (*tls.Certificate, error) {
		cert, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("with the key in %s: %w", keyFile, err)
		}
		return &cert, nil
	}, certFile, keyFile)
}

// readAuthorities makes a pool of authorities that is read again of its file.
func readAuthorities(log *zap.Logger, file string) (*reread[*x509.CertPool], error) {
	return newReread(log, func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, errors.New("there is no certificate in PEM in it")
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

	certificates map[string]*reread[*tls.Certificate] // by file
}

// loadTLS reads them. The error joins all that is wrong.
func loadTLS(cfg *Config, log *zap.Logger) (*tlsFiles, error) {
	f := &tlsFiles{certificates: make(map[string]*reread[*tls.Certificate])}
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
		f.certificates[cert] = r
		return r
	}
	authorities := func(setting, file string) (r *reread[*x509.CertPool]) {
		if file == "" {
			return nil
		}
		r, err := readAuthorities(log, file)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
		}
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
