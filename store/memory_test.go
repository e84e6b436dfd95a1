package store

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
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

// The memory holds what was added last, at least half of its entries, never
// more than all, and nothing else. The gauge says how many.
func TestMemoryRemembersTheLast(t *testing.T) {
	for _, entries := range []int{1, 2, 3, 10, 300} {
		m := newTestMemory(t, entries)
		var added []uint64
		r := rand.New(rand.NewPCG(1, uint64(entries)))
		for range 10 * entries {
			p := max(leastFingerprint, r.Uint64())
			m.add(p)
			added = append(added, p)
			if len(added)%(entries/10+1) != 0 {
				continue
			}
			if held := countHeld(m, added); held != int(m.entries.Load()) || held > max(entries, 2) {
				t.Fatalf("%d entries: %d are held, the gauge says %d", entries, held, m.entries.Load())
			}
			for _, p := range added[max(0, len(added)-max(entries/2, 1)):] {
				if !m.contains(p) {
					t.Fatalf("%d entries: one of the last %d was forgotten", entries, entries/2)
				}
			}
		}
		if m.contains(max(leastFingerprint, r.Uint64())) {
			t.Errorf("%d entries: knows what was never added", entries)
		}
		m.clear()
		if held := countHeld(m, added); held != 0 || m.entries.Load() != 0 {
			t.Errorf("%d entries: %d are held after clear, the gauge says %d", entries, held, m.entries.Load())
		}
	}
}

func countHeld(m *memory, prints []uint64) (n int) {
	for _, p := range prints {
		if m.contains(p) {
			n++
		}
	}
	return n
}

// Fingerprints that all begin their search at the last slot go on at the first.
func TestMemoryWrapsAround(t *testing.T) {
	m := newTestMemory(t, 100)
	for i := range uint64(50) {
		m.add(^uint64(0) - 4*i)
	}
	for i := range uint64(50) {
		if !m.contains(^uint64(0) - 4*i) {
			t.Fatalf("forgot %d", i)
		}
	}
}

func TestMemoryTakes10OctetsAnEntryAtMost(t *testing.T) {
	const entries = 1_000_000
	m := newTestMemory(t, entries)
	if octets := 64 * len(m.buckets); octets > 10*entries {
		t.Errorf("%d octets for %d entries", octets, entries)
	}
	var p uint64 = leastFingerprint
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
func TestMemoryIsAskedWhileItTurns(t *testing.T) {
	const entries = 2000
	m := newTestMemory(t, entries)
	prints := make([]uint64, 60_000)
	for i := range prints {
		prints[i] = max(leastFingerprint, rand.Uint64())
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
				for i := max(0, n-entries/4); i < n; i++ {
					// One that is being moved may be missed, but not for long.
					found := false
					for try := 0; try < 3 && !found; try++ {
						found = m.contains(prints[i])
					}
					if !found && cleared.Load() == c && c%2 == 0 && added.Load()-i <= entries/2 {
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
			for j := max(0, i-entries/2+1); j <= i; j++ {
				m.add(prints[j])
			}
			cleared.Add(1)
			base = i
		}
	}
	readers.Wait()
}
