package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the processor time that this process took so far.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// madeUpName writes the name with a number, 24 octets long.
func madeUpName(dst []byte, number uint64) []byte {
	dst = append(dst[:0], 16)
	for i := range 16 {
		dst = append(dst, "0123456789abcdef"[number>>(60-4*i)&15])
	}
	return append(dst, "\x04test\x00"...)
}

// BenchmarkNewNames measures what a new name costs, compactions, the look-ups,
// and the removal of its event included. An operation is a name.
func BenchmarkNewNames(b *testing.B) {
	for _, events := range []bool{false, true} {
		for _, sync := range []bool{false, true} {
			if sync && !events {
				continue
			}
			for _, batch := range []int{20, 200} {
				b.Run(fmt.Sprintf("events=%t/sync=%t/batch=%d", events, sync, batch), func(b *testing.B) {
					benchmarkNewNames(b, SeenOptions{Sync: sync, Backlog: map[bool]int{true: 1_000_000}[events]}, batch)
				})
			}
		}
	}
}

func benchmarkNewNames(b *testing.B, o SeenOptions, batch int) {
	o.Dir, o.Entries = b.TempDir(), 10_000_000
	s, err := OpenSeen(o)
	if err != nil {
		b.Fatal(err)
	}
	in, free, end := make(chan *Names, 16), make(chan *Names, 32), make(chan struct{})
	for range cap(free) {
		free <- new(Names)
	}
	go func() {
		s.Run(in, func(n *Names) { free <- n })
		close(end)
	}()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		drain(b, s, end)
	}()
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	var name []byte
	number := rand.Uint64()
	for left := b.N; left > 0; {
		n := <-free
		for range min(batch, left) {
			name = madeUpName(name, number)
			n.Add(s.Fingerprint(name), Sighting{Name: name, Flags: 0x8180, Type: 1, Class: 1, Minute: 29_000_000})
			number++
			left--
		}
		in <- n
	}
	close(in)
	<-drained
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
	b.StopTimer()
	m := s.db.Metrics()
	b.ReportMetric(float64(m.DiskSpaceUsage())/float64(b.N), "disk-B/op")
	if testing.Verbose() {
		b.Log(m.String())
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// drain reads and removes events until end is closed and there are no more.
func drain(b testing.TB, s *Seen, end chan struct{}) {
	numbers := make([]uint64, 0, 256)
	for ended := false; ; {
		numbers = numbers[:0]
		err := s.Read(func(e Event) bool {
			numbers = append(numbers, e.Number)
			return len(numbers) < cap(numbers)
		})
		if err != nil {
			b.Error(err)
			return
		}
		if len(numbers) == cap(numbers) {
			numbers = numbers[:cap(numbers)-1] // the last one is read again
		}
		if len(numbers) > 0 {
			if err := s.Remove(numbers); err != nil {
				b.Error(err)
				return
			}
			continue
		}
		if ended {
			return
		}
		select {
		case <-s.Wake():
		case <-end:
			ended = true
		}
	}
}

// BenchmarkKnown measures a look-up of a name in a full memory, at random, as
// many goroutines as processors.
func BenchmarkKnown(b *testing.B) {
	for _, entries := range []int{100_000, 10_000_000} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			m, err := newMemory(entries)
			if err != nil {
				b.Fatal(err)
			}
			prints := make([]uint64, entries)
			for i := range prints {
				prints[i] = fingerprintOf(rand.Uint64())
				m.add(prints[i])
			}
			prints = slices.DeleteFunc(prints, func(p uint64) bool { return !m.contains(p) })
			rand.Shuffle(len(prints), func(i, j int) { prints[i], prints[j] = prints[j], prints[i] })
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); {
				if !m.contains(prints[i]) {
					b.Fatal("forgotten")
				}
				if i++; i == len(prints) {
					i = 0
				}
			}
			if err := m.free(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkFingerprint measures the hash of a name.
func BenchmarkFingerprint(b *testing.B) {
	s := &Seen{key: [2]uint64{1, 2}}
	name := madeUpName(nil, 1<<63)
	var sum uint64
	for b.Loop() {
		binary.BigEndian.PutUint64(name[1:], sum)
		sum += s.Fingerprint(name)
	}
}

// BenchmarkDrain measures a queue that waited: how long the store takes to open
// with it, and to read and remove it. An operation is an event.
func BenchmarkDrain(b *testing.B) {
	o := SeenOptions{Dir: b.TempDir(), Backlog: b.N + 1, Entries: 1000}
	st := openSeen(b, o)
	st.seeMany(0, b.N)
	st.stop()
	begin := time.Now()
	st = openSeen(b, o)
	opened := time.Since(begin)
	ended := make(chan struct{})
	close(ended)
	b.ResetTimer()
	drain(b, st.Seen, ended)
	for st.Backlog() > 0 { // the last batch
		drain(b, st.Seen, ended)
	}
	st.stop() // what was removed is taken out of Pebble
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(opened.Milliseconds()), "ms-to-open")
}
