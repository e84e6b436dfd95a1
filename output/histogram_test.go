package output

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	testInterval = Interval{testStart, testStop}
	testMeta     = Meta{Version: "1.2.3", Node: "node-1"}
)

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; see what go test -update changes\n got:\n%s\nwant:\n%s", path, got, want)
	}
}

// openParquet opens a file and closes it when the test ends.
func openParquet(t *testing.T, path string) *parquet.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := parquet.OpenFile(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// schemaText returns a file's schema as it stands in its footer, a line a
// column: logical and converted types, and how the column is stored.
func schemaText(p *parquet.File) string {
	var b strings.Builder
	for i, e := range p.Metadata().Schema {
		if i == 0 {
			fmt.Fprintf(&b, "%s: %d columns\n", e.Name, e.NumChildren.V)
			continue
		}
		c := p.Metadata().RowGroups[0].Columns[i-1].MetaData
		fmt.Fprintf(&b, "%-19s %v %v", e.Name, e.RepetitionType.V, e.Type.V)
		if e.LogicalType.Value != nil {
			fmt.Fprintf(&b, " %v", &e.LogicalType)
		}
		if e.ConvertedType.Valid {
			fmt.Fprintf(&b, " (%v)", e.ConvertedType.V)
		}
		fmt.Fprintf(&b, " %v\n", c.Codec)
	}
	return b.String()
}

// readHistogram returns the rows of a file as text: values with a bar between
// them, NULL, and octets in hexadecimal.
func readHistogram(t *testing.T, path string) []string {
	t.Helper()
	r := parquet.NewReader(openParquet(t, path))
	defer r.Close()
	got := []string{}
	rows := make([]parquet.Row, 100)
	for {
		n, err := r.ReadRows(rows)
		for _, row := range rows[:n] {
			text := []string{}
			for _, v := range row {
				switch {
				case v.IsNull():
					text = append(text, "NULL")
				case v.Column() >= histogramColumns-2:
					text = append(text, fmt.Sprintf("%x", v.ByteArray()))
				case v.Kind() == parquet.ByteArray:
					text = append(text, string(v.ByteArray()))
				default:
					text = append(text, fmt.Sprint(v.Uint64()))
				}
			}
			got = append(got, strings.Join(text, "|"))
		}
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sketchOf returns a sketch of n clients.
func sketchOf(n int) *Sketch {
	s, r := new(Sketch), rand.New(rand.NewPCG(15, 16))
	for range n {
		s.Add(r.Uint64(), 20)
	}
	return s
}

func TestHistogramSchema(t *testing.T) {
	path, err := WriteHistogram(t.TempDir(), testMeta, histogramOf(testInterval, []HistogramRow{{Name: []byte{0}}}))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "histogram.schema", schemaText(openParquet(t, path)))
}

func TestHistogramMetadata(t *testing.T) {
	seen := map[string]bool{}
	f := func(iv Interval, interval, start string) {
		t.Helper()
		dir := t.TempDir()
		path, err := WriteHistogram(dir, testMeta, histogramOf(iv, []HistogramRow{{Name: []byte{0}}}))
		if err != nil {
			t.Fatal(err)
		}
		checkNames(t, dir, filepath.Base(path))
		p, got := openParquet(t, path), map[string]string{}
		for _, kv := range p.Metadata().KeyValueMetadata {
			got[kv.Key] = kv.Value
		}
		id := got["edm.file_id"]
		delete(got, "edm.file_id")
		if len(id) < 16 || seen[id] {
			t.Errorf("file id %q is not random", id)
		}
		seen[id] = true
		want := map[string]string{"edm.version": "1.2.3", "edm.node": "node-1", "edm.interval": interval}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("metadata %v, want %v", got, want)
		}
		if got, want := p.Metadata().CreatedBy, "edm version 1.2.3"; !strings.HasPrefix(got, want) {
			t.Errorf("created by %q, want %q", got, want)
		}
		micros, _, _ := strings.Cut(readHistogram(t, path)[0], "|")
		at, err := time.Parse(time.RFC3339, start)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint(at.UnixMicro()); micros != want {
			t.Errorf("start_time %s, want %s", micros, want)
		}
	}
	f(testInterval, "2026-11-30T10:00:00Z/PT1M", "2026-11-30T10:00:00Z")
	f(testInterval, "2026-11-30T10:00:00Z/PT1M", "2026-11-30T10:00:00Z")
	f(Interval{testStart.Add(23*time.Second + 999*time.Millisecond), testStop}, "2026-11-30T10:00:23Z/PT37S", "2026-11-30T10:00:23Z")
	f(Interval{testStart.Add(-5 * time.Second), testStop}, "2026-11-30T09:59:55Z/PT1M5S", "2026-11-30T09:59:55Z")
}

func TestHistogramValues(t *testing.T) {
	counts := Counts{A: 1, AAAA: 2, MX: 3, NS: 4, OtherType: 5, NonIN: 6, OK: 7, NX: 8, Fail: 9, OtherRcode: 1<<64 - 1}
	sparse, full := sketchOf(21), sketchOf(2000)
	rows := []HistogramRow{
		{Name: wire(t, "www.example.com."), Counts: counts, V4: sketchOf(20), V6: sketchOf(1)},
		{Name: wire(t, "example.com."), Counts: Counts{A: 10}, V4: sparse, V6: full},
		{Name: wire(t, "example.com."), Suffix: true, Counts: Counts{OK: 11}, V4: new(Sketch), V6: sparse},
		{Name: wire(t, "."), Counts: Counts{NS: 12}},
		{Name: wire(t, "a.b.c.d.e.f.g.h.i.j.k.l.deep.example."), Suffix: true, Counts: Counts{NX: 13}, V6: sketchOf(4)},
	}
	dir := t.TempDir()
	path, err := WriteHistogram(dir, testMeta, histogramOf(testInterval, rows))
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, testName+".parquet"); path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	checkNames(t, dir, testName+".parquet")
	const start = "1796032800000000|"
	want := []string{
		start + "NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL|0|0|0|12|0|0|0|0|0|0|1|0|0|NULL|NULL",
		start + "com|example|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL|10|0|0|0|0|0|0|0|0|0|1|" +
			fmt.Sprintf("%d|%d|%x|%x", sparse.Estimate(), full.Estimate(), sparse.AppendBytes(nil), full.AppendBytes(nil)),
		start + "com|example||NULL|NULL|NULL|NULL|NULL|NULL|NULL|0|0|0|0|0|0|11|0|0|0|2|0|" +
			fmt.Sprintf("%d|NULL|%x", sparse.Estimate(), sparse.AppendBytes(nil)),
		start + "com|example|www|NULL|NULL|NULL|NULL|NULL|NULL|NULL|1|2|3|4|5|6|7|8|9|18446744073709551615|1|20|1|NULL|NULL",
		start + "example|deep|l|k|j|i|h|g|f|e.d.c.b.a.|0|0|0|0|0|0|0|13|0|0|2|0|4|NULL|NULL",
	}
	if got := readHistogram(t, path); !slices.Equal(got, want) {
		t.Errorf(" got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// TestHistogramOrder writes names in any order and of more than one row group,
// and compares with rows sorted column by column.
func TestHistogramOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	labels := []string{"a", "b", "ab", "a-b", `a\.`, `a\.b`, `\000`, `\001`, `\255`, "0", "_x", "zz", "com", `a\ `, "~"}
	rows, columnsOf := []HistogramRow{}, map[string][]string{}
	for len(rows) < groupRows+batchRows+1 {
		text := ""
		for range r.IntN(14) {
			text += labels[r.IntN(len(labels))] + "."
		}
		if text == "" {
			text = "."
		}
		row := HistogramRow{Name: wire(t, text), Suffix: r.IntN(3) == 0}
		key := fmt.Sprint(text, row.Suffix)
		if columnsOf[key] != nil {
			continue
		}
		columnsOf[key] = columns(t, row.Name, row.Suffix)
		rows = append(rows, row)
	}
	path, err := WriteHistogram(t.TempDir(), testMeta, histogramOf(testInterval, rows))
	if err != nil {
		t.Fatal(err)
	}
	sorted := make([][]string, 0, len(rows))
	for _, c := range columnsOf {
		sorted = append(sorted, c)
	}
	slices.SortFunc(sorted, slices.Compare) // a shorter one first: NULL before any value
	got := readHistogram(t, path)
	if len(got) != len(sorted) {
		t.Fatalf("%d rows, want %d", len(got), len(sorted))
	}
	for i, c := range sorted {
		for len(c) < numLabels {
			c = append(c, "NULL")
		}
		if got := strings.Split(got[i], "|")[1 : 1+numLabels]; !slices.Equal(got, c) {
			t.Fatalf("row %d: %q, want %q", i, got, c)
		}
	}
	if got := len(openParquet(t, path).RowGroups()); got != 2 {
		t.Errorf("%d row groups, want 2", got)
	}
}

func TestHistogramWithoutRows(t *testing.T) {
	path, err := WriteHistogram(t.TempDir(), testMeta, histogramOf(testInterval, nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := readHistogram(t, path); len(got) != 0 {
		t.Errorf("%d rows, want none", len(got))
	}
}

func TestHistogramReturnsWriteErrors(t *testing.T) {
	dev, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for _, n := range []int{0, 1, batchRows, groupRows + 1} {
		if err := writeHistogram(dev, testMeta, histogramOf(testInterval, manyRows(n))); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d rows: %v, want %v", n, err, syscall.ENOSPC)
		}
	}
}

func TestHistogramLeavesNothingBehind(t *testing.T) {
	rows := manyRows(20_000)
	dir := full(t)
	for range 2 {
		path, err := WriteHistogram(dir, testMeta, histogramOf(testInterval, rows))
		if !errors.Is(err, syscall.ENOSPC) || path != "" {
			t.Errorf("%q, %v; want %v", path, err, syscall.ENOSPC)
		}
		checkNames(t, dir)
	}
	if _, err := WriteHistogram(dir, testMeta, histogramOf(testInterval, rows[:10])); err != nil {
		t.Error(err)
	}
}

func TestHistogramWithoutFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	path, err := WriteHistogram(dir, testMeta, histogramOf(testInterval, nil))
	if !errors.Is(err, os.ErrNotExist) || path != "" || !strings.HasPrefix(fmt.Sprint(err), "creating a histogram file: ") {
		t.Errorf("%q, %v; want %v", path, err, os.ErrNotExist)
	}
}

func histogramOf(iv Interval, rows []HistogramRow) Histogram {
	return Histogram{iv, len(rows), func(i int) HistogramRow { return rows[i] }}
}

// manyRows returns rows as a busy minute has them: few clients for most names,
// many for some.
func manyRows(n int) []HistogramRow {
	r := rand.New(rand.NewPCG(19, 20))
	rows := make([]HistogramRow, n)
	for i := range rows {
		first, second := fmt.Sprintf("host-%d", i%7), fmt.Sprintf("domain%d", r.IntN(1<<30))
		name := append([]byte{byte(len(first))}, first...)
		name = append(append(name, byte(len(second))), second...)
		name = append(name, "\x03com\x00"...)
		rows[i] = HistogramRow{Name: name, Counts: Counts{A: r.Uint64N(1000), OK: r.Uint64N(1000)}, V4: new(Sketch), V6: new(Sketch)}
		clients := 1 + r.IntN(5)
		if i%10 == 0 {
			clients = r.IntN(1000)
		}
		for range clients {
			rows[i].V4.Add(r.Uint64(), 20)
			rows[i].V6.Add(r.Uint64(), 20)
		}
	}
	return rows
}

func BenchmarkHistogram(b *testing.B) {
	rows := manyRows(100_000)
	b.ReportAllocs()
	for b.Loop() {
		dir := b.TempDir()
		path, err := WriteHistogram(dir, testMeta, histogramOf(testInterval, rows))
		if err != nil {
			b.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(st.Size())/float64(len(rows)), "B/row")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(rows)), "ns/row")
}
