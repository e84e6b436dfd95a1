package store

import (
	"context"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// When a generation is old. Two of them, the log and what compactions need
// meanwhile fit the limit.
const (
	youngShare = 0.40 // of MaxBytes, for the young generation
	totalShare = 0.75 // of MaxBytes, for all, the queue included
	youngLeast = 0.05 // the young one is worth to be dropped early only above this
	mostShare  = 0.90 // of MaxBytes, above which nothing new is written

	lookAtSize   = 10 * time.Second // at least so often
	lookWhenOver = 20 * time.Millisecond
	lookAtShare  = 200 // and for each such part of MaxBytes that is written
)

// maintain looks at the disk, and now and then at the age of the store.
func (s *Seen) maintain() {
	if s.disk.whyCut() != nil {
		s.settle(nil)
	}
	if s.isLost() {
		return
	}
	if s.isShut() {
		s.openAgain()
		return
	}
	s.disk.look()
	s.roomFor(0)
	s.weighFilters()
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

// turn begins a new generation and drops the old one. Memory is cleared, so that
// every busy name is asked for once more and is brought forward.
func (s *Seen) turn(now time.Time) error {
	next := s.meta
	next.generation++
	next.since = now.Unix()
	next.oldEmpty = false
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.unlessPanic(func() error { return s.db.Set([]byte{keyMeta}, next.encode(), pebble.Sync) }); err != nil {
		return err
	}
	s.meta = next
	s.memory.clear()
	s.flush()
	return s.unlessPanic(func() error { return s.dropForgotten(s.db) })
}

// dropForgotten drops the generation before the old one. If the process ends
// before it does, the next one does it when it opens the store.
//
// A range delete would be a key that overlaps all of the generation, and the
// compaction of it would write most of the store once more. This drops tables
// from the manifest, and their room is there at once.
func (s *Seen) dropForgotten(db *pebble.DB) error {
	mark := s.meta.mark(-2)
	forgotten := pebble.KeyRange{Start: []byte{mark}, End: []byte{mark + 1}}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: forgotten.Start, UpperBound: forgotten.End})
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := it.Close(); err != nil || empty {
		return err
	}
	return db.Excise(context.Background(), forgotten)
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
