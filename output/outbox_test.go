package output

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

// at is the start of an interval in tests.
var at = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

// minuteName is the name of the histogram of minute n after at.
func minuteName(n int) string {
	start := at.Add(time.Duration(n) * time.Minute)
	return histogramPrefix + "-" + start.Format(fileTime) + "_" + start.Add(time.Minute).Format(fileTime) + fileSuffix
}

func TestParseName(t *testing.T) {
	good := func(prefix, name, interval string, number int, base string) {
		t.Helper()
		f, ok := parseName(prefix, name)
		if !ok || f.name != name || f.iv.String() != interval || f.number != number || f.base() != base {
			t.Errorf("%s: %v, %s, %d, %s", name, ok, f.iv, f.number, f.base())
		}
	}
	const base = "dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z"
	good(histogramPrefix, base+".parquet", "2026-11-30T10:00:00Z/PT1M", 1, base)
	good(histogramPrefix, base+"_2.parquet", "2026-11-30T10:00:00Z/PT1M", 2, base)
	good(histogramPrefix, base+"_10.parquet", "2026-11-30T10:00:00Z/PT1M", 10, base)
	const session = "dns_session_block-2024-02-29T23-59-55Z_2024-03-01T01-00-00Z"
	good(sessionPrefix, session+".parquet", "2024-02-29T23:59:55Z/PT1H5S", 1, session)

	bad := func(name string) {
		t.Helper()
		for _, prefix := range []string{histogramPrefix, sessionPrefix} {
			if f, ok := parseName(prefix, name); ok {
				t.Errorf("%q is taken for %v", name, f)
			}
		}
	}
	bad("")
	bad("." + base + ".parquet")
	bad(base)
	bad(base + ".parquet.bak")
	bad(base + ".parquet\n")
	bad(base + ".PARQUET")
	bad(base + "_1.parquet")
	bad(base + "_0.parquet")
	bad(base + "_02.parquet")
	bad(base + "_9999999999.parquet")
	bad(base + "_x.parquet")
	bad("x" + base + ".parquet")
	bad("dns_histogram-2026-11-30T10-00-00Z.parquet")
	bad("dns_histogram-2026-11-31T10-00-00Z_2026-12-01T10-01-00Z.parquet") // no such day
	bad("dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-60-00Z.parquet")
	bad("dns_histogram-2026-11-30T10-01-00Z_2026-11-30T10-01-00Z.parquet") // no time at all
	bad("dns_histogram-2026-11-30T10-01-00Z_2026-11-30T10-00-00Z.parquet")
	bad("dns_histogram-2026-11-30 10-00-00Z_2026-11-30T10-01-00Z.parquet")
	if _, ok := parseName(sessionPrefix, base+".parquet"); ok {
		t.Error("a histogram is taken for a session file")
	}
}

// What the name says of the interval is what the file says, so the name is
// enough to tell the receiver.
func TestNameAgreesWithFile(t *testing.T) {
	f := func(start, stop string) {
		t.Helper()
		var iv Interval
		var err error
		if iv.Start, err = time.Parse(time.RFC3339Nano, start); err != nil {
			t.Fatal(err)
		}
		if iv.Stop, err = time.Parse(time.RFC3339Nano, stop); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for range 3 {
			if _, err := WriteHistogram(dir, Meta{}, histogramOf(iv, manyRows(1))); err != nil {
				t.Fatal(err)
			}
		}
		files, err := listFinished(dir, histogramPrefix)
		if err != nil || len(files) != 3 {
			t.Fatal(files, err)
		}
		for i, file := range files {
			p := openParquet(t, filepath.Join(dir, file.name))
			if inside, ok := p.Lookup("edm.interval"); !ok || inside != file.iv.String() || file.number != i+1 {
				t.Errorf("the name %s says %s, the file %q", file.name, file.iv, inside)
			}
		}
	}
	f("2026-11-30T10:00:00Z", "2026-11-30T10:01:00Z")
	f("2026-11-30T10:00:00.999999999Z", "2026-11-30T10:00:01.1Z")
	f("2026-11-30T23:59:59.5+01:00", "2026-12-02T01:02:03+02:00")
	f("2024-02-29T23:59:00-11:30", "2024-03-01T12:00:00Z")
}

// Two nodes that count the same never write the same octets, nor does one
// node twice: the receiver would take the second for the first.
func TestEqualTrafficDiffers(t *testing.T) {
	var before []byte
	for range 3 {
		path, err := WriteHistogram(t.TempDir(), Meta{"1", "node"}, histogramOf(Interval{at, at.Add(time.Minute)}, manyRows(10)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(b, before) {
			t.Error("two files of the same rows are the same")
		}
		p, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := p.Lookup("edm.file_id"); !ok || len(id) < 26 {
			t.Errorf("the file's id is %q", id)
		}
		before = b
	}
}

// foreign puts things into a folder that are not files of edm's, though most
// have such names, and returns a function that checks that they are untouched.
func foreign(t *testing.T, dir string) (check func()) {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "outside")
	old := time.Now().Add(-1000 * time.Hour)
	var paths []string
	add := func(name string, make func(path string) error) {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	file := func(path string) error {
		if err := os.WriteFile(path, bytes.Repeat([]byte("foreign"), 1000), 0o600); err != nil {
			return err
		}
		return os.Chtimes(path, old, old)
	}
	if err := file(outside); err != nil {
		t.Fatal(err)
	}
	for i, prefix := range []string{histogramPrefix, sessionPrefix} {
		name := func(n int) string {
			return fmt.Sprintf("%s-2020-01-01T00-00-0%dZ_2020-01-01T00-00-0%dZ.parquet", prefix, n, n+1)
		}
		add(name(1), func(path string) error { return os.Symlink(outside, path) })
		add(name(2), func(path string) error { return os.Mkdir(path, 0o700) })
		add(name(3), func(path string) error { return syscall.Mkfifo(path, 0o600) })
		add(name(4)+".old", file)
		add("."+name(5), file)
		add(fmt.Sprintf("notes-%d.parquet", i), file)
	}
	return func() {
		t.Helper()
		for _, path := range append(paths, outside) {
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("what is not edm's was touched: %v", err)
			}
		}
		if b, err := os.ReadFile(outside); err != nil || len(b) != 7000 {
			t.Errorf("a symbolic link was followed: %v", err)
		}
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestListFinished(t *testing.T) {
	dir := t.TempDir()
	check := foreign(t, dir)
	names := []string{
		"dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-00-30Z.parquet",
		"dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet",
		"dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z_2.parquet",
		"dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z_10.parquet",
		"dns_histogram-2026-12-01T00-00-00Z_2026-12-01T00-01-00Z.parquet",
	}
	for _, name := range names {
		write(t, filepath.Join(dir, name), "x")
	}
	files, err := listFinished(dir, histogramPrefix)
	if err != nil || len(files) != len(names) {
		t.Fatal(files, err)
	}
	for i, f := range files {
		if f.name != names[i] {
			t.Errorf("file %d is %s, want %s", i, f.name, names[i])
		}
	}
	check()
	if _, err := listFinished(filepath.Join(dir, "absent"), histogramPrefix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
}

func TestOpenFinished(t *testing.T) {
	dir := t.TempDir()
	foreign(t, dir)
	for _, n := range []string{"1Z_2020-01-01T00-00-02", "2Z_2020-01-01T00-00-03", "3Z_2020-01-01T00-00-04"} {
		path := filepath.Join(dir, "dns_histogram-2020-01-01T00-00-0"+n+"Z.parquet")
		if f, _, err := openFinished(path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		} else if errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}

func TestMoveFinished(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.Mkdir(from, 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(content string) *finished {
		t.Helper()
		write(t, filepath.Join(from, minuteName(0)), content)
		files, err := listFinished(from, histogramPrefix)
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		return &files[0]
	}
	f := func(content, want string) {
		t.Helper()
		file := put(content)
		began := time.Now().Add(-time.Second)
		path, err := moveFinished(file, file.info, from, to)
		if err != nil || path != filepath.Join(to, want) {
			t.Errorf("moved to %q: %v", path, err)
		}
		info, err := os.Stat(path)
		if b, errRead := os.ReadFile(path); err != nil || string(b) != content || info.ModTime().Before(began) {
			t.Errorf("%s holds %q: %v, %v", path, b, err, errRead)
		}
		checkNames(t, from)
	}
	base := "dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z"
	f("first", base+".parquet") // the folder is made
	f("second", base+"_2.parquet")
	f("third", base+"_3.parquet")
	checkNames(t, to, base+".parquet", base+"_2.parquet", base+"_3.parquet")

	// Nothing else is moved in its place.
	file := put("fourth")
	write(t, filepath.Join(from, "new"), "fifth, which is longer")
	if err := os.Rename(filepath.Join(from, "new"), filepath.Join(from, file.name)); err != nil {
		t.Fatal(err)
	}
	if path, err := moveFinished(file, file.info, from, to); path != "" || !errors.Is(err, errReplaced) {
		t.Errorf("another file of its name was moved to %q: %v", path, err)
	}
	if err := os.Remove(filepath.Join(from, file.name)); err != nil {
		t.Fatal(err)
	}
	if path, err := moveFinished(file, file.info, from, to); path != "" || !errors.Is(err, errReplaced) {
		t.Errorf("a file that is gone was moved to %q: %v", path, err)
	}

	// The other folder is none.
	file = put("sixth")
	write(t, filepath.Join(dir, "file"), "")
	if path, err := moveFinished(file, file.info, from, filepath.Join(dir, "file")); path != "" || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("moved to %q: %v", path, err)
	}
	checkNames(t, from, base+".parquet")
}

func TestExpire(t *testing.T) {
	dir := t.TempDir()
	check := foreign(t, dir)
	for n := range 4 {
		path := filepath.Join(dir, minuteName(n))
		write(t, path, "x")
		modified := time.Now().Add(-time.Duration(n) * time.Hour)
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	n, err := expire(dir, histogramPrefix, time.Now().Add(-90*time.Minute))
	if n != 2 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	files, err := listFinished(dir, histogramPrefix)
	if err != nil || len(files) != 2 || files[0].name != minuteName(0) || files[1].name != minuteName(1) {
		t.Errorf("left are %v, %v", files, err)
	}
	check()
}
