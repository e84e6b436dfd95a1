package runner

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"edm/output"
	"edm/store"
)

func TestTallyMergesWhatWorkersCounted(t *testing.T) {
	names, err := store.LoadDictionary(list(t, "a.example\nb.example\n"))
	if err != nil {
		t.Fatal(err)
	}
	pages := &pageList{}
	whole, one, two := newTally(names, 20, pages), newTally(names, 20, pages), newTally(names, 20, pages)
	for i := range uint64(300) {
		id := uint32(i % 2)
		a := answer{qtype: typeA, qclass: classIN, rcode: int(i % 4), client: (i + 1) * 0x9e3779b97f4a7c15, family: uint8(4 + i%3/2*2)}
		whole.add(id, store.Exact, a)
		if i%3 == 0 {
			one.add(id, store.Exact, a)
		} else {
			two.add(id, store.Exact, a)
		}
	}
	one.merge(two)
	if one.n != 2 {
		t.Fatalf("got %d rows", one.n)
	}
	for id := range uint32(2) {
		got, want := one.row(id, store.Exact), whole.row(id, store.Exact)
		if one.counts(got) != whole.counts(want) || string(got.v4.AppendBytes(nil)) != string(want.v4.AppendBytes(nil)) || string(got.v6.AppendBytes(nil)) != string(want.v6.AppendBytes(nil)) {
			t.Errorf("name %d: got %+v, want %+v", id, one.counts(got), whole.counts(want))
		}
	}
}

// A count goes past 32 bits when answers are added, and when tallies are merged.
func TestCountsHave64Bits(t *testing.T) {
	names, err := store.LoadDictionary(list(t, "a.example\nb.example\n"))
	if err != nil {
		t.Fatal(err)
	}
	one, two := newTally(names, 20, &pageList{}), newTally(names, 20, &pageList{})
	for _, tl := range []*tally{one, two} {
		for id := range uint32(2) {
			tl.row(id, store.Exact).counts = [numCounts]uint32{countMX: math.MaxUint32, countFail: math.MaxUint32 - 1}
			tl.add(id, store.Exact, answer{qtype: typeMX, qclass: classIN, rcode: rcodeServFail})
		}
	}
	one.add(0, store.Exact, answer{qtype: typeMX, qclass: classIN, rcode: rcodeServFail})
	one.merge(two)
	h := one.histogram(output.Interval{})
	f := func(id int, mx, fail uint64) {
		if got, want := h.Row(id).Counts, (output.Counts{MX: mx, Fail: fail}); got != want {
			t.Errorf("name %d: got %+v, want %+v", id, got, want)
		}
	}
	f(0, 2<<32+1, 2*(1<<32-1)+1)
	f(1, 2<<32, 2*(1<<32-1))
}

// A tally gets the pages of the one before it, and nothing of what it counted.
func TestTalliesUsePagesAgain(t *testing.T) {
	var text strings.Builder
	for i := range 3 * pageRows {
		fmt.Fprintf(&text, "n%d.example\n", i)
	}
	names, err := store.LoadDictionary(list(t, text.String()))
	if err != nil {
		t.Fatal(err)
	}
	var pages pageList
	for range 3 {
		tl := newTally(names, 20, &pages)
		if len(tl.index) != 3*pageRows {
			t.Fatalf("%d names", len(tl.index))
		}
		for id := range uint32(2*pageRows + 1) {
			tl.add(id, store.Exact, answer{qtype: typeA, qclass: classIN, client: uint64(id) + 1, family: 6})
		}
		h := tl.histogram(output.Interval{})
		if h.Rows != 2*pageRows+1 {
			t.Errorf("%d rows", h.Rows)
		}
		for i := range h.Rows {
			if row := h.Row(i); row.Counts != (output.Counts{A: 1, OK: 1}) || row.V6.Estimate() != 1 || !row.V4.IsEmpty() {
				t.Fatalf("row %d: %+v", i, row)
			}
		}
		tl.free()
		if len(pages.free) != 3 {
			t.Errorf("%d pages of 3", len(pages.free))
		}
	}
}

func TestTalliesOfTwoListsAreNotMerged(t *testing.T) {
	names := func() *store.Dictionary {
		d, err := store.LoadDictionary(list(t, "a.example\n"))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	defer func() {
		if recover() == nil {
			t.Error("they were")
		}
	}()
	newTally(names(), 20, &pageList{}).merge(newTally(names(), 20, &pageList{}))
}
