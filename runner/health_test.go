package runner

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
)

// One line says that something went wrong and one that it is right again,
// however often it is told.
func TestHealth(t *testing.T) {
	var book logBook
	log := NewLogger(&book, false)
	var h health
	f := func(want ...string) {
		t.Helper()
		if got := h.list(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	logged := func(degraded, recovered int) {
		t.Helper()
		if d, r := len(book.entries("degraded")), len(book.entries("recovered")); d != degraded || r != recovered {
			t.Errorf("%d and %d lines, want %d and %d:\n%s", d, r, degraded, recovered, &book)
		}
	}
	f()
	h.clear(log, "session")
	logged(0, 0)
	for i := range 5 {
		h.set(log, "session", fmt.Sprintf("no room %d", i))
	}
	f("session: no room 4")
	logged(1, 0)
	h.set(log, "histogram", "no room")
	f("histogram: no room", "session: no room 4")
	h.clear(log, "session")
	h.clear(log, "session")
	f("histogram: no room")
	logged(2, 1)
	h.set(log, "session", "again")
	h.clear(log, "histogram")
	f("session: again")
	logged(3, 2)
	if e := book.entries("degraded")[0]; e["level"] != "error" || e["part"] != "session" || e["problem"] != "no room 0" {
		t.Errorf("logged %v", e)
	}
}

func TestHealthFromManyGoroutines(t *testing.T) {
	var book logBook
	log := NewLogger(&book, false)
	var h health
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			part := fmt.Sprint(i)
			for range 100 {
				h.set(log, part, "problem")
				h.list()
				h.clear(log, part)
			}
		})
	}
	wg.Wait()
	if d, r := len(book.entries("degraded")), len(book.entries("recovered")); d != 400 || r != 400 || h.list() != nil {
		t.Errorf("%d and %d lines, left %q", d, r, h.list())
	}
}
