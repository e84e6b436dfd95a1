package cryptopan

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"unsafe"
)

// TestCacheEqualsCipher draws addresses from few enough that a small cache both
// finds and replaces them all the time.
func TestCacheEqualsCipher(t *testing.T) {
	n := 300_000
	if testing.Short() {
		n = 30_000
	}
	c := mustCipher(t, sampleKey)
	r := newRand()
	f := func(entries, clients int, draw func(*rand.Rand) netip.Addr) {
		t.Helper()
		addrs := make([]netip.Addr, clients)
		want := make([]Pseudonym, clients)
		for i := range addrs {
			addrs[i] = draw(r)
			want[i] = c.Pseudonym(addrs[i])
		}
		m := NewCache(c, entries)
		for range n {
			i := r.IntN(clients)
			if got := m.Pseudonym(addrs[i]); got != want[i] {
				t.Fatalf("%d entries: pseudonym of %s is %s, want %s", entries, addrs[i], got.Addr(), want[i].Addr())
			}
		}
		if hits := m.TakeHits(); entries > 0 && (hits == 0 || hits == uint64(n)) {
			t.Errorf("%d entries, %d clients: %d of %d found, so nothing was tested", entries, clients, hits, n)
		}
	}
	f(1, 16, random4)
	f(1, 16, random6)
	f(10, 16, random4)
	f(10, 16, random6)
	f(100, 80, random4)
	f(100, 80, random6)
	f(64, 100_000, random4)
}

// TestCacheOfZeros holds that what was never written is not mistaken for the
// address of all zeros, nor the other way round.
func TestCacheOfZeros(t *testing.T) {
	for _, key := range [][32]byte{sampleKey, zeroPadKey} {
		c := mustCipher(t, key)
		f := func(addrs ...string) {
			t.Helper()
			m := NewCache(c, 1)
			for _, s := range addrs {
				a := netip.MustParseAddr(s)
				if got, want := m.Pseudonym(a), c.Pseudonym(a); got != want {
					t.Errorf("after %v: pseudonym of %s is %s, want %s", addrs, s, got.Addr(), want.Addr())
				}
			}
		}
		f("0.0.0.0", "0.0.0.0")
		f("::", "::")
		f("0.0.0.0", "::", "0.0.0.1", "::1", "0.0.0.0", "::")
		f("255.255.255.255", "0.0.0.0", "255.255.255.255")
		f("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::", "::1:0:0:0:0", "::1")
		// Enough others to drive the zeros out of the only set, and back in.
		f("::", "::1", "::2", "::3", "::4", "::5", "::", "::5", "::1")
		f("0.0.0.0", "0.0.0.1", "0.0.0.2", "0.0.0.3", "0.0.0.4", "0.0.0.5", "0.0.0.6",
			"0.0.0.7", "0.0.0.8", "0.0.0.9", "0.0.0.0", "0.0.0.9", "0.0.0.1")
	}
}

func TestCacheHits(t *testing.T) {
	c := mustCipher(t, sampleKey)
	a4, a6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	f := func(entries int, want uint64, addrs ...netip.Addr) {
		t.Helper()
		m := NewCache(c, entries)
		for _, a := range addrs {
			m.Pseudonym(a)
		}
		if got := m.TakeHits(); got != want {
			t.Errorf("%d entries: %d hits, want %d", entries, got, want)
		}
		if got := m.TakeHits(); got != 0 {
			t.Errorf("%d entries: %d hits once they were taken", entries, got)
		}
	}
	f(0, 0, a4, a4, a6, a6)
	f(-1, 0, a4, a4, a6, a6)
	f(1, 0, a4, a6)
	f(1, 3, a4, a4, a6, a6, a6)
	f(1000, 3, a4, a4, a6, a6, a6)
	f(1000, 1, a4, a4, netip.Addr{}, netip.Addr{})
}

func TestCacheMemory(t *testing.T) {
	c := mustCipher(t, sampleKey)
	f := func(entries, want4, want6 int) {
		t.Helper()
		m := NewCache(c, entries)
		got4, got6 := len(m.v4)*int(unsafe.Sizeof(set4{})), len(m.v6)*int(unsafe.Sizeof(set6{}))
		if got4 != want4 || got6 != want6 {
			t.Errorf("%d entries take %d and %d bytes, want %d and %d", entries, got4, got6, want4, want6)
		}
	}
	f(0, 0, 0)
	f(1, 64, 128)
	f(8, 64, 128)
	f(9, 64, 256)
	f(10, 64, 256)
	f(500_000, 2_000_000, 8_000_000)
	f(1_000_000, 4_000_000, 16_000_000)
}

// TestCacheSpreads fills a quarter of a table with addresses that follow a
// pattern and asks for them again, under many keys. Of addresses drawn at
// random, 99.9 % (IPv4) and 98 % (IPv6) are found on average: the rest is in
// sets that chance overfilled.
func TestCacheSpreads(t *testing.T) {
	const entries, n, keys = 1 << 14, 1 << 11, 10
	var ciphers []*Cipher
	for i := range keys {
		key := sampleKey
		key[0] = byte(i)
		ciphers = append(ciphers, mustCipher(t, key))
	}
	f := func(name string, addr func(i uint64) netip.Addr) {
		t.Helper()
		worst := 1.0
		for _, c := range ciphers {
			m := NewCache(c, entries)
			for range 2 {
				m.TakeHits()
				for i := range uint64(n) {
					m.Pseudonym(addr(i))
				}
			}
			worst = min(worst, float64(m.TakeHits())/n)
		}
		t.Logf("%s: at least %.1f %% found", name, 100*worst)
		if worst < 0.95 {
			t.Errorf("%s: only %.1f %% found under one key", name, 100*worst)
		}
	}
	v4 := func(v uint64) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(v))))
	}
	v6 := func(hi, lo uint64) netip.Addr {
		b := binary.BigEndian.AppendUint64(nil, hi)
		return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(b, lo)))
	}
	f("IPv4, random", func(i uint64) netip.Addr { return v4(i * 0x9e3779b1) })
	f("one IPv4 network", func(i uint64) netip.Addr { return v4(10<<24 + i) })
	f("an IPv4 address in every /24", func(i uint64) netip.Addr { return v4(i<<8 + 1) })
	f("an IPv4 address in every /18", func(i uint64) netip.Addr { return v4(i<<14 + 1) })

	const network = 0x20010db8_00010002
	f("IPv6, random", func(i uint64) netip.Addr { return v6(i*0x9e3779b97f4a7c15, i*0xd1342543de82ef95) })
	f("hosts counted up in one /64", func(i uint64) netip.Addr { return v6(network, i) })
	f("hosts counted down in one /64", func(i uint64) netip.Addr { return v6(network, ^i) })
	f("hosts counted in their high bits", func(i uint64) netip.Addr { return v6(network, i<<48) })
	f("one host in every /64", func(i uint64) netip.Addr { return v6(network+i, 1) })
	f("one host in every /48", func(i uint64) netip.Addr { return v6(network+i<<16, 1) })
	f("network and host the same", func(i uint64) netip.Addr { return v6(i, i) })
	f("network and host complements", func(i uint64) netip.Addr { return v6(i, ^i) })
}

func TestNoAllocation(t *testing.T) {
	c := mustCipher(t, sampleKey)
	r := newRand()
	var addrs []netip.Addr
	for range 1000 {
		addrs = append(addrs, random4(r), random6(r))
	}
	f := func(name string, m *Cache, wantHits bool) {
		t.Helper()
		for _, a := range addrs {
			m.Pseudonym(a)
		}
		m.TakeHits()
		const runs = 10
		n := testing.AllocsPerRun(runs, func() {
			for _, a := range addrs {
				m.Pseudonym(a)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations for %d addresses", name, n, len(addrs))
		}
		// AllocsPerRun runs once more, to warm up.
		all := uint64((runs + 1) * len(addrs))
		switch hits := m.TakeHits(); {
		case wantHits && hits != all:
			t.Errorf("%s: %d of %d found", name, hits, all)
		case !wantHits && hits > all/100:
			t.Errorf("%s: %d of %d found, want next to none", name, hits, all)
		}
	}
	f("hit", NewCache(c, 100_000), true)
	f("miss", NewCache(c, 8), false)
	f("no cache", NewCache(c, 0), false)
}
