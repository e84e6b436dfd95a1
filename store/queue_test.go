package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// Removed in any order, the queue knows which are left, where the first of them
// is, and keeps no list of the others.
func TestQueueRemovesInAnyOrder(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		q := queue{wake: make(chan struct{}, 1)}
		start := r.Uint64N(3) * 1000
		q.start(start, start, nil)
		left := make(map[uint64]bool)
		for range 500 {
			switch r.IntN(3) {
			case 0:
				for range r.IntN(10) {
					left[q.number()] = true
					q.add(1)
				}
			case 1:
				n := start + r.Uint64N(q.next-start+3) // some were removed, some were never given
				q.remove([]uint64{n})
				delete(left, n)
			case 2: // in order
				for range r.IntN(10) {
					n := q.head
					q.remove([]uint64{n})
					delete(left, n)
				}
			}
			checkQueue(t, &q, left)
		}
		numbers, _, head, next := q.takeRemoved(nil)
		if len(numbers) != int(next-start)-len(left) || head != q.head {
			t.Fatalf("seed %d: %d were removed, %d of %d are left", seed, len(numbers), len(left), next-start)
		}
		slices.Sort(numbers)
		if len(slices.Compact(numbers)) != int(next-start)-len(left) {
			t.Fatalf("seed %d: an event is taken off twice", seed)
		}
	}
}

func checkQueue(t *testing.T, q *queue, left map[uint64]bool) {
	t.Helper()
	if q.len() != len(left) {
		t.Fatalf("%d events wait, not %d", q.len(), len(left))
	}
	head := q.next
	for n := range left {
		head = min(head, n)
	}
	if q.head != head {
		t.Fatalf("the queue begins at %d, not at %d", q.head, head)
	}
	inGaps := uint64(0)
	end := q.head
	for _, g := range q.gaps {
		if g.from <= end || g.to <= g.from || g.to > q.next {
			t.Fatalf("gaps %v, begin %d, next %d", q.gaps, q.head, q.next)
		}
		end = g.to
		for n := g.from; n < g.to; n++ {
			if left[n] {
				t.Fatalf("%d is left, and in %v", n, q.gaps)
			}
			inGaps++
		}
	}
	if inGaps != q.missing {
		t.Fatalf("%d numbers are in gaps, not %d", inGaps, q.missing)
	}
}

func TestEventForm(t *testing.T) {
	f := func(value []byte, want bool) {
		t.Helper()
		if _, ok := decodeEvent(value); ok != want {
			t.Errorf("%q: %t", value, ok)
		}
	}
	s := sighting{flags: 0x8180, typ: 28, class: 1, minute: 29_000_000}
	good := appendEvent(nil, &s, []byte("\x01a\x07example\x00"))
	f(good, true)
	got, _ := decodeEvent(good)
	if got.Flags != 0x8180 || got.Type != 28 || got.Class != 1 || got.Minute != 29_000_000 || string(got.Name) != "\x01a\x07example\x00" {
		t.Errorf("%+v", got)
	}
	f(appendEvent(nil, &s, []byte("\x00")), true) // the root
	f(nil, false)
	f(good[:eventFixed], false)
	f(good[:len(good)-1], false)
	f(append(slices.Clone(good), 0), false)
	other := slices.Clone(good)
	other[0]++
	f(other, false)
}

// A name is taken if, and only if, the DNS would take it.
func FuzzEvent(f *testing.F) {
	s := sighting{flags: 1, typ: 2, class: 3, minute: 4}
	f.Add(appendEvent(nil, &s, []byte("\x01a\x07example\x00")))
	f.Add(appendEvent(nil, &s, []byte("\x00")))
	f.Add(appendEvent(nil, &s, []byte("\xc0\x00")))
	f.Fuzz(func(t *testing.T, value []byte) {
		s, ok := decodeEvent(value)
		if len(value) <= eventFixed || value[0] != eventVersion {
			if ok {
				t.Fatal("taken")
			}
			return
		}
		name := value[eventFixed:]
		_, n, err := dns.UnpackDomainName(name, 0)
		if want := err == nil && n == len(name) && !pointsElsewhere(name); ok != want {
			t.Fatalf("%q: %t; the DNS: %d octets, %v", name, ok, n, err)
		}
		if ok && string(appendEvent(nil, &sighting{flags: s.Flags, typ: s.Type, class: s.Class, minute: uint32(s.Minute)}, s.Name)) != string(value) {
			t.Fatal("another event was read than was written")
		}
	})
}

// pointsElsewhere reports whether a name that could be unpacked is compressed.
func pointsElsewhere(name []byte) bool {
	for i := 0; i < len(name) && name[i] != 0; i += 1 + int(name[i]) {
		if name[i] > 63 {
			return true
		}
	}
	return false
}

// Read goes on where its function returned false, and a restart begins with
// exactly the events that were not removed, whatever the order.
func TestReadGoesOn(t *testing.T) {
	o := SeenOptions{Dir: t.TempDir(), Backlog: 1000}
	s := openSeen(t, o)
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("n%02d.example", i))
	}
	for part := range slices.Chunk(names, 7) {
		s.see(part...)
	}
	var all, got []uint64
	take := func(n int) (numbers []uint64) {
		t.Helper()
		if err := s.Read(func(e Event) bool {
			if len(numbers) == n {
				return false
			}
			numbers = append(numbers, e.Number)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return numbers
	}
	for _, n := range []int{1, 0, 9, 40, 1000, 1000} {
		got = append(got, take(n)...)
	}
	for i := range uint64(100) {
		all = append(all, i)
	}
	if !slices.Equal(got, all) {
		t.Fatalf("read %d", got)
	}

	var left []uint64
	var gone []uint64
	for i, n := range all {
		if i%3 == 0 || i > 90 {
			gone = append(gone, n)
		} else {
			left = append(left, n)
		}
	}
	rand.Shuffle(len(gone), func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
	for range 2 { // the second time does nothing
		if err := s.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Backlog(); n != len(left) {
		t.Errorf("%d events wait, not %d", n, len(left))
	}
	s.stop()
	for i := range 3 {
		s = openSeen(t, o)
		if n := s.Backlog(); n != len(left) {
			t.Errorf("%d events wait after a restart, not %d", n, len(left))
		}
		if got := take(1000); !slices.Equal(got, left) {
			t.Fatalf("read %d, want %d", got, left)
		}
		s.see(fmt.Sprint("new", i, ".example")) // its number is not that of one that was removed
		if got := take(1000); len(got) != 1 || got[0] < 100 {
			t.Fatalf("the next event is %d", got)
		}
		left = append(left, s.queue.next-1)
		s.stop()
	}
}

// An event that is damaged is set aside, counted, and holds up nothing.
func TestDamagedEventsAreSetAside(t *testing.T) {
	o := SeenOptions{Dir: t.TempDir(), Backlog: 1000}
	s := openSeen(t, o)
	s.see("a.example", "b.example", "c.example", "d.example")
	for number, value := range map[uint64]string{0: "", 2: "\x01 rubbish that is not a name"} {
		if err := s.db.Set(eventKey(nil, number), []byte(value), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.events(true); len(got) != 2 {
		t.Errorf("read %q", got)
	}
	if n := s.Stats().Damaged; n != 2 {
		t.Errorf("%d events were counted as damaged", n)
	}
	if n := s.Backlog(); n != 0 {
		t.Errorf("%d events wait", n)
	}
	s.stop()
	s = openSeen(t, o)
	want(t, s.events(true))
	for _, number := range []byte{0, 2} {
		_, closer, err := s.db.Get([]byte{keyDamaged, 0, 0, 0, 0, 0, 0, 0, number})
		if err != nil {
			t.Fatalf("damaged event %d is nowhere: %v", number, err)
		}
		if err := closer.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()
}

// A flood of new names while the broker is away: the queue is read from its
// head, at once, after all that was there before was removed.
func TestTheHeadIsFoundAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("a long queue")
	}
	const events = 300_000
	o := SeenOptions{Dir: t.TempDir(), Backlog: 2 * events}
	s := openSeen(t, o)
	s.seeMany(0, events)
	var numbers []uint64
	if err := s.Read(func(e Event) bool { numbers = append(numbers, e.Number); return true }); err != nil {
		t.Fatal(err)
	}
	if len(numbers) != events {
		t.Fatalf("read %d", len(numbers))
	}
	if err := s.Remove(numbers[:events-10]); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s = openSeen(t, o)
	if s.queue.head != events-10 || s.Backlog() != 10 {
		t.Errorf("the queue begins at %d, %d wait", s.queue.head, s.Backlog())
	}
	s.stop()
}
