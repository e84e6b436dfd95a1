package runner

import (
	"testing"

	"edm/store"
)

func TestTallyMergesWhatWorkersCounted(t *testing.T) {
	names, err := store.LoadDictionary(list(t, "a.example\nb.example\n"))
	if err != nil {
		t.Fatal(err)
	}
	whole, one, two := newTally(names, 20), newTally(names, 20), newTally(names, 20)
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
	if len(one.rows) != 2 {
		t.Fatalf("got %d rows", len(one.rows))
	}
	for id := range uint32(2) {
		got, want := one.row(id, store.Exact), whole.row(id, store.Exact)
		if got.counts != want.counts || string(got.v4.AppendBytes(nil)) != string(want.v4.AppendBytes(nil)) || string(got.v6.AppendBytes(nil)) != string(want.v6.AppendBytes(nil)) {
			t.Errorf("name %d: got %+v, want %+v", id, got.counts, want.counts)
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
	newTally(names(), 20).merge(newTally(names(), 20))
}
