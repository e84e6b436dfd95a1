package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// A crashClone is what a disk held at a moment of a run, and what was known.
type crashClone struct {
	fs   *vfs.MemFS
	left map[uint64]bool // fingerprints whose events had left before
	gone map[uint64]bool // and of those whose removal was asked for, at most
}

// The power is cut at any point: no name is marked whose event is neither in
// the queue nor delivered; no event is in the queue whose name is not marked;
// and with Sync, no event has left whose mark is lost.
func TestPowerCut(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, what := range []string{"plain", "turn", "exchange", "cut off"} {
			t.Run(fmt.Sprintf("sync %t %s", sync, what), func(t *testing.T) {
				clones := runAndCrash(t, sync, what)
				for i, c := range clones {
					checkClone(t, fmt.Sprint("clone ", i), c, sync && (what == "plain" || what == "cut off"), what == "turn")
				}
			})
		}
	}
}

func runAndCrash(t *testing.T, syncs bool, what string) (clones []crashClone) {
	fs := vfs.NewCrashableMem()
	o := SeenOptions{Dir: "a/b/seen", Backlog: 100_000, Sync: syncs, files: files{fs}}
	if what == "turn" { // a new generation for each 160 KiB
		o.MaxBytes, o.Retention = 16<<20, 1
		o.Entries = 100_000 // so many that memtables need not be looked at
	}
	s := openSeen(t, o)
	if what == "turn" && !s.memoryCoversMemTables() {
		t.Fatal("memtables are looked at")
	}
	var mu sync.Mutex
	left, gone := make(map[uint64]bool), make(map[uint64]bool)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { // delivers
		for {
			select {
			case <-stop:
				return
			case <-s.Wake():
			}
			var numbers []uint64
			err := s.Read(func(e Event) bool {
				mu.Lock()
				defer mu.Unlock()
				p := s.Fingerprint(e.Name)
				left[p] = true
				if rand.IntN(4) > 0 {
					gone[p] = true // from here on it may be
					numbers = append(numbers, e.Number)
				}
				return true
			})
			if err == nil {
				err = s.Remove(numbers)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	others.Go(func() { // cuts the power
		for i := range 12 {
			time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond) // at any point
			c := crashClone{left: make(map[uint64]bool), gone: make(map[uint64]bool)}
			mu.Lock()
			for p := range left {
				c.left[p] = true
			}
			mu.Unlock()
			c.fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 25 * (i % 4), RNG: rand.New(rand.NewPCG(1, uint64(i)))})
			mu.Lock()
			for p := range gone {
				c.gone[p] = true
			}
			mu.Unlock()
			clones = append(clones, c)
		}
		close(stop)
	})
	number := uint64(0)
	cut := rand.IntN(20) // in one of the first turns
	for done := false; !done; cut-- {
		s.seeMany(number, rand.IntN(300))
		number += uint64(rand.IntN(300)) // some are seen again
		if what == "exchange" && rand.IntN(10) == 0 {
			s.hurt(s.opened.Load(), pebble.ErrCorruption)
		}
		if what == "cut off" && cut == 0 {
			s.disk.cutOff(unix.EIO)
		}
		select {
		case <-stop:
			done = what == "plain" || what == "cut off" && cut < 0 && s.disk.whyCut() == nil || what == "turn" && s.generation() > 0 || what == "exchange" && s.Stats().Replaced > 0
		default:
		}
	}
	others.Wait()
	s.stop()
	// After a clean stop, everything is there.
	c := crashClone{left: left, gone: gone}
	c.fs = fs.CrashClone(vfs.CrashCloneCfg{})
	return append(clones, c)
}

// checkClone opens a store as the power cut left it.
func checkClone(t *testing.T, name string, c crashClone, sync, turns bool) {
	t.Helper()
	s := openSeen(t, SeenOptions{Dir: "a/b/seen", Backlog: 100_000, files: files{c.fs}})
	if n := s.Stats().Replaced; n != 0 {
		t.Errorf("%s: a power cut was taken for damage", name)
	}
	waiting := make(map[uint64]bool)
	if err := s.Read(func(e Event) bool { waiting[s.Fingerprint(e.Name)] = true; return true }); err != nil {
		t.Fatal(err)
	}
	marked := s.marks()
	for p := range marked {
		if !waiting[p] && !c.gone[p] {
			t.Fatalf("%s: of %d names, one is marked and its event is lost", name, len(marked))
		}
	}
	for p := range waiting {
		if !turns && !marked[p] {
			t.Fatalf("%s: of %d events, one is of a name that is not marked", name, len(waiting))
		}
	}
	for p := range c.left {
		if sync && !marked[p] {
			t.Fatalf("%s: of %d events that left, one is of a name whose mark is lost", name, len(c.left))
		}
	}
	s.stop()
}

// marks returns the fingerprints that are marked, in both generations.
func (s *seenTest) marks() map[uint64]bool {
	s.t.Helper()
	marks := make(map[uint64]bool)
	for _, age := range []int{0, -1} {
		if age == -1 && s.meta.oldEmpty {
			continue
		}
		m := s.meta.mark(age)
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{m}, UpperBound: []byte{m + 1}})
		if err != nil {
			s.t.Fatal(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
			marks[binary.BigEndian.Uint64(it.Key()[1:])] = true
		}
		if err := it.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	return marks
}
