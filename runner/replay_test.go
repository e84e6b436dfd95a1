package runner

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// replayed replays files, and returns what became of the frames and the log.
func replayed(t testing.TB, ctx context.Context, cfg *Config, files ...string) (map[string]uint64, *logBook, error) {
	t.Helper()
	var book logBook
	err := Replay(ctx, cfg, NewLogger(&book, false), files, "test")
	return endsLogged(t, &book), &book, err
}

// Capture files go the same way as what comes by a socket, in their order, up
// to the first that cannot be read; nothing is opened but the files.
func TestReplay(t *testing.T) {
	frames := func(names ...string) (b []byte) {
		for _, name := range names {
			b = append(b, framed(response(t, name, nil))...)
		}
		return b
	}
	good := captureFile(t, startFrame, frames("one.example.", "two.example."), stopFrame)
	f := func(name string, sessions int, wantErr string, files ...string) {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.MetricsListen = freeAddress(t)
			ends, _, err := replayed(t, context.Background(), cfg, files...)
			if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), files[len(files)-1])) {
				t.Errorf("got %v, want %q about the last file", err, wantErr)
			}
			if ends["session"] != uint64(sessions) || rowsIn(t, cfg.sessions()) != sessions {
				t.Errorf("%v, %d rows; want %d", ends, rowsIn(t, cfg.sessions()), sessions)
			}
			if _, err := os.Lstat(cfg.InputUnix); err == nil {
				t.Error("it listens")
			}
		})
	}
	f("one", 2, "", good)
	f("three", 6, "", good, good, good)
	f("none", 0, "")
	f("without STOP", 1, "", captureFile(t, startFrame, frames("a.")))
	f("without frames", 0, "", captureFile(t, startFrame, stopFrame))
	f("what is behind STOP", 1, "", captureFile(t, startFrame, frames("a."), stopFrame, frames("b.")))
	f("without content type", 1, "", captureFile(t, control(framestream.CONTROL_START), frames("a."), stopFrame))
	f("cut", 1, "", captureFile(t, startFrame, frames("a."), frames("b.")[:50]))

	f("absent", 2, "no such file", good, filepath.Join(t.TempDir(), "absent"))
	f("a folder", 2, "is a directory", good, t.TempDir())
	f("empty", 2, "ends before a START", good, captureFile(t))
	f("ends in START", 2, "ends before a START", good, captureFile(t, startFrame[:20]))
	f("READY", 2, "not with START", good, captureFile(t, readyFrame, startFrame))
	f("text", 2, "plain text", good, captureFile(t, []byte("hello world\n")))
	f("another content type", 2, "test:hello", good, "../testdata/captures/fstrm-test.fstrm")
	f("protobuf", 2, "without Frame Streams", good, "../testdata/captures/bind9-invalid-message-type.pb")
}

// What a capture lost is said in the log, and counted.
func TestReplayOfDamagedCaptures(t *testing.T) {
	frame := framed(response(t, "a.", nil))
	f := func(name, counter, reason string, parts ...[]byte) {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.MaxFrameSize = 512
			ends, book, err := replayed(t, context.Background(), cfg, captureFile(t, slices.Concat(startFrame, frame), slices.Concat(parts...)))
			if err != nil {
				t.Error(err)
			}
			if ends["session"] != 1 || counter != "" && ends[counter] != 1 {
				t.Errorf("frames: %v", ends)
			}
			warned := book.entries("a capture file did not end with STOP")
			if reason == "" && len(warned) != 0 || reason != "" && (len(warned) != 1 || warned[0]["reason"] != reason) {
				t.Errorf("logged %v, want %s", warned, reason)
			}
		})
	}
	f("cut", "dropped_cut", "cut", frame[:60])
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
			ends, _, err := replayed(t, ctx, cfg, path, path)
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
	cfg.WellKnownDomainsFile = names
	ends, _, err := replayed(t, context.Background(), cfg, path)
	if err != nil {
		t.Fatal(err)
	}
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
