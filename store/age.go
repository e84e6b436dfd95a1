package store

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// When a generation is old. Two of them, the log and what compactions need
// meanwhile fit the limit.
const (
	youngShare = 0.40 // of MaxBytes, for the young generation
	totalShare = 0.85 // of MaxBytes, for all, the queue included
	youngLeast = 0.05 // the young one is worth to be dropped early only above this
	mostShare  = 0.95 // of MaxBytes, above which nothing new is written

	lookAtSize  = 10 * time.Second // at least so often
	lookAtShare = 100              // and for each such part of MaxBytes that is written
)

// maintain looks at the disk, and now and then at the age of the store.
func (s *Seen) maintain() {
	if s.isLost() {
		return
	}
	s.disk.look()
	s.roomFor(0)
	s.age()
	if s.failed.Swap(false) {
		s.queue.signal() // the reader may try again
	}
}

// age begins a new generation if the young one is old.
func (s *Seen) age() {
	now := time.Now()
	since := time.Unix(s.meta.since, 0)
	if since.After(now.Add(time.Hour)) {
		s.meta.since = now.Unix() // the clock was put back
	}
	due := s.options.Retention > 0 && now.Sub(since) >= s.options.Retention
	limit := s.options.MaxBytes
	if limit > 0 && (s.over || s.written > limit/lookAtShare || now.Sub(s.sized) >= lookAtSize) {
		s.sized, s.written = now, 0
		due = s.tooLarge() || due
	}
	if due {
		s.settle(s.turn(now))
	}
}

// tooLarge reports whether the young generation, or the whole store, has
// outgrown its share of the limit.
func (s *Seen) tooLarge() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m := s.db.Metrics()
	mark := s.meta.mark(0)
	young, err := s.db.EstimateDiskUsage([]byte{mark}, []byte{mark + 1})
	if err != nil {
		return false // the next look-up meets it, too
	}
	limit, total := float64(s.options.MaxBytes), float64(m.DiskSpaceUsage())
	size := float64(young) + float64(m.MemTable.Size)/2 // a table is smaller than the memtable it is made of
	if over := total > mostShare*limit; over != s.over {
		s.over = over
		s.report(s.problem())
	}
	return size > youngShare*limit || total > totalShare*limit && size > youngLeast*limit
}

// turn drops the old generation and begins a new one. Memory is cleared, so
// that every busy name is asked for once more and is brought forward.
func (s *Seen) turn(now time.Time) error {
	next := s.meta
	next.generation++
	next.since = now.Unix()
	next.oldEmpty = false
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.db.NewBatch()
	if !s.meta.oldEmpty {
		old := s.meta.mark(-1)
		must(b.DeleteRange([]byte{old}, []byte{old + 1}, nil))
	}
	must(b.Set([]byte{keyMeta}, next.encode(), nil))
	if err := s.unlessPanic(func() error { return b.Commit(pebble.Sync) }); err != nil {
		return err
	}
	s.meta = next
	s.memory.clear()
	must(b.Close())
	// The tables of the old one go when what deletes them is in a table, too.
	return s.unlessPanic(func() error {
		_, err := s.db.AsyncFlush()
		return err
	})
}

// Size returns what the store takes on the disk, in octets.
func (s *Seen) Size() int64 {
	var size int64
	err := s.unlessLost(func() error {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if s.db != nil {
			size = int64(s.db.Metrics().DiskSpaceUsage())
		}
		return nil
	})
	if err != nil {
		return 0
	}
	return size
}
