package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dchest/siphash"
)

// SeenOptions are what a Seen is made with.
type SeenOptions struct {
	Dir       string        // of Pebble; it is made if it is not there
	Entries   int           // fingerprints remembered in memory
	Sync      bool          // every commit, before its events may leave
	Retention time.Duration // after which a generation is old; 0 = never
	MaxBytes  int64         // on the disk; 0 = no limit
	Backlog   int           // events that may wait; 0 = no events are made
	Gather    time.Duration // how long a name waits for others before a commit; 0 = not

	// Report is called with what is wrong with the store when that changes,
	// and with nil when it is right again: one call at a time, from any
	// goroutine. It must not call the store. That a damaged store was replaced
	// is told, and is over at once.
	Report func(error)

	// OnCommit is called with how long each commit took, from the look-ups to
	// the write, by the goroutine that commits. It may be nil.
	OnCommit func(time.Duration)

	files files // for tests: where the store's files are
}

// A Seen remembers the names that were ever seen, and keeps the events of
// those that were new until they are delivered.
//
// A name is known by its fingerprint, 64 bits of SipHash under a secret that
// the store made for itself: who does not know the secret cannot make a name
// that is taken for another, and two of a billion names have the same one once
// in forty stores. In front is a set in memory, which every worker asks; behind
// it, Pebble, which one committer asks and writes.
//
// Pebble holds two generations. A name is looked for in the young one, then in
// the old one, from where it is brought forward. When the young one has lasted
// long enough, or is large enough, the old one is dropped, and the young one
// becomes the old. So the store does not grow for ever, and a name that is
// sighted again and again is never new again.
//
// A mark and its event are written in one batch: no name is known whose event
// is lost. If there is no room for the event, there is no mark.
//
// Nothing but Run writes. What else is called never waits for the disk, except
// that Read may read from it; and nothing waits for a Pebble that has stopped
// for good, which is then lost. While the store cannot be written, names are
// counted and forgotten, and Run sees to it that it is written again.
type Seen struct {
	options SeenOptions
	key     [2]uint64 // of the fingerprints; a fresh store keeps it
	memory  *memory
	queue   queue
	counts  seenCounts
	disk    disk
	dirty   atomic.Bool // something was written since the log was synced

	mu sync.RWMutex // read-locked while db is used, locked while it is exchanged
	db *pebble.DB   // guarded by mu, and written by the committer alone; nil when it could not be opened yet

	damage chan damage // room for one
	opened atomic.Int64
	failed atomic.Bool // a Read; it is to be woken
	lost   chan struct{}
	losing sync.Once
	why    error // that it is lost; set before lost is closed

	reporting sync.Mutex
	wrong     bool        // what was reported last; guarded by reporting
	stuck     atomic.Bool // was reported, and not yet that it is over

	// The committer's.
	lock    *pebble.Lock
	meta    meta
	sized   time.Time // when the size was last looked at
	written int64     // octets, since then
	over    bool      // the whole store has outgrown its limit
	trouble error     // that the last commit met, and is no damage; or why nothing is open
	openAt  time.Time // not before, to open it again; or when that was done
	wait    time.Duration
	group   []*Names
	// So many names are enough for a group: a batch that takes half a memtable
	// would get one of its own.
	groupNames    int
	fresh         []candidate
	memTableMarks int64           // more marks than a memtable holds
	filters       int64           // octets of the filters of all tables
	flushed       <-chan struct{} // closed when what the last flush began with is in tables; nil = it is
	remembered    int             // names added to memory since then
	removed       []uint64
	pending       chan pendingSync
}

// The first byte of a key. Marks follow from keyMarks on: one of generation g
// has keyMarks + g%numMarks, so that a range that was deleted is not soon
// written to again.
const (
	keyMeta    = 0x00
	keyHead    = 0x01
	keyQueue   = 0x02
	keyDamaged = 0x03
	keyMarks   = 0x10
	numMarks   = 0xe0
)

// Fingerprint returns the fingerprint of a name in wire form.
func (s *Seen) Fingerprint(name []byte) uint64 {
	return fingerprintOf(siphash.Hash(s.key[0], s.key[1], name))
}

// Known reports whether a name is in memory. That it is not does not mean that
// it is new: only the committer can tell. Any goroutine may ask, until Close.
func (s *Seen) Known(fingerprint uint64) bool { return s.memory.contains(fingerprint) }

const (
	groupMax      = 64                     // batches in one commit, at most 256
	maintainEvery = time.Second            // syncing the log, and looking at age and size
	removeEvery   = 200 * time.Millisecond // what was delivered gathers that long
	stuckEvery    = 200 * time.Millisecond // looking whether a commit waits for a full disk
)

// Run commits what comes in, and gives every batch back empty to done, until
// the channel is closed. What came in is committed when it returns. It calls
// done from two goroutines.
//
// What arrives during one commit goes into the next. With Sync, Run does not
// wait for the disk: several commits can be on their way to it, and share a
// sync.
//
// When a commit is stuck, because the disk is full or because Pebble has
// stopped for good, and when the store could not be opened again yet, what
// comes in is counted and forgotten. If Pebble has stopped for good, the
// batches of that commit do not come back.
func (s *Seen) Run(in <-chan *Names, done func(*Names)) {
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		s.commitAll(in, done)
	}()
	tick := time.NewTicker(stuckEvery)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			if s.isLost() {
				s.forgetAll(in, done)
			}
			return
		case <-s.lost:
			s.forgetAll(in, done)
			return
		case <-tick.C:
		}
		for ended := false; s.disk.waits.Load() > 0 && !ended; {
			s.reportStuck() // the committer may be the one that waits
			select {
			case n, ok := <-in:
				if ok {
					s.forget(n, done)
					continue
				}
				s.disk.giveUp()
				ended = true
			case <-tick.C:
			}
		}
	}
}

// forget gives a batch back and counts what is lost with it.
func (s *Seen) forget(n *Names, done func(*Names)) {
	s.counts.discarded.Add(uint64(n.Len()))
	n.Reset()
	done(n)
}

func (s *Seen) forgetAll(in <-chan *Names, done func(*Names)) {
	for n := range in {
		s.forget(n, done)
	}
}

// gather lets names come in, as long as the options say or until there are many
// batches. The more names a commit is of, the nearer each is in the memtable to
// the one before it; and on a slow stream a commit costs more than its names.
func (s *Seen) gather(in <-chan *Names) {
	const step = 25 * time.Millisecond
	for end := time.Now().Add(s.options.Gather); len(in) < groupMax/2; {
		left := time.Until(end)
		if left <= 0 {
			return
		}
		time.Sleep(min(left, step))
	}
}

// commitAll is the committer.
func (s *Seen) commitAll(in <-chan *Names, done func(*Names)) {
	var syncer sync.WaitGroup
	syncer.Go(s.syncer)
	defer syncer.Wait()
	defer close(s.pending)
	maintain := time.NewTicker(maintainEvery)
	defer maintain.Stop()
	remove := time.NewTicker(removeEvery)
	defer remove.Stop()
	for {
		select {
		case n, ok := <-in:
			if !ok {
				return
			}
			s.gather(in)
			s.group = append(s.group[:0], n)
			for names := n.Len(); len(s.group) < groupMax && names < s.groupNames && len(in) > 0; {
				if n, ok := <-in; ok {
					s.group = append(s.group, n)
					names += n.Len()
				}
			}
			s.commit()
			for _, n := range s.group {
				n.Reset()
				done(n)
			}
		case d := <-s.damage:
			if d.opened == s.opened.Load() {
				s.settle(d.err)
			}
		case <-remove.C:
			s.settle(s.writeRemoved())
		case <-maintain.C:
			s.maintain()
		case <-s.lost:
			return
		}
	}
}
