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
// It belongs to a worker until it is handed over, then to the minute loop, then
// to the writer of histograms.
type tally struct {
	names     *store.Dictionary
	threshold int       // clients a sketch holds as they are
	index     []uint32  // by id of a name: 1 + its place in the pages, or 0
	n         int       // rows
	pages     []*page   // full but for the last
	spare     *pageList // where pages come from and go to

	// How often a count has gone past 32 bits: a minute is too short for that,
	// but it lasts as long as the one before it waits for a disk.
	carries map[carry]uint64
}

type tallyRow struct {
	id     uint32
	match  store.Match
	counts [numCounts]uint32
	v4, v6 output.Sketch
}

// A count is one of a row's.
type count uint8

const (
	countA count = iota
	countAAAA
	countMX
	countNS
	countOtherType
	countNonIN
	countOK
	countNX
	countFail
	countOtherRcode
	numCounts
)

type carry struct {
	id uint32 // of the name
	c  count
}

// A page is rows that a tally grows by. It is used again by the next one: the
// counts of a minute need room in the minute after it, too.
type page struct {
	n    int
	rows [pageRows]tallyRow
}

const pageRows = 256

// Reset empties the page.
func (p *page) Reset() {
	clear(p.rows[:p.n])
	p.n = 0
}

// newTally returns an empty tally for names, which may be nil. It takes 4
// octets a name on the list, and what is counted for those asked for: 112
// octets each, and up to 1 kB more for the sketches.
func newTally(names *store.Dictionary, threshold int, spare *pageList) *tally {
	t := &tally{names: names, threshold: threshold, spare: spare}
	if names != nil {
		t.index = make([]uint32, names.Len())
	}
	return t
}

// free gives the rows back. They, and what points into them, are not to be used
// any more.
func (t *tally) free() {
	for _, p := range t.pages {
		t.spare.give(p)
	}
	*t = tally{}
}

// row returns the row of a name.
func (t *tally) row(id uint32, match store.Match) *tallyRow {
	if i := t.index[id]; i != 0 {
		return t.at(int(i - 1))
	}
	if t.n%pageRows == 0 {
		t.pages = append(t.pages, t.spare.take())
	}
	p := t.pages[t.n/pageRows]
	r := &p.rows[p.n]
	r.id, r.match = id, match
	p.n++
	t.n++
	t.index[id] = uint32(t.n)
	return r
}

// at returns the row at a place.
func (t *tally) at(i int) *tallyRow { return &t.pages[i/pageRows].rows[i%pageRows] }

// An answer is what a tally counts of a frame.
type answer struct {
	qtype, qclass uint16
	rcode         int
	client        uint64 // hash of the client's pseudonym, or address
	family        uint8  // of the client: 4, 6, or 0 if it is not known
}

func (t *tally) add(id uint32, match store.Match, a answer) {
	r := t.row(id, match)
	t.increase(r, countOfType(a.qtype, a.qclass), 1)
	t.increase(r, countOfRcode(a.rcode), 1)
	switch a.family {
	case 4:
		r.v4.Add(a.client, t.threshold)
	case 6:
		r.v6.Add(a.client, t.threshold)
	}
}

func countOfType(qtype, qclass uint16) count {
	switch {
	case qclass != classIN:
		return countNonIN
	case qtype == typeA:
		return countA
	case qtype == typeAAAA:
		return countAAAA
	case qtype == typeMX:
		return countMX
	case qtype == typeNS:
		return countNS
	}
	return countOtherType
}

func countOfRcode(rcode int) count {
	switch rcode {
	case rcodeNoError:
		return countOK
	case rcodeNXDomain:
		return countNX
	case rcodeServFail:
		return countFail
	}
	return countOtherRcode
}

// increase adds n to a count of a row.
func (t *tally) increase(r *tallyRow, c count, n uint32) {
	if r.counts[c] += n; r.counts[c] < n {
		t.carry(carry{r.id, c}, 1)
	}
}

func (t *tally) carry(to carry, n uint64) {
	if t.carries == nil {
		t.carries = make(map[carry]uint64)
	}
	t.carries[to] += n
}

// merge moves what o counted into t, and frees o. Both are of the same list.
func (t *tally) merge(o *tally) {
	if t.names != o.names {
		panic("BUG: tallies of different lists are merged")
	}
	for i := range o.n {
		from := o.at(i)
		to := t.row(from.id, from.match)
		for c, n := range from.counts {
			t.increase(to, count(c), n)
		}
		to.v4.Merge(&from.v4, t.threshold)
		to.v6.Merge(&from.v6, t.threshold)
	}
	for to, n := range o.carries {
		t.carry(to, n)
	}
	o.free()
}

// counts returns the counts of a row.
func (t *tally) counts(r *tallyRow) output.Counts {
	n := func(c count) uint64 { return uint64(r.counts[c]) + t.carries[carry{r.id, c}]<<32 }
	return output.Counts{
		A: n(countA), AAAA: n(countAAAA), MX: n(countMX), NS: n(countNS), OtherType: n(countOtherType),
		NonIN: n(countNonIN),
		OK:    n(countOK), NX: n(countNX), Fail: n(countFail), OtherRcode: n(countOtherRcode),
	}
}

// histogram returns the tally as output wants it, until it is freed.
func (t *tally) histogram(interval output.Interval) output.Histogram {
	return output.Histogram{Interval: interval, Rows: t.n, Row: func(i int) output.HistogramRow {
		r := t.at(i)
		name, _ := t.names.Entry(r.id)
		return output.HistogramRow{Name: name, Suffix: r.match == store.Suffix, Counts: t.counts(r), V4: &r.v4, V6: &r.v6}
	}}
}
