package runner

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"edm/cryptopan"
	"edm/store"
)

// A view is everything that is read from files: lists, key, certificates. It
// is never changed: to read them again is to make another one.
type view struct {
	names          *store.Dictionary // well known; nil if there is no list
	ignoredNames   *store.Dictionary // nil if there is no list, or none on it
	ignoredClients *store.Clients    // nil if there is no list, or none on it
	cipher         *cryptopan.Cipher
	inputTLS       *tls.Config // nil without input_tls
	sessionFiles   bool
}

// loadView reads what cfg names. The error joins all that is wrong. What is
// required and not named is LoadConfig's to find.
func loadView(cfg *Config) (*view, error) {
	v := &view{sessionFiles: cfg.SessionFiles}
	var errs []error
	load := func(setting string, f func() error) {
		if err := f(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
		}
	}
	if cfg.CryptopanKey != "" || cfg.CryptopanKeyFile != "" {
		load("cryptopan_key_file", func() (err error) {
			v.cipher, err = loadCipher(cfg)
			return err
		})
	}
	if path := cfg.WellKnownDomainsFile; path != "" {
		load("well_known_domains_file", func() (err error) {
			if v.names, err = store.LoadDictionary(path); err == nil && v.names.Len() == 0 {
				err = fmt.Errorf("%s: there is no name on the list", path)
			}
			return err
		})
	}
	if path := cfg.IgnoredQuestionNamesFile; path != "" {
		load("ignored_question_names_file", func() error {
			names, err := store.LoadDictionary(path)
			if names.Len() > 0 {
				v.ignoredNames = names
			}
			return err
		})
	}
	if path := cfg.IgnoredClientIPsFile; path != "" {
		load("ignored_client_ips_file", func() error {
			clients, err := store.LoadClients(path)
			if !clients.IsEmpty() {
				v.ignoredClients = clients
			}
			return err
		})
	}
	if cfg.InputTLS != "" {
		load("input_tls", func() (err error) {
			v.inputTLS, err = loadInputTLS(cfg)
			return err
		})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return v, nil
}

// loadCipher makes the cipher from the key in the configuration or its file,
// whose last line end is not part of the key.
func loadCipher(cfg *Config) (*cryptopan.Cipher, error) {
	key := []byte(string(cfg.CryptopanKey))
	if path := cfg.CryptopanKeyFile; path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		key = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		if len(key) == 0 {
			return nil, fmt.Errorf("%s is empty", path)
		}
	}
	return cryptopan.New(key, []byte(cfg.CryptopanKeySalt))
}

// loadInputTLS reads the certificate of input_tls, and the authorities that
// clients must show a certificate of.
func loadInputTLS(cfg *Config) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(cfg.InputTLSCertFile, cfg.InputTLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", cfg.InputTLSCertFile, cfg.InputTLSKeyFile, err)
	}
	t := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
	if path := cfg.InputTLSClientCAFile; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !t.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", path)
		}
	}
	return t, nil
}
