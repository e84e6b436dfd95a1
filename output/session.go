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
// matter: rows are written column by column.
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

// The columns behind the labels, by their place in sessionSchema.
const (
	colServerID = numLabels + iota
	colQueryTime
	colResponseTime
	colSourceIPv4
	colDestIPv4
	colSourceIPv6Network
	colSourceIPv6Host
	colDestIPv6Network
	colDestIPv6Host
	colSourcePort
	colDestPort
	colProtocol
	colQuery // always NULL: a response has none
	colResponse
	sessionColumns
)

// sessionBatch is how many rows are on their way into the columns at a time: so
// many that their values stay in the processor's cache.
const sessionBatch = 128

// A sessionValues holds rows on their way into the columns. NULL costs nothing
// until something follows it in its column, for most columns are NULL in most
// rows, or throughout.
type sessionValues struct {
	columns [sessionColumns][sessionBatch]parquet.Value
	n       [sessionColumns]int                         // values set in each, NULL ones up to the last other one
	nulls   [sessionColumns][sessionBatch]parquet.Value // never changed
}

func newSessionValues() *sessionValues {
	v := &sessionValues{}
	for c := range v.nulls {
		for i := range v.nulls[c] {
			v.nulls[c][i] = parquet.NullValue().Level(0, 0, c)
		}
	}
	return v
}

// fill takes up to sessionBatch rows of a block.
func (v *sessionValues) fill(b *Block, rows []record) {
	clear(v.n[:])
	for i := range rows {
		r := &rows[i]
		for c := range int(r.labels) {
			v.set(c, i, parquet.ByteArrayValue(b.label(r, c)))
		}
		if r.server != null {
			v.set(colServerID, i, parquet.ByteArrayValue(b.slice(r.server)))
		}
		if r.has&HasQueryTime != 0 {
			v.set(colQueryTime, i, parquet.Int64Value(r.queryTime))
		}
		if r.has&HasResponseTime != 0 {
			v.set(colResponseTime, i, parquet.Int64Value(r.responseTime))
		}
		v.setAddress(colSourceIPv4, colSourceIPv6Network, colSourceIPv6Host, i, &r.source)
		v.setAddress(colDestIPv4, colDestIPv6Network, colDestIPv6Host, i, &r.dest)
		if r.has&HasSourcePort != 0 {
			v.set(colSourcePort, i, parquet.Int32Value(int32(r.sourcePort)))
		}
		if r.has&HasDestPort != 0 {
			v.set(colDestPort, i, parquet.Int32Value(int32(r.destPort)))
		}
		if r.has&HasProtocol != 0 {
			v.set(colProtocol, i, parquet.Int32Value(int32(r.protocol)))
		}
		if r.response != null {
			v.set(colResponse, i, parquet.ByteArrayValue(b.slice(r.response)))
		}
	}
}

// setAddress sets the columns of a pseudonym, by its family.
func (v *sessionValues) setAddress(v4, network, host, i int, p *cryptopan.Pseudonym) {
	switch {
	case p.Is4():
		v.set(v4, i, parquet.Int32Value(int32(p.V4())))
	case p.IsValid():
		hi, lo := p.V6()
		v.set(network, i, parquet.Int64Value(int64(hi)))
		v.set(host, i, parquet.Int64Value(int64(lo)))
	}
}

func (v *sessionValues) set(column, i int, value parquet.Value) {
	if v.n[column] < i {
		v.pad(column, i)
	}
	v.columns[column][i] = value.Level(0, 1, column)
	v.n[column] = i + 1
}

// pad sets NULL up to row n.
func (v *sessionValues) pad(column, n int) {
	copy(v.columns[column][v.n[column]:n], v.nulls[column][:])
	v.n[column] = n
}

// column returns the values of a column.
func (v *sessionValues) column(c, rows int) []parquet.Value {
	if v.n[c] == 0 {
		return v.nulls[c][:rows]
	}
	v.pad(c, rows)
	return v.columns[c][:rows]
}

// A row group is put together in memory, and written out before a block would
// make it larger than this.
const (
	sessionGroupRows  = 64 << 10
	sessionGroupBytes = 8 << 20
)

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
	values  *sessionValues

	start   time.Time
	written int64 // octets given to file
	groups  int64
	rows    int
	pending pending // the row group in memory
	failed  error   // after which the file can only be given up
}

// A pending is how much lies in a row group that is not written yet.
type pending struct{ rows, bytes int }

// CreateSession begins the session file in dir of the interval that begins at
// start.
func CreateSession(dir string, start time.Time) (*SessionFile, error) {
	f, err := createFile(dir, sessionPrefix, start)
	if err != nil {
		return nil, err
	}
	s := &SessionFile{file: f, start: start, values: newSessionValues()}
	options := []parquet.WriterOption{
		sessionSchema,
		parquet.Compression(fastSnappy{&parquet.Snappy}),
		parquet.CreatedBy("edm", "", ""),
		parquet.DataPageStatistics(false), // they are in the column index
	}
	// Nobody looks for a range of these, and to compare them takes time.
	for c, path := range sessionSchema.Columns() {
		if c <= colServerID || c == colQuery || c == colResponse {
			options = append(options, parquet.SkipPageBounds(path...))
		}
	}
	s.parquet = parquet.NewGenericWriter[any](s.counted(), options...)
	s.columns = s.parquet.ColumnWriters()
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

// Write adds a block to the row group, and writes that when it is large enough.
// If there is no room for it, it returns the error and the file is as before,
// unless Failed says otherwise.
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

// room returns how many octets the row group may come to with a block, and the
// end of the file.
func (s *SessionFile) room(b *Block) int64 {
	rows, bytes := int64(s.pending.rows+b.Len()), int64(s.pending.bytes+len(b.bytes))
	// Snappy makes of what it cannot compress at most 7/6.
	return bytes*7/6 + rows*reserveRow + (s.groups+1)*reserveGroup + reserveFile
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
	if rows, bytes := s.pending.rows+b.Len(), s.pending.bytes+len(b.bytes); rows > sessionGroupRows || bytes > sessionGroupBytes {
		if err := s.flush(); err != nil {
			return err
		}
	}
	for from := 0; from < len(b.rows); from += sessionBatch {
		rows := b.rows[from:min(from+sessionBatch, len(b.rows))]
		s.values.fill(b, rows)
		for c, w := range s.columns {
			if _, err := w.WriteRowValues(s.values.column(c, len(rows))); err != nil {
				return fmt.Errorf("writing session rows: %w", err)
			}
		}
	}
	s.pending.rows += b.Len()
	s.pending.bytes += len(b.bytes)
	return nil // the last group is written when the file is ended
}

// flush writes the row group, if there is a row in it.
func (s *SessionFile) flush() error {
	s.groups++
	s.pending = pending{}
	if err := s.parquet.Flush(); err != nil {
		return fmt.Errorf("writing session rows: %w", err)
	}
	return nil
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
