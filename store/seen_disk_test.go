package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a disk of so many MiB.
func smallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts a disk, which needs root")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("cannot mount a disk here: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// 200 000 new names on a disk of 8 MiB: what finds no room is counted, and told
// once; when there is room, the store goes on, and no name is marked whose
// event is lost.
func TestDiskFull(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	disk := smallDisk(t, "8m")
	var told reports
	o := SeenOptions{Dir: filepath.Join(disk, "pebble"), Backlog: 1_000_000, Report: told.add}
	s := openSeen(t, o)
	s.seeMany(0, 200_000)
	if n := s.Stats(); n.Discarded == 0 || n.Queued == 0 || n.Queued+n.Discarded != 200_000 {
		t.Errorf("%+v", n)
	}
	if all := told.all(); len(all) > 5 || told.count("the disk of") == 0 {
		t.Errorf("told %q", all)
	}
	t.Logf("%+v; told %q", s.Stats(), told.all())
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=100m"); err != nil {
		t.Fatal(err)
	}
	s.seeMany(0, 200_000)
	if n := s.Backlog(); n != 200_000 {
		t.Errorf("%d events wait", n)
	}
	if all := told.all(); all[len(all)-1] != "<nil>" {
		t.Errorf("told %q", all)
	}
	s.stop()
	s = openSeen(t, o)
	if n := s.Backlog(); n != 200_000 || s.Stats().Replaced != 0 {
		t.Errorf("%d events wait after a restart, %+v", n, s.Stats())
	}
	s.stop()
}

// Somebody else fills the disk to the last octet, at any moment and again and
// again: the store is not lost.
func TestSomebodyElseFillsTheDisk(t *testing.T) {
	disk := smallDisk(t, "24m")
	var told reports
	o := SeenOptions{Dir: filepath.Join(disk, "pebble"), Backlog: 1_000_000, Report: told.add}
	s := openSeen(t, o)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { fillAgainAndAgain(t, filepath.Join(disk, "filler"), stop) })
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-s.Wake():
				s.events(true)
			}
		}
	})
	end := time.Now().Add(duration(t, 8*time.Second))
	var number uint64
	for ; time.Now().Before(end); number += 500 {
		s.seeMany(number, 500)
	}
	close(stop)
	others.Wait()
	if s.Stats().Lost || s.Stats().Replaced != 0 {
		t.Fatalf("%+v; told %q", s.Stats(), told.all())
	}
	t.Logf("%d names, %+v, told %d times", number, s.Stats(), len(told.all()))
	s.recovers()
	s.stop()
	s = openSeen(t, o)
	if s.Stats().Replaced != 0 {
		t.Error("the store was damaged")
	}
	s.stop()
}

// recovers sees new names until one is stored.
func (s *seenTest) recovers() {
	s.t.Helper()
	before := s.Stats().Queued
	number := uint64(1) << 40
	for end := time.Now().Add(10 * time.Second); s.Stats().Queued == before; number++ {
		if time.Now().After(end) {
			s.t.Fatalf("the store does not recover: %+v", s.Stats())
		}
		s.seeMany(number, 1)
		time.Sleep(10 * time.Millisecond)
	}
}

func duration(t *testing.T, d time.Duration) time.Duration {
	if testing.Short() {
		return d / 8
	}
	return d
}

// fillAgainAndAgain takes the disk's last octets, holds them a moment, and
// gives them back.
func fillAgainAndAgain(t *testing.T, name string, stop chan struct{}) {
	for step := 512; ; step = step%65536 + 512 {
		f, err := os.Create(name)
		if err != nil {
			t.Error(err)
			return
		}
		full := time.Time{}
		for b := make([]byte, step); full.IsZero() || time.Since(full) < 300*time.Millisecond; {
			if _, err = f.Write(b); err != nil && full.IsZero() {
				full = time.Now()
			}
			select {
			case <-stop:
				err = errors.Join(f.Close(), os.Remove(name))
				if err != nil {
					t.Error(err)
				}
				return
			default:
			}
		}
		if err := errors.Join(f.Close(), os.Remove(name)); err != nil {
			t.Error(err)
		}
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Pebble says that it is wrong itself: nothing hangs, it is told, and the store
// is lost until the next start.
func TestPebbleStops(t *testing.T) {
	var told reports
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 1000, Report: told.add})
	s.seeMany(0, 100)
	go func() {
		s.mu.RLock() // and so does who is in Pebble
		pebbleLogger{s.Seen}.Fatalf("two and two are %d", 5)
	}()
	<-s.lost
	within(t, "what is called of a lost store", func() {
		if err := s.Read(func(Event) bool { return true }); err == nil {
			t.Error("events were read")
		}
		if err := s.Remove([]uint64{1}); err == nil {
			t.Error("an event was removed")
		}
		s.Size()
		s.Backlog()
		s.Known(1)
		s.seeMany(1<<40, 1)
		if n := s.Stats().Discarded; n != 1 {
			t.Errorf("%d names were counted", n)
		}
		close(s.in)
		<-s.end
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if all := told.all(); len(all) != 1 || !strings.Contains(all[0], "lost until the next start: two and two are 5") {
		t.Errorf("told %q", all)
	}
}

// within fails the test if f does not return soon.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("hangs: ", what)
	}
}

// What the system does not let us do when the store is opened is an error, and
// nothing is moved; neither does it hang.
func TestOpenIsRefused(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpCreate, errorfs.OpFileSync, errorfs.OpRename} {
		for _, errno := range []unix.Errno{unix.EIO, unix.EACCES} {
			e := &errorFS{inject: on(kind, "[^L]*", errno)} // not LOCK
			e.armed.Store(true)
			above := t.TempDir()
			within(t, "OpenSeen", func() {
				_, err := OpenSeen(SeenOptions{Dir: filepath.Join(above, "pebble"), Entries: 10, files: files{errorfs.Wrap(vfs.Default, e)}})
				if !errors.Is(err, errno) {
					t.Errorf("%v: got %v", errno, err)
				}
			})
			if aside, err := filepath.Glob(filepath.Join(above, "*damaged*")); err != nil || len(aside) > 0 {
				t.Errorf("%q was moved, %v", aside, err)
			}
		}
	}
}
