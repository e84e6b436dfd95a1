package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"edm/cryptopan"
	"edm/store"
)

// A view is everything that a reload replaces: the lists, the key of the
// pseudonyms. It is never changed: to read them again is to make another one.
// (Certificates are read again when they change, see tlsFiles.)
type view struct {
	names          *store.Dictionary // well known; nil if there is no list
	ignoredNames   *store.Dictionary // nil if there is no list, or none on it
	ignoredClients *store.Clients    // nil if there is no list, or none on it
	cipher         *cryptopan.Cipher
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
		b, err := readFile(path)
		if err != nil {
			return nil, err
		}
		if line, ok := bytes.CutSuffix(b, []byte("\n")); ok {
			b = bytes.TrimSuffix(line, []byte("\r"))
		}
		key = b
		if len(key) == 0 {
			return nil, fmt.Errorf("%s is empty", path)
		}
	}
	return cryptopan.New(key, []byte(cfg.CryptopanKeySalt))
}

// readFile reads a file that a setting names. It does not wait for the other end
// of a pipe, which may never come.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeCharDevice) != 0 {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	return os.ReadFile(path)
}
