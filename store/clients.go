package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
)

// Clients is an immutable set of addresses, shared by all goroutines. A nil
// Clients contains nothing.
type Clients struct {
	v4, v6 []span // in order, neither overlapping nor touching
}

// A span is a range of addresses of one family, both ends included. An IPv4
// address is a number below 2^32.
type span struct{ first, last number128 }

type number128 struct{ hi, lo uint64 }

// LoadClients reads a list of addresses and CIDRs. All of it or an error, which
// has the path and the number of each bad line (the first ten), but never the
// text of one. An empty list is fine.
//
// A CIDR with bits set behind its prefix is the network they are in. What is
// written as IPv4-mapped IPv6 (from /96 on) is IPv4, as the clients are. A
// shorter IPv6 prefix, ::/0 too, is IPv6 only.
func LoadClients(path string) (*Clients, error) {
	var c *Clients
	err := readList(path, func(file io.Reader, _ int64) (err error) {
		c, err = readClients(path, file)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func readClients(path string, file io.Reader) (*Clients, error) {
	var c Clients
	bad := problems{path: path}
	text := newLines(file)
	for {
		line, err := text.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			bad.add(text.number, err)
			break
		}
		if i := bytes.IndexByte(line, '#'); i >= 0 {
			line = trimBlanks(line[:i])
		}
		prefix, err := parsePrefix(string(line))
		if err != nil {
			bad.add(text.number, err)
			continue
		}
		c.add(prefix)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	c.v4, c.v6 = merge(c.v4), merge(c.v6)
	return &c, nil
}

// IsEmpty reports whether no address is in the set.
func (c *Clients) IsEmpty() bool { return c == nil || len(c.v4)+len(c.v6) == 0 }

// Contains says whether an address is in one of the list's networks. An invalid
// address is in none. An IPv4-mapped one is IPv4 here too, although the caller
// unmaps: a client that asked not to be looked at must not depend on it.
func (c *Clients) Contains(a netip.Addr) bool {
	if c == nil || !a.IsValid() {
		return false
	}
	if a = a.Unmap(); a.Is4() {
		return contains(c.v4, number(a))
	}
	return contains(c.v6, number(a))
}

func contains(spans []span, n number128) bool {
	low, high := 0, len(spans) // the span is in spans[low:high], if in any
	for low < high {
		middle := int(uint(low+high) >> 1)
		if spans[middle].last.less(n) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low < len(spans) && !n.less(spans[low].first)
}

var (
	errNoAddress = errors.New("neither an address nor a CIDR")
	errZone      = errors.New("an address with a zone")
)

// parsePrefix reads an address or a CIDR and unmaps it. Its errors do not repeat
// the text, and so do not wrap those of netip.
func parsePrefix(text string) (netip.Prefix, error) {
	address, length, cidr := cutSlash(text)
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}, errNoAddress
	}
	if a.Zone() != "" {
		return netip.Prefix{}, errZone
	}
	n := a.BitLen()
	if cidr {
		if n, err = strconv.Atoi(length); err != nil || n < 0 || n > a.BitLen() || strconv.Itoa(n) != length {
			return netip.Prefix{}, fmt.Errorf("the length of a prefix is not a number from 0 to %d", a.BitLen())
		}
	}
	if a.Is4In6() && n >= 96 {
		a, n = a.Unmap(), n-96
	}
	return netip.PrefixFrom(a, n).Masked(), nil
}

func cutSlash(text string) (address, length string, cidr bool) {
	for i := range len(text) {
		if text[i] == '/' {
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}

func (c *Clients) add(p netip.Prefix) {
	first := number(p.Addr())
	last := first.orLow(p.Addr().BitLen() - p.Bits())
	if p.Addr().Is4() {
		c.v4 = append(c.v4, span{first, last})
	} else {
		c.v6 = append(c.v6, span{first, last})
	}
}

// merge sorts spans and joins those that overlap or touch.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.first.hi, b.first.hi), cmp.Compare(a.first.lo, b.first.lo))
	})
	merged := spans[:0]
	for _, s := range spans {
		if n := len(merged); n > 0 {
			last := &merged[n-1].last
			// Where the last address of the family is taken, next is 0 and nothing
			// is left to touch it.
			if next := last.next(); !last.less(s.first) || next == s.first {
				if last.less(s.last) {
					*last = s.last
				}
				continue
			}
		}
		merged = append(merged, s)
	}
	return slices.Clip(merged)
}

func number(a netip.Addr) number128 {
	if a.Is4() {
		b := a.As4()
		return number128{0, uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return number128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n number128) less(m number128) bool {
	return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo
}

func (n number128) next() number128 {
	n.lo++
	if n.lo == 0 {
		n.hi++
	}
	return n
}

// orLow sets the lowest bits.
func (n number128) orLow(bits int) number128 {
	if bits > 64 {
		return number128{n.hi | (1<<(bits-64) - 1), ^uint64(0)}
	}
	return number128{n.hi, n.lo | (1<<bits - 1)}
}
