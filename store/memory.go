package store

import (
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A memory is a set of fingerprints of names, in front of Pebble. Any
// goroutine may ask it, without a lock; one at a time may add to it.
//
// It is a table of buckets, each as large as a line of the processor's cache: a
// look-up waits for memory once. A fingerprint belongs to one bucket, and there
// takes the place of the one that was added longest ago. So about as many as
// there is room for are remembered, those that were added last. A name that the
// memory forgot is not new, it only costs a look-up.
type memory struct {
	mapped   []byte   // from the system
	buckets  []bucket // the same
	watching uint16   // changes with every watch
	crowded  bool     // something that was added since watch, or before clear, is forgotten
	entries  atomic.Int64
}

// A bucket holds the low 48 bits of its fingerprints, two and two; 0 is an empty
// slot. Where there are 65,536 buckets, the others follow from which one it is;
// with fewer, a new name is taken for one of the ten once in 28 million million.
type bucket struct {
	low  [bucketSlots / 2]uint64 // 32 bits of each
	high [bucketSlots / 2]uint32 // 16 bits of each

	// The adder's.
	watching uint16 // when added began
	added    uint8  // since watch
	next     uint8  // the slot to be used next
}

const (
	bucketSlots = 10
	storedBits  = 48
)

// newMemory returns a set that remembers that many fingerprints, rounded up to
// whole buckets. It takes 6.4 octets for each, outside of the Go heap, so that
// the garbage collector does not let the process grow by a share of it.
func newMemory(entries int) (*memory, error) {
	n := max(entries-1, 0)/bucketSlots + 1
	b, err := unix.Mmap(-1, 0, n*int(unsafe.Sizeof(bucket{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	// Where a fingerprint lies is random: with small pages, most of the time
	// of a look-up is that of finding the page. Not every kernel has others.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return &memory{mapped: b, buckets: unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(b))), n)}, nil
}

// free gives the memory back to the system. Nobody may ask any more.
func (m *memory) free() error { return unix.Munmap(m.mapped) }

// fingerprintOf makes a fingerprint of a hash: one that can be told from an
// empty slot.
func fingerprintOf(hash uint64) uint64 {
	if hash<<(64-storedBits) == 0 {
		hash++
	}
	return hash
}

// home is the bucket of a fingerprint.
func (m *memory) home(fingerprint uint64) *bucket {
	i, _ := bits.Mul64(fingerprint, uint64(len(m.buckets)))
	return &m.buckets[i]
}

// contains reports whether the set remembers a fingerprint.
//
// All of a bucket is compared without a branch: where in it a fingerprint lies
// cannot be predicted, and it is all there as soon as a part is.
func (m *memory) contains(fingerprint uint64) bool {
	b := m.home(fingerprint)
	stored := fingerprint << (64 - storedBits) >> (64 - storedBits)
	found := uint64(0) // its top bit
	for i := range b.low {
		low, high := atomic.LoadUint64(&b.low[i]), uint64(atomic.LoadUint32(&b.high[i]))
		found |= (low<<32>>32 | high<<48>>16) ^ stored - 1
		found |= (low>>32 | high>>16<<32) ^ stored - 1
	}
	return found>>63 != 0
}

// add adds a fingerprint that the set does not contain.
func (m *memory) add(fingerprint uint64) {
	b := m.home(fingerprint)
	if b.watching != m.watching {
		b.watching, b.added = m.watching, 0
	}
	if b.added++; b.added > bucketSlots {
		b.added--
		m.crowded = true
	}
	pair, shift := b.next/2, 32*(b.next%2)
	low, high := b.low[pair], b.high[pair]
	if uint32(low>>shift) == 0 && uint16(high>>(shift/2)) == 0 {
		m.entries.Add(1)
	}
	low = low&^(math.MaxUint32<<shift) | uint64(uint32(fingerprint))<<shift
	high = high&^(math.MaxUint16<<(shift/2)) | uint32(uint16(fingerprint>>32))<<(shift/2)
	atomic.StoreUint64(&b.low[pair], low)
	atomic.StoreUint32(&b.high[pair], high)
	b.next = (b.next + 1) % bucketSlots
}

// watch begins to watch: holdsAll reports, until watch is called again, whether
// all that was added since is remembered.
func (m *memory) watch() {
	m.watching++
	m.crowded = false
}

func (m *memory) holdsAll() bool { return !m.crowded }

// clear forgets everything: the system takes the pages and has others, of zeros,
// when they are asked for, which takes less time than to write zeros. Who asks
// meanwhile may still be told of some.
func (m *memory) clear() {
	if err := unix.Madvise(m.mapped, unix.MADV_DONTNEED); err != nil {
		panic("BUG: memory of names cannot be cleared: " + err.Error())
	}
	m.crowded = true
	m.entries.Store(0)
}
