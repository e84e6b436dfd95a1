package store

import (
	"fmt"
	"slices"
	"testing"
	"time"
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
		if n.Len() == 1000 || i == count-1 {
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
		s.Seen.turn(time.Now()) // the committer is at rest
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
