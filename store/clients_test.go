package store

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestClients(t *testing.T) {
	c := loadClients(t, "\xef\xbb\xbf# who asked\r\n\r\n"+strings.Join([]string{
		"192.0.2.1", "198.51.100.0/24 # a network", "  203.0.113.77/28\t", "2001:db8::1#one", "2001:db8:1::/48",
		"2001:db8:2::ffff/64", "::ffff:10.1.2.3", "::ffff:10.2.0.0/112", "10.3.0.0/16", "10.3.4.0/24", "255.255.255.255",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "0.0.0.0",
	}, "\r\n"))
	f := func(address string, want bool) {
		t.Helper()
		if got := c.Contains(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	f("192.0.2.0", false)
	f("192.0.2.1", true)
	f("192.0.2.2", false)
	f("198.51.99.255", false)
	f("198.51.100.0", true)
	f("198.51.100.255", true)
	f("198.51.101.0", false)
	f("203.0.113.63", false)
	f("203.0.113.64", true)
	f("203.0.113.79", true)
	f("203.0.113.80", false)
	f("2001:db8::1", true)
	f("2001:db8::2", false)
	f("2001:db8:1:ffff:ffff:ffff:ffff:ffff", true)
	f("2001:db8:2::1", true)
	f("2001:db8:2:1::1", false)
	f("10.1.2.3", true)
	f("10.2.255.255", true)
	f("10.3.255.255", true)
	f("10.4.0.0", false)
	f("0.0.0.0", true)
	f("0.0.0.1", false)
	f("255.255.255.254", false)
	f("255.255.255.255", true)
	f("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", false)
	f("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true)
	f("::ffff:192.0.2.1", true) // mapped all the same
	f("::ffff:192.0.2.2", false)
	f("::192.0.2.1", false)
	if c.Contains(netip.Addr{}) {
		t.Error("the invalid address")
	}
}

func TestClientsAll(t *testing.T) {
	f := func(list, address string, want bool) {
		t.Helper()
		if got := loadClients(t, list).Contains(netip.MustParseAddr(address)); got != want {
			t.Errorf("%q, %s: %v", list, address, got)
		}
	}
	f("0.0.0.0/0", "0.0.0.0", true)
	f("0.0.0.0/0", "255.255.255.255", true)
	f("0.0.0.0/0", "::", false)
	f("::/0", "::", true)
	f("::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true)
	f("::/0", "192.0.2.1", false)
	f("::ffff:0:0/96", "192.0.2.1", true)
	f("::ffff:0:0/96", "2001:db8::1", false)
	f("::/0\n0.0.0.0/0\n192.0.2.1\n2001:db8::/32\n", "192.0.2.1", true)
	f("", "192.0.2.1", false)
	f("# nobody\n", "2001:db8::1", false)

	if loadClients(t, "192.0.2.1\n").IsEmpty() || loadClients(t, "2001:db8::1\n").IsEmpty() {
		t.Error("a list of one address is empty")
	}
	var none *Clients
	if !none.IsEmpty() || !loadClients(t, "# nobody\n").IsEmpty() {
		t.Error("a list of nobody is not empty")
	}
	if none.Contains(netip.MustParseAddr("192.0.2.1")) {
		t.Error("a nil Clients contains an address")
	}
}

func TestClientsMerged(t *testing.T) {
	f := func(list string, v4, v6 int) {
		t.Helper()
		if c := loadClients(t, list); len(c.v4) != v4 || len(c.v6) != v6 {
			t.Errorf("%q: %d and %d ranges, want %d and %d", list, len(c.v4), len(c.v6), v4, v6)
		}
	}
	f("10.0.0.0/25\n10.0.0.128/25\n", 1, 0)
	f("10.0.0.2\n10.0.0.0\n10.0.0.1\n", 1, 0)
	f("10.0.0.2\n10.0.0.0\n", 2, 0)
	f("10.0.0.0/8\n10.1.0.0/16\n10.0.0.0/8\n", 1, 0)
	f("255.255.255.255\n0.0.0.0\n", 2, 0)
	f("2001:db8::ffff:ffff:ffff:ffff\n2001:db8:0:1::\n", 0, 1)
	f("::/1\n8000::/1\n", 0, 1)
	f("::1\n::ffff:0.0.0.1\n", 1, 1)
}

// The error has the line and not a word of it.
func TestClientsErrors(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		path := write(t, "clients", list)
		c, err := LoadClients(path)
		if err == nil || c != nil {
			t.Errorf("%q: %v, %v", list, c, err)
			return
		}
		for i := range want {
			want[i] = path + ":" + want[i]
		}
		if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
			t.Errorf("%q:\n got %q\nwant %q", list, got, want)
		}
	}
	const no = ": neither an address nor a CIDR"
	f("192.0.2.1\n\n# c\n192.0.2.256\n192.0.2.2\n", "4"+no)
	f("192.0.2.1 192.0.2.2\nexample.com\n192.0.2.1,192.0.2.2\n", "1"+no, "2"+no, "3"+no)
	f("192.0.2.010\n/24\n192.0.2/24\n", "1"+no, "2"+no, "3"+no)
	f("fe80::1%eth0\nfe80::%1/64\n", "1: an address with a zone", "2: an address with a zone")
	const v4 = ": the length of a prefix is not a number from 0 to 32"
	const v6 = ": the length of a prefix is not a number from 0 to 128"
	f("192.0.2.0/33\n192.0.2.0/-1\n192.0.2.0/\n192.0.2.0/024\n192.0.2.0/24/24\n192.0.2.0/+8\n", "1"+v4, "2"+v4, "3"+v4, "4"+v4, "5"+v4, "6"+v4)
	f("::/129\n::ffff:192.0.2.0/x\n", "1"+v6, "2"+v6)
	f(strings.Repeat("1", maxLine), "1: a line of more than 65536 bytes")

	if _, err := LoadClients(t.TempDir() + "/none"); err == nil {
		t.Error("a file that is not there")
	}
}

// netip.Prefix, asked one prefix after the other, says the same.
func TestClientsAgainstNaive(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		// Few values of few bytes, so that networks meet and overlap.
		address := func() netip.Addr {
			if random.IntN(2) == 0 {
				return netip.AddrFrom4([4]byte{byte(random.IntN(2)) * 255, 0, byte(random.IntN(3)), byte(random.IntN(256))})
			}
			b := [16]byte{0: byte(random.IntN(2)) * 255, 7: byte(random.IntN(3)), 8: byte(random.IntN(2)) * 255, 15: byte(random.IntN(256))}
			return netip.AddrFrom16(b)
		}
		var prefixes []netip.Prefix
		var list strings.Builder
		for range random.IntN(30) {
			a := address()
			bits := a.BitLen() - random.IntN(10)
			if random.IntN(4) == 0 {
				bits = 1 + random.IntN(a.BitLen())
			}
			prefixes = append(prefixes, netip.PrefixFrom(a, bits))
			list.WriteString(netip.PrefixFrom(a, bits).String() + "\n")
		}
		c := loadClients(t, list.String())
		for range 500 {
			a := address()
			want := slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			if got := c.Contains(a); got != want {
				t.Fatalf("seed %d, %s: %v of\n%s", seed, a, got, list.String())
			}
		}
	}
}

func FuzzLoadClients(f *testing.F) {
	f.Add("192.0.2.1\n198.51.100.0/24 # a\n", "198.51.100.7")
	f.Add("::ffff:10.0.0.0/104\r\n2001:db8::/32\n", "10.1.2.3")
	f.Add("0.0.0.0/0\n::/0\n", "2001:db8::1")
	f.Fuzz(func(t *testing.T, list, question string) {
		const path = "clients"
		c, err := readClients(path, strings.NewReader(list))
		if err != nil {
			if c != nil || !strings.HasPrefix(err.Error(), path+":") {
				t.Fatalf("%q: %v, %v", list, c, err)
			}
			return
		}
		a, err := netip.ParseAddr(question)
		if err != nil {
			return
		}
		a = a.Unmap().WithZone("")
		want := false
		for line := range strings.Lines(strings.TrimPrefix(list, "\xef\xbb\xbf")) {
			text, _, _ := strings.Cut(line, "#")
			text = strings.Trim(text, " \t\r\n")
			if p, err := netip.ParsePrefix(text); err == nil {
				if p.Addr().Is4In6() && p.Bits() >= 96 {
					p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
				} else if p.Addr().Is4In6() {
					p = p.Masked()
				}
				want = want || p.Contains(a)
			} else if b, err := netip.ParseAddr(text); err == nil {
				want = want || b.Unmap() == a
			}
		}
		if got := c.Contains(a); got != want {
			t.Fatalf("%q, %s: %v, want %v", list, a, got, want)
		}
	})
}

func TestContainsDoesNotAllocate(t *testing.T) {
	c := loadClients(t, "192.0.2.0/24\n2001:db8::/32\n")
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db9::1")
	if n := testing.AllocsPerRun(100, func() { c.Contains(v4); c.Contains(v6) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func loadClients(t testing.TB, list string) *Clients {
	t.Helper()
	c, err := LoadClients(write(t, "clients", list))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
