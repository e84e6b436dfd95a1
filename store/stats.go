package store

import "sync/atomic"

// SeenStats are what a Seen has counted since it was opened, and how it is.
type SeenStats struct {
	Queued    uint64 // events put into the queue
	Discarded uint64 // sightings not stored, for want of room in the queue or on the disk, or lost with a part of the store; they are new again
	Damaged   uint64 // events set aside because they could not be read
	Replaced  uint64 // stores found damaged and moved aside
	Entries   int    // fingerprints remembered in memory
	Lost      bool   // nothing is looked up or written until the next start: Pebble is wrong itself
}

// Stats returns what was counted. It may be called at any time, and after Close.
func (s *Seen) Stats() SeenStats {
	return SeenStats{
		Queued:    s.counts.queued.Load(),
		Discarded: s.counts.discarded.Load(),
		Damaged:   s.counts.damaged.Load(),
		Replaced:  s.counts.replaced.Load(),
		Entries:   int(s.memory.entries.Load()),
		Lost:      s.isLost(),
	}
}

// seenCounts are added to by whoever meets what they count.
type seenCounts struct {
	queued, discarded, damaged, replaced atomic.Uint64
}
