package output

import "edm/cryptopan"

// A block is handed on when it has either. Neither bound is exact: the row
// that reaches it is still in the block. It is this small to be still in the
// processor's cache when it is written.
const (
	blockRows  = 4 << 10
	blockBytes = 512 << 10
)

// maxSharedID is the longest server id that rows share. The file has it once a
// row, and a row group is put together in memory, so a longer one has to fill
// the block.
const maxSharedID = 255

// maxRowBytes is the most that one row adds to a block's bytes: a DNS message,
// a server id and the text of a name, each octet of which may become four.
const maxRowBytes = 64<<10 + 64<<10 + 4*255

// Fields says which of the optional fields of a Row are set.
type Fields uint8

const (
	HasQueryTime Fields = 1 << iota
	HasResponseTime
	HasSourcePort
	HasDestPort
	HasProtocol
)

// A Row is one answer in a session file. A field that is not set, a slice that
// is nil and an invalid Pseudonym become NULL.
type Row struct {
	Has        Fields
	Protocol   uint8
	SourcePort uint16
	DestPort   uint16

	QueryTime    int64 // microseconds since 1970
	ResponseTime int64

	Source cryptopan.Pseudonym // the client
	Dest   cryptopan.Pseudonym // the resolver

	Name     []byte // asked for: wire form, lower case
	ServerID []byte // the resolver's name for itself
	Response []byte // the DNS message, stripped of what identifies the client
}

// A Block is a batch of session rows. It copies what it is given: the rows'
// bytes lie end to end in an arena.
//
// A worker fills a block and hands it to the writer, who hands it back empty.
// It belongs to one of them at a time.
type Block struct {
	rows  []record
	bytes []byte
}

// A record is a Row whose bytes lie in its block's arena: the label text from
// at, the server id from server, the response from response.
type record struct {
	has          Fields
	protocol     uint8
	labels       uint8 // how many label columns
	sourcePort   uint16
	destPort     uint16
	ends         [numLabels]uint16 // of the label columns, counted from at
	at           uint32
	server       span
	response     span
	queryTime    int64
	responseTime int64
	source       cryptopan.Pseudonym
	dest         cryptopan.Pseudonym
}

// A span is a piece of a block's arena, or NULL.
type span struct{ from, to uint32 }

var null = span{1, 0}

// Len returns the number of rows.
func (b *Block) Len() int { return len(b.rows) }

// Full reports whether the block is to be handed on.
func (b *Block) Full() bool { return len(b.rows) >= blockRows || len(b.bytes) >= blockBytes }

// Reset empties the block and keeps its memory.
func (b *Block) Reset() { b.rows, b.bytes = b.rows[:0], b.bytes[:0] }

// Append copies a row to the end of the block, which must not be full.
func (b *Block) Append(row *Row) {
	if b.rows == nil {
		b.rows = make([]record, 0, blockRows)
		b.bytes = make([]byte, 0, blockBytes+maxRowBytes)
	}
	n := len(b.rows)
	b.rows = b.rows[:n+1]
	r := &b.rows[n]
	r.has, r.protocol = row.Has, row.Protocol
	r.sourcePort, r.destPort = row.SourcePort, row.DestPort
	r.queryTime, r.responseTime = row.QueryTime, row.ResponseTime
	r.source, r.dest = row.Source, row.Dest

	var ends [numLabels]int32
	r.at = uint32(len(b.bytes))
	bytes, labels := appendLabels(b.bytes, row.Name, &ends)
	b.bytes, r.labels = bytes, uint8(labels)
	for i, end := range ends[:labels] {
		r.ends[i] = uint16(uint32(end) - r.at)
	}
	r.response = b.copy(row.Response)
	// One row after another from the same server is the rule.
	if n > 0 && row.ServerID != nil && len(row.ServerID) <= maxSharedID {
		if last := b.rows[n-1].server; last != null && string(b.slice(last)) == string(row.ServerID) {
			r.server = last
			return
		}
	}
	r.server = b.copy(row.ServerID)
}

func (b *Block) copy(p []byte) span {
	if p == nil {
		return null
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, p...)
	return span{uint32(from), uint32(len(b.bytes))}
}

func (b *Block) slice(s span) []byte {
	if s == null {
		return nil
	}
	return b.bytes[s.from:s.to:s.to]
}

// label returns the text of a record's label column.
func (b *Block) label(r *record, i int) []byte {
	from := r.at
	if i > 0 {
		from += uint32(r.ends[i-1])
	}
	return b.bytes[from : r.at+uint32(r.ends[i])]
}
