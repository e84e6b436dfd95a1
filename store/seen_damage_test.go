package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sys/unix"
)

// reports keeps what a store tells of itself.
type reports struct {
	mu   sync.Mutex
	list []string
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprint(err))
}

func (r *reports) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *reports) count(text string) (n int) {
	for _, s := range r.all() {
		if strings.Contains(s, text) {
			n++
		}
	}
	return n
}

// manyNames is enough for some tables.
const manyNames = 5000

// storeWithTables makes a store with events in tables and in a log.
func storeWithTables(t testing.TB) SeenOptions {
	t.Helper()
	o := SeenOptions{Dir: filepath.Join(t.TempDir(), "pebble"), Backlog: 10 * manyNames}
	s := openSeen(t, o)
	s.seeMany(0, manyNames)
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	s.seeMany(manyNames, 1000)
	s.stop()
	return o
}

// filesLike returns the store's files of a kind.
func filesLike(t testing.TB, o SeenOptions, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(o.Dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no files like %s: %v", pattern, err)
	}
	return names
}

// change writes a file again, in place.
func change(t testing.TB, name string, f func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, f(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func flip(b []byte) []byte {
	for i := len(b) / 4; i < len(b)*3/4; i++ {
		b[i] ^= 0x55
	}
	return b
}

func cut(b []byte) []byte { return b[:len(b)/2] }

// A store that is damaged is moved aside at the latest when its names are
// looked up, and a fresh one takes its place. Nothing is thrown away.
func TestDamage(t *testing.T) {
	f := func(name string, damage func(t *testing.T, o SeenOptions)) {
		t.Run(name, func(t *testing.T) {
			o := storeWithTables(t)
			damage(t, o)
			var told reports
			o.Report = told.add
			s := openSeen(t, o)
			s.seeMany(0, manyNames)
			s.awaitReplaced(1)
			s.seeMany(manyNames, manyNames)
			s.events(true)
			aside, err := filepath.Glob(o.Dir + ".damaged-*Z")
			if err != nil || len(aside) != 1 || told.count(aside[0]) != 1 {
				t.Errorf("moved aside: %q, %v; told: %q", aside, err, told.all())
			}
			if all := told.all(); all[len(all)-1] != "<nil>" {
				t.Errorf("told last: %s", all[len(all)-1])
			}
			s.stop()
			s = openSeen(t, o)
			s.seeMany(manyNames, manyNames)
			want(t, s.events(true))
			if n := s.Stats().Replaced; n != 0 {
				t.Error("the fresh store was damaged, too")
			}
			s.stop()
		})
	}
	each := func(pattern string, with func([]byte) []byte) func(*testing.T, SeenOptions) {
		return func(t *testing.T, o SeenOptions) {
			for _, name := range filesLike(t, o, pattern) {
				change(t, name, with)
			}
		}
	}
	f("tables flipped", each("*.sst", flip))
	f("tables cut", each("*.sst", cut))
	f("tables empty", each("*.sst", func([]byte) []byte { return nil }))
	f("manifest flipped", each("MANIFEST-*", flip))
	f("manifest empty", each("MANIFEST-*", func([]byte) []byte { return nil }))
	f("options flipped", each("OPTIONS-*", flip))
	f("tables missing", func(t *testing.T, o SeenOptions) {
		for _, name := range filesLike(t, o, "*.sst") {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	})
	f("manifest missing", func(t *testing.T, o SeenOptions) {
		for _, name := range filesLike(t, o, "MANIFEST-*") {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	})
	f("a folder for a table", func(t *testing.T, o SeenOptions) {
		for _, name := range filesLike(t, o, "*.sst") {
			if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
				t.Fatal(err)
			}
		}
	})
	set := func(key, value []byte) func(*testing.T, SeenOptions) {
		return func(t *testing.T, o SeenOptions) {
			db, err := pebble.Open(o.Dir, &pebble.Options{Logger: quiet{}})
			if err == nil {
				err = errors.Join(db.Set(key, value, pebble.Sync), db.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	f("another version", set([]byte{keyMeta}, slices.Concat([]byte{metaVersion + 1}, make([]byte, 33))))
	f("no queue", set([]byte{keyHead}, []byte("?")))
	f("an event without a number", set([]byte{keyQueue, 1}, nil))
	f("another program's", func(t *testing.T, o SeenOptions) {
		if err := os.RemoveAll(o.Dir); err != nil {
			t.Fatal(err)
		}
		set([]byte("www.example.com."), nil)(t, o)
	})
}

type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(text string, v ...any) { panic(fmt.Sprintf(text, v...)) }

func (s *seenTest) awaitReplaced(n uint64) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); s.Stats().Replaced < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%d stores were replaced, not %d", s.Stats().Replaced, n)
		}
	}
}

// A log that is damaged is read as far as it goes, or the store is replaced:
// what is lost are marks and events together.
func TestDamagedLog(t *testing.T) {
	f := func(name string, with func([]byte) []byte) {
		t.Run(name, func(t *testing.T) {
			o := storeWithTables(t)
			for _, log := range filesLike(t, o, "*.log") {
				change(t, log, with)
			}
			s := openSeen(t, o)
			waiting := make(map[uint64]bool)
			if err := s.Read(func(e Event) bool { waiting[s.Fingerprint(e.Name)] = true; return true }); err != nil {
				t.Fatal(err)
			}
			marks := s.marks()
			if len(marks) != len(waiting) {
				t.Errorf("%d names are marked, %d events wait", len(marks), len(waiting))
			}
			s.seeMany(0, manyNames+1000)
			s.seeMany(0, manyNames+1000)
			if n := s.Backlog(); n != manyNames+1000 {
				t.Errorf("%d events wait, not %d", n, manyNames+1000)
			}
			s.stop()
		})
	}
	f("flipped", flip)
	f("cut", cut)
	f("empty", func([]byte) []byte { return nil })
	f("rubbish behind", func(b []byte) []byte { return append(b, "rubbish"...) })
	for i := range 10 {
		f(fmt.Sprint("one bit ", i), func(b []byte) []byte {
			b[rand.IntN(len(b))] ^= 1 << (i % 8)
			return b
		})
	}
}

// Tables that are damaged while the store is in use are found when they are
// read: by a look-up, by the reader of events, or by a compaction.
func TestDamageWhileInUse(t *testing.T) {
	f := func(name string, meet func(*seenTest)) {
		t.Run(name, func(t *testing.T) {
			o := SeenOptions{Dir: filepath.Join(t.TempDir(), "pebble"), Backlog: 10 * manyNames}
			s := openSeen(t, o)
			s.seeMany(0, manyNames)
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			for _, table := range filesLike(t, o, "*.sst") {
				change(t, table, flip)
			}
			meet(s)
			s.awaitReplaced(1)
			s.events(true)
			s.seeMany(1<<20, 1000)
			if n := len(s.events(true)); n != 1000 {
				t.Errorf("%d events of 1000 new names", n)
			}
			if err := s.Remove([]uint64{0, 1, 2}); err != nil { // read before the exchange
				t.Error(err)
			}
			s.seeMany(1<<21, 1000)
			if n := len(s.events(true)); n != 1000 {
				t.Errorf("%d events of 1000 new names", n)
			}
			if n := s.Stats().Replaced; n != 1 {
				t.Errorf("%d stores were replaced", n)
			}
			s.stop()
		})
	}
	f("look-up", func(s *seenTest) { s.seeMany(0, manyNames) })
	f("read", func(s *seenTest) {
		if err := s.Read(func(Event) bool { return true }); err != nil {
			s.t.Error(err)
		}
	})
	f("compaction", func(s *seenTest) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for _, key := range [][]byte{{0}, {0xff}} { // or the table would only be moved
			if err := s.db.Set(key, nil, nil); err != nil {
				s.t.Fatal(err)
			}
		}
		if err := s.db.Flush(); err != nil {
			s.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
		defer cancel()
		if s.db.Compact(ctx, []byte{0}, []byte{0xff}, false) == nil {
			s.t.Error("a damaged table was compacted")
		}
	})
}

// Of what goes wrong with a compaction, damage alone is taken for damage.
func TestErrorsOfCompactions(t *testing.T) {
	s := &Seen{damage: make(chan damage, 1)}
	f := func(err error, want int) {
		t.Helper()
		s.background(1, err)
		if got := len(s.damage); got != want {
			t.Errorf("%v: %d damages, want %d", err, got, want)
		}
		for range len(s.damage) {
			<-s.damage
		}
	}
	f(pebble.ErrCancelledCompaction, 0)
	f(fmt.Errorf("flush: %w", unix.ENOSPC), 0)
	f(fmt.Errorf("flush: %w", errCutOff), 0)
	f(fmt.Errorf("table 5: %w", pebble.ErrCorruption), 1)
	f(&fs.PathError{Op: "read", Path: "5.sst", Err: unix.EIO}, 1)
}

// Two stores that are damaged in the same second get different names.
func TestMovedAsideInOneSecond(t *testing.T) {
	o := SeenOptions{Dir: filepath.Join(t.TempDir(), "pebble"), Backlog: 100}
	s := openSeen(t, o)
	for i := range uint64(4) {
		s.seeMany(i, 1)
		s.hurt(s.opened.Load(), pebble.ErrCorruption)
		s.hurt(s.opened.Load(), pebble.ErrCorruption) // once more of the same store
		s.awaitReplaced(i + 1)
	}
	s.seeMany(0, 1)
	if aside, err := filepath.Glob(o.Dir + ".damaged-*"); err != nil || len(aside) != 4 {
		t.Errorf("moved aside: %q, %v", aside, err)
	}
	s.stop()
}

// What a fresh store would meet, too, is an error, and nothing is moved.
func TestWhatIsNoDamage(t *testing.T) {
	f := func(name string, prepare func(t *testing.T, o SeenOptions) error, want error) {
		t.Run(name, func(t *testing.T) {
			o := SeenOptions{Dir: filepath.Join(t.TempDir(), "above", "pebble"), Entries: 10}
			if err := prepare(t, o); err != nil {
				t.Fatal(err)
			}
			before := listAll(t, filepath.Dir(filepath.Dir(o.Dir)))
			_, err := OpenSeen(o)
			if !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			if after := listAll(t, filepath.Dir(filepath.Dir(o.Dir))); !slices.Equal(before, after) {
				t.Errorf("before: %q, after: %q", before, after)
			}
		})
	}
	f("a file", func(t *testing.T, o SeenOptions) error {
		return errors.Join(os.Mkdir(filepath.Dir(o.Dir), 0o700), os.WriteFile(o.Dir, []byte("mine"), 0o600))
	}, unix.ENOTDIR)
	f("a file above", func(t *testing.T, o SeenOptions) error {
		return os.WriteFile(filepath.Dir(o.Dir), []byte("mine"), 0o600)
	}, unix.ENOTDIR)
	f("open twice", func(t *testing.T, o SeenOptions) error {
		s := openSeen(t, o)
		t.Cleanup(s.stop)
		return nil
	}, errLocked)
	for _, errno := range []unix.Errno{unix.EACCES, unix.ENOSPC, unix.EMFILE, unix.EROFS, unix.ENOMEM} {
		if isDamage(&fs.PathError{Op: "open", Path: "x", Err: errno}) {
			t.Errorf("%v is taken for damage", errno)
		}
	}
}

func listAll(t *testing.T, dir string) (names []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}
