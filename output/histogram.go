package output

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Counts are the responses about one name in one interval. Each is counted
// once by type and class, from A to NonIN, and once by response code.
type Counts struct {
	A, AAAA, MX, NS, OtherType uint64 // class IN
	NonIN                      uint64
	OK, NX, Fail, OtherRcode   uint64 // NOERROR, NXDOMAIN, SERVFAIL
}

// A HistogramRow is what was counted for one entry of the well-known list.
type HistogramRow struct {
	Name   []byte // in wire form
	Suffix bool   // the entry stands for all names below Name
	Counts Counts
	V4, V6 *Sketch // the clients; nil is none
}

// A Histogram is what was counted in an interval.
type Histogram struct {
	Interval Interval
	Rows     int
	Row      func(i int) HistogramRow // in any order, the same whenever it is asked for
}

// Values of edm_status_bits.
const (
	statusExact  = 1
	statusSuffix = 2
)

// histogramSchema has the columns of a histogram file in their order. Only its
// tags matter: rows are written column by column, and histogramBatch.set
// follows it.
var histogramSchema = parquet.NewSchema("histogramData", parquet.SchemaOf(struct {
	StartTime  int64  `parquet:"start_time,timestamp(microsecond)"`
	Label0     string `parquet:"label0,optional"`
	Label1     string `parquet:"label1,optional"`
	Label2     string `parquet:"label2,optional"`
	Label3     string `parquet:"label3,optional"`
	Label4     string `parquet:"label4,optional"`
	Label5     string `parquet:"label5,optional"`
	Label6     string `parquet:"label6,optional"`
	Label7     string `parquet:"label7,optional"`
	Label8     string `parquet:"label8,optional"`
	Label9     string `parquet:"label9,optional"`
	A          uint64 `parquet:"a_count"`
	AAAA       uint64 `parquet:"aaaa_count"`
	MX         uint64 `parquet:"mx_count"`
	NS         uint64 `parquet:"ns_count"`
	OtherType  uint64 `parquet:"other_type_count"`
	NonIN      uint64 `parquet:"non_in_count"`
	OK         uint64 `parquet:"ok_count"`
	NX         uint64 `parquet:"nx_count"`
	Fail       uint64 `parquet:"fail_count"`
	OtherRcode uint64 `parquet:"other_rcode_count"`
	Status     uint64 `parquet:"edm_status_bits"`
	V4         uint64 `parquet:"v4client_count"`
	V6         uint64 `parquet:"v6client_count"`
	V4HLL      []byte `parquet:"v4client_count_hll,optional"`
	V6HLL      []byte `parquet:"v6client_count_hll,optional"`
}{}))

const (
	histogramColumns = 1 + numLabels + 13 + 2

	batchRows = 512
	// groupRows bounds the memory: a row group is encoded in memory before it
	// is written. A row of two full sketches has 1.2 kB.
	groupRows = 32 * batchRows
)

// WriteHistogram writes the histogram file of an interval to dir and returns
// its path. After an error there is no file.
//
// In the file the rows are ordered by label0, then label1, and so on, bytewise,
// NULL before any value, so that a name stands in front of all names below it.
func WriteHistogram(dir string, meta Meta, h Histogram) (path string, err error) {
	f, err := createFile(dir, histogramPrefix, h.Interval.Start)
	if err != nil {
		return "", fmt.Errorf("creating a histogram file: %w", err)
	}
	defer f.Abort()
	if err := writeHistogram(f, meta, h); err != nil {
		return "", fmt.Errorf("writing a histogram file: %w", err)
	}
	path, err = f.Commit(h.Interval.Stop)
	if err != nil {
		return "", fmt.Errorf("ending a histogram file: %w", err)
	}
	return path, nil
}

func writeHistogram(to io.Writer, meta Meta, h Histogram) error {
	w := parquet.NewGenericWriter[any](to, histogramSchema,
		parquet.Compression(&parquet.Snappy),
		parquet.CreatedBy("edm", meta.Version, ""))
	meta.each(h.Interval, w.SetKeyValueMetadata)

	sorted := sortRows(h)
	batch := &histogramBatch{start: parquet.Int64Value(h.Interval.Start.Truncate(time.Second).UnixMicro())}
	for i := range h.Rows {
		labels, row := sorted.at(i)
		batch.set(labels, h.Row(row))
		if last := i+1 == h.Rows; last || batch.n == batchRows {
			if err := batch.writeTo(w.ColumnWriters()); err != nil {
				return err
			}
			if last || (i+1)%groupRows == 0 {
				if err := w.Flush(); err != nil {
					return err
				}
			}
		}
	}
	return w.Close()
}

// A histogramBatch holds rows on their way into the columns.
type histogramBatch struct {
	start  parquet.Value
	values [histogramColumns][batchRows]parquet.Value
	n      int    // rows
	bytes  []byte // the sketches that values point to
	none   Sketch // stays empty
}

// set adds a row whose labels are as sortRows made them.
func (b *histogramBatch) set(labels []byte, r HistogramRow) {
	column := 0
	put := func(v parquet.Value, definition int) {
		b.values[column][b.n] = v.Level(0, definition, column)
		column++
	}
	put(b.start, 0)
	for range numLabels {
		if len(labels) == 0 {
			put(parquet.NullValue(), 0)
			continue
		}
		text := labels[1:]
		if end := bytes.IndexByte(text, labelMark); end >= 0 {
			text = text[:end]
		}
		put(parquet.ByteArrayValue(text), 1)
		labels = labels[1+len(text):]
	}
	status := uint64(statusExact)
	if r.Suffix {
		status = statusSuffix
	}
	c, v4, v6 := &r.Counts, cmp.Or(r.V4, &b.none), cmp.Or(r.V6, &b.none)
	for _, n := range [...]uint64{
		c.A, c.AAAA, c.MX, c.NS, c.OtherType, c.NonIN, c.OK, c.NX, c.Fail, c.OtherRcode,
		status, v4.Estimate(), v6.Estimate(),
	} {
		put(parquet.Int64Value(int64(n)), 0)
	}
	for _, s := range [...]*Sketch{v4, v6} {
		if s.IsEmpty() || s.IsExplicit() {
			put(parquet.NullValue(), 0)
			continue
		}
		from := len(b.bytes)
		b.bytes = s.AppendBytes(b.bytes)
		put(parquet.ByteArrayValue(b.bytes[from:]), 1)
	}
	b.n++
}

// writeTo writes the rows to the columns, which copy them, and empties b.
func (b *histogramBatch) writeTo(columns []*parquet.ColumnWriter) error {
	for i, c := range columns {
		if _, err := c.WriteRowValues(b.values[i][:b.n]); err != nil {
			return err
		}
	}
	b.n, b.bytes = 0, b.bytes[:0]
	return nil
}

// labelMark stands in front of each label of a sortedRows key. No label has an
// octet as low in its text, so keys compare like the columns one by one: a
// label that ends is less than one that goes on, and a missing one less than
// an empty one.
const labelMark = 0x01

// sortedRows are rows in the order of their labels.
type sortedRows struct {
	keys []byte // the labels of all rows, each behind a labelMark
	rows []sortedRow
}

type sortedRow struct{ from, to, row uint32 }

func (s *sortedRows) at(i int) (labels []byte, row int) {
	r := s.rows[i]
	return s.keys[r.from:r.to], int(r.row)
}

func sortRows(h Histogram) *sortedRows {
	size := 0
	for i := range h.Rows {
		size += len(h.Row(i).Name) + 1
	}
	s := &sortedRows{keys: make([]byte, 0, size), rows: make([]sortedRow, h.Rows)}
	var (
		text []byte
		ends [numLabels]int32
	)
	for i := range h.Rows {
		r, n := h.Row(i), 0
		if r.Suffix {
			text, n = appendSuffixLabels(text[:0], r.Name, &ends)
		} else {
			text, n = appendLabels(text[:0], r.Name, &ends)
		}
		from, start := len(s.keys), int32(0)
		for _, end := range ends[:n] {
			s.keys = append(append(s.keys, labelMark), text[start:end]...)
			start = end
		}
		s.rows[i] = sortedRow{uint32(from), uint32(len(s.keys)), uint32(i)}
	}
	slices.SortFunc(s.rows, func(a, b sortedRow) int {
		return bytes.Compare(s.keys[a.from:a.to], s.keys[b.from:b.to])
	})
	return s
}
