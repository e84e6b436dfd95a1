package output

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	testStart = time.Date(2026, 11, 30, 11, 0, 0, 0, time.FixedZone("CET", 3600))
	testStop  = testStart.Add(time.Minute)
)

const (
	testName = "dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z"
	testTemp = ".dns_histogram-2026-11-30T10-00-00Z"
)

// names returns what lies in dir, sorted.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	return got
}

func checkNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("in the folder: %q, want %q", got, want)
	}
}

// begin starts a file of the test's interval.
func begin(t *testing.T, dir string) *file {
	t.Helper()
	f, err := createFile(dir, histogramPrefix, testStart)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// full mounts a file system of 64 KiB, or skips the test.
func full(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a full disk needs a tmpfs, and mounting one needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("a file was left open in %s: %v", dir, err)
		}
	})
	return dir
}

func TestFileAppearsWhole(t *testing.T) {
	dir := t.TempDir()
	f := begin(t, dir)
	want := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	for part := range slices.Chunk(want, 1000) {
		if _, err := f.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	checkNames(t, dir, testTemp+".parquet")
	path, err := f.Commit(testStop)
	if err != nil {
		t.Fatal(err)
	}
	f.Abort() // as when deferred
	checkNames(t, dir, testName+".parquet")
	if want := filepath.Join(dir, testName+".parquet"); path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm()&^fileMode != 0 {
		t.Errorf("mode %v, %v; want at most %o", st.Mode(), err, fileMode)
	}
}

func TestFileNeverOverwrites(t *testing.T) {
	dir := t.TempDir()
	commit := func(f *file, content, want string) {
		t.Helper()
		f.Write([]byte(content))
		path, err := f.Commit(testStop)
		if got := filepath.Base(path); err != nil || got != want {
			t.Errorf("committed as %s, %v; want %s", got, err, want)
		}
	}
	commit(begin(t, dir), "one", testName+".parquet")
	commit(begin(t, dir), "two", testName+"_2.parquet")

	// Three at a time: each has a temporary name of its own.
	third, fourth, none := begin(t, dir), begin(t, dir), begin(t, dir)
	checkNames(t, dir, testName+".parquet", testName+"_2.parquet", testTemp+".parquet", testTemp+"_2.parquet", testTemp+"_3.parquet")
	commit(third, "three", testName+"_3.parquet")
	// The temporary name is free again, and another file may have taken it.
	sixth := begin(t, dir)
	third.Abort()
	none.Abort()
	none.Abort()
	// Whatever holds a name keeps it.
	if err := os.Symlink("nowhere", filepath.Join(dir, testName+"_4.parquet")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, testName+"_5.parquet"), 0o700); err != nil {
		t.Fatal(err)
	}
	commit(sixth, "six", testName+"_6.parquet")
	commit(fourth, "seven", testName+"_7.parquet")

	for i, want := range []string{"one", "two", "three", "", "", "six", "seven"} {
		got, err := os.ReadFile(filepath.Join(dir, numbered(testName, i+1)))
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("file %d holds %q, %v; want %q", i+1, got, err, want)
		}
	}
	if got := len(names(t, dir)); got != 7 {
		t.Errorf("%d files, want 7: %q", got, names(t, dir))
	}
}

func TestFileCannotBeCreated(t *testing.T) {
	f := func(dir string, want error) {
		t.Helper()
		got, err := createFile(dir, histogramPrefix, testStart)
		if !errors.Is(err, want) || got != nil {
			t.Errorf("%v, want %v", err, want)
		}
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%q does not name %s", err, dir)
		}
	}
	dir := t.TempDir()
	f(filepath.Join(dir, "missing"), fs.ErrNotExist)
	notDir := filepath.Join(dir, "file")
	if err := os.WriteFile(notDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f(notDir, syscall.ENOTDIR)
	checkNames(t, dir, "file")

	if os.Getuid() != 0 {
		readOnly := filepath.Join(dir, "read-only")
		if err := os.Mkdir(readOnly, 0o500); err != nil {
			t.Fatal(err)
		}
		f(readOnly, fs.ErrPermission)
		checkNames(t, readOnly)
		return
	}
	readOnly := full(t) // root may write to any folder, but not to any mount
	if err := syscall.Mount("none", readOnly, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	f(readOnly, syscall.EROFS)
	checkNames(t, readOnly)
}

// TestFileStepFails makes one step after another fail, and expects an error
// and an empty folder.
func TestFileStepFails(t *testing.T) {
	f := func(step, call string, spoil func(f *file), want error) {
		t.Helper()
		dir := t.TempDir()
		file := begin(t, dir)
		spoil(file)
		path, err := file.Commit(testStop)
		if !errors.Is(err, want) || path != "" {
			t.Errorf("%s fails: %q, %v; want %v", step, path, err, want)
		}
		if !strings.HasPrefix(fmt.Sprint(err), call+" "+filepath.Dir(dir)) && !strings.HasPrefix(fmt.Sprint(err), call+" /dev/full") {
			t.Errorf("%s fails: %q does not say what it was doing: %s", step, err, call)
		}
		checkNames(t, dir)
		file.Abort()
		if _, err := file.Commit(testStop); err == nil {
			t.Errorf("%s failed, and a second commit did not", step)
		}
		checkNames(t, dir)
	}
	fullDevice := func(file *file) {
		dev, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		file.buf.Reset(dev)
	}
	f("write", "write", func(file *file) {
		fullDevice(file)
		if _, err := file.Write(make([]byte, 2*fileBuffer)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("write: %v, want %v", err, syscall.ENOSPC)
		}
	}, syscall.ENOSPC)
	f("writing the rest", "write", func(file *file) {
		fullDevice(file)
		if _, err := file.Write([]byte("rest")); err != nil {
			t.Error(err)
		}
	}, syscall.ENOSPC)
	f("sync", "sync", func(file *file) { file.temp.Close() }, os.ErrClosed)
	f("link, without a source", "link", func(file *file) { os.Remove(file.temp.Name()) }, fs.ErrNotExist)
	f("link, name too long", "link", func(file *file) { file.base += strings.Repeat("x", 255) }, syscall.ENAMETOOLONG)
	f("folder sync", "sync", func(file *file) { file.dir.Close() }, os.ErrClosed)
}

// TestFileTemporaryNameStays commits in a folder that takes new names and gives
// up none.
func TestFileTemporaryNameStays(t *testing.T) {
	const appendOnly = 0x20 // FS_APPEND_FL of linux/fs.h
	dir := t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f := begin(t, dir)
	f.Write([]byte("whole"))
	if err := unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, appendOnly); err != nil {
		f.Abort()
		t.Skipf("an append-only folder needs root and a file system that has it: %v", err)
	}
	path, err := f.Commit(testStop)
	if clearErr := unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, 0); clearErr != nil {
		t.Fatal(clearErr)
	}
	if err != nil {
		t.Error(err)
	}
	checkNames(t, dir, testName+".parquet", testTemp+".parquet")
	if err := RemoveTemporary(dir); err != nil {
		t.Error(err)
	}
	checkNames(t, dir, testName+".parquet")
	if got, err := os.ReadFile(path); string(got) != "whole" {
		t.Errorf("holds %q, %v", got, err)
	}
}

func TestFileOnFullDisk(t *testing.T) {
	dir := full(t)
	f := begin(t, dir)
	var err error
	for range 10 {
		if _, err = f.Write(make([]byte, fileBuffer)); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write: %v, want %v", err, syscall.ENOSPC)
	}
	if path, err := f.Commit(testStop); !errors.Is(err, syscall.ENOSPC) || path != "" {
		t.Errorf("commit: %q, %v; want %v", path, err, syscall.ENOSPC)
	}
	checkNames(t, dir)

	// The room is free again.
	f = begin(t, dir)
	f.Write(make([]byte, 1000))
	if _, err := f.Commit(testStop); err != nil {
		t.Error(err)
	}
	checkNames(t, dir, testName+".parquet")
}

func TestRemoveTemporary(t *testing.T) {
	dir := t.TempDir()
	keep := []string{
		"dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet",
		"dns_session_block-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet",
		".dns_histogram-2026-11-30T10-00-00Z.parquet.bak",
		".dns_histogram-2026-11-30T10-00-00Z.parque",
		".dns_histogram-2026-11-30.parquet",
		".dns_histogram-2026-11-30T10-00-00Z_0.parquet",
		".dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet",
		".dns_other-2026-11-30T10-00-00Z.parquet",
		".x.dns_histogram-2026-11-30T10-00-00Z.parquet",
		".keep",
		"notes.parquet",
	}
	for _, name := range keep {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	folder := ".dns_histogram-2026-11-30T09-00-00Z.parquet"
	if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	link := ".dns_histogram-2026-11-30T08-00-00Z.parquet"
	if err := os.Symlink(keep[0], filepath.Join(dir, link)); err != nil {
		t.Fatal(err)
	}
	keep = append(keep, folder, link)

	// What a process that was killed leaves behind.
	for _, prefix := range []string{histogramPrefix, sessionPrefix} {
		for range 2 {
			f, err := createFile(dir, prefix, testStart)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.Abort)
		}
	}
	if got, want := len(names(t, dir)), len(keep)+4; got != want {
		t.Fatalf("%d files, want %d", got, want)
	}
	if err := RemoveTemporary(dir); err != nil {
		t.Fatal(err)
	}
	checkNames(t, dir, keep...)

	if err := RemoveTemporary(filepath.Join(dir, "missing")); err != nil {
		t.Errorf("a missing folder: %v", err)
	}
	if err := RemoveTemporary(filepath.Join(dir, keep[0])); err == nil {
		t.Error("a file instead of a folder: no error")
	}
}

func TestInterval(t *testing.T) {
	f := func(length time.Duration, want string) {
		t.Helper()
		start := testStart.Add(700 * time.Millisecond)
		if got := (Interval{start, start.Add(length)}).String(); got != "2026-11-30T10:00:00Z/"+want {
			t.Errorf("%v: %s, want %s", length, got, want)
		}
	}
	f(time.Minute, "PT1M")
	f(37*time.Second, "PT37S")
	f(65*time.Second, "PT1M5S")
	f(time.Second, "PT1S")
	f(200*time.Millisecond, "PT0S")
	f(300*time.Millisecond, "PT1S") // from 10:00:00 to 10:00:01, as the file's name says
	f(10*time.Minute, "PT10M")
	f(time.Hour, "PT1H")
	f(25*time.Hour+time.Second, "PT25H1S")
	f(time.Hour+2*time.Minute+3*time.Second, "PT1H2M3S")
	f(-time.Minute, "PT0S")
}
