package store

import (
	"encoding/binary"
	"math/bits"
)

// The hash of a name is made label by label, from the last to the first, so
// that the hash of a name begins with the hash of the name above it:
//
//	hash(root)       = hashRoot
//	hash(label.rest) = hashLabel(hash(rest), label)
//
// It is not keyed: the only names that go into a table are those of a list that
// the operator chose.
const (
	hashRoot   uint64 = 0x9e3779b97f4a7c15 // 2^64 by the golden ratio
	hashFactor uint64 = 0xd6e8feb86659fd93
)

// hashLabel returns the hash of name[start:] from h, the hash of name[end:]. A
// label with its length byte goes in 16 bytes at a time: one multiplication and
// no branch for the labels that people use.
func hashLabel(h uint64, name []byte, start, end int) uint64 {
	for ; end-start > 16; start += 16 {
		h = hashMix(h^binary.LittleEndian.Uint64(name[start:]), binary.LittleEndian.Uint64(name[start+8:]))
	}
	n := end - start
	if len(name) < 8 {
		return hashMix(h^hashShort(name[start:end]), 0)
	}
	return hashMix(h^hashWord(name, start, n), hashWord(name, start+8, n-8))
}

func hashMix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b^hashFactor)
	return hi ^ lo
}

// hashWord returns the n bytes at start as a number: at most 8, none if n is not
// positive. Name has at least 8 bytes; the 8 that are read at once are those
// behind start or the last ones.
func hashWord(name []byte, start, n int) uint64 {
	at := min(start, len(name)-8)
	word := binary.LittleEndian.Uint64(name[at:]) >> uint(8*(start-at))
	return word & (1<<uint(8*max(n, 0)) - 1)
}

// hashShort returns up to 7 bytes as a number.
func hashShort(label []byte) uint64 {
	var word uint64
	for i, c := range label {
		word |= uint64(c) << (8 * i)
	}
	return word
}

// hashName returns the hash of a whole name, which must be well-formed.
func hashName(name []byte) uint64 {
	var starts [maxLabels + 1]uint8
	h := hashRoot
	end := len(name) - 1
	for i := splitLabels(name, &starts) - 1; i >= 0; i-- {
		start := int(starts[i])
		h = hashLabel(h, name, start, end)
		end = start
	}
	return h
}
