package store

import (
	"fmt"
	"strings"
	"testing"
)

// Names that differ in little are spread over the table and the tags as names at
// random are: every byte counts, wherever it is.
func TestHashSpread(t *testing.T) {
	f := func(form string) {
		t.Helper()
		const count = 20_000
		list := make([]string, count)
		for i := range list {
			list[i] = strings.ReplaceAll(form, "#", fmt.Sprintf("%05d", i))
		}
		d := dictionaryOf(t, list)
		probes, sameTag := 0, 0
		for id := range d.Len() {
			name, _ := d.Entry(uint32(id))
			h := hashName(name)
			for i := d.firstSlot(h); ; i++ {
				probes++
				slot := d.slots[i&uint64(len(d.slots)-1)]
				if uint32(slot) == d.offsets[id] {
					break
				}
				if uint32(slot>>32) == slotTag(h, 0) {
					sameTag++
				}
			}
		}
		// 61 % of 32,768 slots are taken, so 1.8 probes are due at random; and
		// 20,000 of 2^31 tags, so none should be the same.
		if average := float64(probes) / count; average > 2 {
			t.Errorf("%s: %.2f probes", form, average)
		}
		if sameTag > 2 {
			t.Errorf("%s: the same tag %d times", form, sameTag)
		}
	}
	f("#.")
	f("#.example.com.")
	f("www.example.#.")
	f("a#.b.c.d.e.f.g.h.")
	for n := 0; n < 58; n += 4 {
		f(strings.Repeat("x", n) + "#" + strings.Repeat("y", 58-n) + ".com.")
		f(strings.Repeat("x", n) + "#.com.")
	}
}

// The words of a label are its bytes, however much room is around them, and the
// hash of a name does not depend on what is in front of it.
func TestHashOfSuffix(t *testing.T) {
	for length := 1; length <= 63; length++ {
		name := append([]byte{byte(length)}, strings.Repeat("a", length)+"\x00"...)
		h := hashName(name)
		if longer := append([]byte("\x03www"), name...); hashLabel(h, longer, 0, 4) != hashName(longer) {
			t.Errorf("a label of %d bytes: another hash below www", length)
		}
		for i := 1; i <= length; i++ {
			name[i] = 'b'
			if hashName(name) == h {
				t.Errorf("a label of %d bytes: byte %d does not count", length, i)
			}
			name[i] = 'a'
		}
	}
}
