package runner

import (
	"edm/output"
	"edm/store"
)

// The types, classes and response codes that histograms tell apart (RFC 1035,
// 3596).
const (
	typeA, typeNS, typeMX, typeAAAA = 1, 2, 15, 28
	classIN                         = 1
	rcodeNoError, rcodeServFail     = 0, 2
	rcodeNXDomain                   = 3
)

// A tally is what was counted in one interval for one list of well-known
// names. An index into a list means nothing without the list, so the list goes
// with it.
//
// It belongs to a worker until it is handed over, then to the minute loop.
type tally struct {
	names     *store.Dictionary
	threshold int      // clients a sketch holds as they are
	index     []uint32 // by id of a name: 1 + its place in rows, or 0
	rows      []tallyRow
}

type tallyRow struct {
	id     uint32
	match  store.Match
	counts output.Counts
	v4, v6 output.Sketch
}

// newTally returns an empty tally for names, which may be nil. It takes 4
// octets a name on the list, and what is counted for those asked for: 150
// octets each, and up to 1 kB more for the sketches.
func newTally(names *store.Dictionary, threshold int) *tally {
	t := &tally{names: names, threshold: threshold}
	if names != nil {
		t.index = make([]uint32, names.Len())
	}
	return t
}

// expect makes room for so many rows, so that they are not copied as they become
// more. The next minute is like the last one.
func (t *tally) expect(rows int) {
	if t.names != nil {
		t.rows = make([]tallyRow, 0, min(rows+rows/16, t.names.Len()))
	}
}

// row returns the row of a name. It is valid until the next call.
func (t *tally) row(id uint32, match store.Match) *tallyRow {
	i := t.index[id]
	if i == 0 {
		t.rows = append(t.rows, tallyRow{id: id, match: match})
		i = uint32(len(t.rows))
		t.index[id] = i
	}
	return &t.rows[i-1]
}

// An answer is what a tally counts of a frame.
type answer struct {
	qtype, qclass uint16
	rcode         int
	client        uint64 // hash of the client's pseudonym, or address
	family        uint8  // of the client: 4, 6, or 0 if it is not known
}

func (t *tally) add(id uint32, match store.Match, a answer) {
	r := t.row(id, match)
	c := &r.counts
	switch {
	case a.qclass != classIN:
		c.NonIN++
	case a.qtype == typeA:
		c.A++
	case a.qtype == typeAAAA:
		c.AAAA++
	case a.qtype == typeMX:
		c.MX++
	case a.qtype == typeNS:
		c.NS++
	default:
		c.OtherType++
	}
	switch a.rcode {
	case rcodeNoError:
		c.OK++
	case rcodeNXDomain:
		c.NX++
	case rcodeServFail:
		c.Fail++
	default:
		c.OtherRcode++
	}
	switch a.family {
	case 4:
		r.v4.Add(a.client, t.threshold)
	case 6:
		r.v6.Add(a.client, t.threshold)
	}
}

// merge moves what o counted into t. Both are of the same list.
func (t *tally) merge(o *tally) {
	if t.names != o.names {
		panic("BUG: tallies of different lists are merged")
	}
	for i := range o.rows {
		from := &o.rows[i]
		to := t.row(from.id, from.match)
		addCounts(&to.counts, &from.counts)
		to.v4.Merge(&from.v4, t.threshold)
		to.v6.Merge(&from.v6, t.threshold)
	}
}

func addCounts(to, from *output.Counts) {
	to.A += from.A
	to.AAAA += from.AAAA
	to.MX += from.MX
	to.NS += from.NS
	to.OtherType += from.OtherType
	to.NonIN += from.NonIN
	to.OK += from.OK
	to.NX += from.NX
	to.Fail += from.Fail
	to.OtherRcode += from.OtherRcode
}

// histogram returns the rows as output wants them. They point into t.
func (t *tally) histogram() []output.HistogramRow {
	rows := make([]output.HistogramRow, len(t.rows))
	for i := range t.rows {
		r := &t.rows[i]
		name, _ := t.names.Entry(r.id)
		rows[i] = output.HistogramRow{Name: name, Suffix: r.match == store.Suffix, Counts: r.counts, V4: &r.v4, V6: &r.v6}
	}
	return rows
}
