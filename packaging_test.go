package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// These tests guard the packages: that they are of this source, and that they
// run under a real systemd.

// nix/vendor-hash.nix has the hash of what go mod vendor makes, as Nix has it.
func TestVendorHash(t *testing.T) {
	const file = "nix/vendor-hash.nix"
	vendor := filepath.Join(t.TempDir(), "vendor")
	if out, err := exec.Command("go", "mod", "vendor", "-o", vendor).CombinedOutput(); err != nil {
		t.Fatalf("go mod vendor: %v\n%s", err, out)
	}
	hash, err := narHash(vendor)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%q\n", hash)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale: run nix/update-vendor-hash.sh, which writes %s", file, want)
	}
}

// narHash returns the hash of a folder as nix hash path does: SHA-256 of its
// Nix archive, see "Nix Archive (NAR) format" in the manual of Nix.
func narHash(dir string) (string, error) {
	h := sha256.New()
	narStrings(h, "nix-archive-1")
	if err := narNode(h, dir); err != nil {
		return "", err
	}
	return "sha256-" + base64.StdEncoding.EncodeToString(h.Sum(nil)), nil
}

// narStrings writes strings: the length, the octets, and zeros up to a multiple of 8.
func narStrings(w io.Writer, all ...string) {
	for _, s := range all {
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
		w.Write(append(b, make([]byte, -len(s)&7)...))
	}
}

func narNode(w io.Writer, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	narStrings(w, "(", "type")
	switch {
	case info.IsDir():
		narStrings(w, "directory")
		entries, err := os.ReadDir(path) // in the order of the octets, as they are to be
		if err != nil {
			return err
		}
		for _, e := range entries {
			narStrings(w, "entry", "(", "name", e.Name(), "node")
			if err := narNode(w, filepath.Join(path, e.Name())); err != nil {
				return err
			}
			narStrings(w, ")")
		}
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		narStrings(w, "symlink", "target", target)
	default:
		narStrings(w, "regular")
		if info.Mode()&0o100 != 0 {
			narStrings(w, "executable", "")
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		narStrings(w, "contents", string(b))
	}
	narStrings(w, ")")
	return nil
}

// The hash of a folder with one of each, as nix hash path prints it.
func TestNarHash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "b"), 0o755),
		os.WriteFile(filepath.Join(dir, "a"), []byte("text\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "b", "run"), []byte("eightoct"), 0o755),
		os.Symlink("../a", filepath.Join(dir, "b", "link")),
		os.WriteFile(filepath.Join(dir, "B"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := narHash(dir)
	if err != nil {
		t.Fatal(err)
	}
	const want = "sha256-20L+5+689Ia2zPJXdqpw0vw4A6o9EDtid8INDPP6cH4="
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The files in contrib/ are the module's own text, so that the two cannot drift.
func TestContrib(t *testing.T) {
	state := t.TempDir()
	cmd := exec.Command(need(t, "nix-instantiate", "nix-bin"), "--eval", "--strict", "--json", "nix/test", "-A", "contrib")
	cmd.Env = append(os.Environ(), "NIX_REMOTE=", "NIX_PATH=", "NIX_CONF_DIR="+state, "XDG_CACHE_HOME="+state,
		"NIX_STORE_DIR="+state+"/store", "NIX_STATE_DIR="+state+"/state", "NIX_LOG_DIR="+state+"/log")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("nix-instantiate: %v\n%s", err, &stderr)
	}
	var files map[string]string
	if err := json.Unmarshal(out, &files); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		path := filepath.Join("contrib", name)
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what nixos-module.nix says: run nix/update-contrib.sh (%v)", path, err)
		}
	}
	var have []string
	for _, dir := range []string{"systemd", "sysusers.d", "tmpfiles.d"} {
		entries, err := filepath.Glob("contrib/" + dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range entries {
			have = append(have, strings.TrimPrefix(path, "contrib/"))
		}
	}
	if want := slices.Sorted(maps.Keys(files)); !slices.Equal(slices.Sorted(slices.Values(have)), want) {
		t.Errorf("contrib has %q, the module makes %q", have, want)
	}
}

// make install puts everything where systemd looks for it, and the unit starts
// the binary that was installed.
func TestMakeInstall(t *testing.T) {
	dest := t.TempDir()
	run := exec.Command("make", "--no-print-directory", "install", "DESTDIR="+dest, "PREFIX=/opt")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	modes := map[string]os.FileMode{
		"bin/edm":                        0o755,
		"lib/systemd/system/edm.service": 0o644,
		"lib/systemd/system/edm.socket":  0o644,
		"lib/sysusers.d/edm.conf":        0o644,
		"lib/tmpfiles.d/edm.conf":        0o644,
		"share/doc/edm/LICENSE":          0o644,
		"share/doc/edm/CHANGELOG.md":     0o644,
		"share/doc/edm/README.md":        0o644,
		"share/doc/edm/edm.toml.example": 0o644,
	}
	root := filepath.Join(dest, "opt")
	err := filepath.WalkDir(dest, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if modes[name] != info.Mode() {
			t.Errorf("%s: mode %v, want %v", name, info.Mode(), modes[name])
		}
		delete(modes, name)
		return nil
	})
	if err != nil || len(modes) > 0 {
		t.Errorf("not installed: %v, %v", modes, err)
	}
	unit, err := os.ReadFile(filepath.Join(root, "lib/systemd/system/edm.service"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(unit, []byte("\nExecStart=/opt/bin/edm -config /etc/edm/edm.toml\n")) {
		t.Errorf("the unit does not start what was installed:\n%s", unit)
	}
	version, err := os.ReadFile("VERSION")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(root, "bin/edm"), "-version").Output()
	if err != nil || !strings.HasPrefix(string(out), "edm "+strings.TrimSpace(string(version))+" ") {
		t.Errorf("edm -version: %s %v", out, err)
	}
}

// The settings that the Debian package ships are good, and its key is where it
// makes it.
func TestDebianSettings(t *testing.T) {
	var out, errs bytes.Buffer
	if code := edm([]string{"-config", "contrib/debian/edm.toml", "-check-settings"}, &out, &errs); code != 0 {
		t.Errorf("exit code %d\n%s", code, &errs)
	}
	postinst, err := os.ReadFile("contrib/debian/postinst")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("contrib/debian/edm.toml")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^cryptopan_key_file = "(.+)"$`).FindSubmatch(settings)
	if m == nil || !bytes.Contains(postinst, append([]byte("key="), m[1]...)) {
		t.Errorf("the key in the settings is not the one that postinst makes: %q", m)
	}
}

// nix/test/run.sh tests the flake, the module, the unit and the Debian package,
// and boots them. Each of its checks is a test here.
func TestAppliance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes: run without -short")
	}
	if os.Getuid() != 0 {
		missing(t, "only root can make containers")
	}
	for program, debianPackage := range map[string]string{
		"nix": "nix-bin", "systemd-nspawn": "systemd-container", "unbound": "unbound", "mosquitto": "mosquitto",
		"mosquitto_sub": "mosquitto-clients", "dig": "bind9-dnsutils", "file": "file", "curl": "curl",
	} {
		need(t, program, debianPackage)
	}
	out, err := exec.Command("nix/test/run.sh").CombinedOutput()
	t.Logf("%s", out)
	checks := regexp.MustCompile(`(?m)^(ok  |FAIL|skip) (.+)$`).FindAllStringSubmatch(string(out), -1)
	for _, check := range checks {
		t.Run(check[2], func(t *testing.T) {
			switch check[1] {
			case "FAIL":
				t.Error("failed: what it said is in the log of TestAppliance")
			case "skip":
				missing(t, "%s", check[2])
			}
		})
	}
	if err != nil || len(checks) == 0 {
		t.Errorf("nix/test/run.sh: %v", err)
	}
}
