package cryptopan

import (
	"net/netip"
	"testing"
)

func TestPseudonymForms(t *testing.T) {
	p4 := Pseudonym{lo: 0xC0000201, family: family4}
	p6 := Pseudonym{hi: 0x20010db8_00000000, lo: 0x35, family: family6}
	f := func(p Pseudonym, valid, is4 bool, addr netip.Addr, bytes string) {
		t.Helper()
		if p.IsValid() != valid || p.Is4() != is4 {
			t.Errorf("%v: valid %v, IPv4 %v; want %v, %v", addr, p.IsValid(), p.Is4(), valid, is4)
		}
		if got := p.Addr(); got != addr {
			t.Errorf("address is %s, want %s", got, addr)
		}
		if got := string(p.AppendTo([]byte("x"))); got != "x"+bytes {
			t.Errorf("%s appends as %x, want %x", addr, got, "x"+bytes)
		}
	}
	f(Pseudonym{}, false, false, netip.Addr{}, "")
	f(p4, true, true, netip.MustParseAddr("192.0.2.1"), "\xc0\x00\x02\x01")
	f(p6, true, false, netip.MustParseAddr("2001:db8::35"),
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x35")

	if got := p4.V4(); got != 0xC0000201 {
		t.Errorf("number of 192.0.2.1 is %x", got)
	}
	if network, host := p6.V6(); network != 0x20010db8_00000000 || host != 0x35 {
		t.Errorf("numbers of 2001:db8::35 are %x and %x", network, host)
	}
}

// An IPv6 pseudonym may look like a mapped IPv4 address. It stays IPv6.
func TestPseudonymThatLooksMapped(t *testing.T) {
	p := Pseudonym{lo: 0xFFFF_C0000201, family: family6}
	if p.Is4() || len(p.AppendTo(nil)) != 16 || p.Addr() != netip.MustParseAddr("::ffff:192.0.2.1") {
		t.Errorf("%s is no longer IPv6", p.Addr())
	}
}

func TestPseudonymOfWrongFamilyPanics(t *testing.T) {
	f := func(what string, call func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", what)
			}
		}()
		call()
	}
	f("V4 of nothing", func() { Pseudonym{}.V4() })
	f("V6 of nothing", func() { Pseudonym{}.V6() })
	f("V4 of IPv6", func() { Pseudonym{family: family6}.V4() })
	f("V6 of IPv4", func() { Pseudonym{family: family4}.V6() })
}
