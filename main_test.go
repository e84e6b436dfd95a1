package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the process prints and how it exits when it does not run.
func TestExitCodes(t *testing.T) {
	t.Chdir(t.TempDir())
	bad := "debug = 1\ncolour = 2\n"
	good := "cryptopan_key = 'k'\ninput_unix = 'edm.sock'\nwell_known_domains_file = 'absent'\n"
	for name, text := range map[string]string{"bad.toml": bad, "good.toml": good} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := func(code int, stdout, stderr string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		if got := edm(args, &out, &errs); got != code {
			t.Errorf("%.100q: exit code %d, want %d", args, got, code)
		}
		if !regexp.MustCompile("(?s)^"+stdout+"$").Match(out.Bytes()) || !regexp.MustCompile("(?s)^"+stderr+"$").Match(errs.Bytes()) {
			t.Errorf("%.100q:\nstdout %.3000q\nstderr %.3000q", args, &out, &errs)
		}
	}
	badLines := `bad.toml:1: debug: [^\n]*\nbad.toml:2: unknown key colour\nbad.toml: no key [^\n]*\nbad.toml: no input: [^\n]*\n`
	f(0, `edm dev \(go1\.\S+ \w+/\w+\)\n`, "", "-version")
	f(0, ".*-input-unix-mode .default 0660.*", "", "-help")
	f(1, "", "no configuration: [^\n]*\n")
	f(1, "", "unknown flag -colour\n", "-colour")
	f(1, "", "absent.toml: no such file or directory\n", "-config", "absent.toml")
	f(1, "", badLines, "-config", "bad.toml")
	f(1, "", badLines, "-config", "bad.toml", "-check")
	f(1, "", badLines, "-config", "bad.toml", "-check-settings")
	f(0, "", "", "-config", "good.toml", "-check-settings")
	f(1, "", "[^\n]*absent[^\n]*\n", "-config", "good.toml", "-check")
	f(1, "", "bad.toml:1: debug: .*\n[^\n]*absent[^\n]*\n", "-config", "bad.toml", "-well-known-domains-file", "absent", "-check")
	long := strings.Repeat("x", 70_000)
	f(1, "", "-well-known-domains-file: open x{400,500}…x{400,500}: file name too long\n", "-config", "good.toml", "-check", "-well-known-domains-file", long)
	f(1, "", "[^\n]{500,700}…[^\n]{500,700}\n", "-config", "good.toml", "-well-known-domains-file=", "-data-dir", long)
	if left, err := filepath.Glob("*"); err != nil || len(left) != 2 {
		t.Errorf("there are files that were not there before: %v %v", left, err)
	}
}
