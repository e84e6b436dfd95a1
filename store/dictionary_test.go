package store

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	d := dictionaryOf(t, []string{
		"example.com.", ".example.com.", "www.example.com.", ".deep.example.com.", ".se.",
		`dot\.ted.example.org.`, `.in\.side.org.`, "UPPER.example.net", ".", ".a.very.long.label-of-sixteen.and-a-label-of-more-than-sixteen.test.",
	})
	f := func(question, entry string, want Match) {
		t.Helper()
		id, m := d.Lookup(wire(t, question))
		if m != want {
			t.Errorf("%s: match %d, want %d", question, m, want)
			return
		}
		if want == None {
			return
		}
		name, kind := d.Entry(id)
		if string(name) != string(wire(t, entry)) || kind != want {
			t.Errorf("%s: entry %q, %d; want %q, %d", question, name, kind, entry, want)
		}
	}
	f("example.com.", "example.com.", Exact)
	f("www.example.com.", "www.example.com.", Exact)
	f("other.example.com.", "example.com.", Suffix)
	f("a.b.c.example.com.", "example.com.", Suffix)
	f("deep.example.com.", "example.com.", Suffix) // not the apex of its own
	f("a.deep.example.com.", "deep.example.com.", Suffix)
	f("a.b.deep.example.com.", "deep.example.com.", Suffix)
	f("se.", "", None)
	f("x.se.", "se.", Suffix)
	f("xse.", "", None)
	f("com.", "", None)
	f("notexample.com.", "", None)
	f("upper.example.net.", "upper.example.net.", Exact)
	f(".", ".", Exact)
	f("test.", "", None)
	f("x.a.very.long.label-of-sixteen.and-a-label-of-more-than-sixteen.test.",
		"a.very.long.label-of-sixteen.and-a-label-of-more-than-sixteen.test.", Suffix)
	f("a.very.long.label-of-sixteen.and-a-label-of-more-than-sixteen.test.", "", None)

	// A dot in a label is no boundary.
	f(`dot\.ted.example.org.`, `dot\.ted.example.org.`, Exact)
	f(`dot.ted.example.org.`, "", None)
	f(`x.in\.side.org.`, `in\.side.org.`, Suffix)
	f(`x.in.side.org.`, "", None)
	f(`x\.se.`, "", None)
}

func TestLookupBelowRoot(t *testing.T) {
	d := loadString(t, "*.\n")
	f := func(question string, want Match) {
		t.Helper()
		if _, m := d.Lookup(wire(t, question)); m != want {
			t.Errorf("%s: match %d, want %d", question, m, want)
		}
	}
	f(".", None)
	f("se.", Suffix)
	f("www.example.com.", Suffix)
}

func TestLookupNil(t *testing.T) {
	var d *Dictionary
	if _, m := d.Lookup(wire(t, "example.com.")); m != None {
		t.Errorf("a nil Dictionary matches")
	}
	if d.Len() != 0 {
		t.Errorf("a nil Dictionary has %d entries", d.Len())
	}
	if _, m := dictionaryOf(t, nil).Lookup(wire(t, "example.com.")); m != None {
		t.Errorf("an empty Dictionary matches")
	}
}

// What is no name in wire form matches nothing, even below "*.".
func TestLookupMalformed(t *testing.T) {
	d := loadString(t, "*.\n.\nexample.com\n")
	f := func(name string) {
		t.Helper()
		if _, m := d.Lookup([]byte(name)); m != None {
			t.Errorf("%q: match %d", name, m)
		}
	}
	f("")
	f("\x01")
	f("\x01a")
	f("\x07example\x03com")
	f("\x07example\x03com\x00\x00")
	f("\x07example\x00\x03com\x00")
	f("\xc0\x0c")
	f("\x40" + strings.Repeat("a", 64) + "\x00")
	f(strings.Repeat("\x01a", 127) + "\x01a\x00") // 257 bytes
	f(strings.Repeat("\x00", 300))

	if _, m := d.Lookup([]byte(strings.Repeat("\x01a", 127) + "\x00")); m != Suffix {
		t.Errorf("127 labels: match %d", m)
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	list := makeList(3, 1000)
	d := dictionaryOf(t, list)
	names := makeQuestions(list, 2)[:1000]
	if n := testing.AllocsPerRun(10, func() {
		for _, name := range names {
			d.Lookup(name)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The ids are 0 to Len-1 in the order of the list, and what stands twice is kept
// once.
func TestEntries(t *testing.T) {
	list := makeList(4, 5000)
	d := dictionaryOf(t, append(list, list...))
	if d.Len() != len(list) {
		t.Fatalf("%d entries, want %d", d.Len(), len(list))
	}
	for i, text := range list {
		want, wantMatch, _ := appendDAWGEntry(nil, []byte(text))
		name, m := d.Entry(uint32(i))
		if string(name) != string(want) || m != wantMatch {
			t.Fatalf("entry %d is %q, %d; want %q, %d", i, name, m, want, wantMatch)
		}
	}
}

// A naive Dictionary: two maps from wire form to id, and a loop over the labels.
type naive [Suffix + 1]map[string]uint32

func (n naive) lookup(name []byte) (uint32, Match) {
	if id, ok := n[Exact][string(name)]; ok {
		return id, Exact
	}
	for name[0] != 0 {
		name = name[1+name[0]:]
		if id, ok := n[Suffix][string(name)]; ok {
			return id, Suffix
		}
	}
	return 0, None
}

// Names of a few letters, dots and other bytes, so that most of them are above
// or below each other, or look so.
func TestLookupAgainstNaive(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		var b builder
		want := naive{Exact: {}, Suffix: {}}
		for range random.IntN(600) {
			name, m := randomName(random), Match(1+random.IntN(2))
			if err := b.add(name, m); err != nil {
				t.Fatal(err)
			}
			if _, ok := want[m][string(name)]; !ok {
				want[m][string(name)] = uint32(len(want[Exact]) + len(want[Suffix]))
			}
		}
		d := b.finish()
		if n := len(want[Exact]) + len(want[Suffix]); d.Len() != n {
			t.Fatalf("seed %d: %d entries, want %d", seed, d.Len(), n)
		}
		for range 5000 {
			name := randomName(random)
			id, m := d.Lookup(name)
			wantID, wantMatch := want.lookup(name)
			if id != wantID || m != wantMatch {
				t.Fatalf("seed %d: %q: id %d, match %d; want %d, %d", seed, name, id, m, wantID, wantMatch)
			}
		}
	}
}

func randomName(random *rand.Rand) []byte {
	var name []byte
	for range random.IntN(6) {
		length := 1 + random.IntN(2)
		if random.IntN(20) == 0 {
			length = 1 + random.IntN(40)
		}
		name = append(name, byte(length))
		for range length {
			name = append(name, "abc.\x00\x01\xff"[random.IntN(7)])
		}
	}
	return append(name, 0)
}

// The filter lies now and then, and then the table has the last word: as many
// labels as there can be, and a suffix entry at every other one.
func TestLookupManyLabels(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 0))
	var b builder
	want := naive{Exact: {}, Suffix: {}}
	for n := 0; n <= maxLabels; n += 2 {
		name := append([]byte(strings.Repeat("\x01a", n)), 0)
		if err := b.add(name, Suffix); err != nil {
			t.Fatal(err)
		}
		want[Suffix][string(name)] = uint32(n / 2)
	}
	d := b.finish()
	for range 20000 {
		name := append([]byte(strings.Repeat("\x01a", random.IntN(maxLabels+1))), 0)
		if len(name) > 1 {
			name[1+2*random.IntN((len(name)-1)/2)] = 'b'
		}
		id, m := d.Lookup(name)
		if wantID, wantMatch := want.lookup(name); id != wantID || m != wantMatch {
			t.Fatalf("%q: id %d, match %d; want %d, %d", name, id, m, wantID, wantMatch)
		}
	}
}

func FuzzLookup(f *testing.F) {
	f.Add([]byte("\x03www\x07example\x03com\x00"))
	f.Add([]byte("\x01a\x00"))
	f.Add([]byte("\xc0\x0c"))
	d := loadString(f, "example.com\n*.example.com\n*.a\n*.\n.\n")
	f.Fuzz(func(t *testing.T, name []byte) {
		id, m := d.Lookup(name)
		if m != None {
			if _, kind := d.Entry(id); kind != m {
				t.Errorf("%q: match %d of an entry of kind %d", name, m, kind)
			}
		}
	})
}

// dictionaryOf makes a Dictionary of entries as a DAWG has them.
func dictionaryOf(t testing.TB, entries []string) *Dictionary {
	t.Helper()
	var b builder
	for _, text := range entries {
		name, m, err := appendDAWGEntry(nil, []byte(text))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if err := b.add(name, m); err != nil {
			t.Fatal(err)
		}
	}
	return b.finish()
}

func wire(t testing.TB, text string) []byte {
	t.Helper()
	name, err := appendName(nil, []byte(text))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return name
}
