package output

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"

	"edm/cryptopan"
)

const sessionName = "dns_session_block-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet"

// writeSession writes blocks of rows, each of so many, as one file and returns
// its path.
func writeSession(t testing.TB, dir string, rows []Row, perBlock int) string {
	t.Helper()
	s, err := CreateSession(dir, testStart)
	if err != nil {
		t.Fatal(err)
	}
	var b Block
	for part := range slices.Chunk(rows, perBlock) {
		b.Reset()
		for i := range part {
			b.Append(&part[i])
		}
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	if s.Rows() != len(rows) || s.Failed() {
		t.Errorf("%d rows written of %d, failed %v", s.Rows(), len(rows), s.Failed())
	}
	path, err := s.Commit(testMeta, testStop)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSessionSchema(t *testing.T) {
	row := testRow(t, testCipher(t))
	golden(t, "session.schema", schemaText(openParquet(t, writeSession(t, t.TempDir(), []Row{row}, 1))))
}

func TestSessionMetadata(t *testing.T) {
	dir := t.TempDir()
	rows := []Row{testRow(t, testCipher(t))}
	ids := map[string]bool{}
	for i, want := range []string{sessionName, strings.Replace(sessionName, ".parquet", "_2.parquet", 1)} {
		path := writeSession(t, dir, rows, 1)
		if filepath.Base(path) != want {
			t.Errorf("file %d is %s, want %s", i, path, want)
		}
		p := openParquet(t, path)
		for key, want := range map[string]string{"edm.version": "^1.2.3$", "edm.node": "^node-1$", "edm.interval": "^2026-11-30T10:00:00Z/PT1M$", "edm.file_id": "^[A-Z2-7]{26}$"} {
			if got, ok := p.Lookup(key); !ok || !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("%s is %q, want %s", key, got, want)
			}
		}
		id, _ := p.Lookup("edm.file_id")
		ids[id] = true
		if n := len(p.Metadata().KeyValueMetadata); n != 4 {
			t.Errorf("%d entries: %v", n, p.Metadata().KeyValueMetadata)
		}
		if got := p.Metadata().CreatedBy; !strings.HasPrefix(got, "edm") {
			t.Errorf("created by %q", got)
		}
	}
	if len(ids) != 2 {
		t.Error("two files have the same id")
	}
}

// sessionText is what a row is to be read as: its columns in the order of the
// file, made without the code that is tested.
func sessionText(t testing.TB, r *Row) string {
	t.Helper()
	columns := make([]string, 24)
	for i := range columns {
		columns[i] = "NULL"
	}
	name, _, err := dns.UnpackDomainName(r.Name, 0)
	if err != nil {
		t.Fatal(err)
	}
	labels := dns.SplitDomainName(name)
	slices.Reverse(labels)
	if len(labels) > 10 {
		labels = append(labels[:9:9], strings.Join(labels[9:], "."))
	}
	for i, l := range labels {
		columns[i] = fmt.Sprintf("%q", l)
	}
	bytesColumn := func(i int, b []byte) {
		if b != nil {
			columns[i] = fmt.Sprintf("%q", b)
		}
	}
	bytesColumn(10, r.ServerID)
	bytesColumn(23, r.Response)
	number := func(i int, has Fields, n int64) {
		if r.Has&has != 0 {
			columns[i] = fmt.Sprint(n)
		}
	}
	number(11, HasQueryTime, r.QueryTime)
	number(12, HasResponseTime, r.ResponseTime)
	number(19, HasSourcePort, int64(r.SourcePort))
	number(20, HasDestPort, int64(r.DestPort))
	number(21, HasProtocol, int64(r.Protocol))
	address := func(p cryptopan.Pseudonym, v4, v6 int) {
		switch b := p.AppendTo(nil); len(b) {
		case 4:
			columns[v4] = fmt.Sprint(binary.BigEndian.Uint32(b))
		case 16:
			columns[v6] = fmt.Sprint(binary.BigEndian.Uint64(b))
			columns[v6+1] = fmt.Sprint(binary.BigEndian.Uint64(b[8:]))
		}
	}
	address(r.Source, 13, 15)
	address(r.Dest, 14, 17)
	return strings.Join(columns, " ")
}

// readSession returns the rows of a file in the form of sessionText, and how
// many each row group has.
func readSession(t testing.TB, path string) (text []string, groups []int) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := parquet.OpenFile(file, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range p.RowGroups() {
		groups = append(groups, int(g.NumRows()))
		r := g.Rows()
		defer r.Close()
		rows := make([]parquet.Row, 100)
		for {
			n, err := r.ReadRows(rows)
			for _, row := range rows[:n] {
				columns := make([]string, len(row))
				for i, v := range row {
					switch {
					case v.IsNull():
						columns[i] = "NULL"
					case v.Kind() == parquet.ByteArray:
						columns[i] = fmt.Sprintf("%q", v.ByteArray())
					case i == 13 || i == 14 || 19 <= i && i <= 21:
						columns[i] = fmt.Sprint(v.Uint32())
					case 15 <= i && i <= 18:
						columns[i] = fmt.Sprint(v.Uint64())
					default:
						columns[i] = fmt.Sprint(v.Int64())
					}
				}
				text = append(text, strings.Join(columns, " "))
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return text, groups
}

// checkSession holds that a file has just these rows.
func checkSession(t *testing.T, path string, rows []Row) (groups []int) {
	t.Helper()
	got, groups := readSession(t, path)
	if len(got) != len(rows) {
		t.Errorf("%d rows, want %d", len(got), len(rows))
	}
	for i := range min(len(got), len(rows)) {
		if want := sessionText(t, &rows[i]); got[i] != want {
			t.Fatalf("row %d:\n got %s\nwant %s", i, got[i], want)
		}
	}
	return groups
}

// randomRow draws a row in which everything may be absent, zero or at its
// limit.
func randomRow(r *rand.Rand, c *cryptopan.Cipher) (row Row) {
	row.Has = Fields(r.IntN(32))
	row.Protocol = uint8(r.IntN(3) * 127)
	row.SourcePort, row.DestPort = uint16(r.IntN(2)*r.IntN(65536)), uint16(r.IntN(2)*65535)
	row.QueryTime, row.ResponseTime = r.Int64()*int64(r.IntN(2)), r.Int64N(4e15)
	address := func() (p cryptopan.Pseudonym) {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		switch r.IntN(5) {
		case 0, 1:
			p = c.Pseudonym(netip.AddrFrom4([4]byte(b[:4])))
		case 2, 3:
			p = c.Pseudonym(netip.AddrFrom16(b))
		}
		return p
	}
	row.Source, row.Dest = address(), address()
	content := func(most int) []byte {
		if r.IntN(4) == 0 {
			return nil
		}
		b := make([]byte, r.IntN(most))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	row.ServerID = content(10)
	if r.IntN(2) == 0 {
		row.ServerID = []byte("resolver")
	}
	row.Response = content(300)
	size := 1 + r.IntN(255)
	longest := 1 + r.IntN(63)
	for len(row.Name)+2 < size {
		n := 1 + r.IntN(min(longest, size-len(row.Name)-2))
		row.Name = append(row.Name, byte(n))
		for range n {
			b := byte(r.Uint32())
			if 'A' <= b && b <= 'Z' {
				b += 'a' - 'A'
			}
			row.Name = append(row.Name, b)
		}
	}
	row.Name = append(row.Name, 0)
	return row
}

func TestSessionValues(t *testing.T) {
	c := testCipher(t)
	var rows []Row
	add := func(change func(*Row)) {
		row := testRow(t, c)
		change(&row)
		rows = append(rows, row)
	}
	add(func(*Row) {})
	add(func(r *Row) { *r = Row{Name: []byte{0}} }) // all NULL
	add(func(r *Row) { *r = Row{Has: 31, Name: []byte{0}, ServerID: []byte{}, Response: []byte{}} })
	add(func(r *Row) {
		r.Source, r.Dest = c.Pseudonym(netip.MustParseAddr("2001:db8::1")), c.Pseudonym(netip.MustParseAddr("2001:db8::53"))
	})
	add(func(r *Row) { r.Source = cryptopan.Pseudonym{} })
	add(func(r *Row) { r.SourcePort, r.DestPort, r.Protocol = 65535, 65535, 255 })
	add(func(r *Row) { r.QueryTime, r.ResponseTime = -1, 1<<63-1 })
	for _, name := range []string{
		"com.", "a.b.c.d.e.f.g.h.i.example.", "a.b.c.d.e.f.g.h.i.j.example.", "a.b.c.d.e.f.g.h.i.j.k.l.deep.example.",
		`a\.b.c\ d.e\009\000\255.\"quoted\".example.`,
		strings.Repeat("a.", 127), // as many labels as a name can have
		strings.Repeat(`\000.`, 127),
		strings.Repeat(strings.Repeat("b", 63)+".", 3) + strings.Repeat("c", 61) + ".", // as long as a name can be
		strings.Repeat(strings.Repeat(`\001`, 63)+".", 3) + strings.Repeat(`\\`, 61) + ".",
	} {
		add(func(r *Row) { r.Name = wire(t, name) })
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		rows = append(rows, randomRow(random, c))
	}
	for _, perBlock := range []int{len(rows), 513, 512, 511} {
		if groups := checkSession(t, writeSession(t, t.TempDir(), rows, perBlock), rows); len(groups) != 1 {
			t.Errorf("%d rows a block: %d row groups", perBlock, len(groups))
		}
	}
	checkSession(t, writeSession(t, t.TempDir(), rows[:100], 1), rows[:100])
}

// Row groups have 64k rows or 8 MiB of bytes, and all blocks of an interval are
// in one file.
func TestSessionRowGroups(t *testing.T) {
	row := testRow(t, testCipher(t))
	t.Run("of rows", func(t *testing.T) { testRowGroups(t, row, sessionGroupRows) })
	row.Response = bytes.Repeat([]byte{1}, 1024)
	t.Run("of bytes", func(t *testing.T) { testRowGroups(t, row, sessionGroupBytes/1024) })
}

// testRowGroups writes a row so often that there are three groups.
func testRowGroups(t *testing.T, row Row, most int) {
	dir := t.TempDir()
	s, err := CreateSession(dir, testStart)
	if err != nil {
		t.Fatal(err)
	}
	var b Block
	want := 0
	for ; want < 5*most/2; want += b.Len() {
		for b.Reset(); !b.Full() && (want > 0 || b.Len() < 100); { // the first one is as at the end of a minute
			b.Append(&row)
		}
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	checkNames(t, dir, ".dns_session_block-2026-11-30T10-00-00Z.parquet") // nobody sees it yet
	path, err := s.Commit(testMeta, testStop)
	if err != nil {
		t.Fatal(err)
	}
	checkNames(t, dir, sessionName)
	p := openParquet(t, path)
	rows, groups := 0, p.RowGroups()
	for i, g := range groups {
		rows += int(g.NumRows())
		if n := int(g.NumRows()); n > most || i < len(groups)-1 && n <= most-2*b.Len() {
			t.Errorf("row group %d of %d has %d rows", i, len(groups), n)
		}
	}
	if rows != want || s.Rows() != want {
		t.Errorf("%d rows, want %d", rows, want)
	}
	if st, err := os.Stat(path); err != nil || st.Sys().(*syscall.Stat_t).Blocks*512 > st.Size()+64<<10 {
		t.Errorf("%d octets take %d on the disk, %v", st.Size(), st.Sys().(*syscall.Stat_t).Blocks*512, err)
	}
}

// Memory does not grow with the file, but for a row group's part of the footer.
func TestSessionMemory(t *testing.T) {
	const groups = 8
	c := testCipher(t)
	random := rand.New(rand.NewPCG(3, 4))
	const most = 60 << 20
	f := func(name string, draw func(*Row)) {
		t.Run(name, func(t *testing.T) {
			row := testRow(t, c)
			s, err := CreateSession(t.TempDir(), testStart)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Abort()
			var b Block
			var first, highest uint64
			for s.groups < groups {
				for b.Reset(); !b.Full(); {
					draw(&row)
					b.Append(&row)
				}
				if err := s.Write(&b); err != nil {
					t.Fatal(err)
				}
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				highest = max(highest, m.HeapAlloc)
				if s.groups < 2 {
					first = highest
				}
			}
			if highest > first+4<<20+groups*reserveGroup || highest > most {
				t.Errorf("%d KiB of heap with two groups, %d KiB at the highest", first>>10, highest>>10)
			}
		})
	}
	f("usual rows", func(r *Row) { r.QueryTime++ })
	message := make([]byte, 200)
	f("random messages", func(r *Row) {
		r.Response = message
		for i := 0; i < len(message); i += 8 {
			binary.LittleEndian.PutUint64(message[i:], random.Uint64())
		}
	})
	id := bytes.Repeat([]byte("resolver"), 250)
	f("a long server id", func(r *Row) { r.ServerID = id })
}

// What is reserved for a block is enough for whatever is in it.
func TestSessionReservesEnough(t *testing.T) {
	c := testCipher(t)
	source := rand.NewChaCha8([32]byte{5})
	random := rand.New(source)
	noise := func(n int) []byte {
		b := make([]byte, n)
		source.Read(b)
		return b
	}
	f := func(name string, draw func() Row) {
		t.Run(name, func(t *testing.T) {
			s, err := CreateSession(t.TempDir(), testStart)
			if err != nil {
				t.Fatal(err)
			}
			var b Block
			for range 2 {
				for b.Reset(); !b.Full() && b.Len() < 5000; {
					row := draw()
					b.Append(&row)
				}
				before, room := s.written, s.room(&b)
				if err := s.Write(&b); err != nil {
					t.Fatal(err)
				}
				if s.written-before > room {
					t.Errorf("%d rows take %d octets, %d were reserved", b.Len(), s.written-before, room)
				}
			}
			b.Reset()
			row := draw()
			b.Append(&row)
			before, room := s.written, s.room(&b)
			if err := s.Write(&b); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(testMeta, testStop); err != nil {
				t.Fatal(err)
			}
			if s.written-before > room {
				t.Errorf("the last row and the end of the file take %d octets, %d were reserved", s.written-before, room)
			}
		})
	}
	address := func() cryptopan.Pseudonym { return c.Pseudonym(netip.AddrFrom16([16]byte(noise(16)))) }
	full := func() Row {
		return Row{
			Has: 31, Protocol: uint8(random.Uint32()), SourcePort: uint16(random.Uint32()), DestPort: uint16(random.Uint32()),
			QueryTime: random.Int64(), ResponseTime: random.Int64(), Source: address(), Dest: address(),
			Name: []byte{0}, ServerID: noise(8), Response: noise(1),
		}
	}
	f("everything random and short", full)
	f("every other NULL", func() Row {
		if random.IntN(2) == 0 {
			return Row{Name: []byte{0}}
		}
		return full()
	})
	f("ten labels", func() Row {
		r := full()
		r.Name = nil
		for range 10 {
			r.Name = append(r.Name, 1, byte('a'+random.IntN(26)))
		}
		r.Name = append(r.Name, 0)
		return r
	})
	f("long labels of odd octets", func() Row {
		r := full()
		r.Name = append(append(append(append([]byte{63}, noise(63)...), 63), noise(63)...), 0)
		return r
	})
	f("messages of 64 KiB", func() Row { r := full(); r.Response = noise(65535); return r })
	f("nothing", func() Row { return Row{Name: []byte{0}} })
	f("one server id of some length", func() Row { r := full(); r.ServerID = bytes.Repeat([]byte{'x'}, 255); return r })
	id := noise(200)
	f("one server id that cannot be compressed", func() Row { r := full(); r.ServerID = id; return r })
}

// On a full disk a block is refused and nothing else: the file goes on when
// there is room, and holds the rows that were taken.
func TestSessionOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("a full disk needs a tmpfs, and mounting one needs root: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("a file was left open in %s: %v", dir, err)
		}
	}()
	c := testCipher(t)
	random := rand.New(rand.NewPCG(7, 8))
	s, err := CreateSession(dir, testStart)
	if err != nil {
		t.Fatal(err)
	}
	var taken []Row
	var b Block
	write := func(rows int) error {
		b.Reset()
		var block []Row
		for range rows {
			row := randomRow(random, c)
			block = append(block, row)
			b.Append(&row)
		}
		err := s.Write(&b)
		if err == nil {
			taken = append(taken, block...)
		}
		return err
	}
	if err := write(1000); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "other")
	fill := func() {
		f, err := os.Create(big)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
	}
	for range 3 {
		fill()
		for range 3 {
			if err := write(1000); !errors.Is(err, unix.ENOSPC) || s.Failed() {
				t.Fatalf("got %v, failed %v", err, s.Failed())
			}
		}
		if s.Rows() != len(taken) {
			t.Errorf("%d rows, want %d", s.Rows(), len(taken))
		}
		if err := os.Remove(big); err != nil {
			t.Fatal(err)
		}
		if err := write(500); err != nil {
			t.Fatal(err)
		}
	}
	fill() // the end of the file has room all the same
	path, err := s.Commit(testMeta, testStop)
	if err != nil {
		t.Fatal(err)
	}
	checkNames(t, dir, sessionName, "other")
	checkSession(t, path, taken)

	// There is not even room to begin another.
	os.Remove(big)
	fill()
	if s, err := CreateSession(dir, testStart); err == nil {
		b.Reset()
		row := randomRow(random, c)
		b.Append(&row)
		if err := s.Write(&b); !errors.Is(err, unix.ENOSPC) || s.Failed() || s.Rows() != 0 {
			t.Errorf("got %v", err)
		}
		s.Abort()
	} else if !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	checkNames(t, dir, sessionName, "other")
}

// Where room cannot be reserved, a write may fail half-way. Then the file is of
// no more use, says so, and is never seen.
func TestSessionFailsHalfWay(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	c := testCipher(t)
	random := rand.New(rand.NewPCG(9, 10))
	dir := t.TempDir()
	s, err := CreateSession(dir, testStart)
	if err != nil {
		t.Fatal(err)
	}
	var b Block
	fill := func(rows int) {
		b.Reset()
		for range rows {
			row := randomRow(random, c)
			b.Append(&row)
		}
	}
	fill(2000)
	var first error
	for s.groups == 0 {
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	small := limit
	small.Cur = uint64(s.written) + 100
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
	rows := 0
	for first == nil && s.groups < 3 {
		rows = s.Rows()
		first = s.Write(&b)
	}
	if !errors.Is(first, unix.EFBIG) || !s.Failed() || s.Rows() != rows {
		t.Errorf("got %v, failed %v, %d rows, want %d", first, s.Failed(), s.Rows(), rows)
	}
	if err := s.Write(&b); err != first {
		t.Errorf("the next write: %v, want %v", err, first)
	}
	if path, err := s.Commit(testMeta, testStop); err != first {
		t.Errorf("Commit: %s, %v", path, err)
	}
	s.Abort()
	checkNames(t, dir)
}

// The folder may go away, or become one that nothing can be written to.
func TestSessionFolderGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sessions")
	if s, err := CreateSession(dir, testStart); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, %v", s, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := CreateSession(dir, testStart)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	var b Block
	row := testRow(t, testCipher(t))
	b.Append(&row)
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	if path, err := s.Commit(testMeta, testStop); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %s, %v", path, err)
	}
}

func TestSessionAbort(t *testing.T) {
	dir := t.TempDir()
	s, err := CreateSession(dir, testStart)
	if err != nil {
		t.Fatal(err)
	}
	var b Block
	row := testRow(t, testCipher(t))
	b.Append(&row)
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	s.Abort()
	s.Abort()
	checkNames(t, dir)
}

// BenchmarkSession measures a row from Append to the file.
func BenchmarkSession(b *testing.B) {
	c := testCipher(b)
	random := rand.New(rand.NewPCG(11, 12))
	rows := make([]Row, 4096)
	for i := range rows {
		rows[i] = testRow(b, c)
		rows[i].Source = c.Pseudonym(netip.AddrFrom4([4]byte{10, 0, byte(random.Uint32()), byte(random.Uint32())}))
		rows[i].Name = wire(b, fmt.Sprintf("host-%d.example%d.com.", random.IntN(1e6), random.IntN(1e4)))
		rows[i].Response = append(wire(b, "www.example.com."), make([]byte, 60+random.IntN(200))...)
	}
	s, err := CreateSession(b.TempDir(), testStart)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Abort()
	var block Block
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		block.Append(&rows[n%len(rows)])
		if block.Full() {
			if err := s.Write(&block); err != nil {
				b.Fatal(err)
			}
			block.Reset()
		}
	}
}
