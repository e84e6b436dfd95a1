package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A ballast takes what is left of a disk, to the last octet, and what becomes
// free of it.
type ballast struct {
	name string
	stop chan struct{}
	done chan error
}

// drop returns when the disk is full.
func drop(t testing.TB, disk string) *ballast {
	t.Helper()
	b := &ballast{filepath.Join(disk, "ballast"), make(chan struct{}), make(chan error, 1)}
	f, err := os.Create(b.name)
	if err != nil {
		t.Fatal(err)
	}
	b.fill(f)
	var left unix.Statfs_t
	if err := unix.Statfs(disk, &left); err != nil || left.Bavail != 0 {
		t.Logf("%d blocks are left, %v", left.Bavail, err) // somebody else just made room
	}
	go func() {
		for {
			select {
			case <-b.stop:
				b.done <- errors.Join(f.Close(), os.Remove(b.name))
				return
			case <-time.After(time.Millisecond):
				b.fill(f)
			}
		}
	}()
	return b
}

func (b *ballast) fill(f *os.File) {
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

func (b *ballast) lift(t testing.TB) {
	t.Helper()
	close(b.stop)
	if err := <-b.done; err != nil {
		t.Fatal(err)
	}
}

// A flood sees names that are new, each once, and delivers their events, until
// it is stopped.
type flood struct {
	s         *seenTest
	quit      chan struct{}
	all       sync.WaitGroup
	sent      atomic.Uint64
	delivered map[string]int
}

func startFlood(s *seenTest) *flood {
	f := &flood{s: s, quit: make(chan struct{}), delivered: make(map[string]int)}
	free := make(chan *Names, 64)
	for range cap(free) {
		free <- new(Names)
	}
	f.all.Go(func() {
		for {
			select {
			case n := <-s.done:
				free <- n
			case <-s.end:
				return
			}
		}
	})
	f.all.Go(func() { f.send(free) })
	f.all.Go(func() {
		for ended := false; !ended; {
			select {
			case <-s.Wake():
			case <-s.end:
				ended = true
			}
			s.deliver(func(e Event) { f.delivered[string(e.Name)]++ })
		}
	})
	return f
}

func (f *flood) send(free chan *Names) {
	var name []byte
	pace := time.NewTicker(2 * time.Millisecond) // a disk of some MiB is not to be full of names
	defer pace.Stop()
	defer close(f.s.in)
	for {
		select {
		case <-f.quit:
			return
		case <-pace.C:
		}
		n := <-free
		for range 100 {
			name = madeUpName(name, f.sent.Add(1))
			n.Add(f.s.Fingerprint(name), Sighting{Name: name, Minute: 29_000_000})
		}
		f.s.in <- n
	}
}

// queues waits until events are queued: n more.
func (f *flood) queues(n uint64) {
	f.s.t.Helper()
	before := f.s.Stats()
	for end := time.Now().Add(20 * time.Second); f.s.Stats().Queued < before.Queued+n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.s.t.Fatalf("no names are stored any more: before %+v, now %+v", before, f.s.Stats())
		}
	}
}

// discards waits until n more names were discarded.
func (f *flood) discards(n uint64) {
	f.s.t.Helper()
	before := f.s.Stats()
	for end := time.Now().Add(20 * time.Second); f.s.Stats().Discarded < before.Discarded+n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.s.t.Fatalf("names are stored in spite of all: before %+v, now %+v", before, f.s.Stats())
		}
	}
}

// end ends the flood, and what came in is committed.
func (f *flood) end() {
	close(f.quit)
	f.all.Wait()
}

// stop ends the flood and closes the store. Each name was reported once, or
// counted.
func (f *flood) stop() {
	f.s.t.Helper()
	f.end()
	st := f.s.Stats()
	if got := uint64(len(f.delivered)); got+st.Discarded+uint64(f.s.Backlog()) != f.sent.Load() {
		f.s.t.Errorf("of %d names, %d were reported and %d wait: %+v", f.sent.Load(), got, f.s.Backlog(), st)
	}
	for name, n := range f.delivered {
		if n != 1 {
			f.s.t.Fatalf("%q was reported %d times", name, n)
		}
	}
	if err := f.s.Close(); err != nil {
		f.s.t.Error(err)
	}
	f.s.t.Logf("%d names, %d reported, %+v", f.sent.Load(), len(f.delivered), st)
}

// checkMarks opens a store once more: it is whole, and no name is marked whose
// event was not delivered and does not wait.
func checkMarks[T any](t testing.TB, o SeenOptions, delivered map[string]T) {
	t.Helper()
	s := openSeen(t, o)
	if s.Stats().Replaced != 0 {
		t.Error("the store was damaged")
	}
	known := make(map[uint64]bool)
	for name := range delivered {
		known[s.Fingerprint([]byte(name))] = true
	}
	if err := s.Read(func(e Event) bool { known[s.Fingerprint(e.Name)] = true; return true }); err != nil {
		t.Error(err)
	}
	for p := range s.marks() {
		if !known[p] {
			t.Fatal("a name is marked whose event is lost")
		}
	}
	s.stop()
}

// The disk is full to the last octet, at any moment: when there is room again,
// names are reported again, and none was lost without being counted.
func TestRoomComesBack(t *testing.T) {
	f := func(name string, sync bool, when func(*flood)) {
		t.Run(fmt.Sprintf("%s sync %t", name, sync), func(t *testing.T) {
			disk := smallDisk(t, "32m")
			var told reports
			o := SeenOptions{Dir: filepath.Join(disk, "seen"), Backlog: 1_000_000, Sync: sync, Report: told.add}
			fl := startFlood(openSeen(t, o))
			for range 2 {
				when(fl)
				b := drop(t, disk)
				fl.discards(1000)
				if all := told.all(); len(all) == 0 || all[len(all)-1] == "<nil>" {
					t.Errorf("told %q", all)
				}
				b.lift(t)
				fl.queues(2000)
			}
			if all := told.all(); all[len(all)-1] != "<nil>" {
				t.Errorf("told %q", all)
			}
			if fl.s.Stats().Lost || fl.s.Stats().Replaced != 0 {
				t.Errorf("%+v; told %q", fl.s.Stats(), told.all())
			}
			fl.stop()
			checkMarks(t, o, fl.delivered)
		})
	}
	for _, sync := range []bool{false, true} {
		if !testing.Short() || sync {
			f("at the first commit", sync, func(*flood) {})
		}
		f("in the middle", sync, func(fl *flood) { fl.queues(10_000) })
	}
}

// The disk is full to the last octet when the store is opened: names are counted
// until there is room, and then those that were seen before are still known.
func TestOpenOnAFullDisk(t *testing.T) {
	for _, before := range []int{0, 6000} { // names: in a log, and in tables
		t.Run(fmt.Sprint(before, " names before"), func(t *testing.T) {
			disk := smallDisk(t, "16m")
			var told reports
			o := SeenOptions{Dir: filepath.Join(disk, "seen"), Backlog: 1_000_000, Report: told.add}
			if before > 0 {
				s := openSeen(t, o)
				s.seeMany(1<<40, before)
				s.stop()
			}
			b := drop(t, disk)
			fl := startFlood(openSeen(t, o))
			fl.discards(1000)
			if all := told.all(); len(all) == 0 || all[len(all)-1] == "<nil>" {
				t.Errorf("told %q", all)
			}
			b.lift(t)
			fl.queues(1000)
			fl.end()
			if fl.s.Stats().Replaced != 0 {
				t.Errorf("%+v; told %q", fl.s.Stats(), told.all())
			}
			if err := fl.s.Close(); err != nil {
				t.Error(err)
			}
			s := openSeen(t, o)
			s.seeMany(1<<40, before)
			if n := s.Stats(); n.Queued != 0 || n.Discarded != 0 {
				t.Errorf("names of before are new: %+v", n)
			}
			s.stop()
			checkMarks(t, o, fl.delivered)
		})
	}
}

// The disk is full to the last octet when the daemon is to end, and stays so:
// it ends all the same, in time, and what is on the disk is whole.
func TestStopOnAFullDisk(t *testing.T) {
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprint("sync ", sync), func(t *testing.T) {
			disk := smallDisk(t, "16m")
			o := SeenOptions{Dir: filepath.Join(disk, "seen"), Backlog: 1_000_000, Sync: sync}
			fl := startFlood(openSeen(t, o))
			fl.queues(5000)
			b := drop(t, disk)
			fl.discards(1000)
			begin := time.Now()
			fl.end()
			if err := fl.s.Close(); err != nil && !isNoSpace(err) { // the last of the log may find no room
				t.Error(err)
			}
			if d := time.Since(begin); d > 5*time.Second { // of ten; the broker has five
				t.Errorf("it took %v", d)
			}
			b.lift(t)
			checkMarks(t, o, fl.delivered)
		})
	}
}
