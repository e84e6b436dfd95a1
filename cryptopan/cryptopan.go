// Package cryptopan turns addresses into pseudonyms.
//
// Crypto-PAn replaces an address by another one of the same family so that two
// addresses which share their first k bits, and no more, have pseudonyms which
// share their first k bits, and no more. Networks stay networks, a client
// stays the same client from day to day, and without the secret nobody can
// tell which client it is.
//
// Rule of the package: a [Pseudonym] is made by a [Cipher] and by nothing
// else, and everything that leaves the process takes a Pseudonym where an
// address belongs. So writing a real address to a file or an event does not
// compile.
//
// # The function
//
// Bit i of the pseudonym is bit i of the address, exclusive-or the first bit
// of
//
//	AES-128(key, first i bits of the address ‖ bits i to 127 of the pad)
//
// The two families use the same function, so an IPv4 address has the
// pseudonym of the first 32 bits of any IPv6 address that begins with it. Key
// and pad come from what the operator chose:
//
//	k   = argon2id(secret, salt, time 1, memory 64 MiB, threads 4, 32 bytes)
//	key = k[:16]
//	pad = AES-128(key, k[16:])
//
// Specification: J. Fan, J. Xu, M. H. Ammar, S. B. Moon, "Prefix-preserving IP
// address anonymization: measurement-based security evaluation and a new
// cryptography-based scheme", Computer Networks 46 (2004). The results equal
// those of github.com/yawning/cryptopan; the tests hold the two together.
//
// # What it costs
//
// No bit depends on another bit's result, so eight blocks at a time go through
// AES together. The first 16 bits come from a table: an IPv4 address costs 16
// blocks and an IPv6 address 112. A [Cache] in front of the cipher makes a
// known client cost a few nanoseconds.
package cryptopan

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/crypto/argon2"
)

// A Cipher makes pseudonyms under one secret. It is immutable and may be used
// by any goroutine. It takes 64 KiB.
type Cipher struct {
	block cipher.Block

	// padHi and padLo are the pad's two halves, big-endian.
	padHi, padLo uint64

	// flips[p] says which of the first 16 bits of an address are turned over.
	// p is its first 15 bits: a bit does not have a part in its own turning.
	flips [1 << 15]uint16
}

// blocks is where AES reads and writes: one block for each of eight
// neighbouring bits. It has an owner because what crypto/aes is given escapes
// to the heap, and a new one for each address would be an allocation for each.
type blocks [8][aes.BlockSize]byte

// New derives key and pad from secret and salt and returns their Cipher. That
// takes some 40 milliseconds, and 64 MiB of memory until the next garbage
// collection, on purpose: it is what trying out weak secrets costs.
//
// An empty secret is an error. New keeps neither argument.
func New(secret, salt []byte) (*Cipher, error) {
	if len(secret) == 0 {
		return nil, errors.New("deriving the crypto-pan key: the secret is empty")
	}
	const (
		passes  = 1
		memory  = 64 * 1024 // KiB
		threads = 4
	)
	c, err := newCipher([32]byte(argon2.IDKey(secret, salt, passes, memory, threads, 32)))
	if err != nil {
		return nil, fmt.Errorf("deriving the crypto-pan key: %w", err)
	}
	return c, nil
}

// newCipher takes Crypto-PAn's own key material: the AES key, then the pad
// before its encryption.
func newCipher(k [32]byte) (*Cipher, error) {
	block, err := aes.NewCipher(k[:16])
	if err != nil {
		return nil, fmt.Errorf("setting up AES: %w", err)
	}
	pad := k[16:]
	block.Encrypt(pad, pad)
	c := &Cipher{
		block: block,
		padHi: binary.BigEndian.Uint64(pad[:8]),
		padLo: binary.BigEndian.Uint64(pad[8:]),
	}

	// Some 4 milliseconds, once, and every address after that is 16 blocks
	// cheaper.
	b := new(blocks)
	for p := range c.flips {
		hi := uint64(p) << (64 - 15)
		c.flips[p] = uint16(c.flip(b, hi, 0, 0))<<8 | uint16(c.flip(b, hi, 0, 1))
	}
	return c, nil
}

// Pseudonym returns the pseudonym of a. A mapped address (::ffff:192.0.2.1) is
// the IPv4 address in it, a zone is ignored, and the zero Addr has the zero
// Pseudonym.
//
// It allocates 128 bytes. A worker has a [Cache], which allocates nothing on a
// hit or a miss, or with no entries at all.
func (c *Cipher) Pseudonym(a netip.Addr) Pseudonym {
	return c.pseudonym(new(blocks), a)
}

func (c *Cipher) pseudonym(b *blocks, a netip.Addr) Pseudonym {
	switch a = a.Unmap(); {
	case a.Is4():
		return Pseudonym{lo: uint64(c.pseudonym4(b, bits4(a))), family: family4}
	case a.Is6():
		aHi, aLo := bits6(a)
		hi, lo := c.pseudonym6(b, aHi, aLo)
		return Pseudonym{hi, lo, family6}
	}
	return Pseudonym{}
}

func (c *Cipher) pseudonym4(b *blocks, a uint32) uint32 {
	flip := uint32(c.flips[a>>(32-15)]) << 16
	flip |= uint32(c.flip(b, uint64(a)<<32, 0, 2)) << 8
	flip |= uint32(c.flip(b, uint64(a)<<32, 0, 3))
	return a ^ flip
}

func (c *Cipher) pseudonym6(b *blocks, hi, lo uint64) (uint64, uint64) {
	flipHi := uint64(c.flips[hi>>(64-15)])
	for i := uint(2); i < 8; i++ {
		flipHi = flipHi<<8 | uint64(c.flip(b, hi, lo, i))
	}
	var flipLo uint64
	for i := uint(8); i < 16; i++ {
		flipLo = flipLo<<8 | uint64(c.flip(b, hi, lo, i))
	}
	return hi ^ flipHi, lo ^ flipLo
}

// flip returns which bits of byte i of the address hi‖lo are turned over. Of
// the address it uses the bits in front of the byte's last one.
//
// All eight blocks are laid out before the first is encrypted. Laying out one,
// encrypting it and laying out the next takes two and a half times as long: AES
// would wait for bytes that were written a moment ago, and the processor could
// not work on several blocks at once.
func (c *Cipher) flip(b *blocks, hi, lo uint64, i uint) byte {
	for j := range b {
		n := 8*i + uint(j) // bits taken from the address; a shift by 64 gives 0
		fromHi := ^(^uint64(0) >> n)
		fromLo := uint64(0)
		if n > 64 {
			fromLo = ^(^uint64(0) >> (n - 64))
		}
		binary.BigEndian.PutUint64(b[j][:8], c.padHi^(hi^c.padHi)&fromHi)
		binary.BigEndian.PutUint64(b[j][8:], c.padLo^(lo^c.padLo)&fromLo)
	}
	for j := range b {
		c.block.Encrypt(b[j][:], b[j][:])
	}
	var flip byte
	for j := range b {
		flip = flip<<1 | b[j][0]>>7
	}
	return flip
}

// bits4 returns a as a big-endian number. a is an IPv4 address.
func bits4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// bits6 returns the two halves of a as big-endian numbers.
//
// As16 would do, but returns an array that is copied in one go just after it
// was written in two, and the processor waits 10 ns for that.
func bits6(a netip.Addr) (hi, lo uint64) {
	var array [16]byte
	b, err := a.AppendBinary(array[:0])
	if err != nil || len(b) < 16 {
		panic("BUG: not an IPv6 address")
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
}
