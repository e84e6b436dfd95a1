package cryptopan

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// A Cache remembers pseudonyms. One goroutine owns it. Its size is fixed, and
// it allocates nothing after [NewCache] and holds no pointer to an entry.
//
// Each family has a table of its own, a flat array of small sets. An address
// belongs to one set, and there takes the place of the address that came
// longest ago. Which set that is depends on the secret, so nobody can choose
// addresses that drive each other out.
//
// A table starts as zeros, and memory that was never written is not there. So
// an entry of zeros must say something true. It reads "the address of all zeros
// has the pseudonym of all zeros, exclusive-or zero", because pseudonyms are
// kept exclusive-or the one of the address of all zeros. There are no empty
// entries to tell from full ones.
type Cache struct {
	cipher *Cipher
	blocks blocks // for the cipher, on a miss

	v4    []set4
	zero4 uint32 // pseudonym of 0.0.0.0

	v6             []set6
	zeroHi, zeroLo uint64 // pseudonym of ::

	keys [4]uint64 // for slot
	hits uint64    // since the last TakeHits
}

// A set4 is one cache line of entries: the address in the upper half, its
// pseudonym in the lower one.
type set4 [8]uint64

// A set6 is two cache lines.
type set6 [4]entry6

type entry6 struct{ addrHi, addrLo, hi, lo uint64 }

// NewCache returns a cache of c's pseudonyms for that many addresses, half of
// them IPv4 and half IPv6, each half rounded up to whole sets (of 8 and 4).
// That takes 20 bytes an entry, 10 MB for 500 000: 8 bytes for each IPv4
// address and 32 for each IPv6 address. With 0 entries or less it remembers
// nothing.
func NewCache(c *Cipher, entries int) *Cache {
	m := &Cache{cipher: c}
	if entries <= 0 {
		return m
	}
	half := entries/2 + entries%2
	m.v4 = make([]set4, (half-1)/len(set4{})+1)
	m.v6 = make([]set6, (half-1)/len(set6{})+1)

	m.zero4 = c.pseudonym4(&m.blocks, 0)
	m.zeroHi, m.zeroLo = c.pseudonym6(&m.blocks, 0, 0)

	b := &m.blocks
	c.block.Encrypt(b[0][:], []byte("cache slot key 1"))
	c.block.Encrypt(b[1][:], []byte("cache slot key 2"))
	for i := range m.keys {
		m.keys[i] = binary.BigEndian.Uint64(b[i/2][i%2*8:])
	}
	return m
}

// Pseudonym returns what [Cipher.Pseudonym] returns.
func (m *Cache) Pseudonym(a netip.Addr) Pseudonym {
	switch a = a.Unmap(); {
	case a.Is4():
		return Pseudonym{lo: uint64(m.lookup4(bits4(a))), family: family4}
	case a.Is6():
		hi, lo := m.lookup6(bits6(a))
		return Pseudonym{hi, lo, family6}
	}
	return Pseudonym{}
}

// TakeHits returns how many pseudonyms were found in the cache since the last
// call. The very first 0.0.0.0 and :: are found, too.
func (m *Cache) TakeHits() uint64 {
	n := m.hits
	m.hits = 0
	return n
}

func (m *Cache) lookup4(a uint32) uint32 {
	i := m.slot(uint64(a), uint64(a)<<32, len(m.v4))
	if i >= uint64(len(m.v4)) { // no table
		return m.cipher.pseudonym4(&m.blocks, a)
	}
	s := &m.v4[i]

	// Exclusive-or takes the address out of its own entry and leaves the
	// pseudonym, less than any other entry becomes. The least of eight is found
	// without a branch. A loop that stops at the right entry takes twice as
	// long: the processor cannot guess where that is.
	k := uint64(a) << 32
	least := min(
		s[0]^k, s[1]^k, s[2]^k, s[3]^k,
		s[4]^k, s[5]^k, s[6]^k, s[7]^k)
	if least>>32 == 0 {
		m.hits++
		return uint32(least) ^ m.zero4
	}

	p := m.cipher.pseudonym4(&m.blocks, a)
	copy(s[1:], s[:])
	s[0] = k | uint64(p^m.zero4)
	return p
}

func (m *Cache) lookup6(aHi, aLo uint64) (hi, lo uint64) {
	i := m.slot(aHi, aLo, len(m.v6))
	if i >= uint64(len(m.v6)) { // no table
		return m.cipher.pseudonym6(&m.blocks, aHi, aLo)
	}
	s := &m.v6[i]
	for j := range s {
		if e := &s[j]; e.addrHi == aHi && e.addrLo == aLo {
			m.hits++
			return e.hi ^ m.zeroHi, e.lo ^ m.zeroLo
		}
	}

	hi, lo = m.cipher.pseudonym6(&m.blocks, aHi, aLo)
	copy(s[1:], s[:])
	s[0] = entry6{aHi, aLo, hi ^ m.zeroHi, lo ^ m.zeroLo}
	return hi, lo
}

// slot returns which of n sets the address hi‖lo belongs to, and 0 if n is 0.
//
// It multiplies the halves, each hidden behind a secret number, and then the
// halves of the product. After one multiplication the hosts of one network, or
// one host in every network, are still evenly spaced numbers, and under an
// unlucky secret crowd into a few sets.
func (m *Cache) slot(hi, lo uint64, n int) uint64 {
	x, y := bits.Mul64(hi^m.keys[0], lo^m.keys[1])
	x, y = bits.Mul64(x^m.keys[2], y^m.keys[3])
	i, _ := bits.Mul64(x^y, uint64(n))
	return i
}
