package cryptopan

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	oracle "github.com/yawning/cryptopan"
	"golang.org/x/crypto/argon2"
)

// sampleKey is the key of the sample trace in the authors' Crypto-PAn 1.0.
var sampleKey = [32]byte{
	21, 34, 23, 141, 51, 164, 207, 128, 19, 10, 91, 22, 73, 144, 125, 16,
	216, 152, 143, 131, 121, 121, 101, 39, 98, 87, 76, 45, 42, 132, 34, 2,
}

// zeroPadKey has a pad of zeros, so that the address of all zeros changes no
// AES input: the case in which a mask one bit off shows least.
var zeroPadKey = func() (k [32]byte) {
	c, err := newCipher(sampleKey)
	if err != nil {
		panic(err)
	}
	copy(k[:16], sampleKey[:16])
	c.block.Decrypt(k[16:], make([]byte, 16))
	return k
}()

func mustCipher(t testing.TB, key [32]byte) *Cipher {
	t.Helper()
	c, err := newCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustOracle(t testing.TB, key []byte) *oracle.Cryptopan {
	t.Helper()
	o, err := oracle.New(key)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// ask returns the oracle's pseudonym of a, as bytes. The oracle takes a mapped
// address for the IPv4 address in it, as we do.
func ask(o *oracle.Cryptopan, a netip.Addr) []byte {
	if a.Unmap().Is4() {
		return o.Anonymize(net.IP(a.Unmap().AsSlice())).To4()
	}
	return o.Anonymize(net.IP(a.AsSlice()))
}

func random4(r *rand.Rand) netip.Addr {
	v := r.Uint32()
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func random6(r *rand.Rand) netip.Addr {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return netip.AddrFrom16(b)
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func TestSampleTrace(t *testing.T) {
	c := mustCipher(t, sampleKey)
	f := func(addr, want string) {
		t.Helper()
		if got := c.Pseudonym(netip.MustParseAddr(addr)).Addr(); got != netip.MustParseAddr(want) {
			t.Errorf("pseudonym of %s is %s, want %s", addr, got, want)
		}
	}

	// From the trace that comes with Crypto-PAn 1.0.
	f("128.11.68.132", "135.242.180.132")
	f("129.118.74.4", "134.136.186.123")
	f("130.132.252.244", "133.68.164.234")
	f("192.102.249.13", "252.138.62.131")
	f("24.0.250.221", "100.15.198.226")
	f("38.15.67.68", "64.3.66.187")
	f("4.3.88.225", "124.60.155.63")
	f("63.14.55.111", "95.9.215.7")
	f("64.34.154.117", "0.221.154.117")
	f("64.39.15.238", "0.219.7.41")

	// The authors have no IPv6; these are yawning/cryptopan's.
	f("::1", "78ff:f001:9fc0:20df:8380:b1f1:704:ed")
	f("::2", "78ff:f001:9fc0:20df:8380:b1f1:704:ef")
	f("::ffff", "78ff:f001:9fc0:20df:8380:b1f1:704:f838")
	f("2001:db8::1", "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1e")
	f("2001:db8::2", "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1c")
}

func TestNewDerivesAsContract(t *testing.T) {
	f := func(secret, salt string) {
		t.Helper()
		c, err := New([]byte(secret), []byte(salt))
		if err != nil {
			t.Fatal(err)
		}
		o := mustOracle(t, argon2.IDKey([]byte(secret), []byte(salt), 1, 64*1024, 4, 32))
		for _, s := range []string{"192.0.2.1", "0.0.0.0", "255.255.255.255", "2001:db8::53", "::"} {
			a := netip.MustParseAddr(s)
			if got, want := c.Pseudonym(a).AppendTo(nil), ask(o, a); !bytes.Equal(got, want) {
				t.Errorf("secret %q, salt %q: pseudonym of %s is %x, want %x", secret, salt, a, got, want)
			}
		}
	}
	f("s", "edm-kdf-salt-val")
	f("a secret of some length, with \x00 and \xff in it", "edm-kdf-salt-val")
	f("s", "another salt")
	f("s", "")
}

// TestNewIsStable holds the values that operators have in their files. They may
// never change.
func TestNewIsStable(t *testing.T) {
	c, err := New([]byte("an example secret"), []byte("edm-kdf-salt-val"))
	if err != nil {
		t.Fatal(err)
	}
	f := func(addr, want string) {
		t.Helper()
		if got := c.Pseudonym(netip.MustParseAddr(addr)).Addr().String(); got != want {
			t.Errorf("pseudonym of %s is %s, want %s", addr, got, want)
		}
	}
	f("192.0.2.1", "199.3.145.222")
	f("2001:db8::1", "6005:5dbb:d806:f00:b20:0:581e:e3fe")
}

func TestNewRefusesEmptySecret(t *testing.T) {
	if _, err := New(nil, []byte("edm-kdf-salt-val")); err == nil {
		t.Error("an empty secret was accepted")
	}
}

func TestNewKeepsNoArgument(t *testing.T) {
	secret, salt := []byte("secret"), []byte("edm-kdf-salt-val")
	c, err := New(secret, salt)
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr("2001:db8::1")
	before := c.Pseudonym(a)
	for _, b := range [][]byte{secret, salt} {
		for i := range b {
			b[i] = 0xCC
		}
	}
	if c.Pseudonym(a) != before {
		t.Error("the pseudonym changed with the caller's bytes")
	}
}

func TestEqualsOracle(t *testing.T) {
	n := 20_000
	if testing.Short() {
		n = 2_000
	}
	r := newRand()
	for _, key := range [][32]byte{sampleKey, zeroPadKey, {}} {
		c, o := mustCipher(t, key), mustOracle(t, key[:])
		f := func(a netip.Addr) {
			t.Helper()
			if got, want := c.Pseudonym(a).AppendTo(nil), ask(o, a); !bytes.Equal(got, want) {
				t.Fatalf("key %x: pseudonym of %s is %x, want %x", key, a, got, want)
			}
		}
		for range n {
			f(random4(r))
			f(random6(r))
		}
		// One bit set, and all bits up to one: every mask there is.
		var one, all [16]byte
		f(netip.AddrFrom16(one))
		for i := range 128 {
			one = [16]byte{}
			one[i/8] = 0x80 >> (i % 8)
			all[i/8] |= 0x80 >> (i % 8)
			for _, b := range [][16]byte{one, all} {
				f(netip.AddrFrom16(b))
				f(netip.AddrFrom4([4]byte(b[:4])))
			}
		}
	}
}

func FuzzEqualsOracle(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{192, 0, 2, 1})
	f.Add(netip.IPv6Unspecified().AsSlice())
	f.Add(netip.MustParseAddr("2001:db8::1").AsSlice())
	f.Add(netip.MustParseAddr("::ffff:192.0.2.1").AsSlice())
	f.Add([]byte{1, 2, 3})

	keys := [][32]byte{sampleKey, zeroPadKey}
	var ciphers []*Cipher
	var oracles []*oracle.Cryptopan
	var caches []*Cache
	for _, k := range keys {
		c := mustCipher(f, k)
		ciphers = append(ciphers, c)
		oracles = append(oracles, mustOracle(f, k[:]))
		caches = append(caches, NewCache(c, 8))
	}
	f.Fuzz(func(t *testing.T, addr []byte) {
		a, ok := netip.AddrFromSlice(addr)
		for i, c := range ciphers {
			got := c.Pseudonym(a)
			if first, second := caches[i].Pseudonym(a), caches[i].Pseudonym(a); first != got || second != got {
				t.Errorf("%s has another pseudonym in the cache", a)
			}
			if got.IsValid() != ok {
				t.Errorf("%s has the pseudonym %s", a, got.Addr())
			}
			if !ok {
				continue
			}
			if want := ask(oracles[i], a); !bytes.Equal(got.AppendTo(nil), want) {
				t.Errorf("pseudonym of %s is %s, want %x", a, got.Addr(), want)
			}
		}
	})
}

// TestPrefixIsPreserved checks what the whole thing is for: pseudonyms share
// exactly as many first bits as the addresses do.
func TestPrefixIsPreserved(t *testing.T) {
	c := mustCipher(t, sampleKey)
	r := newRand()
	f := func(a netip.Addr, shared int) {
		t.Helper()
		b := a.AsSlice()
		b[shared/8] ^= 0x80 >> (shared % 8)
		for i := shared + 1; i < len(b)*8; i++ { // the rest is anything
			b[i/8] ^= byte(r.Uint32()) & (0x80 >> (i % 8))
		}
		other, _ := netip.AddrFromSlice(b)
		if got := sharedBits(c.Pseudonym(a), c.Pseudonym(other)); got != shared {
			t.Fatalf("%s and %s share %d bits, their pseudonyms %d", a, other, shared, got)
		}
	}
	for range 20 {
		for shared := range 32 {
			f(random4(r), shared)
		}
		for shared := range 128 {
			f(random6(r), shared)
		}
	}
}

func sharedBits(p, q Pseudonym) int {
	a, b := p.AppendTo(nil), q.AppendTo(nil)
	for i := range a {
		if d := a[i] ^ b[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return 8 * len(a)
}

// TestFamiliesAgree checks what the package comment says of the two families.
func TestFamiliesAgree(t *testing.T) {
	c := mustCipher(t, sampleKey)
	r := newRand()
	for range 1000 {
		a6 := random6(r)
		b := a6.As16()
		p4 := c.Pseudonym(netip.AddrFrom4([4]byte(b[:4])))
		if p6 := c.Pseudonym(a6); !bytes.Equal(p4.AppendTo(nil), p6.AppendTo(nil)[:4]) {
			t.Fatalf("%s begins with %s, and its first 32 bits with %s", a6, p6.Addr(), p4.Addr())
		}
	}
}

func TestMappedZonedAndInvalid(t *testing.T) {
	c := mustCipher(t, sampleKey)
	for _, entries := range []int{0, 100} {
		m := NewCache(c, entries)
		f := func(addr, same netip.Addr) {
			t.Helper()
			want := c.Pseudonym(same)
			if got := c.Pseudonym(addr); got != want {
				t.Errorf("pseudonym of %s is %s, want %s", addr, got.Addr(), want.Addr())
			}
			if got := m.Pseudonym(addr); got != want {
				t.Errorf("cached pseudonym of %s is %s, want %s", addr, got.Addr(), want.Addr())
			}
		}
		f(netip.MustParseAddr("::ffff:192.0.2.1"), netip.MustParseAddr("192.0.2.1"))
		f(netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1"))
		f(netip.Addr{}, netip.Addr{})
	}
	if c.Pseudonym(netip.Addr{}) != (Pseudonym{}) {
		t.Error("the zero Addr has a pseudonym")
	}
}
