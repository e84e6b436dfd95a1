package store

import (
	"bytes"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestAppendName(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		got, err := appendName([]byte("in front"), []byte(text))
		if err != nil || string(got) != "in front"+want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	f(".", "\x00")
	f("com", "\x03com\x00")
	f("com.", "\x03com\x00")
	f("WWW.Example.COM", "\x03www\x07example\x03com\x00")
	f("_dmarc.a--b.example", "\x06_dmarc\x04a--b\x07example\x00")
	f(`a\.b.c`, "\x03a.b\x01c\x00")
	f(`a\046b.c`, "\x03a.b\x01c\x00")
	f(`\065\000\255`, "\x03a\x00\xff\x00")
	f(`a\ b\\`, "\x04a b\\\x00")
	f("räksmörgås.se", "\x12xn--rksmrgs-5wao1o\x02se\x00")
	f("BÜCHER.example", "\x0dxn--bcher-kva\x07example\x00")
	f("_sip.bücher.a--b", "\x04_sip\x0dxn--bcher-kva\x04a--b\x00")
	f("straße.de", "\x0dxn--strae-oqa\x02de\x00")
	f("例え。テスト", "\x0bxn--r8jz45g\x0axn--zckzah\x00")
	f("💩.la", "\x08xn--ls8h\x02la\x00")
	f(strings.Repeat("a", 63)+".se", "\x3f"+strings.Repeat("a", 63)+"\x02se\x00")
	f(strings.Repeat("a.", 127), strings.Repeat("\x01a", 127)+"\x00")
}

func TestAppendNameErrors(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		got, err := appendName([]byte("in front"), []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, error %v; want %q", text, got, err, want)
		}
		if string(got) != "in front" {
			t.Errorf("%q: left %q behind", text, got)
		}
	}
	f("", "no name")
	f("..", "empty label")
	f(".com", "empty label")
	f("a..b", "empty label")
	f("a..", "empty label")
	f("。", "empty label")
	f(strings.Repeat("a", 64)+".se", "a label of 64 bytes")
	f("se."+strings.Repeat("a", 64), "a label of 64 bytes")
	f(strings.Repeat("a.", 128), "a name of 257 bytes")
	f(strings.Repeat("ü", 64)+".se", "a label of")
	f(`a\`, "backslash")
	f(`a\25`, "backslash")
	f(`a\256`, "backslash")
	f(`a\2x6`, "backslash")
	f("a\xff", "not UTF-8")
	f(`ü\.x`, "escapes")
	f("a\u00adb\u2028.se", "no A-labels")
}

// miekg/dns reads the same names from the same text, wherever both take it. It
// is looser about an escape of fewer than three digits, keeps capital letters, and
// takes no UTF-8.
func FuzzAppendName(f *testing.F) {
	f.Add("www.example.com.")
	f.Add(`a\.b\065\ c.D.`)
	f.Add("räksmörgås.se")
	f.Add(".")
	f.Add(strings.Repeat("a.", 127))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := appendName(nil, []byte(text))
		if err == nil {
			if n, labels := measure(got); n != len(got) || n > maxName || labels > maxLabels {
				t.Fatalf("%q became %q", text, got)
			}
			again, _, err := dns.UnpackDomainName(got, 0)
			if err != nil {
				t.Fatalf("%q became %q: %v", text, got, err)
			}
			if back, err := appendName(nil, []byte(again)); err != nil || !bytes.Equal(got, back) {
				t.Fatalf("%q became %q, and by way of %q %q, %v", text, got, again, back, err)
			}
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r >= 0x80 }) {
			return
		}
		buffer := make([]byte, 300)
		n, theirErr := dns.PackDomainName(dns.Fqdn(text), buffer, 0, nil, false)
		if text == "" || err != nil && strings.Contains(err.Error(), "backslash") {
			return
		}
		if (err == nil) != (theirErr == nil) {
			t.Fatalf("%q: error %v, miekg/dns %v", text, err, theirErr)
		}
		if want := foldASCII(buffer[:n]); err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%q: %q, miekg/dns %q", text, got, want)
		}
	})
}

// foldASCII makes A to Z small. A length byte is never one of them.
func foldASCII(name []byte) []byte {
	folded := bytes.Clone(name)
	for i, c := range folded {
		if 'A' <= c && c <= 'Z' {
			folded[i] += 'a' - 'A'
		}
	}
	return folded
}
