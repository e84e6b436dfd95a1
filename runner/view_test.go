package runner

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// All that is wrong with the files is told at once, each with its setting.
func TestViewProblems(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	f := func(setUp func(*Config), want ...string) {
		t.Helper()
		cfg := DefaultConfig()
		setUp(&cfg)
		v, err := loadView(&cfg)
		if len(want) == 0 {
			if err != nil || v == nil {
				t.Errorf("got %v, %v", v, err)
			}
			return
		}
		if err == nil || v != nil {
			t.Fatalf("got %v, %v", v, err)
		}
		got := strings.Split(err.Error(), "\n")
		if len(got) != len(want) {
			t.Errorf("got %q, want %q", got, want)
			return
		}
		for i := range want {
			setting, what, _ := strings.Cut(want[i], " ")
			if !strings.HasPrefix(got[i], setting+": ") || !strings.Contains(got[i], what) {
				t.Errorf("got %q, want %q", got[i], want[i])
			}
		}
	}
	f(func(*Config) {})
	f(func(cfg *Config) { cfg.WellKnownDomainsFile = list(t, "example.com\n") })
	f(func(cfg *Config) { cfg.WellKnownDomainsFile = absent }, "well_known_domains_file "+absent)
	f(func(cfg *Config) { cfg.WellKnownDomainsFile = list(t, "# nothing\n\n") }, "well_known_domains_file no name")
	f(func(cfg *Config) { cfg.WellKnownDomainsFile = list(t, "example.com\na..b\n") }, "well_known_domains_file list:2")
	f(func(cfg *Config) {
		cfg.IgnoredQuestionNamesFile = list(t, "\n")
		cfg.IgnoredClientIPsFile = list(t, "# none\n")
	})
	f(func(cfg *Config) { cfg.IgnoredClientIPsFile = list(t, "192.0.2.1\n2001:db8::/129\n") }, "ignored_client_ips_file list:2")
	f(func(cfg *Config) { cfg.CryptopanKeyFile = absent }, "cryptopan_key_file "+absent)
	f(func(cfg *Config) {
		cfg.CryptopanKeyFile = absent
		cfg.WellKnownDomainsFile, cfg.IgnoredQuestionNamesFile, cfg.IgnoredClientIPsFile = absent, absent, absent
	}, "cryptopan_key_file", "well_known_domains_file", "ignored_question_names_file", "ignored_client_ips_file")
}

// An ignore list on which there is nothing ignores nothing: in particular a
// frame without an address stays.
func TestViewEmptyIgnoreLists(t *testing.T) {
	v := testView(t, "", "# nobody\n", "\n# nobody\n")
	if v.ignoredNames != nil || v.ignoredClients != nil || v.names != nil {
		t.Errorf("got %+v", v)
	}
	v = testView(t, "a.example\n", "b.example\n", "::/0\n")
	if v.ignoredNames.Len() != 1 || v.names.Len() != 1 || !v.ignoredClients.Contains(netip.MustParseAddr("2001:db8::1")) {
		t.Errorf("got %+v", v)
	}
}

// The key in a file is its octets without one line end, which is what a service
// manager hands over and what an editor adds.
func TestViewKeyFile(t *testing.T) {
	client := netip.MustParseAddr("198.51.100.7")
	pseudonym := func(setUp func(*Config)) (netip.Addr, error) {
		t.Helper()
		cfg := DefaultConfig()
		setUp(&cfg)
		v, err := loadView(&cfg)
		if err != nil {
			return netip.Addr{}, err
		}
		return v.cipher.Pseudonym(client).Addr(), nil
	}
	byKey := map[string]netip.Addr{} // a key takes 64 MiB and a while
	f := func(content, key string) {
		t.Helper()
		got, err := pseudonym(func(cfg *Config) { cfg.CryptopanKeyFile = list(t, content) })
		if err != nil {
			t.Fatalf("%q: %v", content, err)
		}
		if !byKey[key].IsValid() {
			if byKey[key], err = pseudonym(func(cfg *Config) { cfg.CryptopanKey = Secret(key) }); err != nil {
				t.Fatal(err)
			}
		}
		if got != byKey[key] {
			t.Errorf("%q is not the key %q", content, key)
		}
	}
	f("a key", "a key")
	f("a key\n", "a key")
	f("a key\r\n", "a key")
	f("a key\n\n", "a key\n")
	f("a key\r", "a key\r")
	f(" a key ", " a key ")
	f("\x00\xff\n\x01", "\x00\xff\n\x01")
	for _, content := range []string{"", "\n", "\r\n"} {
		if got, err := pseudonym(func(cfg *Config) { cfg.CryptopanKeyFile = list(t, content) }); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("%q: got %v, %v", content, got, err)
		}
	}
	one, err := pseudonym(func(cfg *Config) { cfg.CryptopanKey = "a key" })
	if err != nil {
		t.Fatal(err)
	}
	other, err := pseudonym(func(cfg *Config) { cfg.CryptopanKey, cfg.CryptopanKeySalt = "a key", "another salt" })
	if err != nil || one == other {
		t.Errorf("another salt makes the same pseudonym %v, %v", other, err)
	}
}

// Check reads every file, binds and creates nothing, also while a daemon runs
// by the same settings.
func TestCheck(t *testing.T) {
	cfg := testConfig(t)
	cfg.InputTCP, cfg.MetricsListen = freeAddress(t), freeAddress(t)
	a := newAuthority(t, filepath.Dir(cfg.InputUnix))
	a.issue("server", a)
	a.issue("other", a)
	cfg.InputTLS = freeAddress(t)
	cfg.InputTLSCertFile, cfg.InputTLSKeyFile, cfg.InputTLSClientCAFile = a.path("server.pem"), a.path("server.key"), a.path("ca.pem")
	before, err := os.ReadDir(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	check := func(want string, setUp func(*Config)) {
		t.Helper()
		changed := *cfg
		setUp(&changed)
		err := Check(&changed)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	check("", func(*Config) {})
	if after, err := os.ReadDir(a.dir); err != nil || len(after) != len(before) {
		t.Errorf("%d files were there, now %d, %v", len(before), len(after), err)
	}
	check("other.pem", func(cfg *Config) { cfg.InputTLSCertFile = a.path("other.pem") }) // of another key
	check("absent", func(cfg *Config) { cfg.InputTLSKeyFile = a.path("absent") })
	check("server.key", func(cfg *Config) { cfg.InputTLSClientCAFile = a.path("server.key") }) // no certificate in it
	check("absent", func(cfg *Config) { cfg.InputTLSClientCAFile = a.path("absent") })

	r := runDaemon(t, cfg)
	check("", func(*Config) {})
	r.connect().finish()
	r.stop()
}
