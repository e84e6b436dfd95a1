package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	framestream "github.com/farsightsec/golang-framestream"

	"edm/traffic"
)

// capture writes the parts to a file and returns its path.
func captureFile(t testing.TB, parts ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.fstrm")
	if err := os.WriteFile(path, slices.Concat(parts...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// replayed replays files through all stages, and returns what became of the
// frames.
func replayed(t testing.TB, ctx context.Context, cfg *Config, files ...string) (map[string]uint64, error) {
	t.Helper()
	var book logBook
	err := Replay(ctx, cfg, NewLogger(&book, false), files, "test")
	return endsLogged(t, &book), err
}

// replay replays files through the first stage.
func (r *reception) replay(files ...string) error {
	r.take()
	err := replay(files, &r.reading, nil)
	r.takers.Wait()
	return err
}

// Capture files go the same way as what comes by a socket, in their order, up
// to the first that cannot be read.
func TestReplay(t *testing.T) {
	good := captureFile(t, startFrame, framed([]byte("one"), []byte("two")), stopFrame)
	f := func(name, want, wantErr string, files ...string) {
		t.Run(name, func(t *testing.T) {
			r := newReception(512, 1)
			err := r.replay(files...)
			if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), files[len(files)-1])) {
				t.Errorf("got %v, want %q about the last file", err, wantErr)
			}
			if got := string(bytes.Join(r.taken(), []byte(" "))); got != want {
				t.Errorf("got frames %q, want %q", got, want)
			}
		})
	}
	a, b := framed([]byte("a")), framed([]byte("b"))
	f("one", "one two", "", good)
	f("three", "one two a one two", "", good, captureFile(t, startFrame, a, stopFrame), good)
	f("none", "", "")
	f("without STOP", "a", "", captureFile(t, startFrame, a))
	f("without frames", "", "", captureFile(t, startFrame, stopFrame))
	f("what is behind STOP", "a", "", captureFile(t, startFrame, a, stopFrame, b))
	f("without content type", "a", "", captureFile(t, control(framestream.CONTROL_START), a, stopFrame))

	f("absent", "one two", "no such file", good, filepath.Join(t.TempDir(), "absent"))
	f("a folder", "one two", "is a directory", good, t.TempDir())
	f("empty", "one two", "ends before a START", good, captureFile(t))
	f("ends in START", "one two", "ends before a START", good, captureFile(t, startFrame[:20]))
	f("READY", "one two", "not with START", good, captureFile(t, readyFrame, startFrame))
	f("text", "one two", "plain text", good, captureFile(t, []byte("hello world\n")))
	f("another content type", "one two", "test:hello", good, "../testdata/captures/fstrm-test.fstrm")
	f("protobuf", "one two", "without Frame Streams", good, "../testdata/captures/bind9-invalid-message-type.pb")
}

// What a capture lost is said in the log, and counted.
func TestReplayOfDamagedCaptures(t *testing.T) {
	frame := framed([]byte("a frame"))
	f := func(name, counter, reason string, parts ...[]byte) {
		t.Run(name, func(t *testing.T) {
			r := newReception(512, 1)
			if err := r.replay(captureFile(t, slices.Concat(startFrame, frame), slices.Concat(parts...))); err != nil {
				t.Error(err)
			}
			if ends := r.metrics.ends(); len(r.taken()) != 1 || counter != "" && ends[counter] != 1 {
				t.Errorf("%d frames, and %v", len(r.taken()), ends)
			}
			warned := r.log.entries("a capture file did not end with STOP")
			if reason == "" && len(warned) != 0 || reason != "" && (len(warned) != 1 || warned[0]["reason"] != reason) {
				t.Errorf("logged %v, want %s", warned, reason)
			}
		})
	}
	f("cut", "dropped_cut", "cut", frame[:6])
	f("too large", "dropped_oversize", "", framed(make([]byte, 600)), stopFrame)
	f("lost", "", "lost", []byte{0x7f, 0xff, 0xff, 0xff})
	f("control frame", "", "control", startFrame)
}

// A replay ends early when it is told to, without an error, and what was read
// is written.
func TestReplayEndsEarly(t *testing.T) {
	pool, names := bulk(t)
	path := captureFile(t, startFrame, slices.Repeat(pool.Framed(0, pool.Len()), 20), stopFrame)
	f := func(name string, after time.Duration) {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.WellKnownDomainsFile = names
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if after == 0 {
				cancel()
			} else {
				time.AfterFunc(after, cancel)
			}
			ends, err := replayed(t, ctx, cfg, path, path)
			if err != nil {
				t.Errorf("got %v", err)
			}
			if n := rowsIn(t, cfg.sessions()); n != int(ends["session"]) {
				t.Errorf("%d rows of %d", n, ends["session"])
			}
			if n := answersIn(t, cfg.histograms()); n != int(ends["well_known"]) {
				t.Errorf("%d answers of %d", n, ends["well_known"])
			}
		})
	}
	f("before it begins", 0)
	f("soon", 200*time.Millisecond)
}

// A replay of generated traffic has the counts that the traffic has.
func TestReplayOfTraffic(t *testing.T) {
	pool, names := bulk(t)
	path := filepath.Join(t.TempDir(), "traffic.fstrm")
	if err := pool.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.WellKnownDomainsFile, cfg.MetricsListen = names, busyAddress(t) // which it does not listen on
	ends, err := replayed(t, context.Background(), cfg, path)
	if err != nil {
		t.Fatal(err)
	}
	checkFolder(t, filepath.Dir(cfg.InputUnix), "data")
	counts := pool.Counts()
	if ends["received"] != uint64(counts.Frames) || ends["well_known"] != uint64(counts.Kinds[traffic.WellKnown]) ||
		ends["session"] != uint64(counts.Kinds[traffic.Seen]+counts.Kinds[traffic.Novel]) {
		t.Errorf("got %v, sent %+v", ends, counts)
	}
	if n := rowsIn(t, cfg.sessions()); n != int(ends["session"]) {
		t.Errorf("%d rows of %d", n, ends["session"])
	}
	if n := answersIn(t, cfg.histograms()); n != int(ends["well_known"]) {
		t.Errorf("%d answers of %d", n, ends["well_known"])
	}
}

// A replay with no room for what it writes ends all the same, and says what is
// lost.
func TestReplayOnFullDisk(t *testing.T) {
	pool, names := bulk(t)
	path := filepath.Join(t.TempDir(), "traffic.fstrm")
	if err := pool.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.WellKnownDomainsFile = names
	for _, dir := range []string{cfg.histograms(), cfg.sessions()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4k"); err != nil {
			t.Skipf("a full disk needs a tmpfs, and mounting one needs root: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	began := time.Now()
	ends, err := replayed(t, context.Background(), cfg, path)
	if took := time.Since(began); took > retryWrite {
		t.Errorf("it took %v", took)
	}
	if ends["received"] != uint64(pool.Len()) {
		t.Errorf("frames: %v", ends)
	}
	want := regexp.MustCompile(fmt.Sprintf(`^%d session rows are lost: .*no space left on device\n[1-9]\d* histogram rows are lost: .*no space left on device$`, ends["session"]))
	if err == nil || !want.MatchString(err.Error()) {
		t.Errorf("got %v, want %s", err, want)
	}
	checkFolder(t, cfg.histograms())
	checkFolder(t, cfg.sessions())
}

// The folders may be links to other ones, of which data_dir is one itself.
func TestFoldersAreLinks(t *testing.T) {
	pool, names := bulk(t)
	path := filepath.Join(t.TempDir(), "traffic.fstrm")
	if err := pool.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f := func(name string, links ...string) {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.WellKnownDomainsFile = names
			elsewhere := t.TempDir()
			for i, link := range links {
				to, at := filepath.Join(elsewhere, fmt.Sprint(i)), filepath.Join(cfg.DataDir, link)
				if err := errors.Join(os.Mkdir(to, 0o750), os.MkdirAll(filepath.Dir(at), 0o750), os.Symlink(to, at)); err != nil {
					t.Fatal(err)
				}
			}
			left := filepath.Join(cfg.sessions(), ".dns_session_block-2026-11-30T10-00-00Z.parquet")
			if err := errors.Join(os.MkdirAll(cfg.sessions(), 0o750), os.WriteFile(left, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			ends, err := replayed(t, context.Background(), cfg, path)
			if err != nil {
				t.Fatal(err)
			}
			if n := rowsIn(t, cfg.sessions()); n != int(ends["session"]) {
				t.Errorf("%d rows of %d", n, ends["session"])
			}
			if n := answersIn(t, cfg.histograms()); n != int(ends["well_known"]) {
				t.Errorf("%d answers of %d", n, ends["well_known"])
			}
			if _, err := os.Lstat(left); !os.IsNotExist(err) {
				t.Errorf("what a crash left is still there: %v", err)
			}
			for i, link := range links {
				if entries, err := os.ReadDir(filepath.Join(elsewhere, fmt.Sprint(i))); err != nil || len(entries) == 0 {
					t.Errorf("nothing is in the folder that %s stands for: %v", link, err)
				}
			}
		})
	}
	f("data_dir", "")
	f("below it", "seen", "parquet")
	f("below parquet", "parquet/sessions", "parquet/histograms")
}
