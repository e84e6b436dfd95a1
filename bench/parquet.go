package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// A row is a row of a parquet file without nested columns.
type row struct {
	columns map[string]int // of its file
	values  parquet.Row
}

func (r row) value(column string) parquet.Value {
	i, ok := r.columns[column]
	if !ok {
		panic("BUG: no column " + column)
	}
	return r.values[i]
}

func (r row) number(column string) int { return int(r.value(column).Uint64()) }

// questions is the sum of a histogram row's counts by type.
func (r row) questions() (sum int) {
	for _, kind := range []string{"a", "aaaa", "mx", "ns", "other_type", "non_in"} {
		sum += r.number(kind + "_count")
	}
	return sum
}

// name joins the label columns as people write names: the top level last. An
// empty label stands for everything below a suffix.
func (r row) name() string {
	var parts []string
	for i := range 10 {
		v := r.value(fmt.Sprint("label", i))
		if v.IsNull() {
			break
		}
		parts = append(parts, strings.Split(string(v.ByteArray()), ".")...) // the last column may hold several
	}
	if len(parts) == 0 {
		return "."
	}
	slices.Reverse(parts)
	if parts[0] == "" {
		parts[0] = "*"
	}
	return strings.Join(parts, ".")
}

// client writes a session row's client, a pseudonym, as the address that it
// looks like.
func (r row) client() string {
	v4, network, host := r.value("source_ipv4"), r.value("source_ipv6_network"), r.value("source_ipv6_host")
	switch {
	case !v4.IsNull():
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, v4.Uint32()))).String()
	case !network.IsNull() && !host.IsNull():
		upper := binary.BigEndian.AppendUint64(nil, network.Uint64())
		return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(upper, host.Uint64()))).String()
	}
	return "-"
}

// protocol names what a session row's message came over.
func (r row) protocol() string {
	names := []string{"-", "UDP", "TCP", "DoT", "DoH"}
	if v := r.value("dns_protocol"); !v.IsNull() && int(v.Uint32()) < len(names) {
		return names[v.Uint32()]
	}
	return names[0]
}

// responseTime is when a session row's response was sent, or zero.
func (r row) responseTime() time.Time {
	if v := r.value("response_time"); !v.IsNull() {
		return time.UnixMicro(v.Int64()).UTC()
	}
	return time.Time{}
}

// readFiles reads all rows of all parquet files in a folder.
func readFiles(dir string) (rows []row, names []string, err error) {
	names, err = filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		more, err := readFile(name)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, more...)
	}
	if len(rows) == 0 {
		return nil, nil, fmt.Errorf("no rows in %s", dir)
	}
	return rows, names, nil
}

func readFile(name string) (rows []row, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := parquet.NewReader(f)
	defer r.Close()
	columns := map[string]int{}
	for i, path := range r.Schema().Columns() {
		columns[path[0]] = i
	}
	batch := make([]parquet.Row, 1024)
	for {
		n, err := r.ReadRows(batch)
		for _, values := range batch[:n] {
			rows = append(rows, row{columns, values.Clone()})
		}
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
