package store

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A memory is a set of fingerprints of names, in front of Pebble. Any
// goroutine may ask it, without a lock; one at a time may add to it.
//
// It has two generations, and takes new fingerprints into the young one. When
// that is full, the old one is emptied and becomes the young one: so what was
// added last is remembered, and Pebble is asked once more about the rest. A
// name that the memory forgot is not new, it only costs a look-up.
type memory struct {
	generations atomic.Pointer[memoryGenerations]
	limit       int // fingerprints in a generation
	count       int // in the young one
	entries     atomic.Int64
}

type memoryGenerations struct{ young, old fingerprints }

// fingerprints is a table with open addressing; 0 is an empty slot.
type fingerprints []uint64

// newMemory returns a set that remembers from entries/2 to entries
// fingerprints. It takes 13 octets for each entry, outside of the Go heap, so
// that the garbage collector does not let the process grow to twice as much.
func newMemory(entries int) (*memory, error) {
	m := &memory{limit: max(entries/2, 1)}
	size := m.limit + m.limit*5/8 + 8 // so that an empty slot is never far
	var g memoryGenerations
	for _, table := range []*fingerprints{&g.young, &g.old} {
		b, err := unix.Mmap(-1, 0, size*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, err
		}
		// Where a fingerprint lies is random: with small pages, most of the time
		// of a look-up is that of finding the page. Not every kernel has others.
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
		*table = unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), size)
	}
	m.generations.Store(&g)
	return m, nil
}

// free gives the memory back to the system. Nobody may ask any more.
func (m *memory) free() error {
	g := m.generations.Load()
	for _, table := range []fingerprints{g.young, g.old} {
		b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(table))), len(table)*8)
		if err := unix.Munmap(b); err != nil {
			return err
		}
	}
	return nil
}

// slot is where the search for a fingerprint begins.
func (t fingerprints) slot(fingerprint uint64) uint64 {
	hi, _ := bits.Mul64(fingerprint, uint64(len(t)))
	return hi
}

func (t fingerprints) contains(fingerprint uint64) bool {
	for i := t.slot(fingerprint); ; i++ {
		if i == uint64(len(t)) {
			i = 0
		}
		switch atomic.LoadUint64(&t[i]) {
		case fingerprint:
			return true
		case 0:
			return false
		}
	}
}

// add reports whether the fingerprint was not there yet.
func (t fingerprints) add(fingerprint uint64) bool {
	for i := t.slot(fingerprint); ; i++ {
		if i == uint64(len(t)) {
			i = 0
		}
		switch t[i] {
		case fingerprint:
			return false
		case 0:
			atomic.StoreUint64(&t[i], fingerprint)
			return true
		}
	}
}

// contains reports whether the set remembers a fingerprint, which is not 0.
func (m *memory) contains(fingerprint uint64) bool {
	g := m.generations.Load()
	// Of a large table, the time is that of waiting for memory. Both tables are
	// equally long: so they wait together.
	at := g.young.slot(fingerprint)
	young, old := atomic.LoadUint64(&g.young[at]), atomic.LoadUint64(&g.old[at])
	if young == fingerprint || old == fingerprint {
		return true
	}
	return young != 0 && g.young.contains(fingerprint) || old != 0 && g.old.contains(fingerprint)
}

// add adds a fingerprint that is not 0 and that the set does not remember.
func (m *memory) add(fingerprint uint64) {
	g := m.generations.Load()
	if !g.young.add(fingerprint) {
		return
	}
	m.entries.Add(1)
	if m.count++; m.count < m.limit {
		return
	}
	m.entries.Add(-int64(g.old.clear()))
	m.count = 0
	m.generations.Store(&memoryGenerations{young: g.old, old: g.young})
}

// clear forgets everything. Who asks meanwhile may still be told of some.
func (m *memory) clear() {
	g := m.generations.Load()
	g.young.clear()
	g.old.clear()
	m.count = 0
	m.entries.Store(0)
}

// clear empties the table and returns how many fingerprints were in it.
func (t fingerprints) clear() (n int) {
	for i := range t {
		if t[i] != 0 {
			atomic.StoreUint64(&t[i], 0)
			n++
		}
	}
	return n
}
