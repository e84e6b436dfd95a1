package output

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/segmentio/go-hll"
)

// newHLL returns what every sketch is compared with.
func newHLL(t testing.TB, threshold int) *hll.Hll {
	h, err := hll.NewHll(hll.Settings{Log2m: log2m, Regwidth: regWidth, ExplicitThreshold: threshold, SparseEnabled: true})
	if err != nil {
		t.Fatal(err)
	}
	return &h
}

func checkSketch(t testing.TB, s *Sketch, h *hll.Hll, what any) {
	t.Helper()
	want := h.ToBytes()
	if got := s.AppendBytes(nil); !bytes.Equal(got, want) {
		t.Fatalf("%v:\n got %x\nwant %x", what, got, want)
	}
	if got, want := s.IsEmpty(), want[0] == typeEmpty; got != want {
		t.Fatalf("%v: empty %v, want %v", what, got, want)
	}
	if got, want := s.IsExplicit(), want[0] == typeExplicit; got != want {
		t.Fatalf("%v: explicit %v, want %v", what, got, want)
	}
	if got, want := s.Estimate(), h.Cardinality(); got != want && want < 1<<60 {
		t.Fatalf("%v: estimate %d, want %d", what, got, want)
	}
}

// hashOf returns a hash that sets register i to value v.
func hashOf(i, v int) uint64 { return uint64(i) | 1<<(log2m+v-1) }

// kinds are sources of hashes, each hard in a way of its own.
var kinds = []struct {
	name string
	hash func(r *rand.Rand) uint64
}{
	{"random", (*rand.Rand).Uint64},
	{"few", func(r *rand.Rand) uint64 { return hashOf(r.IntN(3), 1+r.IntN(8)) }},
	{"rest of 0", func(r *rand.Rand) uint64 { return r.Uint64N(1 << 12) }},
	{"high positions", func(r *rand.Rand) uint64 { return r.Uint64N(1<<log2m) | r.Uint64()<<(log2m+10+r.IntN(40)) }},
	{"sign", func(r *rand.Rand) uint64 { return r.Uint64() | 1<<63 }},
	{"one word", func(r *rand.Rand) uint64 { return hashOf(r.IntN(16), 1+r.IntN(54)) }},
	{"half", func(r *rand.Rand) uint64 { return hashOf(r.IntN(300), 1+r.IntN(15)) }},
}

func TestSketchEqualsGoHLL(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, k := range kinds {
		for threshold := MinThreshold; threshold <= MaxThreshold; threshold++ {
			var s Sketch
			h := newHLL(t, threshold)
			checkSketch(t, &s, h, k.name)
			for i := range 2000 {
				hash := k.hash(r)
				s.Add(hash, threshold)
				h.AddRaw(hash)
				if i < 400 || i%97 == 0 {
					checkSketch(t, &s, h, fmt.Sprintf("%s, threshold %d, %d hashes, the last %#x", k.name, threshold, i+1, hash))
				}
			}
			checkSketch(t, &s, h, k.name)
		}
	}
}

func TestSketchForms(t *testing.T) {
	f := func(first, last int, want string) {
		t.Helper()
		var s Sketch
		h := newHLL(t, 20)
		for i := first; i < last; i++ {
			s.Add(hashOf(i, 1+i%15), 20)
			h.AddRaw(hashOf(i, 1+i%15))
		}
		checkSketch(t, &s, h, want)
		if got := fmt.Sprintf("%x", s.AppendBytes(nil)); !bytes.HasPrefix([]byte(got), []byte(want)) {
			t.Errorf("%d hashes: %.12s…, want %s", last-first, got, want)
		}
	}
	f(0, 0, "116a44")
	f(0, 1, "126a44")
	f(0, 20, "126a44")
	f(0, 21, "136a44"+"0004012")
	f(700, 956, "136a44")
	f(700, 957, "146a44"+"0000")
	f(0, 1024, "146a44"+"123456789abcdef")
}

// TestSketchEstimateOfLargeSets goes through all three ranges of the estimate,
// up to the sets for which go-hll has no number.
func TestSketchEstimateOfLargeSets(t *testing.T) {
	last := uint64(0)
	f := func(full, value int, want uint64) {
		t.Helper()
		var s Sketch
		h := newHLL(t, 20)
		for i := range numRegisters {
			v := value - 1
			if i < full {
				v = value
			}
			s.Add(hashOf(i, v), 20)
			h.AddRaw(hashOf(i, v))
		}
		checkSketch(t, &s, h, value)
		got := s.Estimate()
		if got != want {
			t.Errorf("%d registers at %d: %d, want %d", full, value, got, want)
		}
		if got < last {
			t.Errorf("%d registers at %d: %d, less than fewer hashes gave", full, value, got)
		}
		last = got
	}
	f(numRegisters, 9, 377771)
	f(numRegisters, 10, 773083)
	f(numRegisters, 11, 1583517)
	f(numRegisters, 14, 21389253)
	f(500, 15, 51396081)
	f(572, 15, 140897164)
	f(573, 15, 616341239)
	f(574, 15, 616341239)
	f(numRegisters, 15, 616341239)
}

func TestSketchMerge(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	f := func(kind int, threshold int, sizes ...int) {
		t.Helper()
		k := kinds[kind]
		h, union, parts := newHLL(t, threshold), newHLL(t, threshold), make([]Sketch, len(sizes))
		var all []uint64
		for i, n := range sizes {
			part := newHLL(t, threshold)
			for range n {
				hash := k.hash(r)
				if len(all) > 0 && r.IntN(4) == 0 {
					hash = all[r.IntN(len(all))]
				}
				all = append(all, hash)
				h.AddRaw(hash)
				part.AddRaw(hash)
				parts[i].Add(hash, threshold)
			}
			union.Union(*part)
		}
		for i := range parts[1:] {
			parts[0].Merge(&parts[i+1], threshold)
			if !parts[i+1].IsEmpty() || parts[i+1].more != nil {
				t.Fatal("merged sketch is not left empty")
			}
		}
		what := fmt.Sprintf("%s, threshold %d, sizes %v", k.name, threshold, sizes)
		checkSketch(t, &parts[0], h, what)
		checkSketch(t, &parts[0], union, what+", union")
		if len(sizes) > 1 { // the memory that moved has one owner
			before := parts[0].AppendBytes(nil)
			parts[1].Add(r.Uint64()|1, threshold)
			if !bytes.Equal(before, parts[0].AppendBytes(nil)) {
				t.Fatal(what + ": an emptied sketch shares memory")
			}
		}
	}
	sizes := []int{0, 1, 2, 4, 9, 15, 16, 17, 19, 20, 21, 30, 31, 32, 33, 120, 260, 3000}
	for kind := range kinds {
		for _, a := range sizes {
			for _, b := range sizes {
				f(kind, 20, a, b)
			}
		}
		for threshold := MinThreshold; threshold <= MaxThreshold; threshold++ {
			f(kind, threshold, threshold, 1)
			f(kind, threshold, 1, threshold)
			f(kind, threshold, threshold+5, threshold-3)
			f(kind, threshold, threshold-5, threshold+3)
			f(kind, threshold, 10, 10, 10, 10, 10, 10, 10, 10)
			f(kind, threshold, 0, 100, 0, 100, 5)
		}
	}
}

// TestMergeRegisters tries all pairs of values in every place of a word, with
// neighbours that a borrow would show in.
func TestMergeRegisters(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var a, b, want [registerWords]uint64
	for range 2000 {
		for i := range a {
			a[i], b[i], want[i] = r.Uint64(), r.Uint64(), 0
			for shift := 0; shift < 64; shift += regWidth {
				want[i] |= max(a[i]>>shift&maxRegister, b[i]>>shift&maxRegister) << shift
			}
		}
		mergeRegisters(&a, &b)
		if a != want {
			t.Fatalf("got %x\nwant %x", a, want)
		}
	}
}

func TestSketchThresholdOutOfRange(t *testing.T) {
	f := func(threshold int, want bool) {
		t.Helper()
		defer func() {
			if got := recover() != nil; got != want {
				t.Errorf("threshold %d: panic %v, want %v", threshold, got, want)
			}
		}()
		var s Sketch
		for i := range 100 {
			s.Add(hashOf(i, 1), threshold)
		}
	}
	f(15, true)
	f(16, false)
	f(31, false)
	f(32, true)
}

func TestSketchMemory(t *testing.T) {
	if got := unsafe.Sizeof(Sketch{}); got != 32 {
		t.Errorf("a sketch has %d bytes, want 32", got)
	}
	f := func(hashes, want int) {
		t.Helper()
		var s Sketch
		for i := range hashes {
			s.Add(hashOf(i, 1), 20)
		}
		if got := 8 * cap(s.more); got != want {
			t.Errorf("%d hashes: %d bytes, want %d", hashes, got, want)
		}
	}
	f(1, 0)
	f(2, 24)
	f(4, 24)
	f(5, 64)
	f(9, 64)
	f(10, 128)
	f(17, 128)
	f(18, 152)
	f(20, 152)
	f(21, 512)
}

// FuzzSketch reads a threshold, a split and hashes, and compares with go-hll:
// all in one, and merged from two.
func FuzzSketch(f *testing.F) {
	hashes := func(threshold, split byte, h ...uint64) {
		b := []byte{threshold, split}
		for _, h := range h {
			b = binary.BigEndian.AppendUint64(b, h)
		}
		f.Add(b)
	}
	r := rand.New(rand.NewPCG(7, 8))
	hashes(20, 0)
	hashes(16, 1, 0, 1, 1023, 1024, 1<<63)
	for _, k := range kinds {
		h := make([]uint64, 300)
		for i := range h {
			h[i] = k.hash(r)
		}
		hashes(31, 25, h...)
		hashes(20, 10, h[:25]...)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2 {
			return
		}
		threshold, split := MinThreshold+int(b[0])%(MaxThreshold-MinThreshold+1), int(b[1])
		h := newHLL(t, threshold)
		var one, left, right Sketch
		for i, c := range slices.Collect(slices.Chunk(b[2:], 8)) {
			hash := binary.BigEndian.Uint64(append(c[:len(c):len(c)], make([]byte, 8-len(c))...))
			h.AddRaw(hash)
			one.Add(hash, threshold)
			if i < split {
				left.Add(hash, threshold)
			} else {
				right.Add(hash, threshold)
			}
		}
		checkSketch(t, &one, h, "one")
		right.Merge(&left, threshold)
		checkSketch(t, &right, h, "merged")
	})
}

func BenchmarkSketchAdd(b *testing.B) {
	f := func(name string, clients int, fresh bool) {
		r := rand.New(rand.NewPCG(9, 10))
		hashes := make([]uint64, 1<<12)
		for i := range hashes {
			hashes[i] = r.Uint64()
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var s Sketch
			for i := range b.N {
				if fresh && i%clients == 0 {
					s = Sketch{}
				}
				s.Add(hashes[i%clients], 20)
			}
		})
	}
	f("explicit/1", 1, false)
	f("explicit/4", 4, false)
	f("explicit/20", 20, false)
	f("registers", 1<<12, false)
	f("new/1", 1, true)
	f("new/4", 4, true)
	f("new/20", 20, true)
}

func BenchmarkSketchMerge(b *testing.B) {
	f := func(name string, clients int) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := rand.New(rand.NewPCG(11, 12))
			var s, o Sketch
			for range clients {
				s.Add(r.Uint64(), 20)
				o.Add(r.Uint64(), 20)
			}
			spare := o
			for b.Loop() {
				o = spare
				s.Merge(&o, 20)
			}
		})
	}
	f("explicit", 4)
	f("registers", 3000)
}

func BenchmarkSketchOut(b *testing.B) {
	f := func(name string, clients int) {
		r := rand.New(rand.NewPCG(13, 14))
		var s Sketch
		for range clients {
			s.Add(r.Uint64(), 20)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 600)
			n := uint64(0)
			for b.Loop() {
				n += s.Estimate()
				buf = s.AppendBytes(buf[:0])
			}
		})
	}
	f("sparse", 100)
	f("full", 3000)
}
