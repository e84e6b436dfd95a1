package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"unicode/utf8"
)

// A dawg is the contents of a file of github.com/smhanov/dawg (disk.go there has
// the format), read into memory and decoded with every number checked. That
// library maps the file, faults when it is cut, and trusts what it says.
//
//	32 bits  size of the file in bytes
//	8, 8     bits of a character, bits of an address
//	7code ×3 number of words, nodes, edges; most significant 7 bits first
//	nodes, the root first:
//	  1 bit    is this the end of a word?
//	  1 bit    1: one edge, to the node that follows: its character
//	           0: 1 bit: is there one edge? If not: 7code number of edges, and the
//	              bits of a skip count
//	              each edge: character, skip count (not the first), address
//
// An address is the node's place in the file in bits. An edge's skip count is the
// number of the node's words in front of those that go along this edge. So the
// number of words behind every edge is known before it is followed, and a walk
// that finds another number stops at once.
type dawg struct {
	data      []byte // and dawgPadding zero bytes
	end       uint64 // in bits
	charBits  uint
	addrBits  uint
	skipField uint // bits of "the bits of a skip count"
	words     uint64
	root      uint64
}

const (
	dawgHead    = 6 // bytes of size and bits
	dawgPadding = 8 // so that any bit can be read as part of 8 bytes

	// Bytes of a word: a name of 255 bytes has less, also if all of it is \DDD.
	maxWord = 1100
)

var errDAWG = errors.New("damaged DAWG")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDAWG, fmt.Sprintf(format, args...))
}

func dawgSize(head []byte) uint32 { return binary.BigEndian.Uint32(head) }

// loadDAWG reads a DAWG that begins with head from a file of this size, or of an
// unknown one (0). The words are walked twice: the first time checks all of them
// and adds up the memory they need, so a damaged file costs no more than its own
// size.
func loadDAWG(path string, file io.Reader, head []byte, size int64) (*Dictionary, error) {
	data, err := readDAWG(file, head, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d, err := newDAWG(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	records, err := checkWords(path, d)
	if err != nil {
		return nil, err
	}

	var b builder
	b.reserve(records)
	scratch := make([]byte, 0, maxName+1)
	err = d.walk(func(word []byte) error {
		if len(word) == 0 {
			return nil
		}
		name, m, err := appendDAWGEntry(scratch[:0], word)
		if err != nil {
			panic("BUG: a word that was good is bad: " + err.Error())
		}
		return b.add(name, m)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b.finish(), nil
}

// readDAWG reads a whole file, if it has the size that its head says, and no
// more than a byte beyond that if its size is not known.
func readDAWG(file io.Reader, head []byte, size int64) ([]byte, error) {
	if len(head) < dawgHead {
		return nil, damaged("%d bytes long", len(head))
	}
	said := int64(dawgSize(head))
	if size > 0 && size != said {
		return nil, damaged("%d bytes long, but it says %d", size, said)
	}
	var data bytes.Buffer
	data.Grow(int(size) + bytes.MinRead + dawgPadding)
	if _, err := data.ReadFrom(io.LimitReader(file, said+1)); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// checkWords walks a DAWG for the first time and returns the size of the arena
// for its names.
func checkWords(path string, d *dawg) (size int, err error) {
	bad := problems{path: path}
	size = arenaStart
	scratch := make([]byte, 0, maxName+1)
	err = d.walk(func(word []byte) error {
		if len(word) == 0 {
			return nil // a blank line that somebody made a word
		}
		name, _, err := appendDAWGEntry(scratch[:0], word)
		if err != nil {
			bad.addAt(path, fmt.Errorf("%s: %w", quote(word), err))
		}
		size += recordHeader + len(name)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return size, bad.err()
}

// newDAWG reads the header. It keeps data, or a copy.
func newDAWG(data []byte) (*dawg, error) {
	if len(data) < dawgHead {
		return nil, damaged("%d bytes long", len(data))
	}
	if said := int64(dawgSize(data)); said != int64(len(data)) {
		return nil, damaged("other than the %d bytes it says it has", said)
	}
	d := &dawg{
		end:      8 * uint64(len(data)),
		charBits: uint(data[4]),
		addrBits: uint(data[5]),
		data:     append(data, make([]byte, dawgPadding)...),
	}
	if d.charBits > 21 || d.addrBits == 0 || d.addrBits > 35 {
		return nil, damaged("characters of %d bits and addresses of %d", d.charBits, d.addrBits)
	}
	at := uint64(8 * dawgHead)
	var counts [3]uint64
	for i := range counts {
		var ok bool
		if counts[i], at, ok = d.number(at); !ok {
			return nil, damaged("no number of words, nodes and edges")
		}
	}
	d.words, d.root = counts[0], at
	d.skipField = uint(bits.Len(uint(bits.Len64(d.words))))
	return d, nil
}

// bits returns the n bits at place at, which the caller knows to be in front of
// the end. n is at most 57.
func (d *dawg) bits(at uint64, n uint) uint64 {
	return binary.BigEndian.Uint64(d.data[at>>3:]) << (at & 7) >> (64 - n)
}

// number reads a 7code and returns the place behind it. The library writes 28
// bits at most.
func (d *dawg) number(at uint64) (value, next uint64, ok bool) {
	for range 5 {
		if at+8 > d.end {
			return 0, at, false
		}
		b := d.bits(at, 8)
		at += 8
		value = value<<7 | b&0x7f
		if b < 0x80 {
			return value, at, true
		}
	}
	return 0, at, false
}

// A dawgNode is a node that the walk has entered.
type dawgNode struct {
	edge     uint64 // place of the next edge to follow
	edges    uint64 // to follow yet
	done     uint64 // the node's words in front of those of that edge: at first 1 if it ends a word
	words    uint64 // the node's words
	last     rune   // character of the edge before, -1 at first
	skipBits uint
	follows  bool // its one edge goes to the node behind it
	length   int  // bytes of the word up to here
}

// walk calls f for every word, in order. The word is valid during the call. An
// error of f ends the walk. Every step leads towards a word that the header
// counts, and no word is longer than maxWord, so no file makes it endless.
func (d *dawg) walk(f func(word []byte) error) error {
	word := make([]byte, 0, maxWord+utf8.UTFMax)
	var open []dawgNode // on the way here, those with edges to follow yet
	at, words := d.root, d.words
	var node dawgNode
	for {
		if err := d.enter(&node, at, words); err != nil {
			return err
		}
		if node.done > 0 {
			if err := f(word); err != nil {
				return err
			}
		}
		node.length = len(word)
		if node.edges == 0 {
			if len(open) == 0 {
				return nil
			}
			node = open[len(open)-1]
			open = open[:len(open)-1]
		}
		var char rune
		var err error
		if char, at, words, err = d.follow(&node); err != nil {
			return err
		}
		if node.edges > 0 {
			open = append(open, node)
		}
		if word = utf8.AppendRune(word[:node.length], char); len(word) > maxWord {
			return damaged("a word of more than %d bytes", maxWord)
		}
	}
}

// enter reads the node at a place. It has to have this many words. If it ends a
// word itself, that is done.
func (d *dawg) enter(n *dawgNode, at, words uint64) error {
	place := at
	if at+3 > d.end {
		return damaged("a node at bit %d of %d", place, d.end)
	}
	head := d.bits(at, 3)
	*n = dawgNode{words: words, done: head >> 2, last: -1, edges: 1}
	switch {
	case head&2 != 0:
		n.follows = true
		n.edge = at + 2
		if uint64(d.charBits) > d.end-n.edge {
			return damaged("the node at bit %d is cut off", place)
		}
		return nil
	case head&1 != 0:
		at += 3
	default:
		var ok bool
		if n.edges, at, ok = d.number(at + 3); !ok || at+uint64(d.skipField) > d.end {
			return damaged("the node at bit %d is cut off", place)
		}
		n.skipBits = uint(d.bits(at, d.skipField))
		at += uint64(d.skipField)
	}
	n.edge = at
	if n.edges == 0 {
		if words != n.done {
			return damaged("the node at bit %d has %d words instead of %d", place, n.done, words)
		}
		return nil
	}
	if n.skipBits > 32 || n.edges > d.end {
		return damaged("%d edges with counts of %d bits at bit %d", n.edges, n.skipBits, place)
	}
	size := n.edges*uint64(d.charBits+n.skipBits+d.addrBits) - uint64(n.skipBits)
	if size > d.end-at {
		return damaged("the node at bit %d is cut off", place)
	}
	return nil
}

// follow takes the next edge of a node: its character, and the place and the
// number of words of the node it leads to.
func (d *dawg) follow(n *dawgNode) (char rune, to, words uint64, err error) {
	char = rune(d.bits(n.edge, d.charBits))
	if char <= n.last || !utf8.ValidRune(char) {
		return 0, 0, 0, damaged("character %#x after %#x at bit %d", char, n.last, n.edge)
	}
	next := n.edge + uint64(d.charBits)
	if n.follows {
		to = next
	} else {
		if n.last >= 0 {
			next += uint64(n.skipBits)
		}
		if to = d.bits(next, d.addrBits); to <= d.root {
			return 0, 0, 0, damaged("an edge at bit %d leads to bit %d", n.edge, to)
		}
		next += uint64(d.addrBits)
	}
	until := n.words // words up to the end of this edge's
	if n.edges > 1 {
		until = d.bits(next+uint64(d.charBits), n.skipBits)
	}
	if until <= n.done || until > n.words {
		return 0, 0, 0, damaged("%d of %d words at bit %d, after %d", until, n.words, n.edge, n.done)
	}
	words = until - n.done
	n.last, n.edge, n.done = char, next, until
	n.edges--
	return char, to, words, nil
}
