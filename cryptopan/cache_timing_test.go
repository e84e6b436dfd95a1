package cryptopan

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
)

// sink keeps results alive.
var sink Pseudonym

// clients are a million requests of 100 000 clients drawn uniformly, one in
// five of them IPv6.
func clients(draw4, draw6 int) []netip.Addr {
	r := newRand()
	var all []netip.Addr
	for range draw4 {
		all = append(all, random4(r))
	}
	for range draw6 {
		all = append(all, random6(r))
	}
	requests := make([]netip.Addr, 1<<20)
	for i := range requests {
		requests[i] = all[r.IntN(len(all))]
	}
	return requests
}

func BenchmarkCache(b *testing.B) {
	c := mustCipher(b, sampleKey)
	f := func(name string, entries int, requests []netip.Addr) {
		b.Run(fmt.Sprintf("%s/entries=%d", name, entries), func(b *testing.B) {
			b.ReportAllocs()
			m := NewCache(c, entries)
			for range 2 {
				for _, a := range requests {
					m.Pseudonym(a)
				}
			}
			m.TakeHits()
			n := 0
			for b.Loop() {
				sink = m.Pseudonym(requests[n&(len(requests)-1)])
				n++
			}
			b.ReportMetric(100*float64(uint64(n)-m.TakeHits())/float64(n), "%miss")
		})
	}
	mixed, only4, only6 := clients(80_000, 20_000), clients(80_000, 0), clients(0, 20_000)
	for _, entries := range []int{1_000_000, 500_000, 250_000, 60_000} {
		f("mixed", entries, mixed)
		f("v4", entries, only4)
		f("v6", entries, only6)
	}
}

// BenchmarkMiss is a cache that remembers nothing.
func BenchmarkMiss(b *testing.B) {
	m := NewCache(mustCipher(b, sampleKey), 0)
	f := func(name string, requests []netip.Addr) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				sink = m.Pseudonym(requests[n&(len(requests)-1)])
			}
		})
	}
	f("v4", clients(80_000, 0))
	f("v6", clients(0, 20_000))
}

// BenchmarkOracle is what yawning/cryptopan takes for the same.
func BenchmarkOracle(b *testing.B) {
	o := mustOracle(b, sampleKey[:])
	f := func(name string, addr net.IP) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				o.Anonymize(addr)
			}
		})
	}
	f("v4", net.IPv4(192, 0, 2, 1))
	f("v6", net.ParseIP("2001:db8::1"))
}

func BenchmarkNew(b *testing.B) {
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if _, err := New([]byte("an example secret"), []byte("edm-kdf-salt-val")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("table", func(b *testing.B) {
		for b.Loop() {
			mustCipher(b, sampleKey)
		}
	})
}
