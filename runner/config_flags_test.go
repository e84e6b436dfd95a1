package runner

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	f := func(args string, want CommandLine) {
		t.Helper()
		got, err := ParseCommandLine(strings.Fields(args))
		if err != nil {
			t.Errorf("%s: %v", args, err)
			return
		}
		got.settings = nil
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", args, *got, want)
		}
	}
	f("", CommandLine{})
	f("-config edm.toml", CommandLine{ConfigPath: "edm.toml"})
	f("--config=edm.toml", CommandLine{ConfigPath: "edm.toml"})
	f("-config edm.toml -check", CommandLine{ConfigPath: "edm.toml", Check: true})
	f("-check-settings -config edm.toml", CommandLine{ConfigPath: "edm.toml", CheckSettings: true})
	f("-version", CommandLine{Version: true})
	f("-h", CommandLine{Help: true})
	f("--help", CommandLine{Help: true})
	f("-help -replay", CommandLine{Help: true, Replay: true})

	replay := CommandLine{ConfigPath: "c", Replay: true, Files: []string{"a", "b"}}
	f("-config c -replay a b", replay)
	f("-replay -config c a b", replay)
	f("-replay a b -config c", replay)
	f("-replay a -debug -config=c b", replay)
	f("-config c -replay a -- b", replay)
	f("-config c -replay -- -debug -", CommandLine{ConfigPath: "c", Replay: true, Files: []string{"-debug", "-"}})
}

func TestCommandLineErrors(t *testing.T) {
	f := func(args string, want ...string) {
		t.Helper()
		if _, err := ParseCommandLine(strings.Fields(args)); err == nil || err.Error() != lines(want...) {
			t.Errorf("%s\ngot:\n%v\nwant:\n%s", args, err, lines(want...))
		}
	}
	f("-config", "-config needs a value")
	f("-config=", "-config: no file is named")
	f("-data-dir", "-data-dir needs a value")
	f("-check=yes", "-check takes no value")
	f("-replay", "-replay: no capture file is named")
	f("-config c -replay -debug", "-replay: no capture file is named")
	f("-replay=a", "-replay takes no value", "-replay: no capture file is named")
	f("a.fstrm", `"a.fstrm" is neither a flag nor the value of one`)
	f("-debug false", `"false" is neither a flag nor the value of one`)
	f("-", `"-" is neither a flag nor the value of one`)
	f("---debug", "unknown flag --debug, did you mean -debug")
	f("-input_unix x -debag=1 -colour blue -sync",
		"unknown flag -input_unix, did you mean -input-unix",
		"unknown flag -debag, did you mean -debug",
		"unknown flag -colour",
		"unknown flag -sync")
}

func TestSettingsAsFlags(t *testing.T) {
	f := func(args string, change func(*Config)) {
		t.Helper()
		want := DefaultConfig()
		want.CryptopanKey, want.InputUnix = "k", "/run/edm.sock"
		change(&want)
		if got, err := loadText(usable, strings.Fields(args)...); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", args, err, got, want)
		}
	}
	f("", func(*Config) {})
	f("-debug", func(c *Config) { c.Debug = true })
	f("--debug=true", func(c *Config) { c.Debug = true })
	f("-session-files=false", func(c *Config) { c.SessionFiles = false })
	f("-max-connections 7", func(c *Config) { c.MaxConnections = 7 })
	f("-max-frame-size=1_000_000", func(c *Config) { c.MaxFrameSize = 1000000 })
	f("-max-frame-size=0x1000", func(c *Config) { c.MaxFrameSize = 4096 })
	f("-input-unix-mode 0600", func(c *Config) { c.InputUnixMode = 0o600 })
	f("-histogram-hash address", func(c *Config) { c.HistogramHash = HashAddress })
	f("-metrics-listen=", func(c *Config) { c.MetricsListen = "" })
	f("-data-dir a=b", func(c *Config) { c.DataDir = "a=b" })
	f("-data-dir a -data-dir=b", func(c *Config) { c.DataDir = "b" })
	f("-input-tcp [::1]:53", func(c *Config) { c.InputTCP = "[::1]:53" })
	f("-input-tcp [::1]:2112", func(c *Config) { c.InputTCP = "[::1]:2112" })
	f("-input-tcp :0 -metrics-listen :0", func(c *Config) { c.InputTCP, c.MetricsListen = ":0", ":0" })
	f("-input-tcp :2112 -metrics-listen=", func(c *Config) { c.InputTCP, c.MetricsListen = ":2112", "" })
	f("-input-tcp localhost:0", func(c *Config) { c.InputTCP = "localhost:0" })
	f("-cryptopan-key other", func(c *Config) { c.CryptopanKey = "other" })
}

func TestSettingsAsFlagsErrors(t *testing.T) {
	f := func(text, args string, want ...string) {
		t.Helper()
		if _, err := loadText(text, strings.Fields(args)...); err == nil || err.Error() != lines(want...) {
			t.Errorf("%s\ngot:\n%v\nwant:\n%s", args, err, lines(want...))
		}
	}
	f(usable, "-input-unix-mode rw", `-input-unix-mode: "rw" is not an octal mode`)
	f(usable, "-debug=yes", `-debug: expected true or false, got the string "yes"`)
	f(usable, "-debug=", `-debug: expected true or false, got the string ""`)
	f(usable, "-max-connections many", `-max-connections: expected a whole number, got the string "many"`)
	f(usable, "-max-connections 010", `-max-connections: expected a whole number, got the string "010"`)
	f(usable, "-max-connections 1.5", `-max-connections: expected a whole number, got the number 1.5`)
	f(usable, "-max-connections -1", `-max-connections: -1 is not between 1 and 1000000`)
	f(usable, "-max-connections 1#", `-max-connections: expected a whole number, got the string "1#"`)
	f(usable, "-data-dir=", `-data-dir: must not be empty`)
	f(usable+"input_tcp = ':1'", "-metrics-listen :1", `-metrics-listen and input_tcp both listen on port 1`)
	f(usable, "-input-tls :1", `-input-tls needs input_tls_cert_file and input_tls_key_file`)
	f(usable, "-cryptopan-key=", `-cryptopan-key: must not be empty`)
	f(usable, "-cryptopan-key-file=x", `-cryptopan-key-file and cryptopan_key are both set, only one can be`)
	// A good flag does not hide what is wrong in the file.
	f(usable+"debug = 1", "-debug -max-frame-size=1",
		`edm.toml:3: debug: expected true or false, got the number 1`,
		`-max-frame-size: 1 is not between 512 and 16777216`)
	f("colour = 1", "-max-frame-size=1 -cryptopan-key=k",
		`edm.toml:1: unknown key colour`,
		`-max-frame-size: 1 is not between 512 and 16777216`,
		`edm.toml: no input: set input_unix, input_tcp or input_tls`)
}

func TestFlagsAlone(t *testing.T) {
	f := func(args string, want ...string) {
		t.Helper()
		cl, err := ParseCommandLine(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if _, err = cl.LoadConfig(); err != nil {
			got = err.Error()
		}
		if got != lines(want...) {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", args, got, lines(want...))
		}
	}
	f("-cryptopan-key k -input-tcp :1")
	f("-cryptopan-key k -replay a")
	f("-input-tcp :1", "command line: no key for pseudonyms: set cryptopan_key or cryptopan_key_file")
	f("-cryptopan-key k", "command line: no input: set input_unix, input_tcp or input_tls")
}

// A setting with a problem has its default, so that Check can go on.
func TestConfigWithProblems(t *testing.T) {
	cfg, err := loadText(lines(
		`cryptopan_key = "k"`,
		`input_tls = ":1"`,
		`input_unix_mode = "rw"`,
		`max_connections = 0`,
		`well_known_domains_file = "list"`))
	want := DefaultConfig()
	want.CryptopanKey, want.WellKnownDomainsFile = "k", "list"
	if err == nil || cfg == nil || !reflect.DeepEqual(*cfg, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, cfg, want)
	}
}

func TestUsage(t *testing.T) {
	var b bytes.Buffer
	if err := PrintUsage(&b); err != nil {
		t.Fatal(err)
	}
	for _, name := range flagNames() {
		if !strings.Contains(b.String(), "\n  -"+name) {
			t.Errorf("-%s is not there", name)
		}
	}
	for _, s := range settings {
		if s.help == "" {
			t.Errorf("%s has no help", s.key)
		}
	}
	for _, want := range []string{
		"  -input-unix-mode (default 0660)\n        octal mode",
		"  -session-files (default true)\n",
		"  -cryptopan-key\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, &b)
		}
	}
}
