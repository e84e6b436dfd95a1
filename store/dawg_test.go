package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	library "github.com/smhanov/dawg"
)

func TestLoadDAWG(t *testing.T) {
	f := func(words, want []string) {
		t.Helper()
		d, err := LoadDictionary(write(t, "list.dawg", string(makeDAWG(words...))))
		if err != nil {
			t.Errorf("%q: %v", words, err)
			return
		}
		if got := entries(t, d); !slices.Equal(got, want) {
			t.Errorf("%q:\n got %q\nwant %q", words, got, want)
		}
	}
	f(nil, nil)
	f([]string{""}, nil)
	f([]string{"", "se."}, []string{"se."})
	f([]string{"example.com."}, []string{"example.com."})
	f([]string{".example.com.", "example.com.", "www.example.com."}, []string{"*.example.com.", "example.com.", "www.example.com."})
	f([]string{".example.com", "example.org"}, []string{"*.example.com.", "example.org."})
	f([]string{"."}, []string{"."})
	f([]string{"*.", "*.se."}, []string{`*.`, `*.se.`}) // labels of their own
	f([]string{`a\.b.example.`, "c,d.example."}, []string{`a\.b.example.`, "c,d.example."})
	f([]string{"Example.COM.", "example.com."}, []string{"example.com."})
	f([]string{"bücher.example."}, []string{"xn--bcher-kva.example."})
	f([]string{"example.", "例え.テスト.", "💩.la."}, []string{"example.", "xn--r8jz45g.xn--zckzah.", "xn--ls8h.la."})

	list := makeList(6, 3000)
	slices.Sort(list)
	want := entries(t, dictionaryOf(t, list))
	f(list, want)
}

// The exact and the suffix entry of "*." are not to be confused.
func TestLoadDAWGAsterisk(t *testing.T) {
	d, err := LoadDictionary(write(t, "list", string(makeDAWG("*."))))
	if err != nil {
		t.Fatal(err)
	}
	if name, m := d.Entry(0); string(name) != "\x01*\x00" || m != Exact {
		t.Errorf("entry %q, %d", name, m)
	}
}

func TestLoadDAWGBadNames(t *testing.T) {
	path := write(t, "list.dawg", string(makeDAWG("a..b.", "ok.", strings.Repeat("x", 64)+".se.")))
	_, err := LoadDictionary(path)
	want := path + `: "a..b.": empty label` + "\n" +
		path + `: "` + strings.Repeat("x", 64) + `.se.": a label of 64 bytes, more than 63`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// What is in the file counts, whatever it is called.
func TestDetection(t *testing.T) {
	f := func(name, contents, want string) {
		t.Helper()
		d, err := LoadDictionary(write(t, name, contents))
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.Join(entries(t, d), " ")
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s %.20q: %s; want %s", name, contents, got, want)
		}
	}
	binary := string(makeDAWG("example.com."))
	f("list.dawg", binary, "example.com.")
	f("list.txt", binary, "example.com.")
	f("list", binary, "example.com.")
	f("list.dawg", "example.com\n", "example.com.")
	f("list.csv", "", "")
	f("list.txt", binary[:20], "damaged DAWG: 20 bytes long, but it says")
	f("list.txt", binary[:5], "damaged DAWG: 5 bytes long")
	f("list.txt", binary+"\n", "damaged DAWG")
	f("list.dawg", "", "damaged DAWG: 0 bytes long")
	f("list.DAWG", "", "damaged DAWG: 0 bytes long")
	f("list.dawg", "\x00\x00", "damaged DAWG: 2 bytes long")
	f("list.txt", "\x0f\x00\x00\x00\x07\x0a", "damaged DAWG: 6 bytes long, but it says 251658240")
}

// The dictionary has all that it needs: the file may be cut or overwritten.
func TestDAWGOverwritten(t *testing.T) {
	list := makeList(7, 2000)
	slices.Sort(list)
	path := write(t, "list.dawg", string(makeDAWG(list...)))
	d, err := LoadDictionary(path)
	if err != nil {
		t.Fatal(err)
	}
	want := entries(t, d)
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xCC}, 10000), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, d); !slices.Equal(got, want) {
		t.Error("the entries changed with the file")
	}
}

// Every single byte, changed in every single bit, cut off, and inserted.
func TestDAWGDamaged(t *testing.T) {
	good := makeDAWG(".example.com.", ".example.net.", "api.example.net.", "example.com.", "mail.example.com.", "www.example.com.", "www.example.net.")
	refused := 0
	f := func(data []byte) {
		t.Helper()
		if err := compareDAWG(data); err != nil {
			if !errors.Is(err, errDAWG) {
				t.Fatalf("%x: %v", data, err)
			}
			refused++
		}
	}
	for i := range good {
		for bit := range 8 {
			data := bytes.Clone(good)
			data[i] ^= 1 << bit
			f(data)
		}
		f(good[:i])
		cut := bytes.Clone(good[:i])
		if len(cut) >= 4 {
			binary.BigEndian.PutUint32(cut, uint32(len(cut))) // cut, and its size is right
			f(cut)
		}
	}
	if refused < 9*len(good)/2 {
		t.Errorf("only %d of %d damaged files were refused", refused, 10*len(good))
	}
}

// A walk that goes round in a circle, or finds more words than there are, ends.
func TestDAWGEndless(t *testing.T) {
	f := func(want string, nodes func(w *bitString)) {
		t.Helper()
		d, err := newDAWG(rawDAWG(1<<20, nodes))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = d.walk(func([]byte) error { n++; return nil })
		if !errors.Is(err, errDAWG) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d words and error %v; want %s", n, err, want)
		}
		if n > 2*maxWord {
			t.Errorf("%d words before the error", n)
		}
	}
	const root = 8 * (dawgHead + 5)
	f("leads to bit", func(w *bitString) { // the root to itself
		w.add(0b001, 3).add('a', 8).add(root, 16)
	})
	f("more than 1100 bytes", func(w *bitString) { // a node behind it to itself
		w.add(0b01, 2).add('a', 8)
		w.add(0b001, 3).add('a', 8).add(root+10, 16)
	})
	f("more than 1100 bytes", func(w *bitString) { // the same, a word at each turn
		w.add(0b01, 2).add('a', 8)
		w.add(0b101, 3).add('a', 8).add(root+10, 16)
	})
	f("more than 1100 bytes", func(w *bitString) { // two edges, one of them back
		w.add(0b01, 2).add('a', 8)
		w.add(0b000, 3).add(2, 8).add(21, 5).add('a', 8).add(root+10+3+8+5+24+45, 16).add('b', 8).add(1, 21).add(root+10, 16)
		w.add(0b100, 3).add(0, 8).add(0, 5)
	})
	f("0 words instead of", func(w *bitString) { // a dead end
		w.add(0b01, 2).add('a', 8)
		w.add(0b000, 3).add(0, 8).add(0, 5)
	})
	f("16383 edges", func(w *bitString) { // more edges than bits
		w.add(0b000, 3).add(0xff, 8).add(0x7f, 8).add(21, 5)
	})
	f("character 0x61 after 0x61", func(w *bitString) {
		w.add(0b000, 3).add(2, 8).add(21, 5).add('a', 8).add(root+3+8+5+24+45, 16).add('a', 8).add(1, 21).add(root+3+8+5+24+45, 16)
		w.add(0b100, 3).add(0, 8).add(0, 5)
	})
}

// compareDAWG enumerates a DAWG. If that is no error, the library has to find
// the same words, and the same number for each.
func compareDAWG(data []byte) error {
	d, err := newDAWG(bytes.Clone(data))
	if err != nil {
		return err
	}
	if d.words > 1<<16 {
		return damaged("too many words for a test")
	}
	var ours []string
	if err := d.walk(func(word []byte) error { ours = append(ours, string(word)); return nil }); err != nil {
		return err
	}
	if uint64(len(ours)) != d.words {
		return fmt.Errorf("%d words of %d", len(ours), d.words)
	}
	theirs, err := library.Read(bytes.NewReader(data), 0)
	if err != nil {
		return err
	}
	n := 0
	theirs.Enumerate(func(index int, word []rune, final bool) library.EnumerationResult {
		if final {
			if n < len(ours) && (ours[n] != string(word) || index != n) {
				err = fmt.Errorf("word %d is %q, for the library %d, %q", n, ours[n], index, string(word))
			}
			n++
		}
		return library.Continue
	})
	if n != len(ours) {
		return fmt.Errorf("%d words, for the library %d", len(ours), n)
	}
	return err
}

func FuzzDAWG(f *testing.F) {
	f.Add("example.com.\n.example.com.\nwww.example.org.", uint64(1))
	f.Add("", uint64(0))
	f.Add("räksmörgås.se.\n例え.テスト.\n.", uint64(7))
	f.Add(strings.Join(makeList(8, 100), "\n"), uint64(100))
	f.Fuzz(func(t *testing.T, list string, seed uint64) {
		words := strings.Split(strings.ToValidUTF8(list, "?"), "\n")
		slices.Sort(words)
		data := makeDAWG(slices.Compact(words)...)
		if err := compareDAWG(data); err != nil {
			t.Fatalf("%q: %v", list, err)
		}
		// What is damaged is refused, or is the DAWG that the library reads too.
		random := rand.New(rand.NewPCG(seed, 0))
		for range 20 {
			mutated := bytes.Clone(data)
			for range 1 + random.IntN(3) {
				switch i := random.IntN(len(mutated)); random.IntN(4) {
				case 0:
					mutated[i] = byte(random.Uint32())
				case 1:
					mutated[i] ^= 1 << random.IntN(8)
				case 2:
					mutated = slices.Delete(mutated, i, min(len(mutated), i+1+random.IntN(4)))
				case 3:
					copy(mutated[i:], mutated[random.IntN(len(mutated)):])
				}
				if len(mutated) < dawgHead {
					break
				}
			}
			if len(mutated) >= dawgHead && random.IntN(8) != 0 {
				binary.BigEndian.PutUint32(mutated, uint32(len(mutated)))
			}
			if err := compareDAWG(mutated); err != nil && !errors.Is(err, errDAWG) {
				t.Fatalf("%q, seed %d: %v", list, seed, err)
			}
		}
	})
}

// FuzzLoadDAWG has the bytes of a file: no panic, no endless loop, and an error
// with the path.
func FuzzLoadDAWG(f *testing.F) {
	f.Add(makeDAWG("example.com.", "www.example.com."))
	f.Add(makeDAWG("."))
	f.Add([]byte("\x00\x00\x00\x07\x07\x08"))
	path := filepath.Join(f.TempDir(), "list.dawg")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < dawgHead {
			return
		}
		if compareDAWG(data) != nil && len(data) > 4 {
			binary.BigEndian.PutUint32(data, uint32(len(data)))
		}
		d, err := loadDAWG(path, bytes.NewReader(data), data[:dawgHead], int64(len(data)))
		if err != nil {
			if !strings.HasPrefix(err.Error(), path+": ") {
				t.Fatalf("an error without a path: %v", err)
			}
			return
		}
		for id := range d.Len() {
			name, m := d.Entry(uint32(id))
			if m == Suffix {
				name = append([]byte("\x01x"), name...)
			}
			if _, found := d.Lookup(name); len(name) <= maxName && found < m {
				t.Fatalf("entry %d, %q, is not found: %d", id, name, found)
			}
		}
	})
}

// makeDAWG makes a DAWG of words in order, with the library.
func makeDAWG(words ...string) []byte {
	b := library.New()
	for _, word := range words {
		b.Add(word)
	}
	var data bytes.Buffer
	if _, err := b.Finish().Write(&data); err != nil {
		panic("BUG: " + err.Error())
	}
	return data.Bytes()
}

// A bitString is written bit by bit, the most significant first.
type bitString struct {
	data []byte
	bits int
}

func (w *bitString) add(value uint64, n int) *bitString {
	for n--; n >= 0; n-- {
		if w.bits%8 == 0 {
			w.data = append(w.data, 0)
		}
		w.data[w.bits/8] |= byte(value>>n&1) << (7 - w.bits%8)
		w.bits++
	}
	return w
}

// rawDAWG makes a DAWG of 8-bit characters and 16-bit addresses with nodes as
// they are written, and a little room behind.
func rawDAWG(words uint64, nodes func(w *bitString)) []byte {
	w := &bitString{}
	w.add(0, 32).add(8, 8).add(16, 8)
	w.add(words>>14&0x7f|0x80, 8).add(words>>7&0x7f|0x80, 8).add(words&0x7f, 8)
	w.add(2, 8).add(2, 8)
	nodes(w)
	w.add(0, 16)
	binary.BigEndian.PutUint32(w.data, uint32(len(w.data)))
	return w.data
}
