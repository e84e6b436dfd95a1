package store

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

func newTestMemory(t testing.TB, entries int) *memory {
	t.Helper()
	m, err := newMemory(entries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.free(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// Each bucket holds what was added to it last, and nothing else is held. The
// gauge says how many.
func TestMemoryRemembersTheLast(t *testing.T) {
	for _, entries := range []int{0, 1, 10, 11, 300} {
		m := newTestMemory(t, entries)
		model := make(map[*bucket][]uint64)
		r := rand.New(rand.NewPCG(1, uint64(entries)))
		var added []uint64
		check := func() {
			t.Helper()
			held := 0
			for _, p := range added {
				want := slices.Contains(model[m.home(p)], p)
				if m.contains(p) != want {
					t.Fatalf("%d entries, %d added: %x is remembered: %t, want %t", entries, len(added), p, !want, want)
				}
				if want {
					held++
				}
			}
			if held != int(m.entries.Load()) || held > max(entries, 1)+bucketSlots-1 {
				t.Fatalf("%d entries: %d are held, the gauge says %d", entries, held, m.entries.Load())
			}
		}
		for range 2 {
			for range 10*entries + 100 {
				p := fingerprintOf(r.Uint64())
				m.add(p)
				added = append(added, p)
				last := append(model[m.home(p)], p)
				model[m.home(p)] = last[max(0, len(last)-bucketSlots):]
				if len(added)%(entries/10+1) == 0 {
					check()
				}
			}
			check()
			if m.contains(fingerprintOf(r.Uint64())) {
				t.Errorf("%d entries: knows what was never added", entries)
			}
			m.clear()
			clear(model)
			check()
		}
	}
}

// Fingerprints that differ in one bit are told apart, in whatever slot they lie.
// The least and the largest are like any other.
func TestMemoryTellsFingerprintsApart(t *testing.T) {
	m := newTestMemory(t, 1)
	if n := len(m.buckets); n != 1 {
		t.Fatalf("%d buckets", n)
	}
	for _, hash := range []uint64{0, 1, 1 << 47, 1 << 48, 0x5555_5555_5555, 1<<48 - 1, math.MaxUint64} {
		p := fingerprintOf(hash)
		for range bucketSlots {
			if m.contains(p) {
				t.Fatalf("%x is known too early", p)
			}
			m.add(p)
			for bit := range storedBits {
				if other := p ^ 1<<bit; !m.contains(p) || other<<16 != 0 && m.contains(other) {
					t.Fatalf("%x and %x are taken for each other", p, other)
				}
			}
			for i := range uint64(bucketSlots) { // drive it out, but not to the slot it was in
				m.add(0x1234_0000_0000 + i)
			}
		}
	}
}

// What was added since watch is remembered for as long as the memory says so. It
// says so for a while.
func TestMemoryKnowsWhetherItHoldsAll(t *testing.T) {
	m := newTestMemory(t, 1000)
	r := rand.New(rand.NewPCG(1, 1))
	shortest := math.MaxInt
	for range 50 {
		m.watch()
		var added []uint64
		for {
			p := fingerprintOf(r.Uint64())
			m.add(p)
			if !m.holdsAll() {
				break
			}
			added = append(added, p)
			for _, p := range added {
				if !m.contains(p) {
					t.Fatalf("one of %d was forgotten unnoticed", len(added))
				}
			}
		}
		shortest = min(shortest, len(added))
	}
	if shortest < len(m.buckets) {
		t.Errorf("%d buckets did not hold %d", len(m.buckets), shortest)
	}
	m.watch()
	m.clear()
	if m.holdsAll() {
		t.Error("holds what it was cleared of")
	}
}

func TestMemoryTakes7OctetsAnEntryAtMost(t *testing.T) {
	const entries = 1_000_000
	m := newTestMemory(t, entries)
	if octets := int(unsafe.Sizeof(bucket{})) * len(m.buckets); octets > 7*entries {
		t.Errorf("%d octets for %d entries", octets, entries)
	}
	if size := unsafe.Sizeof(bucket{}); size != 64 {
		t.Errorf("a bucket has %d octets, not those of a line of the cache", size)
	}
	var p uint64 = 1
	if n := testing.AllocsPerRun(1000, func() {
		p += 1 << 40
		if !m.contains(p) {
			m.add(p)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// While one goroutine adds, and now and then clears, others ask. Whoever is told
// of an addition finds it, unless it may have been forgotten meanwhile.
func TestMemoryIsAskedWhileItIsAddedTo(t *testing.T) {
	const entries, recent = 2000, 100
	m := newTestMemory(t, entries)
	prints := make([]uint64, 60_000)
	for i := range prints {
		prints[i] = fingerprintOf(rand.Uint64())
	}
	var added atomic.Int64 // how many; only what is far from being forgotten is asked for
	var cleared atomic.Int64
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				n, c := added.Load(), cleared.Load()
				if n == int64(len(prints)) {
					return
				}
				for i := max(0, n-recent/2); i < n; i++ {
					if !m.contains(prints[i]) && cleared.Load() == c && c%2 == 0 && added.Load()-i <= recent {
						t.Errorf("fingerprint %d was forgotten when %d were added", i, n)
						return
					}
				}
				if m.contains(prints[len(prints)-1]) && added.Load() < int64(len(prints))-1 {
					t.Error("knows what was not added")
					return
				}
			}
		})
	}
	base := 0
	for i, p := range prints {
		m.add(p)
		added.Add(1)
		if i-base == 20_000 {
			cleared.Add(1) // odd: at it
			m.clear()
			for j := i - recent + 1; j <= i; j++ {
				m.add(prints[j])
			}
			cleared.Add(1)
			base = i
		}
	}
	readers.Wait()
}
