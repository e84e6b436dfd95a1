package output

import (
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"golang.org/x/sys/unix"

	"edm/cryptopan"
)

// sessionSchema has the columns of a session file in their order. Only its tags
// matter: rows are written column by column, and sessionValues follows it.
var sessionSchema = parquet.NewSchema("sessionData", parquet.SchemaOf(struct {
	Label0       string `parquet:"label0,optional"`
	Label1       string `parquet:"label1,optional"`
	Label2       string `parquet:"label2,optional"`
	Label3       string `parquet:"label3,optional"`
	Label4       string `parquet:"label4,optional"`
	Label5       string `parquet:"label5,optional"`
	Label6       string `parquet:"label6,optional"`
	Label7       string `parquet:"label7,optional"`
	Label8       string `parquet:"label8,optional"`
	Label9       string `parquet:"label9,optional"`
	ServerID     []byte `parquet:"server_id,optional"`
	QueryTime    int64  `parquet:"query_time,optional,timestamp(microsecond)"`
	ResponseTime int64  `parquet:"response_time,optional,timestamp(microsecond)"`
	SourceIPv4   uint32 `parquet:"source_ipv4,optional"`
	DestIPv4     uint32 `parquet:"dest_ipv4,optional"`
	SourceIPv6N  uint64 `parquet:"source_ipv6_network,optional"`
	SourceIPv6H  uint64 `parquet:"source_ipv6_host,optional"`
	DestIPv6N    uint64 `parquet:"dest_ipv6_network,optional"`
	DestIPv6H    uint64 `parquet:"dest_ipv6_host,optional"`
	SourcePort   uint16 `parquet:"source_port,optional"`
	DestPort     uint16 `parquet:"dest_port,optional"`
	Protocol     uint8  `parquet:"dns_protocol,optional"`
	Query        []byte `parquet:"query_message,optional"`
	Response     []byte `parquet:"response_message,optional"`
}{}))

// sessionValues has a function for each column behind the labels, nil if all of
// it is NULL. It returns a record's value, and false for NULL.
var sessionValues = [...]func(*Block, *record) (parquet.Value, bool){
	func(b *Block, r *record) (parquet.Value, bool) { return bytesValue(b, r.server) },
	func(_ *Block, r *record) (parquet.Value, bool) {
		return parquet.Int64Value(r.queryTime), r.has&HasQueryTime != 0
	},
	func(_ *Block, r *record) (parquet.Value, bool) {
		return parquet.Int64Value(r.responseTime), r.has&HasResponseTime != 0
	},
	func(_ *Block, r *record) (parquet.Value, bool) { return v4Value(r.source) },
	func(_ *Block, r *record) (parquet.Value, bool) { return v4Value(r.dest) },
	func(_ *Block, r *record) (parquet.Value, bool) { return networkValue(r.source) },
	func(_ *Block, r *record) (parquet.Value, bool) { return hostValue(r.source) },
	func(_ *Block, r *record) (parquet.Value, bool) { return networkValue(r.dest) },
	func(_ *Block, r *record) (parquet.Value, bool) { return hostValue(r.dest) },
	func(_ *Block, r *record) (parquet.Value, bool) {
		return parquet.Int32Value(int32(r.sourcePort)), r.has&HasSourcePort != 0
	},
	func(_ *Block, r *record) (parquet.Value, bool) {
		return parquet.Int32Value(int32(r.destPort)), r.has&HasDestPort != 0
	},
	func(_ *Block, r *record) (parquet.Value, bool) {
		return parquet.Int32Value(int32(r.protocol)), r.has&HasProtocol != 0
	},
	nil, // query_message: a response has none
	func(b *Block, r *record) (parquet.Value, bool) { return bytesValue(b, r.response) },
}

func bytesValue(b *Block, s span) (parquet.Value, bool) {
	return parquet.ByteArrayValue(b.slice(s)), s != null
}

func v4Value(p cryptopan.Pseudonym) (v parquet.Value, ok bool) {
	if !p.Is4() {
		return v, false
	}
	return parquet.Int32Value(int32(p.V4())), true
}

func networkValue(p cryptopan.Pseudonym) (v parquet.Value, ok bool) {
	if !p.IsValid() || p.Is4() {
		return v, false
	}
	network, _ := p.V6()
	return parquet.Int64Value(int64(network)), true
}

func hostValue(p cryptopan.Pseudonym) (v parquet.Value, ok bool) {
	if !p.IsValid() || p.Is4() {
		return v, false
	}
	_, host := p.V6()
	return parquet.Int64Value(int64(host)), true
}

// What is reserved on the disk before a block is written: more than it can
// come to, and room for the end of the file.
const (
	reserveRow   = 128      // the columns of fixed size, levels and pages' headers
	reserveGroup = 64 << 10 // a row group's share of the footer
	reserveFile  = 256 << 10
)

// A SessionFile is a session file being written, block by block.
//
// Room on the disk is reserved before each block, where the file system can do
// that, so that on a full disk a block is refused and the file goes on.
type SessionFile struct {
	file    *file
	parquet *parquet.GenericWriter[any]
	columns []*parquet.ColumnWriter
	values  [batchRows]parquet.Value
	nulls   [][batchRows]parquet.Value // of each column

	start   time.Time
	written int64 // octets given to file
	groups  int64
	rows    int
	failed  error // after which the file can only be given up
}

// CreateSession begins the session file in dir of the interval that begins at
// start.
func CreateSession(dir string, start time.Time) (*SessionFile, error) {
	f, err := createFile(dir, sessionPrefix, start)
	if err != nil {
		return nil, err
	}
	s := &SessionFile{file: f, start: start}
	s.parquet = parquet.NewGenericWriter[any](s.counted(), sessionSchema,
		parquet.Compression(fastSnappy{&parquet.Snappy}),
		parquet.CreatedBy("edm", "", ""),
		parquet.SkipPageBounds("response_message"))
	s.columns = s.parquet.ColumnWriters()
	s.nulls = make([][batchRows]parquet.Value, len(s.columns))
	for c := range s.nulls {
		for i := range s.nulls[c] {
			s.nulls[c][i] = parquet.NullValue().Level(0, 0, c)
		}
	}
	return s, nil
}

type countedFile struct{ s *SessionFile }

func (c countedFile) Write(p []byte) (int, error) {
	n, err := c.s.file.Write(p)
	c.s.written += int64(n)
	return n, err
}

func (s *SessionFile) counted() countedFile { return countedFile{s} }

// fastSnappy is Snappy, compressed in half the time: what parquet-go uses looks
// harder for matches, and finds few more in DNS messages.
type fastSnappy struct{ compress.Codec }

func (fastSnappy) Encode(dst, src []byte) ([]byte, error) {
	return s2.EncodeSnappy(dst[:cap(dst)], src), nil
}

// Rows returns the number of rows written so far.
func (s *SessionFile) Rows() int { return s.rows }

// Failed reports whether a write failed half-way: the file is of no more use,
// and its rows are lost.
func (s *SessionFile) Failed() bool { return s.failed != nil }

// Write writes a block as a row group. If there is no room for it, it returns
// the error and the file is as before, unless Failed says otherwise.
func (s *SessionFile) Write(b *Block) error {
	if s.failed != nil {
		return s.failed
	}
	if err := s.reserve(b); err != nil {
		return err
	}
	if err := s.write(b); err != nil {
		s.failed = err
		return err
	}
	s.rows += b.Len()
	return nil
}

// room returns how many octets a block may come to, with the end of the file.
func (s *SessionFile) room(b *Block) int64 {
	// Snappy makes of what it cannot compress at most 7/6.
	return int64(len(b.bytes))*7/6 + int64(b.Len())*reserveRow + (s.groups+1)*reserveGroup + reserveFile
}

func (s *SessionFile) reserve(b *Block) error {
	size := s.room(b)
	err := unix.Fallocate(int(s.file.temp.Fd()), unix.FALLOC_FL_KEEP_SIZE, s.written, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINTR) {
		return nil // without the promise
	}
	if err != nil {
		return fmt.Errorf("reserving %d octets for session rows: %w", size, err)
	}
	return nil
}

func (s *SessionFile) write(b *Block) error {
	for from := 0; from < len(b.rows); from += batchRows {
		rows := b.rows[from:min(from+batchRows, len(b.rows))]
		labels := 0 // columns that are not NULL throughout
		for i := range rows {
			labels = max(labels, int(rows[i].labels))
		}
		for c := range s.columns {
			values := s.nulls[c][:len(rows)]
			switch {
			case c < labels:
				values = s.labelValues(b, rows, c)
			case c >= numLabels && sessionValues[c-numLabels] != nil:
				values = s.columnValues(b, rows, c)
			}
			if _, err := s.columns[c].WriteRowValues(values); err != nil {
				return fmt.Errorf("writing session rows: %w", err)
			}
		}
	}
	s.groups++
	if err := s.parquet.Flush(); err != nil {
		return fmt.Errorf("writing session rows: %w", err)
	}
	return nil
}

func (s *SessionFile) labelValues(b *Block, rows []record, column int) []parquet.Value {
	null := s.nulls[column][0]
	for i := range rows {
		if r := &rows[i]; column < int(r.labels) {
			s.values[i] = parquet.ByteArrayValue(b.label(r, column)).Level(0, 1, column)
		} else {
			s.values[i] = null
		}
	}
	return s.values[:len(rows)]
}

func (s *SessionFile) columnValues(b *Block, rows []record, column int) []parquet.Value {
	value, null := sessionValues[column-numLabels], s.nulls[column][0]
	for i := range rows {
		if v, ok := value(b, &rows[i]); ok {
			s.values[i] = v.Level(0, 1, column)
		} else {
			s.values[i] = null
		}
	}
	return s.values[:len(rows)]
}

// Commit ends the file and its interval, makes it appear and returns its path.
// After an error there is no file, and its rows are lost.
func (s *SessionFile) Commit(meta Meta, stop time.Time) (path string, err error) {
	defer s.file.Abort()
	if s.failed != nil {
		return "", s.failed
	}
	meta.each(Interval{s.start, stop}, s.parquet.SetKeyValueMetadata)
	if err := s.parquet.Close(); err != nil {
		return "", fmt.Errorf("ending a session file: %w", err)
	}
	if err := s.file.buf.Flush(); err != nil {
		return "", fmt.Errorf("ending a session file: %w", err)
	}
	// Give back what was reserved and not used.
	if err := s.file.temp.Truncate(s.written); err != nil {
		return "", fmt.Errorf("ending a session file: %w", err)
	}
	return s.file.Commit(stop)
}

// Abort removes the file.
func (s *SessionFile) Abort() { s.file.Abort() }
