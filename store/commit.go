package store

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A candidate is a sighting of a name that is not in memory.
type candidate struct {
	print uint64 // 0 if it is not to be stored after all
	index int32  // in its batch
	batch uint8  // in the group
	known place
}

// A place is where a candidate was found.
type place uint8

const (
	nowhere place = iota
	inYoung
	inOld
)

// A pendingSync is a batch that is written and not yet synced. next is the
// number behind its last event.
type pendingSync struct {
	batch   *pebble.Batch
	next    uint64
	barrier chan struct{} // instead of a batch: closed when all before it are synced
}

// commit finds the names in the group that are new, and writes their marks and
// events as one batch.
func (s *Seen) commit() {
	start := time.Now()
	s.candidates()
	if len(s.fresh) == 0 {
		return
	}
	if s.isShut() {
		s.counts.discarded.Add(uint64(len(s.fresh)))
		return
	}
	if s.over && time.Since(s.sized) > lookWhenOver {
		s.age()
	}
	if s.isLost() || s.isShut() || !s.roomFor(s.bytesOfGroup()) {
		s.counts.discarded.Add(uint64(len(s.fresh)))
		return
	}
	s.mu.RLock()
	err := s.lookUp()
	if err == nil {
		err = s.write()
	}
	s.mu.RUnlock()
	if err != nil {
		s.counts.discarded.Add(uint64(len(s.fresh)))
	} else if s.options.OnCommit != nil {
		s.options.OnCommit(time.Since(start))
	}
	s.settle(err)
	if s.options.MaxBytes > 0 && !s.isShut() && s.written > s.options.MaxBytes/lookAtShare {
		s.age()
	}
}

// candidates puts into fresh each name of the group that is not in memory, once
// and by fingerprint.
func (s *Seen) candidates() {
	s.fresh = s.fresh[:0]
	for batch, n := range s.group {
		for i := range n.list {
			if p := n.list[i].fingerprint; !s.memory.contains(p) {
				s.fresh = append(s.fresh, candidate{print: p, index: int32(i), batch: uint8(batch)})
			}
		}
	}
	slices.SortFunc(s.fresh, func(a, b candidate) int {
		if a.print != b.print {
			return cmp.Compare(a.print, b.print)
		}
		return cmp.Or(cmp.Compare(a.batch, b.batch), cmp.Compare(a.index, b.index))
	})
	s.fresh = slices.CompactFunc(s.fresh, func(a, b candidate) bool { return a.print == b.print })
}

// bytesOfGroup is more than the group's events and marks take in the log.
func (s *Seen) bytesOfGroup() (n int64) {
	for _, g := range s.group {
		n += int64(len(g.bytes)) + 64*int64(len(g.list))
	}
	return n
}

// lookUp finds where each of fresh is. They are in the order of their keys.
func (s *Seen) lookUp() error {
	if err := s.lookIn(s.meta.mark(0), inYoung); err != nil || s.meta.oldEmpty {
		return err
	}
	return s.lookIn(s.meta.mark(-1), inOld)
}

func (s *Seen) lookIn(generation byte, where place) error {
	// Get would skip the filters of the last level, and read a block for every
	// name that is new. What is in memtables, which have no filters, is in
	// memory too, and was found there.
	it, err := s.db.NewIter(&pebble.IterOptions{
		UseL6Filters:              s.filtersPay(len(s.fresh)),
		OnlyReadGuaranteedDurable: s.memoryCoversMemTables(),
		LowerBound:                []byte{generation},
		UpperBound:                []byte{generation + 1},
	})
	if err != nil {
		return err
	}
	var key [9]byte
	key[0] = generation
	for i := range s.fresh {
		c := &s.fresh[i]
		if c.known != nowhere {
			continue
		}
		binary.BigEndian.PutUint64(key[1:], c.print)
		if it.SeekPrefixGE(key[:]) {
			c.known = where
		} else if it.Error() != nil {
			break
		}
	}
	return it.Close()
}

// filtersPay reports whether the filters of the lowest level, most of all, save
// work when so many names are looked up. While they fit the cache they do. Where
// they do not, each commit reads those that are missing, a megabyte and more for
// a table, and a look-up without them reads two blocks of 4 KiB. With filters of
// 1.3 times the room, commits of 20, 200 and 8000 names took 121, 61 and 33 µs a
// name, and 22, 14 and 8 µs without those of the lowest level.
func (s *Seen) filtersPay(names int) bool {
	return s.filters <= filterRoom+min(filterRoom/8, int64(names)*2048)
}

// weighFilters finds out how large the filters of all tables are.
func (s *Seen) weighFilters() {
	levels := s.db.Metrics().Levels
	bits := int64(0)
	for i, l := range levels {
		marks := l.TablesSize / markInTable
		if i == len(levels)-1 {
			bits += marks * bitsLowest
		} else {
			bits += marks * bitsPerName
		}
	}
	s.filters = bits / 8
}

// memoryCoversMemTables reports whether every mark that is not in a table yet
// is in memory for certain. What is added to memory may be a name that has long
// been in a table, so Pebble's own flushes do not see to that: it flushes before
// a bucket of the memory is likely to forget what was added since the last time.
func (s *Seen) memoryCoversMemTables() bool {
	often := len(s.memory.buckets)
	if int64(often) < s.memTableMarks {
		return false // it would take more flushes than there are anyway
	}
	if s.flushed == nil && (s.remembered >= often || !s.memory.holdsAll()) {
		s.flush()
	}
	if s.flushed == nil {
		return true
	}
	select {
	case <-s.flushed:
		s.flushed = nil
		return s.memory.holdsAll()
	default:
		return false
	}
}

// flush begins to make tables of the memtables, for memoryCoversMemTables. If
// that fails, it counts as not done yet.
func (s *Seen) flush() {
	s.flushed, s.remembered = make(chan struct{}), 0
	s.memory.watch()
	// What comes of an error, the next commit meets, too.
	_ = s.unlessPanic(func() error {
		flushed, err := s.db.AsyncFlush()
		if err == nil {
			s.flushed = flushed
		}
		return err
	})
}

// write writes what was found out as one batch, and then into memory.
func (s *Seen) write() error {
	b := s.db.NewBatch()
	room := max(0, s.options.Backlog-s.queue.len())
	events, refused := 0, 0
	var key [9]byte
	key[0] = s.meta.mark(0)
	for i := range s.fresh {
		c := &s.fresh[i]
		if c.known == inYoung {
			continue
		}
		if c.known == nowhere && s.options.Backlog > 0 {
			if events == room {
				refused++
				c.print = 0 // no mark, and not in memory: its next sighting reports it
				continue
			}
			events++
		}
		binary.BigEndian.PutUint64(key[1:], c.print)
		must(b.Set(key[:], nil, nil))
	}
	s.addEvents(b, events)
	if err := s.apply(b, events); err != nil {
		return err
	}
	s.counts.discarded.Add(uint64(refused))
	s.counts.queued.Add(uint64(events))
	for i := range s.fresh {
		if p := s.fresh[i].print; p != 0 {
			s.memory.add(p)
			s.remembered++
		}
	}
	return nil
}

// addEvents adds the events of the new names to a batch.
func (s *Seen) addEvents(b *pebble.Batch, events int) {
	if events == 0 {
		return
	}
	number := s.queue.number()
	var key, value []byte
	for i := range s.fresh {
		c := &s.fresh[i]
		if c.known != nowhere || c.print == 0 {
			continue
		}
		names := s.group[c.batch]
		seen := &names.list[c.index]
		key, value = eventKey(key, number), appendEvent(value[:0], seen, names.name(seen))
		must(b.Set(key, value, nil))
		number++
	}
}

// apply writes a batch with so many new events, and sees to it that they may
// leave: now, or when it is synced. If Pebble was cut off meanwhile, they may
// not: whether they are on the disk is found out when it is opened again.
func (s *Seen) apply(b *pebble.Batch, events int) error {
	if b.Empty() {
		return b.Close()
	}
	s.written += int64(b.Len())
	if !s.options.Sync {
		if err := s.unlessPanic(func() error { return b.Commit(pebble.NoSync) }); err != nil {
			return err
		}
		s.dirty.Store(true)
		if next := s.queue.add(events); s.disk.whyCut() == nil {
			s.queue.release(next)
		}
		return b.Close()
	}
	if err := s.unlessPanic(func() error { return s.db.ApplyNoSyncWait(b, pebble.Sync) }); err != nil {
		return err
	}
	select {
	case s.pending <- pendingSync{batch: b, next: s.queue.add(events)}:
		return nil
	case <-s.lost:
		return s.why
	}
}

// writeRemoved takes out of Pebble the events that were removed from the queue
// since it was last called.
func (s *Seen) writeRemoved() error {
	const most = 50_000 // in one batch
	if s.isShut() {
		return nil
	}
	numbers, aside, head, next := s.queue.takeRemoved(s.removed[:0])
	s.removed = numbers
	if s.isLost() || len(numbers) == 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for part := range slices.Chunk(numbers, most) {
		b := s.db.NewBatch()
		var key []byte
		for _, n := range part {
			if value, ok := aside[n]; ok {
				must(b.Set(binary.BigEndian.AppendUint64([]byte{keyDamaged}, n), value, nil))
			}
			key = eventKey(key, n)
			must(b.SingleDelete(key, nil))
		}
		must(b.Set([]byte{keyHead}, encodeHead(head, next), nil))
		s.written += int64(b.Len())
		if err := s.unlessPanic(func() error { return b.Commit(pebble.NoSync) }); err != nil {
			return fmt.Errorf("take delivered events off the queue: %w", err)
		}
		must(b.Close())
	}
	s.dirty.Store(true)
	return nil
}

// syncer waits for the syncs that commits asked for, and lets their events
// leave. Without Sync, and for removals, it syncs the log every second in
// which something was written.
func (s *Seen) syncer() {
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		select {
		case p, ok := <-s.pending:
			if !ok {
				s.syncLog()
				return
			}
			if p.barrier != nil {
				close(p.barrier)
				continue
			}
			if err := p.batch.SyncWait(); err != nil {
				_ = s.lose(fmt.Errorf("sync the log: %w", err))
				return
			}
			if s.disk.whyCut() == nil {
				s.queue.release(p.next)
			}
			must(p.batch.Close())
		case <-tick.C:
			s.syncLog()
		case <-s.lost:
			return
		}
	}
}

func (s *Seen) syncLog() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db != nil && !s.isLost() && s.dirty.Swap(false) {
		// What comes of an error is that the store is lost.
		_ = s.unlessPanic(func() error { return s.db.LogData(nil, pebble.Sync) })
	}
}

// must is for what a batch in memory never refuses.
func must(err error) {
	if err != nil {
		panic("BUG: " + err.Error())
	}
}
