package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Check looks at the places where files are to be made, and says which line of
// the file, or which flag, names one that is of no use.
func TestCheckFolders(t *testing.T) {
	dir := socketDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"file", "folder/", "private/", "made/parquet/sessions/", "theirs/parquet/sessions/"} {
		if folder, isFolder := strings.CutSuffix(name, "/"); isFolder {
			if err := os.MkdirAll(in(folder), 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(in(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"folder", "made/parquet/sessions"} { // for whoever runs the test
		if err := os.Chmod(in(name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	deadSocket(t, in("socket"))
	check := func(text string, args ...string) (string, error) {
		cfg, err := loadPlaced(fmt.Sprintf(
			"cryptopan_key = 'k'\ninput_unix = %q\ndata_dir = %q\n", in("folder/s"), in("folder"))+text, args...)
		if err != nil {
			return "", err
		}
		if err := Check(cfg); err != nil {
			return strings.ReplaceAll(err.Error(), dir+"/", ""), nil
		}
		return "", nil
	}
	f := func(text, want string, args ...string) {
		t.Helper()
		if got, err := check(text, args...); err != nil || got != want {
			t.Errorf("%s %s: got %q, %v; want %q", text, args, got, err, want)
		}
	}
	f("", "")
	f("", "", "-input-unix", in("socket"))
	f("", "", "-data-dir", in("absent/data"))
	f("", "", "-debug-dnstap-filename", in("folder/dump"))
	f("", "", "-debug-dnstap-filename", in("file"))
	f("", "-input-unix: stat absent: no such file or directory", "-input-unix", in("absent/s"))
	f("", "-input-unix: file is not a folder", "-input-unix", in("file/s"))
	f("", "-input-unix: file exists and is not a socket", "-input-unix", in("file"))
	f("", "-data-dir: file is not a folder", "-data-dir", in("file"))
	f("debug_dnstap_filename = '"+in("absent/dump")+"'", "edm.toml:4: debug_dnstap_filename: stat absent: no such file or directory")
	f("debug_dnstap_filename = '"+in("folder")+"'", "edm.toml:4: debug_dnstap_filename: folder is a folder")
	f("well_known_domains_file = '"+in("absent")+"'", "edm.toml:4: well_known_domains_file: open absent: no such file or directory")
	f("# no group has such a number\ninput_unix_group = '4294967295'\nignored_client_ips_file = '"+in("absent")+"'",
		`edm.toml:6: ignored_client_ips_file: open absent: no such file or directory
edm.toml:5: input_unix_group: "4294967295" is no number of a group`)
	if after, err := os.ReadDir(dir); err != nil || len(after) != 6 {
		t.Errorf("in the folder are now %v, %v", after, err)
	}

	needRoot(t)
	err := as(65534, 65534, func() error {
		f("", "", "-data-dir", in("made"))
		f("", "", "-input-unix", in("socket")) // of the service manager, perhaps
		f("", "-data-dir: write to private: permission denied", "-data-dir", in("private"))
		f("", "-data-dir: write to theirs/parquet/sessions: permission denied", "-data-dir", in("theirs"))
		f("", "-input-unix: write to private: permission denied", "-input-unix", in("private/s"))
		f("debug_dnstap_filename = '"+in("private/d")+"'", "edm.toml:4: debug_dnstap_filename: write to private: permission denied")
		f("debug_dnstap_filename = '"+in("file")+"'", "edm.toml:4: debug_dnstap_filename: write to file: permission denied")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
