package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// usable is put in front of a configuration that is tested for something else.
const usable = "cryptopan_key = \"k\"\ninput_unix = \"/run/edm.sock\"\n"

// loadText loads a configuration as if it stood in edm.toml, with flags.
func loadText(text string, args ...string) (*Config, error) {
	cfg, err := loadPlaced(text, args...)
	if cfg != nil {
		cfg.source, cfg.places = nil, nil // to be compared
	}
	return cfg, err
}

// loadPlaced is loadText with the places of the settings.
func loadPlaced(text string, args ...string) (*Config, error) {
	cl, err := ParseCommandLine(append([]string{"-config", "edm.toml"}, args...))
	if err != nil {
		return nil, err
	}
	return cl.load([]byte(text))
}

func lines(s ...string) string { return strings.Join(s, "\n") }

func TestFourLinesAreEnough(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edm.toml")
	text := lines(
		`cryptopan_key = "correct horse"`,
		`input_unix = "/run/edm/dnstap.sock"`,
		`well_known_domains_file = "/etc/edm/well-known.dawg"`,
		`data_dir = "/srv/edm"`)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cl, err := ParseCommandLine([]string{"-config", path})
	if err != nil {
		t.Fatal(err)
	}
	got, err := cl.LoadConfig()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		InputUnix:                     "/run/edm/dnstap.sock",
		InputUnixMode:                 0o660,
		MaxConnections:                256,
		MaxFrameSize:                  262144,
		CryptopanKey:                  "correct horse",
		CryptopanKeySalt:              "edm-kdf-salt-val",
		CryptopanAddressEntries:       1000000,
		WellKnownDomainsFile:          "/etc/edm/well-known.dawg",
		DataDir:                       "/srv/edm",
		SessionFiles:                  true,
		HistogramHLLExplicitThreshold: 20,
		HistogramHash:                 HashPseudonym,
		QnameSeenEntries:              10_000_000,
		SeenRetention:                 Duration(90 * 24 * time.Hour),
		SeenMaxBytes:                  10 << 30,
		NewQnameBacklog:               1_000_000,
		MQTTKeepalive:                 Duration(30 * time.Second),
		MQTTQoS:                       1,
		SentRetention:                 Duration(24 * time.Hour),
		OutboxMaxBytes:                1 << 30,
		MetricsListen:                 "127.0.0.1:2112",
		source:                        cl,
		places: map[string]string{
			"cryptopan_key": path + ":1: cryptopan_key", "input_unix": path + ":2: input_unix",
			"well_known_domains_file": path + ":3: well_known_domains_file", "data_dir": path + ":4: data_dir",
		},
	}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %#v\nwant %#v", *got, want)
	}
}

func TestConfigFileCannotBeRead(t *testing.T) {
	cl := CommandLine{ConfigPath: filepath.Join(t.TempDir(), "edm.toml")}
	cfg, err := cl.LoadConfig()
	if want := cl.ConfigPath + ": no such file or directory"; cfg != nil || err == nil || err.Error() != want {
		t.Errorf("got %v, %v, want %s", cfg, err, want)
	}
	if _, err = new(CommandLine).LoadConfig(); err == nil || !strings.Contains(err.Error(), "-config") {
		t.Errorf("without a file and settings: %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		if _, err := loadText(usable + text); err == nil || err.Error() != lines(want...) {
			t.Errorf("%s\ngot:\n%v\nwant:\n%s", text, err, lines(want...))
		}
	}

	// Unknown keys.
	f("data-dir = '/x'", "edm.toml:3: unknown key data-dir, did you mean data_dir")
	f("DATA_DIR = '/x'", "edm.toml:3: unknown key DATA_DIR, did you mean data_dir")
	f("dta_dir = '/x'", "edm.toml:3: unknown key dta_dir, did you mean data_dir")
	f("max_frames_size = 1", "edm.toml:3: unknown key max_frames_size, did you mean max_frame_size")
	f("colour = 'blue'", "edm.toml:3: unknown key colour")
	f("'col our' = 'blue'", `edm.toml:3: unknown key "col our"`)
	f(`"a\nb" = 1`, `edm.toml:3: unknown key "a\nb"`)
	f(`"" = 1`, `edm.toml:3: unknown key ""`)
	f("[mqtt]\nserver = 'x'\n", "edm.toml:3: unknown key mqtt (a table; the settings stand in none)")
	f("[[mqtt]]\n", "edm.toml:3: unknown key mqtt (a table; the settings stand in none)")
	f("\nmqtt.server.name = 'x'\n", "edm.toml:4: unknown key mqtt (a table; the settings stand in none)")

	// Wrong kinds of value.
	f(`debug = "yes"`, `edm.toml:3: debug: expected true or false, got the string "yes"`)
	f(`debug = 1`, `edm.toml:3: debug: expected true or false, got the number 1`)
	f(`max_connections = "256"`, `edm.toml:3: max_connections: expected a whole number, got the string "256"`)
	f(`max_connections = 256.0`, `edm.toml:3: max_connections: expected a whole number, got the number 256.0`)
	f(`max_connections = 1e99`, `edm.toml:3: max_connections: expected a whole number, got the number 1e+99`)
	f(`data_dir = true`, `edm.toml:3: data_dir: expected a string, got true`)
	f(`data_dir = ["/a", "/b"]`, `edm.toml:3: data_dir: expected a string, got a list`)
	f(`data_dir = {a = 1}`, `edm.toml:3: data_dir: expected a string, got a table`)
	f(`data_dir = 2026-11-30`, `edm.toml:3: data_dir: expected a string, got a date or time`)
	f(`data_dir = "a\u0000b"`, `edm.toml:3: data_dir: "a\x00b" holds a zero byte`)
	f("[debug]", `edm.toml:3: debug: expected true or false, got a table`)
	f(`input_unix_mode = 660`, `edm.toml:3: input_unix_mode: expected a string, got the number 660`)
	f(`metrics_listen = 2112`, `edm.toml:3: metrics_listen: expected a string, got the number 2112`)

	// Bad values.
	f(`input_unix_mode = "rw"`, `edm.toml:3: input_unix_mode: "rw" is not an octal mode`)
	f(`input_unix_mode = "0680"`, `edm.toml:3: input_unix_mode: "0680" is not an octal mode`)
	f(`input_unix_mode = ""`, `edm.toml:3: input_unix_mode: "" is not an octal mode`)
	f(`input_unix_mode = "4755"`, `edm.toml:3: input_unix_mode: "4755" is not an octal mode up to 0777`)
	f(`histogram_hash = "md5"`, `edm.toml:3: histogram_hash: "md5" is neither "pseudonym" nor "address"`)
	f(`histogram_hll_explicit_threshold = 15`, `edm.toml:3: histogram_hll_explicit_threshold: 15 is not between 16 and 31`)
	f(`histogram_hll_explicit_threshold = 32`, `edm.toml:3: histogram_hll_explicit_threshold: 32 is not between 16 and 31`)
	f(`max_frame_size = 16777217`, `edm.toml:3: max_frame_size: 16777217 is not between 512 and 16777216`)
	f(`max_frame_size = 511`, `edm.toml:3: max_frame_size: 511 is not between 512 and 16777216`)
	f(`max_connections = 0`, `edm.toml:3: max_connections: 0 is not between 1 and 1000000`)
	f(`minimiser_workers = -1`, `edm.toml:3: minimiser_workers: -1 is not between 0 and 1024`)
	f(`minimiser_workers = 1025`, `edm.toml:3: minimiser_workers: 1025 is not between 0 and 1024`)
	f(`cryptopan_address_entries = -1`, `edm.toml:3: cryptopan_address_entries: -1 is not between 0 and 1000000000`)
	f(`data_dir = ""`, `edm.toml:3: data_dir: must not be empty`)
	f(`input_tcp = "127.0.0.1"`, `edm.toml:3: input_tcp: "127.0.0.1" is not host:port: missing port in address`)
	f(`metrics_listen = "::1:2112"`, `edm.toml:3: metrics_listen: "::1:2112" is not host:port: too many colons in address`)
	f(`input_tcp = "127.0.0.1:"`, `edm.toml:3: input_tcp: "127.0.0.1:" is not host:port: the port is a number up to 65535`)
	f(`input_tcp = ":65536"`, `edm.toml:3: input_tcp: ":65536" is not host:port: the port is a number up to 65535`)
	f(`input_tcp = "127.0.0.256:1"`, `edm.toml:3: input_tcp: "127.0.0.256:1" is not host:port: "127.0.0.256" is neither an address nor a host name`)
	f(`input_tcp = "a b:1"`, `edm.toml:3: input_tcp: "a b:1" is not host:port: "a b" is neither an address nor a host name`)

	// Keys that need another, or exclude it.
	f(`input_tls = ":1"`, `edm.toml:3: input_tls needs input_tls_cert_file and input_tls_key_file`)
	f("input_tls = ':1'\ninput_tls_cert_file = 'c'", `edm.toml:3: input_tls needs input_tls_key_file`)
	f("input_tls_client_ca_file = 'c'", `edm.toml:3: input_tls_client_ca_file needs input_tls`)
	f("cryptopan_key_file = 'c'", `edm.toml:3: cryptopan_key_file and cryptopan_key are both set, only one can be`)

	// Two that want the same address.
	f("input_tcp = ':1'\nmetrics_listen = ':1'", `edm.toml:4: metrics_listen and input_tcp both listen on port 1`)
	f("metrics_listen = ':1'\ninput_tcp = ':1'", `edm.toml:4: input_tcp and metrics_listen both listen on port 1`)
	f("input_tcp = ':2112'", `edm.toml:3: input_tcp and metrics_listen both listen on port 2112`)
	f("input_tcp = '127.0.0.1:02112'", `edm.toml:3: input_tcp and metrics_listen both listen on port 2112`)
	f("input_tcp = '0.0.0.0:2112'", `edm.toml:3: input_tcp and metrics_listen both listen on port 2112`)
	f("input_tcp = '[::]:2112'", `edm.toml:3: input_tcp and metrics_listen both listen on port 2112`)
	f("input_tcp = '[::ffff:127.0.0.1]:2112'", `edm.toml:3: input_tcp and metrics_listen both listen on port 2112`)
	f("input_tcp = 'A.example:1'\nmetrics_listen = 'a.Example:1'", `edm.toml:4: metrics_listen and input_tcp both listen on port 1`)
	f("input_tcp = ':1'\ninput_tls = ':1'\ninput_tls_cert_file = 'c'\ninput_tls_key_file = 'k'", `edm.toml:4: input_tls and input_tcp both listen on port 1`)
	f("input_tcp = ':1'\nmetrics_listen = ':x'", `edm.toml:4: metrics_listen: ":x" is not host:port: the port is a number up to 65535`)

	// All at once, in the order of the file, each key once.
	f(lines(
		`debug = "yes"`,
		`input_tls = ":1"`,
		`pebble-sink = true`,
		`input_tls_cert_file = 5`,
		`input_tls_client_ca_file = ""`,
		`max_connections = "x"`),
		`edm.toml:3: debug: expected true or false, got the string "yes"`,
		`edm.toml:4: input_tls needs input_tls_key_file`,
		`edm.toml:5: unknown key pebble-sink, did you mean pebble_sync`,
		`edm.toml:6: input_tls_cert_file: expected a string, got the number 5`,
		`edm.toml:8: max_connections: expected a whole number, got the string "x"`)
}

func TestConfigRequiredKeys(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		if _, err := loadText(text); err == nil || err.Error() != lines(want...) {
			t.Errorf("%s\ngot:\n%v\nwant:\n%s", text, err, lines(want...))
		}
	}
	noKey := "edm.toml: no key for pseudonyms: set cryptopan_key or cryptopan_key_file"
	noInput := "edm.toml: no input: set input_unix, input_tcp or input_tls"
	f("", noKey, noInput)
	f("debug = 1", `edm.toml:1: debug: expected true or false, got the number 1`, noKey, noInput)
	f("input_tcp = ':1'", noKey)
	f("cryptopan_key = 'x'", noInput)
	f("cryptopan_key_file = 'x'", noInput)
	f("input_tcp = ':1'\ncryptopan_key = ''", "edm.toml:2: cryptopan_key: must not be empty")
	f("cryptopan_key_file = 'x'\ninput_tcp = ':1'\ncryptopan_key = 'x'",
		"edm.toml:3: cryptopan_key and cryptopan_key_file are both set, only one can be")
	// An input that is set and wrong is told once.
	f("cryptopan_key = 'x'\ninput_tcp = 1", "edm.toml:2: input_tcp: expected a string, got the number 1")

	path := strings.Repeat("x", 107)
	if _, err := loadText("cryptopan_key = 'x'\ninput_unix = '" + path + "'"); err != nil {
		t.Error(err)
	}
	f("cryptopan_key = 'x'\ninput_unix = 'y"+path+"'",
		"edm.toml:2: input_unix: the path has 108 bytes, a socket's path has at most 107")
}

func TestConfigSyntaxErrors(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if cfg, err := loadText(text); cfg != nil || err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
	f("\ndebug = yes\n", `edm.toml:2: debug: expected value but found "yes" instead`)
	f("debug =\ndata_dir = ''", `edm.toml:1: debug: expected value but found '\n' instead`)
	f("debug = true\ndebug = true\n", `edm.toml:2: debug: already set above`)
	f("cryptopan_key = 'x'\n\ncryptopan_key = 'y'\n", `edm.toml:3: cryptopan_key: already set above`)
	f("debug true\n", `edm.toml:1: expected '.' or '='`)
	f("\n[mqtt\n", `edm.toml:2: expected '.' or ']' to end table name`)
	f("data_dir = \"/x\ndebug = true", `edm.toml:1: data_dir: strings cannot contain newlines`)
	f("data_dir = \"/x\r\ndebug = true", `edm.toml:1: data_dir: strings cannot contain newlines`)
	f("data_dir = '/x' '/y'", `edm.toml:1: expected a top-level item to end with a newline, comment, or EOF`)
	f("input_unix_mode = 0660", `edm.toml:1: input_unix_mode: invalid integer "0660": cannot have leading zeroes`)
	f("data_dir = \"\\\nx\"", `edm.toml:1: data_dir: invalid escape in string '\�'`)
	f("data_dir = \"\xff\"", `edm.toml:1: data_dir: invalid UTF-8 byte: 0xff`)
	f("\x01", `edm.toml:1: TOML files cannot contain control characters: '0x01'`)
	f("\xff\xfed\x00e\x00", `edm.toml:1: the file is UTF-16, it must be UTF-8`)
	f("d\x00e\x00", `edm.toml:1: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8`)
	f("max_connections = 99999999999999999999", `edm.toml:1: max_connections: 99999999999999999999 is out of range for int64`)
	f("mqtt.data_dir = x", `edm.toml:1: mqtt: the value is not valid TOML; a string needs quotes`)
	f("data_dir = '''\nx", `edm.toml:2: data_dir: unexpected EOF; expected "'''"`)
}

// A key's line must be right whatever stands around it.
func TestConfigLines(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		entries, err := parseTOML([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			return
		}
		var got []string
		for _, e := range entries {
			got = append(got, fmt.Sprint(e.line, " ", e.key))
		}
		if lines(got...) != lines(want...) {
			t.Errorf("%s\ngot  %q\nwant %q", text, got, want)
		}
	}
	f("b = 1\na = 2", "1 b", "2 a")
	f("# a = 1\n\n  a\t=\t2 # a = 3\n", "3 a")
	f("s = \"\"\"\na = 1\nb = 2\n\"\"\"\nb = '''\na = 1'''\na = 3", "1 s", "5 b", "7 a")
	f("s = \"\"\"x \\\n  y\\\"\"\"\"\na = 3", "1 s", "3 a")
	f("a = [ # b\n 1,\n 2 ]\nb = [\n]\n", "1 a", "4 b")
	f("\"a\" = 1\n'b' = 2\n\"c\\n\" = 3\n\"\" = 4", "1 a", "2 b", "3 c\n", "4 ")
	f("\n\na.b = 1\na.c = 2\nb.\"c.d\".e = 1\n\"c.d\" = 1", "3 a", "5 b", "6 c.d")
	f("x = 1\n[a]\nx = 2\n[b.c]\n[b]\n", "1 x", "2 a", "4 b")
	f("\n[a.b.c]\n", "2 a")
	f("\n[[a]]\nb = 1\n", "2 a")
	f("\n[[a.b]]\n", "2 a")
	f("a = { b = { c = 1 } }\nd = 1", "1 a", "2 d")
	f("\ufeffa = 1\r\nb = '''\r\nx\r\n'''\r\nc = 1", "1 a", "2 b", "5 c")
}

// What is wrong with a secret must be told without it.
func TestSecretIsNotShown(t *testing.T) {
	f := func(text string, args ...string) {
		t.Helper()
		cl, err := ParseCommandLine(append([]string{"-config", "edm.toml"}, args...))
		if err == nil {
			_, err = cl.load([]byte(text))
		}
		if err == nil {
			t.Errorf("%s %s: no error", text, args)
		} else if strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "1234") {
			t.Errorf("%s %s: %v", text, args, err)
		}
	}
	f("cryptopan_key = hunter2")
	f("cryptopan_key = 123456")
	f("cryptopan_key = 012345")
	f("cryptopan_key = 1234.x")
	f("cryptopan_key = 0x1234z")
	f("cryptopan_key = 1234-56-78")
	f("cryptopan_key = 999999999991234999999")
	f("cryptopan_key = 'hunter2")
	f("cryptopan_key = \"hunter2\\xzz\"")
	f("cryptopan_key = \"hunter2\\q\"")
	f("cryptopan_key = \"\"\"hunter2\\q")
	f("cryptopan_key = 'hunter2' 'hunter3'")
	f("cryptopan_key = ['hunter2']")
	f("cryptopan_key = {hunter2 = 1}")
	f("cryptopan_key 'hunter2'")
	f("cryptopan_key.hunter2 = x")
	f("cryptopan_key = {hunter2 = x}")
	f("cryptopan_key = {hunter2 = 1, hunter2 = 2}")
	f("cryptopan-key = {hunter2 = x}")
	f("[cryptopan_key]\nhunter2 = x")
	f("cryptopan_key_salt = hunter2")
	f("cryptopan_key_salt = 123456")
	f("cryptopan_key_salt = ['hunter2']")
	f("cryptopan_key_salt = \"hunter2\\xzz\"")
	f("cryptopan_key_sald = hunter2")
	f("mqtt_server = 'mqtts://u:hunter2@h:x'")
	f("mqtt_server = 'u:hunter2@::1'")
	f("http_url = 'https://u:hunter2@h:x'")
	f("http_url = 'u:hunter2@h'")
	f("http_url = 'hunter2:x@h'")
	f("cryptopan-key = 'hunter2'")
	f("cryptopan-key = hunter2")
	f("[cryptopan]\nkey = hunter2")
	f("cryptopan_key = 'hunter2'\ncryptopan_key = 'hunter2'")
	f("cryptopan_key = 'hunter2'\ncryptopan_key_file = 'x'")
	f("data_dir = \"\"\"\ncryptopan_key = 'hunter2'\\xzz\"\"\"")
	f("", "-cryptopan-key", "hunter2", "hunter3")
	f("", "-cryptopan-key-salt", "hunter2", "hunter3")
	f("", "-cryptopan-kei", "hunter2")
	f("", "-cryptopan-kei=hunter2")

	secret := Secret("hunter2")
	cfg := Config{CryptopanKey: secret, CryptopanKeySalt: secret}
	var log bytes.Buffer
	NewLogger(&log, true).Sugar().Infow("loaded", "config", cfg, "key", secret)
	marshalled, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %s %s",
		secret, secret, secret, secret, secret, secret, secret, &cfg, &log, marshalled)
	if strings.Contains(printed, "hunter2") || strings.Contains(printed, fmt.Sprintf("%x", "hunter2")) {
		t.Error(printed)
	}
	if string(secret) != "hunter2" {
		t.Error("the secret is lost")
	}
}

func TestNearest(t *testing.T) {
	f := func(word, want string) {
		t.Helper()
		if got := nearest(word, []string{"data_dir", "debug", "input_tcp", "input_tls", "pebble_sync"}); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
	f("pebble-sync", "pebble_sync")
	f("Pebble-Sync", "pebble_sync")
	f("peblesync", "pebble_sync")
	f("dbug", "debug")
	f("input_tps", "input_tls")
	f("input", "")
	f("dir", "")
	f("x", "")
	f("", "")
	f(strings.Repeat("debug", 1000), "")
}

// The example is the documentation of every default, and a start for a file.
func TestExampleFile(t *testing.T) {
	text, err := os.ReadFile("../edm.toml.example")
	if err != nil {
		t.Fatal(err)
	}
	keyLine := regexp.MustCompile(`^(#?)([a-z_]+) = (.*)$`)
	var got, uncommented []string
	inBlock := false // a comment stands above
	for i, line := range strings.Split(string(text), "\n") {
		m := keyLine.FindStringSubmatch(line)
		if m == nil {
			inBlock = strings.HasPrefix(line, "# ") && !strings.HasPrefix(line, "# ---")
			if line != "" && !strings.HasPrefix(line, "# ") {
				t.Errorf("line %d is no setting, comment or blank line: %s", i+1, line)
			}
			uncommented = append(uncommented, line)
			continue
		}
		if !inBlock {
			t.Errorf("line %d: %s is not explained", i+1, m[2])
		}
		inBlock = false
		got = append(got, m[2])
		if commented, empty := m[1] == "#", m[3] == `""`; commented != empty {
			t.Errorf("line %d: %s: a key is commented out if it is empty, and only then", i+1, m[2])
		}
		if m[2] == "cryptopan_key_file" {
			line = "#" // excludes cryptopan_key
		}
		uncommented = append(uncommented, strings.TrimPrefix(line, "#"))
	}
	var want []string
	for _, s := range settings {
		want = append(want, s.key)
	}
	if lines(got...) != lines(want...) {
		t.Errorf("keys: got %q\nwant %q", got, want)
	}

	full := strings.Replace(lines(uncommented...), `cryptopan_key = ""`, `cryptopan_key = "k"`, 1)
	full = strings.Replace(full, `input_unix = ""`, `input_unix = "s"`, 1)
	cfg, err := loadText(full)
	if err != nil {
		t.Fatalf("with everything uncommented: %v", err)
	}
	defaults := DefaultConfig()
	defaults.CryptopanKey, defaults.InputUnix = "k", "s"
	if !reflect.DeepEqual(*cfg, defaults) {
		t.Errorf("defaults: got  %+v\nwant %+v", *cfg, defaults)
	}
	if _, err := loadText(string(text), "-cryptopan-key=k", "-input-unix=s"); err != nil {
		t.Errorf("as it is: %v", err)
	}
}

// Whatever the file holds: no panic, every problem on a line of its own that says
// where, no secret in it, and three lines in front move everything by three.
func FuzzConfig(f *testing.F) {
	example, err := os.ReadFile("../edm.toml.example")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	f.Add(usable)
	f.Add("debug = \"yes\"\r\n[mqtt]\nx.y = '''\n'''\n[[z]]\na = {b = [1, 2.5, 1979-05-27T07:32:00Z]}\n")
	f.Add("data_dir = \"\"\"\\x41\\\n \"\"\"\n\"\" = 0x1_0\ncryptopan_key = 0b2")
	f.Add("a.b.\"c\\u00e9\" = inf\na.c = 07:32\nq = {\n}\n")
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "correct horse battery staple"
		text = strings.TrimPrefix(text, "\ufeff")
		cfg, err := loadText("cryptopan_key = '" + secret + "'\n" + text)
		if err == nil {
			if cfg.CryptopanKey != secret {
				t.Fatal("the key is not what was set")
			}
			return
		}
		where := regexp.MustCompile(`^edm\.toml:(([1-9][0-9]*):)? `)
		count := 1 + strings.Count(text, "\n")
		for _, line := range strings.Split(err.Error(), "\n") {
			m := where.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("%q does not say where", line)
			}
			if n := 0; m[2] != "" {
				if fmt.Sscan(m[2], &n); n > count+1 {
					t.Fatalf("%q: there are %d lines", line, count+1)
				}
			}
			if strings.Contains(line, secret) {
				t.Fatalf("%q shows the secret", line)
			}
		}
		_, moved := loadText("#\n#\n#\ncryptopan_key = '" + secret + "'\n" + text)
		want := regexp.MustCompile(`(?m)^edm\.toml:[0-9]+:`).ReplaceAllStringFunc(err.Error(), func(s string) string {
			var n int
			fmt.Sscanf(s, "edm.toml:%d:", &n)
			return fmt.Sprintf("edm.toml:%d:", n+3)
		})
		if moved == nil || moved.Error() != want {
			t.Fatalf("three lines further down:\n%v\nwant:\n%s", moved, want)
		}
	})
}
