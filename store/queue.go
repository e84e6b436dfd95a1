package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// An Event is a name that was new, and waits for its delivery.
type Event struct {
	Number uint64 // in the queue, in the order of arrival
	Sighting
}

// A queue numbers the events that wait in the store, and knows which of them
// may leave and which have left.
//
// What was delivered need not be walked over to find what was not: the lowest
// number that may still be there is kept here, and written with every removal.
// A number is never given twice, neither after a restart nor by a fresh store
// that replaces a damaged one: who still holds an event of the old one removes
// nothing by it.
type queue struct {
	wake chan struct{} // room for one: there may be more to read

	mu      sync.Mutex
	next    uint64            // of the next event that is queued; guarded by mu
	durable uint64            // events below it may leave; guarded by mu
	cursor  uint64            // of the next event that is read; guarded by mu
	head    uint64            // no event below it is left; guarded by mu
	gaps    gaps              // above head, that are not left; guarded by mu
	missing uint64            // numbers in gaps; guarded by mu
	removed []uint64          // and still in Pebble; guarded by mu
	aside   map[uint64][]byte // of removed, the values that were damaged; guarded by mu
}

// len returns the number of events that were queued and not removed.
func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int(q.next - q.head - q.missing)
}

// number returns the number of the next event that is queued.
func (q *queue) number() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next
}

// add says that n events were queued. It returns the number of the next.
func (q *queue) add(n int) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next += uint64(n)
	return q.next
}

// release lets the events below a number leave.
func (q *queue) release(below uint64) {
	q.mu.Lock()
	more := below > q.durable
	q.durable = max(q.durable, below)
	q.mu.Unlock()
	if more {
		q.signal()
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// unread returns the range of numbers that may leave and were not read.
func (q *queue) unread() (from, to uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cursor, q.durable
}

// read says that the events below a number were read, from from on.
func (q *queue) read(from, below uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cursor == from { // else the store was exchanged meanwhile
		q.cursor = below
	}
}

// remove notes that events are no longer to be there.
func (q *queue) remove(numbers []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, n := range numbers {
		q.removeLocked(n)
	}
}

func (q *queue) removeLocked(n uint64) {
	if n < q.head || n >= q.next || !q.gaps.add(n) {
		return
	}
	q.missing++
	q.removed = append(q.removed, n)
	q.advanceLocked()
}

// advanceLocked moves head over the gap behind it.
func (q *queue) advanceLocked() {
	if len(q.gaps) > 0 && q.gaps[0].from == q.head {
		q.head = q.gaps[0].to
		q.missing -= q.gaps[0].to - q.gaps[0].from
		q.gaps = slices.Delete(q.gaps, 0, 1)
	}
}

// setAside removes an event whose value is damaged.
func (q *queue) setAside(n uint64, value []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.aside == nil {
		q.aside = make(map[uint64][]byte)
	}
	q.aside[n] = slices.Clone(value)
	q.removeLocked(n)
}

// takeRemoved appends to dst the events that are to be taken out of Pebble. Of
// those in aside, the value is to be kept.
func (q *queue) takeRemoved(dst []uint64) (numbers []uint64, aside map[uint64][]byte, head, next uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	numbers = append(dst, q.removed...)
	aside = q.aside
	q.removed, q.aside = q.removed[:0], nil
	return numbers, aside, q.head, q.next
}

// start sets the queue to what is in a store that was opened: nothing below
// head, from next on, or in missing. If the queue was in use before, with that
// store or another, it keeps what it knows. It returns how many events it has
// lost that were not read yet.
func (q *queue) start(head, next uint64, missing gaps) (lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == 0 {
		q.head, q.cursor, q.next, q.gaps = head, head, next, missing
		for _, g := range missing {
			q.missing += g.to - g.from
		}
		q.advanceLocked()
	} else {
		lost = q.compareLocked(head, next, missing)
	}
	q.durable = q.next
	if q.head != q.next {
		q.signal()
	}
	return lost
}

// compareLocked goes through what is in a store and not in the queue, and what
// is in the queue and not in the store.
func (q *queue) compareLocked(head, next uint64, missing gaps) (lost int) {
	q.removed = q.removed[:0]
	for n := range missing.others(head, next) {
		if n < q.head || q.gaps.has(n) { // its removal did not last
			q.removed = append(q.removed, n)
		}
	}
	for _, g := range slices.Concat(gaps{{0, head}}, missing, gaps{{next, max(next, q.next)}}) {
		for n := max(g.from, q.head); n < g.to; n++ {
			if q.gaps.add(n) {
				q.missing++
				if n >= q.cursor {
					lost++
				}
			}
		}
	}
	q.advanceLocked()
	return lost
}

// gaps are ranges of numbers, in order, that do not touch.
type gaps []gap

type gap struct{ from, to uint64 } // to is not in it

// has reports whether a number is in one of them.
func (g gaps) has(n uint64) bool {
	i, _ := slices.BinarySearchFunc(g, n, func(g gap, n uint64) int { return cmp.Compare(g.to, n+1) })
	return i < len(g) && g[i].from <= n
}

// others yields the numbers from from to to that are in none of them. They are
// not outside of that.
func (g gaps) others(from, to uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, gap := range append(slices.Clip(g), gap{to, to}) {
			for ; from < gap.from; from++ {
				if !yield(from) {
					return
				}
			}
			from = gap.to
		}
	}
}

// add adds a number and reports whether it was not there yet.
func (g *gaps) add(n uint64) bool {
	i, _ := slices.BinarySearchFunc(*g, n, func(g gap, n uint64) int { return cmp.Compare(g.to, n) })
	if i == len(*g) || n+1 < (*g)[i].from { // the first that ends at n or above is not near
		*g = slices.Insert(*g, i, gap{n, n + 1})
		return true
	}
	at := &(*g)[i]
	switch {
	case n+1 == at.from:
		at.from = n
	case n == at.to:
		at.to++
		if i+1 < len(*g) && (*g)[i+1].from == at.to {
			at.to = (*g)[i+1].to
			*g = slices.Delete(*g, i+1, i+2)
		}
	default:
		return false
	}
	return true
}

// encodeHead is the stored form of where the queue begins, and of the next
// number, which may be far from that of the last event that is left.
func encodeHead(head, next uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, head), next)
}

func decodeHead(b []byte) (head, next uint64, err error) {
	if len(b) != 16 {
		return 0, 0, errors.New("where the queue begins cannot be read")
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), nil
}

// The stored form of an event: version, flags, type, class, minute, name.
const (
	eventVersion = 1
	eventFixed   = 1 + 2 + 2 + 2 + 4
)

func appendEvent(dst []byte, s *sighting, name []byte) []byte {
	dst = append(dst, eventVersion)
	dst = binary.BigEndian.AppendUint16(dst, s.flags)
	dst = binary.BigEndian.AppendUint16(dst, s.typ)
	dst = binary.BigEndian.AppendUint16(dst, s.class)
	dst = binary.BigEndian.AppendUint32(dst, s.minute)
	return append(dst, name...)
}

// decodeEvent reads the stored form. Its name is a view into value.
func decodeEvent(value []byte) (s Sighting, ok bool) {
	if len(value) <= eventFixed || value[0] != eventVersion {
		return s, false
	}
	s = Sighting{
		Name:   value[eventFixed:],
		Flags:  binary.BigEndian.Uint16(value[1:]),
		Type:   binary.BigEndian.Uint16(value[3:]),
		Class:  binary.BigEndian.Uint16(value[5:]),
		Minute: int64(binary.BigEndian.Uint32(value[7:])),
	}
	return s, isName(s.Name)
}

// isName reports whether b is one name in wire form, and nothing else.
func isName(b []byte) bool {
	for i := 0; i < len(b) && i < maxName; i += 1 + int(b[i]) {
		if b[i] == 0 {
			return i == len(b)-1
		}
		if b[i] > 63 {
			return false
		}
	}
	return false
}

// eventKey returns the key of an event.
func eventKey(dst []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst[:0], keyQueue), number)
}

// Wake is signalled when there may be events to read. One signal may stand for
// many events, or for none.
func (s *Seen) Wake() <-chan struct{} { return s.queue.wake }

// Backlog returns the number of events that wait.
func (s *Seen) Backlog() int { return s.queue.len() }

// Read calls f with events that may leave and were not read since the store was
// opened, in their order, until f returns false or there are no more. The event
// for which f returned false is read again. An event's name is valid during the
// call, which must not call the store. One goroutine at a time may read.
//
// An event that is damaged is set aside, counted and passed over. If the store
// itself cannot be read, it is as if there were no more: Wake is signalled when
// to try again. An error means that the store is lost, and no event will come.
func (s *Seen) Read(f func(Event) bool) error {
	var gate sync.Mutex
	left := false // Read has returned
	err := s.unlessLost(func() error {
		return s.read(func(e Event) bool {
			gate.Lock()
			defer gate.Unlock()
			return !left && f(e)
		})
	})
	gate.Lock()
	defer gate.Unlock()
	left = true
	return err
}

func (s *Seen) read(f func(Event) bool) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return nil
	}
	from, to := s.queue.unread()
	if from == to {
		return nil
	}
	next, err := s.readRange(from, to, f)
	s.queue.read(from, next)
	if err != nil {
		s.failed.Store(true)
		s.hurt(s.opened.Load(), err)
	}
	return nil
}

// readRange reads events into f and returns the number of the one to read next.
func (s *Seen) readRange(from, to uint64, f func(Event) bool) (next uint64, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(nil, from), UpperBound: eventKey(nil, to)})
	if err != nil {
		return from, err
	}
	next = from
	for ok := it.First(); ok; ok = it.Next() {
		number := binary.BigEndian.Uint64(it.Key()[1:])
		sighting, good := decodeEvent(it.Value())
		if !good {
			s.counts.damaged.Add(1)
			s.queue.setAside(number, it.Value())
		} else if !f(Event{number, sighting}) {
			return number, it.Close()
		}
		next = number + 1
	}
	if err := it.Close(); err != nil {
		return next, err
	}
	return to, nil
}

// Remove removes events from the queue that were delivered, or are given up. It
// does not wait for the disk: if the process is killed in the next moment, they
// are read once more. To remove one again does nothing.
func (s *Seen) Remove(numbers []uint64) error {
	if s.isLost() {
		return s.why
	}
	s.queue.remove(numbers)
	return nil
}
