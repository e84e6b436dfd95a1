package store

import (
	"flag"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

var distinctNames = flag.Int("names", 3_000_000, "distinct names that TestMaxBytes sees, with 10 octets of disk each")

// Many more distinct names than there is room for: the folder stays below the
// limit, and those that are seen in every generation are never new again.
func TestMaxBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var told reports
	o := SeenOptions{Dir: filepath.Join(smallDisk(t, "2g"), "pebble"), Entries: 100_000, Backlog: 1_000_000, MaxBytes: int64(*distinctNames) * 10, Report: told.add}
	s := openSeen(t, o)
	stop := make(chan struct{})
	var others sync.WaitGroup
	var largest int64
	others.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
				largest = max(largest, folderSize(t, o.Dir))
			}
		}
	})
	drained := make(chan struct{})
	busy := make(map[string]int)
	others.Go(func() {
		for {
			s.deliver(func(e Event) {
				if e.Name[1] == 'f' { // the busy ones
					busy[string(e.Name)]++
				}
			})
			select {
			case <-s.Wake():
			case <-drained:
				return
			}
		}
	})
	const at, numBusy = 10_000, 500
	steps := *distinctNames / at
	for i := range steps {
		s.seeMany(uint64(i)*at, at)
		s.seeMany(0xf<<60, numBusy)
		if i%(steps/8) == 0 {
			t.Logf("%d names: generation %d, %d MB, %d events wait", i*at, s.generation(), s.Size()>>20, s.Backlog())
		}
	}
	for deadline := time.Now().Add(10 * time.Second); s.Backlog() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	close(drained)
	close(stop)
	others.Wait()
	st := s.Stats()
	t.Logf("limit %d MB, largest %d MB, generation %d, %+v", o.MaxBytes>>20, largest>>20, s.generation(), st)
	if largest > o.MaxBytes {
		t.Log(s.db.Metrics())
		t.Errorf("the folder took %d octets, the limit is %d", largest, o.MaxBytes)
	}
	if st.Discarded != 0 || st.Queued < uint64(steps*at) {
		t.Errorf("%+v; told %q", st, told.all())
	}
	if g := s.generation(); g < 2 || g > 20 {
		t.Errorf("there were %d turns", g)
	}
	if len(busy) != numBusy {
		t.Errorf("%d of %d busy names were reported", len(busy), numBusy)
	}
	for name, n := range busy {
		if n != 1 {
			t.Fatalf("%q was reported %d times", name, n)
		}
	}
	s.stop()
}

// deliver reads and removes what there is.
func (s *seenTest) deliver(f func(Event)) {
	var numbers []uint64
	if err := s.Read(func(e Event) bool {
		f(e)
		numbers = append(numbers, e.Number)
		return true
	}); err != nil {
		s.t.Error(err)
	}
	if err := s.Remove(numbers); err != nil {
		s.t.Error(err)
	}
}

// folderSize returns what a folder takes on the disk.
func folderSize(t *testing.T, dir string) (size int64) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is gone
		}
		if info, err := d.Info(); err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return size
}

// generation returns how often the store has turned. It asks the store itself.
func (s *seenTest) generation() uint64 {
	s.t.Helper()
	value, closer, err := s.db.Get([]byte{keyMeta})
	if err != nil {
		s.t.Fatal(err)
	}
	defer closer.Close()
	var m meta
	if err := m.decode(value); err != nil {
		s.t.Fatal(err)
	}
	return m.generation
}
