package output

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"edm/cryptopan"
)

// testCipher makes the pseudonyms of the tests.
func testCipher(t testing.TB) *cryptopan.Cipher {
	t.Helper()
	c, err := cryptopan.New([]byte("key"), []byte("salt of the tests"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// testRow is a row with everything set, as an IPv4 client's.
func testRow(t testing.TB, c *cryptopan.Cipher) Row {
	return Row{
		Has:      HasQueryTime | HasResponseTime | HasSourcePort | HasDestPort | HasProtocol,
		Protocol: 1, SourcePort: 40000, DestPort: 53,
		QueryTime: 1_796_034_000_123_456, ResponseTime: 1_796_034_000_133_456,
		Source: c.Pseudonym(netip.MustParseAddr("198.51.100.7")), Dest: c.Pseudonym(netip.MustParseAddr("192.0.2.53")),
		Name: wire(t, "www.example.com."), ServerID: []byte("resolver"), Response: []byte("a message"),
	}
}

// A block keeps nothing of what it is given but copies.
func TestBlockCopies(t *testing.T) {
	row := testRow(t, testCipher(t))
	var b Block
	b.Append(&row)
	for _, p := range [][]byte{row.Name, row.ServerID, row.Response} {
		for i := range p {
			p[i] = 0xCC
		}
	}
	row = Row{}
	r := &b.rows[0]
	got := fmt.Sprintf("%s %s %s %s %s", b.label(r, 0), b.label(r, 1), b.label(r, 2), b.slice(r.server), b.slice(r.response))
	if want := "com example www resolver a message"; got != want || r.labels != 3 {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What is absent is not what is empty, also behind a row that has the other.
func TestBlockAbsentAndEmpty(t *testing.T) {
	ids := [][]byte{nil, {}, nil, []byte("a"), []byte("a"), {}, {}, nil, nil, []byte("b"), []byte("a")}
	var b Block
	for _, id := range ids {
		b.Append(&Row{Name: []byte{0}, ServerID: id, Response: id})
	}
	for i, id := range ids {
		for what, s := range map[string]span{"server id": b.rows[i].server, "response": b.rows[i].response} {
			if got := b.slice(s); !bytes.Equal(got, id) || (s == null) != (id == nil) {
				t.Errorf("row %d: %s is %q (absent %v), want %q (absent %v)", i, what, got, s == null, id, id == nil)
			}
		}
	}
}

// A block says that it is full when it has enough rows or enough octets, and
// takes the row that made it full.
func TestBlockFull(t *testing.T) {
	f := func(name string, row Row, want int) {
		t.Run(name, func(t *testing.T) {
			var b Block
			for range 2 {
				for !b.Full() {
					b.Append(&row)
				}
				if b.Len() != want {
					t.Errorf("full with %d rows, want %d", b.Len(), want)
				}
				if cap(b.rows) != blockRows || len(row.Response) <= 64<<10 && cap(b.bytes) != blockBytes+maxRowBytes {
					t.Errorf("room for %d rows and %d octets", cap(b.rows), cap(b.bytes))
				}
				b.Reset()
				if b.Len() != 0 || b.Full() {
					t.Errorf("%d rows after Reset", b.Len())
				}
			}
		})
	}
	f("of rows", Row{Name: []byte{0}}, blockRows)
	f("of messages", Row{Name: []byte{0}, Response: make([]byte, 1024)}, blockBytes/1024)
	f("of largest messages", Row{Name: []byte{0}, Response: make([]byte, 65535)}, blockBytes/65535+1)
	f("of a message too large to be one", Row{Name: []byte{0}, Response: make([]byte, blockBytes+1)}, 1)
}

// A server's name stands once for all rows that follow one another, but not
// when it is so long that the rows would be too large for one row group.
func TestBlockServerID(t *testing.T) {
	f := func(size, rows int) {
		t.Helper()
		var b Block
		row := Row{Name: []byte{0}, ServerID: make([]byte, size)}
		for n := 0; n < rows && !b.Full(); n++ {
			b.Append(&row)
		}
		// What goes to the file's columns is held in memory until the group is
		// written.
		written := 0
		for i := range b.rows {
			written += len(b.slice(b.rows[i].server))
		}
		blocks := min(sessionGroupRows/b.Len(), sessionGroupBytes/len(b.bytes)) + 1
		if written*blocks > 20<<20 {
			t.Errorf("%d rows with a server id of %d octets: %d octets to write in one group", b.Len()*blocks, size, written*blocks)
		}
	}
	f(8, blockRows)
	f(100, blockRows)
	f(255, blockRows)
	f(5000, blockRows)
	f(65000, blockRows)
	f(262144, blockRows)

	var b Block
	for range 1000 {
		b.Append(&Row{Name: []byte{0}, ServerID: []byte("resolver.example")})
	}
	if n := len(b.bytes); n > 100 {
		t.Errorf("the same short id of 1000 rows takes %d octets", n)
	}
}

func TestBlockDoesNotAllocate(t *testing.T) {
	row := testRow(t, testCipher(t))
	var b Block
	b.Append(&row)
	if n := testing.AllocsPerRun(10, func() {
		b.Reset()
		for !b.Full() {
			b.Append(&row)
		}
	}); n > 0 {
		t.Errorf("%v allocations to fill a block", n)
	}
}
