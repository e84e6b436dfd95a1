package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"
)

// An errorFS fails when it is told to.
type errorFS struct {
	inject func(op errorfs.Op) error
	armed  atomic.Bool
	failed atomic.Int64
}

func (e *errorFS) MaybeError(op errorfs.Op) error {
	if !e.armed.Load() {
		return nil
	}
	err := e.inject(op)
	if err != nil {
		e.failed.Add(1)
	}
	return err
}

func (e *errorFS) String() string { return "" }

// A freshFS makes a file where one could be used again: the writes to such a one
// do not pass through errorfs.
type freshFS struct{ vfs.FS }

func (fs freshFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Remove(old); err != nil {
		return nil, err
	}
	return fs.Create(name, c)
}

// on returns what makes an operation on files like pattern fail.
func on(kind errorfs.OpKind, pattern string, err error) func(op errorfs.Op) error {
	return func(op errorfs.Op) error {
		if ok, _ := filepath.Match(pattern, filepath.Base(op.Path)); ok && op.Kind == kind {
			return err
		}
		return nil
	}
}

func either(a, b func(op errorfs.Op) error) func(op errorfs.Op) error {
	return func(op errorfs.Op) error {
		if err := a(op); err != nil {
			return err
		}
		return b(op)
	}
}

// everyWrite makes every write fail, of whatever kind.
func everyWrite(err error) func(op errorfs.Op) error {
	return func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && filepath.Base(op.Path) != "LOCK" {
			return err
		}
		return nil
	}
}

// A write fails, and then all like it, until the disk is repaired: the store
// says so, counts what it cannot store, and goes on when it can. It is not moved
// aside.
func TestAWriteFails(t *testing.T) {
	cases := 0
	for _, sync := range []bool{true, false} {
		f := func(name string, inject func(op errorfs.Op) error) {
			if cases++; testing.Short() && cases > 7 {
				return
			}
			t.Run(fmt.Sprintf("%s sync %t", name, sync), func(t *testing.T) {
				t.Parallel() // it waits most of the time
				testAWriteFails(t, sync, inject)
			})
		}
		f("log write", on(errorfs.OpFileWrite, "*.log", unix.EIO))
		f("log sync without room", on(errorfs.OpFileSyncData, "*.log", unix.ENOSPC))
		f("log create without room", on(errorfs.OpCreate, "*.log", unix.ENOSPC))
		f("manifest write", on(errorfs.OpFileWrite, "MANIFEST-*", unix.EIO))
		f("table write", on(errorfs.OpFileWrite, "*.sst", unix.EIO))
		f("table write without room", on(errorfs.OpFileWrite, "*.sst", unix.ENOSPC))
		f("everything", everyWrite(unix.EIO))
		f("log sync", on(errorfs.OpFileSyncData, "*.log", unix.EIO))
		f("log create", on(errorfs.OpCreate, "*.log", unix.EIO))
		f("manifest sync", on(errorfs.OpFileSync, "MANIFEST-*", unix.EIO))
		f("table create", on(errorfs.OpCreate, "*.sst", unix.EIO))
		f("table sync", either(on(errorfs.OpFileSync, "*.sst", unix.EIO), on(errorfs.OpFileSyncData, "*.sst", unix.EIO)))
		f("no more files", on(errorfs.OpCreate, "*", unix.EMFILE))
		f("everything without room", everyWrite(unix.ENOSPC))
		f("read-only", everyWrite(unix.EROFS))
	}
}

func testAWriteFails(t *testing.T, sync bool, inject func(op errorfs.Op) error) {
	e := &errorFS{inject: inject}
	var told reports
	o := SeenOptions{Dir: "pebble", Backlog: 10_000_000, Sync: sync, Report: told.add, MaxBytes: 16 << 20} // and so, small memtables
	o.files = files{freshFS{errorfs.Wrap(vfs.NewMem(), e)}}
	f := startFlood(openSeen(t, o))
	f.queues(1000)
	e.armed.Store(true)
	f.discards(1000)
	if all := told.all(); len(all) == 0 || all[len(all)-1] == "<nil>" {
		t.Errorf("told %q", all)
	}
	e.armed.Store(false)
	f.queues(1000)
	if st := f.s.Stats(); st.Lost || st.Replaced != 0 {
		t.Errorf("%+v; told %q", st, told.all())
	}
	if all := told.all(); all[len(all)-1] != "<nil>" {
		t.Errorf("told %q", all)
	}
	f.stop()
	checkMarks(t, o, f.delivered)
}

// A commit waits, because no table finds room, when the daemon is to end.
func TestStopWhileACommitWaits(t *testing.T) {
	e := &errorFS{inject: on(errorfs.OpFileWrite, "*.sst", unix.ENOSPC)}
	e.armed.Store(true)
	o := SeenOptions{Dir: "pebble", Backlog: 10_000_000, MaxBytes: 16 << 20} // and so, small memtables
	o.files = files{freshFS{errorfs.Wrap(vfs.NewMem(), e)}}
	f := startFlood(openSeen(t, o))
	f.discards(1000)
	within(t, "the stop", func() {
		f.end()
		if err := f.s.Close(); err != nil && !isNoSpace(err) {
			t.Error(err)
		}
	})
	e.armed.Store(false)
	checkMarks(t, o, f.delivered)
}

// One write fails, whichever: the store is not lost, and no name without being
// counted.
func TestAnyWriteFails(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
			t.Run(fmt.Sprintf("%v sync %t", errno, sync), func(t *testing.T) {
				t.Parallel()
				step := int64(2)
				if errno == unix.ENOSPC {
					step = 5 // they wait
				}
				if testing.Short() {
					step *= 12
				}
				which := 1 + rand.Int64N(step)
				for oneWriteFails(t, which, errno, sync) {
					which += step
				}
				t.Logf("there are %d writes", which)
			})
		}
	}
}

// oneWriteFails makes one write fail, and returns false if there are not so many.
func oneWriteFails(t *testing.T, which int64, errno unix.Errno, sync bool) bool {
	t.Helper()
	var count atomic.Int64
	failed := "" // set once
	e := &errorFS{inject: func(op errorfs.Op) error {
		err := everyWrite(errno)(op)
		if err == nil || count.Add(1) != which {
			return nil
		}
		failed = fmt.Sprint(op.Kind, " ", op.Path)
		return err
	}}
	e.armed.Store(true)
	o := SeenOptions{Dir: "pebble", Entries: 1000, Backlog: 10_000, Sync: sync, MaxBytes: 16 << 20}
	o.files = files{freshFS{errorfs.Wrap(vfs.NewMem(), e)}}
	allow := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, errno) {
			t.Fatalf("write %d, %s: %v", which, failed, err)
		}
	}
	seen, err := OpenSeen(o)
	if err == nil {
		err = seen.Close()
	}
	allow(err)
	if seen, err = OpenSeen(o); err != nil {
		allow(err)
		if seen, err = OpenSeen(o); err != nil {
			t.Fatal(err)
		}
	}
	s := runSeen(t, seen)
	delivered := make(map[string]bool)
	const names, at = 6000, 200 // more than a memtable takes
	for i := range uint64(names / at) {
		s.seeMany(i*at, at)
		s.deliver(func(e Event) {
			if delivered[string(e.Name)] {
				t.Fatalf("write %d, %s: %q came twice", which, failed, e.Name)
			}
			delivered[string(e.Name)] = true
		})
	}
	close(s.in)
	<-s.end
	s.deliver(func(e Event) { delivered[string(e.Name)] = true })
	st := s.Stats()
	if uint64(len(delivered)+s.Backlog())+st.Discarded != names || st.Lost || st.Replaced != 0 {
		t.Fatalf("write %d, %s: of %d names, %d were delivered, %d wait, %+v", which, failed, names, len(delivered), s.Backlog(), st)
	}
	allow(s.Close())
	e.armed.Store(false)
	checkMarks(t, o, delivered)
	return count.Load() >= which
}

// There is no room to open the store: it is opened later, and its names are
// known then.
func TestOpenWithoutRoom(t *testing.T) {
	e := &errorFS{inject: everyWrite(unix.ENOSPC)}
	var told reports
	o := SeenOptions{Dir: "above/pebble", Backlog: 10_000, Report: told.add, files: files{errorfs.Wrap(vfs.NewMem(), e)}}
	for _, names := range []int{0, 1000, 1001} { // before: with no store, in a log, in a table
		e.armed.Store(true)
		s := openSeen(t, o)
		s.seeMany(0, names)
		s.see("discarded.example")
		if n := s.Stats(); n.Discarded != uint64(names)+1 || n.Queued != 0 {
			t.Errorf("without room: %+v", n)
		}
		if err := s.Read(func(Event) bool { return true }); err != nil {
			t.Error(err)
		}
		e.armed.Store(false)
		s.recovers()
		before := s.Stats()
		s.seeMany(0, names)
		if n := s.Stats(); n.Queued != before.Queued || n.Discarded != before.Discarded {
			t.Errorf("names of before: %+v, and then %+v", before, n)
		}
		s.seeMany(0, names+1000)
		s.stop()
	}
	if all := told.all(); all[len(all)-1] != "<nil>" || told.count("no space left") == 0 {
		t.Errorf("told %q", all)
	}
}

// A table vanishes while the store is in use. If it is missed then, or when the
// store is opened the next time, the store is moved aside.
func TestATableVanishes(t *testing.T) {
	f := func(name string, use func(s *seenTest)) {
		t.Run(name, func(t *testing.T) {
			var told reports
			o := SeenOptions{Dir: filepath.Join(t.TempDir(), "pebble"), Backlog: 10 * manyNames, Report: told.add}
			s := openSeen(t, o)
			s.seeMany(0, manyNames)
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			s.stop()
			s = openSeen(t, o)
			for _, table := range filesLike(t, o, "*.sst") {
				if err := os.Remove(table); err != nil {
					t.Fatal(err)
				}
			}
			use(s)
			s.seeMany(1<<40, 100)
			replaced := s.Stats().Replaced
			s.stop()
			s = openSeen(t, o)
			if replaced += s.Stats().Replaced; replaced != 1 || told.count("was damaged") != 1 {
				t.Errorf("%d stores were replaced; told %q", replaced, told.all())
			}
			s.seeMany(1<<41, 100)
			s.seeMany(1<<41, 100)
			if n := s.Stats(); n.Queued != 100 {
				t.Errorf("%+v", n)
			}
			s.stop()
		})
	}
	f("and nobody asks", func(*seenTest) {})
	f("and is asked", func(s *seenTest) { s.seeMany(0, manyNames) })
	f("and is read", func(s *seenTest) { s.events(true) })
}

// The names that wait are in the store: the owner alone may read them.
func TestTheStoreIsTheOwners(t *testing.T) {
	s := openSeen(t, SeenOptions{Dir: filepath.Join(t.TempDir(), "seen")})
	info, err := os.Stat(s.options.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o700 {
		t.Errorf("it has mode %o", mode)
	}
	s.stop()
}
