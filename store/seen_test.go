package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// wireName returns a name in wire form.
func wireName(t testing.TB, name string) []byte {
	t.Helper()
	b, err := appendName(nil, []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A seenTest is a store with a committer.
type seenTest struct {
	*Seen
	t    testing.TB
	in   chan *Names
	done chan *Names
	end  chan struct{}
}

func openSeen(t testing.TB, o SeenOptions) *seenTest {
	t.Helper()
	if o.Entries == 0 {
		o.Entries = 1000
	}
	s, err := OpenSeen(o)
	if err != nil {
		t.Fatal(err)
	}
	return runSeen(t, s)
}

func runSeen(t testing.TB, s *Seen) *seenTest {
	st := &seenTest{s, t, make(chan *Names), make(chan *Names, 100), make(chan struct{})}
	go func() {
		s.Run(st.in, func(n *Names) { st.done <- n })
		close(st.end)
	}()
	return st
}

// see sends names as one batch and waits until it is committed.
func (s *seenTest) see(names ...string) {
	s.t.Helper()
	n := new(Names)
	for _, name := range names {
		w := wireName(s.t, name)
		n.Add(s.Fingerprint(w), Sighting{Name: w, Flags: 0x8180, Type: 1, Class: 1, Minute: 29_000_000})
	}
	s.in <- n
	<-s.done
}

// seeMany sends made-up names with numbers from first on.
func (s *seenTest) seeMany(first uint64, count int) {
	s.t.Helper()
	var name []byte
	n := new(Names)
	for i := range count {
		name = madeUpName(name, first+uint64(i))
		n.Add(s.Fingerprint(name), Sighting{Name: name, Flags: 0x8180, Type: 1, Class: 1, Minute: 29_000_000})
		if n.Len() == 200 || i == count-1 {
			s.in <- n
			n = <-s.done
		}
	}
}

// events returns the names of the events that can be read now, and removes
// them if it is told to.
func (s *seenTest) events(remove bool) (names []string) {
	s.t.Helper()
	var numbers []uint64
	err := s.Read(func(e Event) bool {
		names = append(names, string(e.Name[1:1+e.Name[0]]))
		numbers = append(numbers, e.Number)
		return true
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if remove {
		if err := s.Remove(numbers); err != nil {
			s.t.Fatal(err)
		}
	}
	slices.Sort(names)
	return names
}

func (s *seenTest) stop() {
	s.t.Helper()
	close(s.in)
	<-s.end
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestANameIsNewOnce(t *testing.T) {
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprint("sync ", sync), func(t *testing.T) {
			o := SeenOptions{Dir: t.TempDir(), Backlog: 100, Sync: sync}
			s := openSeen(t, o)
			s.see("a.example", "b.example", "a.example")
			s.see("b.example", "c.example")
			if sync {
				s.awaitEvents(3)
			}
			want(t, s.events(true), "a", "b", "c")
			if n := s.Backlog(); n != 0 {
				t.Errorf("%d events wait", n)
			}
			s.stop()

			s = openSeen(t, o)
			s.see("a.example", "c.example", "d.example")
			if sync {
				s.awaitEvents(1)
			}
			want(t, s.events(false), "d")
			s.stop()

			s = openSeen(t, o) // d was not removed
			want(t, s.events(true), "d")
			s.stop()
			s = openSeen(t, o)
			want(t, s.events(true))
			s.stop()
		})
	}
}

// awaitEvents waits until n events may leave.
func (s *seenTest) awaitEvents(n uint64) {
	s.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		if from, to := s.queue.unread(); to-from >= n {
			return
		}
		select {
		case <-s.Wake():
		case <-deadline:
			s.t.Fatal("the events do not come")
		}
	}
}

func TestAFullQueueTakesNoMark(t *testing.T) {
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 2})
	s.see("a.example", "b.example", "c.example")
	if n := s.counts.discarded.Load(); n != 1 {
		t.Errorf("%d events were discarded", n)
	}
	first := s.events(true)
	s.see("a.example", "b.example", "c.example")
	all := append(first, s.events(true)...)
	slices.Sort(all)
	want(t, all, "a", "b", "c")
	s.stop()
}

func TestWithoutEventsNamesAreRemembered(t *testing.T) {
	o := SeenOptions{Dir: t.TempDir()}
	s := openSeen(t, o)
	s.see("a.example")
	want(t, s.events(false))
	s.stop()
	o.Backlog = 10
	s = openSeen(t, o)
	s.see("a.example", "b.example")
	want(t, s.events(true), "b")
	s.stop()
}

func TestGenerations(t *testing.T) {
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 100})
	s.see("busy.example", "rare.example")
	want(t, s.events(true), "busy", "rare")
	turn := func() {
		if err := s.turn(time.Now()); err != nil { // the committer is at rest
			t.Fatal(err)
		}
	}
	turn()
	s.see("busy.example")
	turn()
	s.see("busy.example", "rare.example")
	want(t, s.events(true), "rare")
	turn()
	turn()
	s.see("busy.example")
	want(t, s.events(true), "busy")
	s.stop()
}

// Many workers meet the same names at once, in batches of any size: every name
// has one event, whatever the grouping.
func TestAnyGroupingGivesTheSameEvents(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, workers := range []int{1, 2, 8} {
			const distinct = 5000
			s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 2 * distinct, Sync: sync, Entries: 2000})
			meetAtOnce(s, workers, distinct)
			close(s.in)
			<-s.end // what came in is committed
			got := make(map[string]int)
			if err := s.Read(func(e Event) bool { got[string(e.Name)]++; return true }); err != nil {
				t.Fatal(err)
			}
			for i := range uint64(distinct) {
				if n := got[string(madeUpName(nil, i))]; n != 1 {
					t.Fatalf("sync %t, %d workers: name %d has %d events", sync, workers, i, n)
				}
			}
			if len(got) != distinct || s.Stats().Queued != distinct || s.Backlog() != distinct {
				t.Errorf("sync %t, %d workers: %d names have events, %+v", sync, workers, len(got), s.Stats())
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// meetAtOnce lets workers see the same names, each in an order of its own.
func meetAtOnce(s *seenTest, workers, distinct int) {
	free := make(chan *Names, 2*workers)
	for range 2 * workers {
		free <- new(Names)
	}
	go func() { // what comes back is used again
		for n := range s.done {
			free <- n
		}
	}()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			var name []byte
			n := <-free
			size := 1 + rand.IntN(100)
			for _, number := range rand.Perm(distinct) {
				name = madeUpName(name, uint64(number))
				if p := s.Fingerprint(name); !s.Known(p) {
					n.Add(p, Sighting{Name: name, Minute: 29_000_000})
				}
				if n.Len() == size {
					s.in <- n
					n, size = <-free, 1+rand.IntN(100)
				}
			}
			s.in <- n
		})
	}
	all.Wait()
}

// A clean stop loses nothing, even if the power is cut in the next moment.
func TestACleanStopLosesNothing(t *testing.T) {
	disk := vfs.NewCrashableMem()
	o := SeenOptions{Dir: "pebble", Backlog: 10_000, files: files{disk}}
	s := openSeen(t, o)
	s.seeMany(0, 3000)
	var numbers []uint64
	if err := s.Read(func(e Event) bool { numbers = append(numbers, e.Number); return len(numbers) < 1000 }); err != nil {
		t.Fatal(err)
	}
	close(s.in)
	<-s.end
	if err := s.Remove(numbers); err != nil { // the broker had a last moment
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.files.fs = disk.CrashClone(vfs.CrashCloneCfg{})
	s = openSeen(t, o)
	if n := s.Backlog(); n != 2000 {
		t.Errorf("%d events wait, not 2000", n)
	}
	s.seeMany(0, 3000)
	if n := s.Backlog(); n != 2000 {
		t.Errorf("%d events wait after the same names, not 2000", n)
	}
	s.stop()
}

// A store that was stopped leaves no goroutine behind.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 1000, Sync: true})
	s.seeMany(0, 500)
	s.disk.cutOff(errors.New("a test"))
	s.seeMany(500, 500) // meets it
	s.seeMany(1000, 500)
	if n := s.Stats(); n.Queued < 1000 || n.Lost {
		t.Errorf("%+v", n)
	}
	s.stop()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
		}
	}
}

// After seen_retention the next generation begins, once.
func TestRetention(t *testing.T) {
	o := SeenOptions{Dir: t.TempDir(), Backlog: 1000, Retention: time.Hour}
	s := openSeen(t, o)
	s.see("busy.example")
	s.stop()
	turned := func(since time.Time, want uint64) {
		t.Helper()
		seen, err := OpenSeen(o)
		if err != nil {
			t.Fatal(err)
		}
		seen.meta.since = since.Unix()
		generation := seen.meta.generation
		for range 3 {
			seen.maintain()
		}
		if n := seen.meta.generation - generation; n != want {
			t.Errorf("since %v: %d turns, want %d", since, n, want)
		}
		if err := seen.Close(); err != nil {
			t.Fatal(err)
		}
	}
	turned(time.Now().Add(-time.Minute), 0)
	turned(time.Now().Add(-2*time.Hour), 1)
	turned(time.Now().Add(1000*time.Hour), 0) // the clock was put back
	s = openSeen(t, o)
	s.see("busy.example", "new.example")
	want(t, s.events(true), "busy", "new")
	s.stop()
}

// Names in the memtables are not looked up there when memory covers them: after
// a restart and after a turn, when memory is empty, they are still known.
func TestNamesInMemTablesAreKnown(t *testing.T) {
	o := SeenOptions{Dir: t.TempDir(), Backlog: 10_000, Entries: 5_000_000}
	s := openSeen(t, o)
	if !s.memoryCoversMemTables() {
		t.Fatal("memory does not cover the memtables")
	}
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	s.see(names...)
	if n := len(s.events(true)); n != len(names) {
		t.Fatalf("%d events for %d names", n, len(names))
	}
	for range 3 {
		s.see(names...)
		if err := s.turn(time.Now()); err != nil { // the committer is at rest
			t.Fatal(err)
		}
		s.see(names...)
		want(t, s.events(true))
	}
	s.stop()
	s = openSeen(t, o)
	s.see(names...)
	want(t, s.events(true))
	s.stop()
}

// Names that memory forgot, because it was told of many that have long been in
// tables, are still known when they are in a memtable.
func TestNamesThatMemoryForgotAreKnown(t *testing.T) {
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 10_000, Entries: 1000})
	s.memTableMarks = 0 // as if memory were large
	s.seeMany(0, 4000)
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.seeMany(1<<40, 10)
		s.seeMany(0, 4000)
		s.seeMany(1<<40, 10)
	}
	if n := s.Backlog(); n != 4010 {
		t.Errorf("%d events of 4010 names", n)
	}
	s.stop()
}

// A name whose mark is in a memtable is still known when so many others came
// into its bucket that memory forgot it.
func TestNameOfACrowdedBucketIsKnown(t *testing.T) {
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 10_000, Entries: 1000})
	s.memTableMarks = 0 // as if memory were large
	s.see("busy.example")
	want(t, s.events(true), "busy")
	print := s.Fingerprint(wireName(t, "busy.example"))
	for i := range uint64(bucketSlots) {
		s.memory.add(print ^ (i + 1)) // the committer is at rest
	}
	if s.Known(print) {
		t.Fatal("memory still knows the name")
	}
	s.see("busy.example")
	want(t, s.events(true))
	s.stop()
}

// Where the filters are too large for the cache, names in the lowest level are
// found without them.
func TestNamesAreKnownWithoutFilters(t *testing.T) {
	s := openSeen(t, SeenOptions{Dir: t.TempDir(), Backlog: 10_000, Entries: 10})
	s.seeMany(0, 4000)
	if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	s.maintain() // the committer is at rest
	if s.filters < 4000*bitsLowest/8 || s.filters > 3*4000*bitsPerName/8 {
		t.Errorf("filters of %d octets for 4000 names", s.filters)
	}
	pay := func(filters int64, names int, want bool) {
		t.Helper()
		s.filters = filters
		if s.filtersPay(names) != want {
			t.Errorf("filters of %d octets pay for %d names: %t", filters, names, !want)
		}
		s.seeMany(0, 4100)
	}
	pay(filterRoom, 1, true)
	pay(filterRoom+1<<20, 100, false)
	pay(filterRoom+1<<20, 1000, true)
	pay(filterRoom*2, 1_000_000, false)
	if n := s.Backlog(); n != 4100 {
		t.Errorf("%d events of 4100 names", n)
	}
	s.stop()
}
