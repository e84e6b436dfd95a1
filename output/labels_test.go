package output

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// wire returns the wire form of a name in presentation form.
func wire(t testing.TB, name string) []byte {
	t.Helper()
	b := make([]byte, 256)
	n, err := dns.PackDomainName(name, b, 0, nil, false)
	if err != nil {
		t.Fatalf("%q: %v", name, err)
	}
	return b[:n]
}

// columns calls appendLabels or appendSuffixLabels behind bytes that must
// stay, and cuts the text at the ends.
func columns(t testing.TB, name []byte, suffix bool) []string {
	t.Helper()
	const before = "before"
	ends := [numLabels]int32{}
	appendTo := appendLabels
	if suffix {
		appendTo = appendSuffixLabels
	}
	dst, n := appendTo([]byte(before), name, &ends)
	if !bytes.HasPrefix(dst, []byte(before)) {
		t.Fatalf("%q: what was in front is gone: %q", name, dst)
	}
	got, from := []string{}, int32(len(before))
	for _, end := range ends[:n] {
		got, from = append(got, string(dst[from:end])), end
	}
	if int(from) != len(dst) {
		t.Fatalf("%q: the last column ends at %d of %d", name, from, len(dst))
	}
	return got
}

func TestLabels(t *testing.T) {
	f := func(name string, suffix bool, want ...string) {
		t.Helper()
		if got := columns(t, wire(t, name), suffix); !slices.Equal(got, want) {
			t.Errorf("%s suffix %v:\n got %q\nwant %q", name, suffix, got, want)
		}
	}
	const exact, suffix = false, true
	f(".", exact)
	f(".", suffix, "")
	f("com.", exact, "com")
	f("www.example.com.", exact, "com", "example", "www")
	f("wild.example.", suffix, "example", "wild", "")

	f("b.c.d.e.f.g.h.i.j.", exact, "j", "i", "h", "g", "f", "e", "d", "c", "b")
	f("b.c.d.e.f.g.h.i.j.", suffix, "j", "i", "h", "g", "f", "e", "d", "c", "b", "")
	f("a.b.c.d.e.f.g.h.i.j.", exact, "j", "i", "h", "g", "f", "e", "d", "c", "b", "a")
	f("a.b.c.d.e.f.g.h.i.j.", suffix, "j", "i", "h", "g", "f", "e", "d", "c", "b", "a.")
	f("a.b.c.d.e.f.g.h.i.j.k.l.deep.example.", exact, "example", "deep", "l", "k", "j", "i", "h", "g", "f", "e.d.c.b.a")
	f("a.b.c.d.e.f.g.h.i.j.k.l.deep.example.", suffix, "example", "deep", "l", "k", "j", "i", "h", "g", "f", "e.d.c.b.a.")

	f(`a\.b.example.`, exact, "example", `a\.b`)
	f(`\000\032\255.x\@y.example.`, exact, "example", `x\@y`, `\000\ \255`)
	f(`x\.y.b.c.d.e.f.g.h.i.j.k.`, exact, "k", "j", "i", "h", "g", "f", "e", "d", "c", `b.x\.y`)
	f(strings.Repeat("z", 63)+".example.", exact, "example", strings.Repeat("z", 63))
	f(strings.Repeat("0.", 127), exact, "0", "0", "0", "0", "0", "0", "0", "0", "0", strings.Repeat("0.", 117)+"0")
}

// FuzzLabels compares with a name that miekg/dns unpacks and splits.
func FuzzLabels(f *testing.F) {
	f.Add([]byte("\x03www\x07example\x03com\x00"), false)
	f.Add([]byte("\x01.\x01\\\x02\x00\xff\x01a\x01a\x01a\x01a\x01a\x01a\x01a\x01a\x01a\x00"), true)
	f.Add([]byte(strings.Repeat("\x010", 127)+"\x00"), true)
	f.Fuzz(func(t *testing.T, name []byte, suffix bool) {
		text, end, err := dns.UnpackDomainName(name, 0)
		if err != nil || end > 255 || slices.ContainsFunc(labelLengths(name), func(n byte) bool { return n > 63 }) {
			return
		}
		want := dns.SplitDomainName(text)
		slices.Reverse(want)
		if suffix {
			want = append(want, "")
		}
		if len(want) > numLabels {
			want = append(want[:numLabels-1:numLabels-1], strings.Join(want[numLabels-1:], "."))
		}
		if got := columns(t, name[:end], suffix); !slices.Equal(got, want) {
			t.Errorf("%q suffix %v:\n got %q\nwant %q", text, suffix, got, want)
		}
	})
}

// labelLengths returns the length octets of a name, up to the first that is no
// label's.
func labelLengths(name []byte) (lengths []byte) {
	for len(name) > 0 && name[0] != 0 {
		lengths = append(lengths, name[0])
		if name[0] > 63 {
			break
		}
		name = name[1+int(name[0]):]
	}
	return lengths
}

func TestLabelsDoNotAllocate(t *testing.T) {
	name := wire(t, `www.ex\097mple\255.a.b.c.d.e.f.g.h.i.example.`)
	dst, ends := make([]byte, 0, 300), [numLabels]int32{}
	if n := testing.AllocsPerRun(100, func() { appendSuffixLabels(dst, name, &ends) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkLabels(b *testing.B) {
	f := func(kind, name string) {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			name, dst, ends := wire(b, name), make([]byte, 0, 300), [numLabels]int32{}
			for b.Loop() {
				dst, _ = appendLabels(dst[:0], name, &ends)
			}
		})
	}
	f("2", "example.com.")
	f("4", "static.img.example.com.")
	f("4 long", "a0123456789-abcdef.eu-central-1.compute.amazonaws.com.")
	f("4 escaped", `_x\032y.\255img.example.com.`)
	f("14", "a.b.c.d.e.f.g.h.i.j.k.l.deep.example.")
}
