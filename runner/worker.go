package runner

import (
	"net/netip"
	"time"

	"github.com/twmb/murmur3"

	"edm/cryptopan"
	"edm/dnstap"
	"edm/output"
	"edm/store"
)

// A worker takes chunks of frames, and frame after frame decides what becomes
// of it. This is the program; the rest brings frames here, and carries away
// what comes of them.
//
// It shares nothing with other workers while it is at a chunk: it counts into
// a tally, a block and counters of its own.
type worker struct {
	// What it is given, and does not change.
	in       <-chan *dnstap.Chunk
	turns    chan turn     // room for one
	harvest  chan *tally   // the answer to a turn, room for one
	done     chan struct{} // closed at the end; then tally is the minute loop's
	blocks   chan<- *output.Block
	empty    *blockList
	pages    *pageList // for tallies
	free     *freeList
	metrics  *metrics
	settings workerSettings
	dump     *dump // nil unless debug_dnstap_filename is set
	seen     *store.Seen
	names    chan<- *store.Names
	spare    *namesList
	pulse    pulse

	// Its own.
	view     *view
	tally    *tally
	block    *output.Block // nil until there is a row
	fresh    *store.Names  // names of this chunk that are not in memory
	cache    *cryptopan.Cache
	counts   frameCounts
	message  dnstap.Message
	question dnstap.Question
	row      output.Row
	now      int64 // microseconds since 1970, when the chunk was taken up
}

// workerSettings are the settings that a worker needs.
type workerSettings struct {
	hash      HistogramHash
	threshold int // of sketches
	cache     int // pseudonyms
}

// A turn tells a worker to hand over what it has counted, and to go on with
// view.
type turn struct{ view *view }

// begin makes the worker count from zero, by view.
func (w *worker) begin(v *view) {
	if w.view == nil || w.view.cipher != v.cipher {
		w.cache = cryptopan.NewCache(v.cipher, w.settings.cache)
	}
	w.view = v
	w.tally = newTally(v.names, w.settings.threshold, w.pages)
}

// run works until the channel of chunks is closed, and hands over at every
// turn.
func (w *worker) run() {
	defer close(w.done)
	defer w.sendBlock()
	for {
		select {
		case t := <-w.turns:
			w.sendBlock()
			w.harvest <- w.tally
			w.begin(t.view)
		case c, ok := <-w.in:
			if !ok {
				return
			}
			w.chunk(c)
		case <-w.pulse:
		}
	}
}

func (w *worker) sendBlock() {
	if w.block != nil {
		send(w.blocks, w.block, w.pulse)
		w.block = nil
	}
}

// chunk works on all frames of a chunk and gives it back.
func (w *worker) chunk(c *dnstap.Chunk) {
	w.now = time.Now().UnixMicro()
	for frames := c.Frames(); len(frames) > 0; {
		var frame []byte
		frame, frames = dnstap.Next(frames)
		w.frame(frame)
	}
	w.free.give(c)
	if w.fresh.Len() > 0 {
		w.sendNames()
	}
	w.counts.hits = w.cache.TakeHits()
	w.metrics.add(&w.counts)
}

// namesWait is how long a worker waits for the store to take names.
const namesWait = 20 * time.Millisecond

// sendNames hands over the names that are not in memory. If the store does not
// take them soon, they are forgotten, and are new when they are seen next.
func (w *worker) sendNames() {
	select {
	case w.names <- w.fresh:
		w.fresh = w.spare.take()
		return
	default:
	}
	timer := time.NewTimer(namesWait)
	defer timer.Stop()
	select {
	case w.names <- w.fresh:
		w.fresh = w.spare.take()
	case <-timer.C:
		w.counts.forgotten += uint64(w.fresh.Len())
		w.fresh.Reset()
	}
}

// frame decides what becomes of one frame. Each way out counts it once.
func (w *worker) frame(frame []byte) {
	w.counts.received++
	if w.dump != nil {
		w.dump.frame(frame)
	}
	m, q := &w.message, &w.question
	if fault := m.Decode(frame); fault != dnstap.None {
		w.counts.drops[fault]++
		return
	}
	if m.DnstapType != 1 || m.Type != dnstap.ClientResponse {
		w.skip()
		return
	}

	client := w.address(m.QueryAddress, badQueryAddress)
	if list := w.view.ignoredClients; list != nil && (!client.IsValid() || list.Contains(client)) {
		w.counts.results[ignoredClient]++
		return
	}

	if m.Response == nil {
		w.counts.drops[dnstap.NoDNS]++
		return
	}
	if fault := q.Decode(m.Response); fault != dnstap.None {
		w.counts.drops[fault]++
		return
	}
	if w.view.ignoredNames != nil && w.ignored() {
		w.counts.results[ignoredName]++
		return
	}

	if id, match := w.view.names.Lookup(q.Name()); match != 0 {
		w.counts.results[wellKnown]++
		hash, family := w.hash(client)
		w.tally.add(id, match, answer{q.Type, q.Class, q.ExtendedRcode(m.Response), hash, family})
		return
	}
	w.counts.results[session]++
	if print := w.seen.Fingerprint(q.Name()); !w.seen.Known(print) {
		w.fresh.Add(print, store.Sighting{Name: q.Name(), Flags: q.Flags, Type: q.Type, Class: q.Class, Minute: w.now / 60e6})
	}
	if w.view.sessionFiles {
		w.session(client)
	}
}

// skip counts a frame that is not a client's response.
func (w *worker) skip() {
	switch t := w.message.Type; {
	case w.message.DnstapType != 1:
		w.counts.skips[skipNotMessage]++
	case t > 0 && int(t) < len(dnstap.TypeNames):
		w.counts.skips[t]++
	default:
		w.counts.skips[skipUnknown]++
	}
}

// address returns an address as it stands in a frame: invalid if there is
// none, or one of a length that no address has, which is counted. An
// IPv4-mapped address is an IPv4 address from here on.
func (w *worker) address(b []byte, bad int) netip.Addr {
	switch len(b) {
	case 0:
		return netip.Addr{}
	case 4:
		return netip.AddrFrom4([4]byte(b))
	case 16:
		return netip.AddrFrom16([16]byte(b)).Unmap()
	}
	w.counts.bad[bad]++
	return netip.Addr{}
}

// ignored reports whether a name asked for is on the list of ignored names, or
// one of several that cannot be read may be.
func (w *worker) ignored() bool {
	list, q := w.view.ignoredNames, &w.question
	if _, match := list.Lookup(q.Name()); match != 0 {
		return true
	}
	if q.Count == 1 {
		return false
	}
	found, whole := q.OtherNames(w.message.Response, func(name []byte) bool {
		_, match := list.Lookup(name)
		return match != 0
	})
	return found || !whole
}

// hash returns what stands for a client in a sketch: murmur3 of the 4 or 16
// octets of its pseudonym, or of its address if histogram_hash says so.
func (w *worker) hash(client netip.Addr) (hash uint64, family uint8) {
	if !client.IsValid() {
		return 0, 0
	}
	family = 6
	if client.Is4() {
		family = 4
	}
	var room [16]byte
	var b []byte
	if w.settings.hash == HashAddress {
		b = append(room[:0], client.AsSlice()...)
	} else {
		b = w.cache.Pseudonym(client).AppendTo(room[:0])
	}
	hash, _ = murmur3.Sum128(b)
	return hash, family
}

// session puts a row in the block, without what identifies the client.
func (w *worker) session(client netip.Addr) {
	m, r := &w.message, &w.row
	*r = output.Row{Name: w.question.Name(), ServerID: m.Identity}
	if w.question.Strip(m.Response) {
		r.Response = m.Response
	} else {
		w.counts.bad[badMessage]++
	}
	r.Source = w.pseudonym(client)
	r.Dest = w.pseudonym(w.address(m.ResponseAddress, badResponseAddress))
	if w.number(dnstap.HasQueryPort, int64(m.QueryPort), 1<<16, badQueryPort) {
		r.SourcePort, r.Has = uint16(m.QueryPort), r.Has|output.HasSourcePort
	}
	if w.number(dnstap.HasResponsePort, int64(m.ResponsePort), 1<<16, badResponsePort) {
		r.DestPort, r.Has = uint16(m.ResponsePort), r.Has|output.HasDestPort
	}
	if w.number(dnstap.HasProtocol, int64(m.Protocol), 1<<8, badProtocol) {
		r.Protocol, r.Has = uint8(m.Protocol), r.Has|output.HasProtocol
	}
	w.times()

	if w.block == nil {
		w.block = w.empty.take()
	}
	w.block.Append(r)
	if w.block.Full() {
		w.sendBlock()
	}
}

// pseudonym returns the pseudonym of an address, none for none.
func (w *worker) pseudonym(a netip.Addr) (p cryptopan.Pseudonym) {
	if a.IsValid() {
		p = w.cache.Pseudonym(a)
	}
	return p
}

// number reports whether a number is there and below a limit; one that is not
// is counted.
func (w *worker) number(field dnstap.Set, n, limit int64, bad int) bool {
	if w.message.Present&field == 0 {
		return false
	}
	if n < 0 || n >= limit {
		w.counts.bad[bad]++
		return false
	}
	return true
}

// times sets the times of the row: that of the record is when the response was
// sent, or else the query received, or else now.
func (w *worker) times() {
	m, r := &w.message, &w.row
	r.Has |= output.HasResponseTime
	r.ResponseTime = w.now
	if m.Present&dnstap.HasQueryTime != 0 {
		if t, ok := w.micros(m.QuerySec, m.QueryNsec); ok {
			r.Has |= output.HasQueryTime
			r.QueryTime, r.ResponseTime = t, t
		}
	}
	if m.Present&dnstap.HasResponseTime != 0 {
		if t, ok := w.micros(m.ResponseSec, m.ResponseNsec); ok {
			r.ResponseTime = t
		} else {
			r.ResponseTime = w.now
		}
	}
}

const (
	year2000 = 946684800 // seconds since 1970
	day      = 24 * 60 * 60
)

// micros returns a time in microseconds since 1970. One that cannot be, before
// 2000 or more than a day ahead, is counted.
func (w *worker) micros(sec uint64, nsec uint32) (int64, bool) {
	if nsec >= 1e9 || sec < year2000 || sec > uint64(w.now/1e6+day) {
		w.counts.bad[badTime]++
		return 0, false
	}
	return int64(sec)*1e6 + int64(nsec)/1000, true
}
