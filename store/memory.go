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
// that is full, the old one is forgotten and the young one becomes the old one:
// so what was added last is remembered, and Pebble is asked once more about the
// rest. A name that the memory forgot is not new, it only costs a look-up.
//
// Both lie in one table of buckets, each as large as a line of the processor's
// cache: a look-up waits for memory once. A fingerprint is in its home bucket,
// or, if that is full, in the next that is not. Forgetting costs no pause: each
// addition sweeps a little.
type memory struct {
	buckets []bucket
	limit   int    // fingerprints in a generation
	young   uint64 // the young generation
	count   int    // in it
	swept   int    // buckets from here on may hold forgotten ones
	entries atomic.Int64
}

// A bucket is filled from its first slot on; 0 is an empty slot. The lowest two
// bits of a fingerprint give way to its generation, of which there are four:
// young, old, the one before that, which is forgotten, and none.
type bucket [8]uint64

const (
	numGenerationBits = 2
	generationBits    = 1<<numGenerationBits - 1
	// leastFingerprint is the smallest that can be told from an empty slot.
	leastFingerprint = generationBits + 1
	// sweepBuckets is how many buckets an addition sweeps: so many that the
	// forgotten make room sooner than what is added takes it.
	sweepBuckets = 2
)

// newMemory returns a set that remembers from entries/2 to entries
// fingerprints. It takes 9.2 octets for each entry, outside of the Go heap, so
// that the garbage collector does not let the process grow to twice as much.
func newMemory(entries int) (*memory, error) {
	m := &memory{limit: max(entries/2, 1)}
	n := (2*m.limit*8/7)/len(bucket{}) + 2 // so that a bucket that is not full is never far
	b, err := unix.Mmap(-1, 0, n*int(unsafe.Sizeof(bucket{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	// Where a fingerprint lies is random: with small pages, most of the time
	// of a look-up is that of finding the page. Not every kernel has others.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	m.buckets = unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(b))), n)
	m.swept = n
	return m, nil
}

// free gives the memory back to the system. Nobody may ask any more.
func (m *memory) free() error {
	first := (*byte)(unsafe.Pointer(unsafe.SliceData(m.buckets)))
	return unix.Munmap(unsafe.Slice(first, len(m.buckets)*int(unsafe.Sizeof(bucket{}))))
}

// home is where the search for a fingerprint, of whatever generation, begins.
func (m *memory) home(fingerprint uint64) int {
	hi, _ := bits.Mul64(fingerprint|generationBits, uint64(len(m.buckets)))
	return int(hi)
}

func (m *memory) next(i int) int {
	if i++; i < len(m.buckets) {
		return i
	}
	return 0
}

// contains reports whether the set remembers a fingerprint. Rarely, while the
// adder moves it, the answer is no for one that it does remember.
//
// All of a bucket is compared without a branch: where in it a fingerprint lies
// cannot be predicted, and it is all there as soon as a part is.
func (m *memory) contains(fingerprint uint64) bool {
	for i := m.home(fingerprint); ; i = m.next(i) {
		b := &m.buckets[i]
		found := uint64(0) // its top bit
		for j := range b {
			found |= (atomic.LoadUint64(&b[j])^fingerprint)>>numGenerationBits - 1
		}
		if found>>63 != 0 {
			return true
		}
		if atomic.LoadUint64(&b[len(b)-1]) == 0 {
			return false
		}
	}
}

// add adds a fingerprint that the set does not contain: leastFingerprint or
// more.
func (m *memory) add(fingerprint uint64) {
	for range sweepBuckets {
		m.sweep()
	}
	m.insert(fingerprint&^generationBits | m.young)
	m.entries.Add(1)
	if m.count++; m.count < m.limit {
		return
	}
	for m.swept < len(m.buckets) {
		m.sweep()
	}
	m.young = (m.young + 1) & generationBits
	m.count, m.swept = 0, 0
}

func (m *memory) insert(v uint64) {
	for i := m.home(v); ; i = m.next(i) {
		b := &m.buckets[i]
		for j := range b {
			if b[j] == 0 {
				atomic.StoreUint64(&b[j], v)
				return
			}
		}
	}
}

// sweep removes what is forgotten from the next bucket, if there is one.
func (m *memory) sweep() {
	if m.swept == len(m.buckets) {
		return
	}
	forgotten := (m.young - 2) & generationBits
	b := &m.buckets[m.swept]
	for j := 0; j < len(b) && b[j] != 0; {
		if b[j]&generationBits != forgotten {
			j++
			continue
		}
		m.remove(m.swept, j) // and look at what is there now
		m.entries.Add(-1)
	}
	m.swept++
}

// remove empties slot j of bucket i. What lies further on because the bucket
// was full moves up.
func (m *memory) remove(i, j int) {
	for {
		b := &m.buckets[i]
		last := len(b) - 1
		if b[last] != 0 {
			if k, l, ok := m.displaced(i); ok {
				atomic.StoreUint64(&b[j], m.buckets[k][l])
				i, j = k, l
				continue
			}
		}
		for b[last] == 0 {
			last--
		}
		atomic.StoreUint64(&b[j], b[last])
		atomic.StoreUint64(&b[last], 0)
		return
	}
}

// displaced finds a fingerprint behind the full bucket i that may lie in it.
func (m *memory) displaced(i int) (k, l int, ok bool) {
	for k = m.next(i); ; k = m.next(k) {
		b := &m.buckets[k]
		for l = range b {
			if b[l] == 0 {
				return 0, 0, false
			}
			if m.distance(m.home(b[l]), k) >= m.distance(i, k) {
				return k, l, true
			}
		}
	}
}

// distance is how many buckets the search goes on from one to another.
func (m *memory) distance(from, to int) int {
	if to < from {
		to += len(m.buckets)
	}
	return to - from
}

// clear forgets everything. Who asks meanwhile may still be told of some.
func (m *memory) clear() {
	for i := range m.buckets {
		for j := range m.buckets[i] {
			atomic.StoreUint64(&m.buckets[i][j], 0)
		}
	}
	m.count, m.swept = 0, len(m.buckets)
	m.entries.Store(0)
}
