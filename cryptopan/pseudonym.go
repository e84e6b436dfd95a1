package cryptopan

import (
	"encoding/binary"
	"net/netip"
)

const (
	family4 = 4
	family6 = 6
)

// A Pseudonym stands for an address. It is of the same family and has the same
// prefix structure, and cannot be turned back without the secret.
//
// The zero Pseudonym stands for no address. Two Pseudonyms are == when they
// stand for the same address under the same secret and salt. There is no
// pointer in it, so an array of them is nothing to the garbage collector.
type Pseudonym struct {
	hi, lo uint64 // big-endian; an IPv4 pseudonym is in the low half of lo
	family uint8  // 0 in the zero Pseudonym
}

// IsValid reports whether p stands for an address.
func (p Pseudonym) IsValid() bool { return p.family != 0 }

// Is4 reports whether p stands for an IPv4 address.
func (p Pseudonym) Is4() bool { return p.family == family4 }

// V4 returns an IPv4 pseudonym as a number, first byte highest. Ask Is4 first.
func (p Pseudonym) V4() uint32 {
	if p.family != family4 {
		panic("BUG: V4 of a pseudonym that is not IPv4")
	}
	return uint32(p.lo)
}

// V6 returns the two halves of an IPv6 pseudonym as numbers, first byte
// highest. Ask IsValid and Is4 first.
func (p Pseudonym) V6() (network, host uint64) {
	if p.family != family6 {
		panic("BUG: V6 of a pseudonym that is not IPv6")
	}
	return p.hi, p.lo
}

// AppendTo appends p's 4 or 16 bytes in network order to b, and nothing for
// the zero Pseudonym.
func (p Pseudonym) AppendTo(b []byte) []byte {
	switch p.family {
	case family4:
		b = binary.BigEndian.AppendUint32(b, uint32(p.lo))
	case family6:
		b = binary.BigEndian.AppendUint64(b, p.hi)
		b = binary.BigEndian.AppendUint64(b, p.lo)
	}
	return b
}

// Addr returns p in the form of an address, for printing; the zero Addr for
// the zero Pseudonym.
func (p Pseudonym) Addr() netip.Addr {
	var b [16]byte
	a, _ := netip.AddrFromSlice(p.AppendTo(b[:0]))
	return a
}
