package runner

import (
	"fmt"
	"strings"
	"testing"
)

// The line of a syntax error is the one that it is on, whatever stands around
// it.
func TestConfigSyntaxErrorLines(t *testing.T) {
	f := func(bad string, behind ...string) {
		t.Helper()
		for _, behind := range append(behind, "", "\n", "\n\n\n") {
			text := "max_connections = 1\n\n" + bad + behind
			want := fmt.Sprintf("edm.toml:%d: ", 3+strings.Count(bad, "\n"))
			if _, err := loadText(text); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%q: got %v, want %s", text, err, want)
			}
		}
	}
	for _, bad := range []string{
		"debug", "debug ", "debug =", "debug = ", "debug = yes", "debug = true true", "debug true", "= 1", ".a = 1", "a. = 1", "a b = 1",
		"debug = 1_", "debug = 1.", "debug = +", "debug = 0x", "debug = 1979-13-01", "debug = 99999999999999999999", "debug = tru",
		`data_dir = "x`, `data_dir = 'x`, `data_dir = "\q"`, `data_dir = "\`, `data_dir = "\u12"`, `data_dir = "\ud800"`,
		"data_dir = \"\x01\"", "data_dir = \"\xff\"", "\x01", "\xff", "# \x01", "# \xff", "\rdebug = 1",
		"a = [1,,2]", "a = [1]]", "a = [x y]", "[]", "[.a]", "[a]]", "[[a] b", "[a] b", "[[a]] b",
		"debug = true\ndebug = true", "[a]\n[a]", "a = [\n1\n2", "data_dir = \"\"\"\n\n\\q\"\"\"", "data_dir = \"\"\"\n\xff\"\"\"", "data_dir = '''\n\x01'''",
	} {
		f(bad, "\nsession_files = true\n", "\r\nsession_files = true\r\n", " # x\n")
	}
	for _, open := range []string{"[", "[a", "[a.", "[[a", "[[a]", "a = {b = "} { // a comment would be part of it
		f(open, "\nsession_files = true\n")
	}
}

// What is wrong is told in a line that can be read, however long the value or
// the key is.
func TestConfigLongErrors(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	f := func(text, want string) {
		t.Helper()
		_, err := loadText(usable + text)
		if err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("got %d bytes: %.500v\nwant %s", len(fmt.Sprint(err)), err, want)
		}
	}
	f("data_dir = "+long, `edm.toml:3: data_dir: expected value but found "xxx`)
	f("max_connections = "+strings.Repeat("9", 70_000), `edm.toml:3: max_connections: 999`)
	f("debug = '"+long+"'", `edm.toml:3: debug: expected true or false, got the string "xxx`)
	f("input_tcp = '"+long+"'", `edm.toml:3: input_tcp: "xxx`)
	f("mqtt_server = 'x://"+long+"'", `edm.toml:3: mqtt_server: the scheme "x" is none of`)
	f("mqtt_server = '"+long+"/x'", `edm.toml:3: mqtt_server: "xxx`)
	f("http_url = '"+long+"'", `edm.toml:3: http_url: "xxx`)
	f("http_url = '"+long+"://x'", `edm.toml:3: http_url: the scheme is "xxx`)
	f("seen_retention = '"+long+"'", `edm.toml:3: seen_retention: "xxx`)
	f("histogram_hash = '"+long+"'", `edm.toml:3: histogram_hash: "xxx`)
	f("input_unix_mode = '"+long+"'", `edm.toml:3: input_unix_mode: "xxx`)
	f("data_dir = \""+long+"\\u0000\"", `edm.toml:3: data_dir: "xxx`)
	f(long+" = 1", `edm.toml:3: unknown key "xxx`)
	f(long+" = x", `edm.toml:3: "xxx`)
	f("[["+long+"]]\n["+long+"]", `edm.toml:4: `)

	if _, err := ParseCommandLine([]string{"-" + long, long}); err == nil || len(err.Error()) > 400 {
		t.Errorf("an unknown flag: %d bytes", len(fmt.Sprint(err)))
	}
	if _, err := lookupGroup(long); err == nil || len(err.Error()) > 400 {
		t.Errorf("an unknown group: %d bytes", len(fmt.Sprint(err)))
	}
}
