package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/segmentio/go-hll"
	"github.com/twmb/murmur3"
	"github.com/yawning/cryptopan"
	"golang.org/x/crypto/argon2"
)

// A row is one row of a parquet file: a string for a text column, []byte for
// other bytes, uint64 or int64 for numbers (times are microseconds), nil for
// NULL.
type row map[string]any

func (r row) u(column string) uint64 {
	v, _ := r[column].(uint64)
	return v
}

// name joins the labels to a name with a final dot; a suffix entry begins with
// a dot.
func (r row) name() string {
	name := ""
	for i := range 10 {
		label, ok := r[fmt.Sprint("label", i)].(string)
		if !ok {
			break
		}
		if i == 9 { // the rest, from the top down as the columns are
			parts := strings.Split(label, ".")
			slices.Reverse(parts)
			label = strings.Join(parts, ".")
		}
		name = label + "." + name
	}
	if name == "" {
		return "."
	}
	return name
}

// files returns the finished parquet files of a kind, oldest first, and fails
// the test if a temporary one is left behind.
func (d *daemon) files(t testing.TB, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(d.dir, "parquet", pattern))
	if err != nil {
		t.Fatal(err)
	}
	hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Join(d.dir, "parquet", pattern)), ".*"))
	if len(hidden) > 0 {
		t.Errorf("left behind: %v", hidden)
	}
	return paths
}

func (d *daemon) histogramFiles(t testing.TB) []string {
	t.Helper()
	return d.files(t, "histograms/outbox/dns_histogram-*.parquet")
}

func (d *daemon) sessionFiles(t testing.TB) []string {
	t.Helper()
	return d.files(t, "sessions/dns_session_block-*.parquet")
}

func readAll(t testing.TB, paths []string) []row {
	t.Helper()
	var rows []row
	for _, path := range paths {
		rows = append(rows, readParquet(t, path)...)
	}
	return rows
}

// readParquet reads a whole file with parquet-go.
func readParquet(t testing.TB, path string) []row {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	columns := file.Schema().Columns()
	r := parquet.NewReader(file)
	defer r.Close()
	buf := make([]parquet.Row, file.NumRows())
	var rows []row
	for len(rows) < len(buf) {
		n, err := r.ReadRows(buf)
		if n == 0 {
			t.Fatalf("%s: %d of %d rows: %v", path, len(rows), len(buf), err)
		}
		for _, values := range buf[:n] {
			got := make(row, len(columns))
			for _, v := range values {
				leaf, _ := file.Schema().Lookup(columns[v.Column()]...)
				got[columns[v.Column()][0]] = cell(v, leaf.Node.Type().LogicalType())
			}
			rows = append(rows, got)
		}
	}
	return rows
}

func cell(v parquet.Value, logical *format.LogicalType) any {
	if v.IsNull() {
		return nil
	}
	var kind format.LogicalTypeValue
	if logical != nil {
		kind = logical.Value
	}
	switch kind := kind.(type) {
	case *format.StringType:
		return string(v.ByteArray())
	case *format.IntType:
		if !kind.IsSigned && v.Kind() == parquet.Int32 {
			return uint64(v.Uint32())
		}
		if !kind.IsSigned {
			return v.Uint64()
		}
	}
	switch v.Kind() {
	case parquet.ByteArray:
		return slices.Clone(v.ByteArray())
	case parquet.Int64:
		return v.Int64()
	}
	return fmt.Sprintf("unexpected kind %v, logical type %v", v.Kind(), logical)
}

// pan is the oracle for pseudonyms: another implementation of Crypto-PAn, with
// the key that the contract derives from the settings.
var pan = sync.OnceValue(func() *cryptopan.Cryptopan {
	c, err := cryptopan.New(argon2.IDKey([]byte(testKey), []byte(testSalt), 1, 64*1024, 4, 32))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return c
})

// pseudonym returns what edm must write instead of an address.
func pseudonym(a netip.Addr) netip.Addr {
	p, ok := netip.AddrFromSlice(pan().Anonymize(a.Unmap().AsSlice()))
	if !ok {
		panic("BUG: cryptopan made no address")
	}
	if a.Unmap().Is4() {
		return p.Unmap() // the library returns IPv4 as 16 bytes
	}
	return p
}

// setAddress fills the columns of an address: source or dest.
func (r row) setAddress(which string, a netip.Addr) {
	b := pseudonym(a).AsSlice()
	if len(b) == 4 {
		r[which+"_ipv4"] = uint64(binary.BigEndian.Uint32(b))
		return
	}
	r[which+"_ipv6_network"] = binary.BigEndian.Uint64(b)
	r[which+"_ipv6_host"] = binary.BigEndian.Uint64(b[8:])
}

// sketch is the oracle for client sketches.
func sketch(clients []netip.Addr) (bytes []byte, count uint64) {
	h, err := hll.NewHll(hll.Settings{Log2m: 10, Regwidth: 4, ExplicitThreshold: 20, SparseEnabled: true})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	distinct := make(map[netip.Addr]bool)
	for _, c := range clients {
		distinct[c] = true
		low, _ := murmur3.Sum128(pseudonym(c).AsSlice())
		h.AddRaw(low)
	}
	if len(distinct) <= 20 {
		return nil, h.Cardinality() // explicit sketches are not written
	}
	return h.ToBytes(), h.Cardinality()
}

// compareRows compares rows without regard to their order, and prints those
// that only one side has.
func compareRows(t testing.TB, what string, got, want []row) {
	t.Helper()
	lines := func(rows []row) []string {
		var ls []string
		for _, r := range rows {
			ls = append(ls, r.String())
		}
		slices.Sort(ls)
		return ls
	}
	g, w := lines(got), lines(want)
	if slices.Equal(g, w) {
		return
	}
	t.Errorf("%s: %d rows, want %d", what, len(g), len(w))
	left := 10 // lines to print
	for _, side := range []struct {
		say     string
		of, not []string
	}{{"not wanted", g, w}, {"missing", w, g}} {
		seen := make(map[string]int)
		for _, l := range side.not {
			seen[l]++
		}
		for _, l := range side.of {
			if seen[l]--; seen[l] < 0 && left > 0 {
				left--
				t.Logf("%s: %s", side.say, l)
			}
		}
	}
}

// String shows a row without its NULLs, in the order of the columns' names.
func (r row) String() string {
	var cells []string
	for column, v := range r {
		switch v := v.(type) {
		case nil:
		case []byte:
			cells = append(cells, fmt.Sprintf("%s=x%x", column, v))
		default:
			cells = append(cells, fmt.Sprintf("%s=%v", column, v))
		}
	}
	slices.Sort(cells)
	return strings.Join(cells, " ")
}
