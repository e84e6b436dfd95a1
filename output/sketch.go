package output

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// The parameters of every sketch: 1024 registers of 4 bits. They are part of
// the serialised form, and sketches with others cannot be merged with ours.
const (
	log2m         = 10
	regWidth      = 4
	numRegisters  = 1 << log2m
	maxRegister   = 1<<regWidth - 1
	perWord       = 64 / regWidth
	registerWords = numRegisters / perWord

	// sparseRegisters is how many registers may be set before the sparse form
	// gives way to the full one: the largest power of two whose sparse form is
	// smaller than the full one (PostgreSQL goes on to 292).
	sparseRegisters = 256

	// MinThreshold and MaxThreshold bound the explicit threshold. The header
	// holds only its base-2 logarithm, rounded down, so all thresholds in this
	// range make the same header.
	MinThreshold = 16
	MaxThreshold = 31
)

// The first three bytes of a serialised sketch: version 1 and the type, then
// the register width and count, then "sparse is on" and the threshold.
const (
	typeEmpty    = 0x11
	typeExplicit = 0x12
	typeSparse   = 0x13
	typeFull     = 0x14
	headerWidth  = (regWidth-1)<<5 | log2m
	headerCutoff = 1<<6 | 4
)

// A Sketch is the set of clients that asked for one name: a HyperLogLog
// sketch of 64-bit hashes. The zero Sketch is the empty set.
//
// Up to the threshold it holds the hashes themselves ("explicit") and is
// exact. With one more it becomes registers, 512 bytes and an estimate, and
// stays that. The threshold is the caller's to keep: it must be the same, from
// MinThreshold to MaxThreshold, for every sketch that is to be merged with
// this one.
//
// There are a few hundred thousand of these, and most hold a handful of
// clients: the first hash lies in the Sketch itself, and the rest grows in
// small steps. A Sketch must not be copied while both copies are used.
//
// Hashes of 0 are not added: the same set, as bytes, is what
// github.com/segmentio/go-hll makes of the same hashes.
type Sketch struct {
	first uint64 // 0 while the set is empty

	// more holds the other hashes in the order they came; or the registers, if
	// its length is registerWords: register i is the (i%16)th 4 bits, from
	// the top, of word i/16.
	more []uint64
}

// registers returns the registers, or nil while the sketch is empty or
// explicit.
func (s *Sketch) registers() *[registerWords]uint64 {
	if len(s.more) < registerWords {
		return nil
	}
	return (*[registerWords]uint64)(s.more)
}

// IsEmpty reports whether nothing was added.
func (s *Sketch) IsEmpty() bool { return s.first == 0 }

// IsExplicit reports whether s holds the hashes themselves, at least one.
// Serialised, it would let anyone test for a client.
func (s *Sketch) IsExplicit() bool { return s.first != 0 && s.registers() == nil }

// Add adds a client's hash. The hash must be well mixed, as murmur3 is.
func (s *Sketch) Add(hash uint64, threshold int) {
	if r := s.registers(); r != nil {
		setRegister(r, hash)
		return
	}
	if hash == s.first || hash == 0 || slices.Contains(s.more, hash) {
		return
	}
	s.addNew(hash, threshold)
}

// addNew adds a hash that is not 0 and that s, empty or explicit, does not
// hold.
func (s *Sketch) addNew(hash uint64, threshold int) {
	if s.first == 0 {
		s.first = hash
		return
	}
	n := len(s.more)
	if n+1 >= threshold {
		if threshold < MinThreshold || threshold > MaxThreshold {
			panic("BUG: explicit threshold of a sketch out of range")
		}
		s.turnIntoRegisters()
		setRegister(s.registers(), hash)
		return
	}
	if n == cap(s.more) {
		// 3, 8, 16: with the first hash these fill the allocator's size
		// classes, and most sketches need none or the first of them.
		size := threshold - 1
		switch {
		case n < 3:
			size = 3
		case n < 8:
			size = 8
		case n < 16 && size > 16:
			size = 16
		}
		grown := make([]uint64, n, size)
		copy(grown, s.more)
		s.more = grown
	}
	s.more = append(s.more, hash)
}

func (s *Sketch) turnIntoRegisters() {
	hashes := s.more
	s.more = make([]uint64, registerWords)
	r := s.registers()
	setRegister(r, s.first)
	for _, h := range hashes {
		setRegister(r, h)
	}
}

// setRegister adds a hash to registers. The low bits choose the register; its
// value is the largest position, counted from 1, of the lowest bit set in the
// rest. A rest of 0 has no such bit and adds nothing.
func setRegister(r *[registerWords]uint64, hash uint64) {
	rest := hash >> log2m
	if rest == 0 {
		return
	}
	v := 1 + uint64(bits.TrailingZeros64(rest|1<<(maxRegister-1)))
	i := hash % numRegisters
	shift := 64 - regWidth - i%perWord*regWidth
	w := &r[i/perWord]
	if v > *w>>shift&maxRegister {
		*w = *w&^(maxRegister<<shift) | v<<shift
	}
}

// Merge moves what o holds into s, as if every hash had been added to s. It
// leaves o empty, as s may keep its memory.
func (s *Sketch) Merge(o *Sketch, threshold int) {
	if s.IsEmpty() || s.registers() == nil && o.registers() != nil {
		*s, *o = *o, *s
	}
	from := *o
	*o = Sketch{}
	if r := from.registers(); r != nil {
		mergeRegisters(s.registers(), r)
		return
	}
	s.Add(from.first, threshold)
	for _, h := range from.more {
		s.Add(h, threshold)
	}
}

// mergeRegisters sets each register of r to the larger of its value and o's.
// It does eight at a time, each in a byte of its own: 0x80 + a - b has its top
// bit set if a >= b, and borrows nothing from the byte above.
func mergeRegisters(r, o *[registerWords]uint64) {
	const nibbles, tops = 0x0f0f0f0f0f0f0f0f, 0x8080808080808080
	larger := func(a, b uint64) uint64 {
		keep := ((a | tops) - b) & tops >> 7 * 0xff
		return a&keep | b&^keep
	}
	for i, b := range o {
		a := r[i]
		r[i] = larger(a>>4&nibbles, b>>4&nibbles)<<4 | larger(a&nibbles, b&nibbles)
	}
}

// The constants of the estimate, computed as floats at run time, as go-hll
// does: exact constant arithmetic would differ in the last bit.
var (
	alphaMSquared = func(m float64) float64 { return (0.7213 / (1.0 + 1.079/m)) * m * m }(numRegisters)
	smallCutoff   = 5.0 * numRegisters / 2
	largeRange    = math.Pow(2, maxRegister-1+log2m)
	largeCutoff   = largeRange / 30
)

// Estimate returns the number of clients: exact while s is explicit, then an
// estimate rounded up, with a standard error of 3 %.
//
// Where go-hll has no number, because the correction for large sets is
// infinite (only hashes chosen on purpose fill the registers that far), the
// estimate is the largest there is, 616 million.
func (s *Sketch) Estimate() uint64 {
	r := s.registers()
	if r == nil {
		if s.first == 0 {
			return 0
		}
		return uint64(1 + len(s.more))
	}
	sum, zeros := indicator(r)
	estimate := alphaMSquared / sum
	switch {
	case zeros != 0 && estimate < smallCutoff:
		estimate = numRegisters * math.Log(numRegisters/float64(zeros))
	case estimate > largeCutoff:
		estimate = min(estimate, math.Nextafter(largeRange, 0))
		estimate = -largeRange * math.Log(1-estimate/largeRange)
	}
	return uint64(math.Ceil(estimate))
}

// indicator returns the sum of 2^-value over all registers, which a float64
// holds exactly, and how many registers are 0.
func indicator(r *[registerWords]uint64) (sum float64, zeros int) {
	total := uint64(0)
	for _, w := range r {
		for range perWord {
			v := w & maxRegister
			total += 1 << (maxRegister - v)
			zeros += int((v - 1) >> 63)
			w >>= regWidth
		}
	}
	return float64(total) / (1 << maxRegister), zeros
}

// AppendBytes appends the serialised form of s to dst.
func (s *Sketch) AppendBytes(dst []byte) []byte {
	r := s.registers()
	switch {
	case s.IsEmpty():
		return append(dst, typeEmpty, headerWidth, headerCutoff)
	case r == nil:
		return s.appendHashes(append(dst, typeExplicit, headerWidth, headerCutoff))
	}
	if _, zeros := indicator(r); zeros >= numRegisters-sparseRegisters {
		return appendSparse(append(dst, typeSparse, headerWidth, headerCutoff), r)
	}
	dst = append(dst, typeFull, headerWidth, headerCutoff)
	for _, w := range r {
		dst = binary.BigEndian.AppendUint64(dst, w)
	}
	return dst
}

// appendHashes appends the hashes as the format wants them: in the order of
// signed integers.
func (s *Sketch) appendHashes(dst []byte) []byte {
	sorted := make([]int64, 0, MaxThreshold)
	sorted = append(sorted, int64(s.first))
	for _, h := range s.more {
		sorted = append(sorted, int64(h))
	}
	slices.Sort(sorted)
	for _, h := range sorted {
		dst = binary.BigEndian.AppendUint64(dst, uint64(h))
	}
	return dst
}

// appendSparse appends number and value of each register that is not 0, 14
// bits each, without a gap; the last octet is filled with zeros.
func appendSparse(dst []byte, r *[registerWords]uint64) []byte {
	pending, n := uint64(0), 0
	for i, w := range r {
		for w != 0 {
			top := bits.LeadingZeros64(w) / regWidth
			shift := 64 - regWidth - top*regWidth
			pending = pending<<(log2m+regWidth) | uint64(i*perWord+top)<<regWidth | w>>shift
			w &^= maxRegister << shift
			for n += log2m + regWidth; n >= 8; n -= 8 {
				dst = append(dst, byte(pending>>(n-8)))
			}
		}
	}
	if n > 0 {
		dst = append(dst, byte(pending<<(8-n)))
	}
	return dst
}
