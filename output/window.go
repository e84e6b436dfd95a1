package output

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/log"
	"github.com/eclipse/paho.golang/paho/session"
)

const (
	// maxInFlight bounds the events that are sent and not answered, whatever
	// the broker would take: enough for 20 000 a second over 200 ms.
	maxInFlight = 4096
	// maxReady bounds the events that are read and not sent.
	maxReady = 4 * batchEvents
)

// A window holds the events that are on their way: read, sent, to be sent
// again, and done with. Senders take from it and wait in it.
//
// For autopaho it is the session: it is told of each connection, of its end,
// and of each PUBACK.
type window struct {
	p    *Publisher
	done chan struct{} // room for one: takeDone has something

	mu      sync.Mutex
	changed sync.Cond // of what is below

	// All guarded by mu.
	conn      *brokerConn // nil while there is none
	since     time.Time   // when conn came, or the one before it
	stopped   bool
	ready     []Event                 // read, in order
	retry     []Event                 // sent before, and not taken
	suspects  []Event                 // sent alone before, when the broker hung up
	flights   [maxInFlight + 1]flight // by packet identifier
	last      uint16                  // identifier that was used
	flying    int                     // identifiers in use
	inFlight  int                     // that may be
	width     int                     // that may be, by what came of those before
	finished  []uint64                // numbers for takeDone
	largest   int                     // packet that the broker takes; 0 = any
	delivered uint64                  // events that the broker took, ever
	onThis    uint64                  // of them, by this connection
	quick     int                     // connections in a row that were of no use

	// All guarded by mu.
	refusal  error     // the last one, until events are taken again
	refusals int       // of different moments, with nothing taken in between
	before   uint64    // delivered, at the last of them
	resumeAt time.Time // nothing is sent before

	// All guarded by mu.
	smooth   int       // events taken, ever, with which nothing had gone wrong
	standing int       // of the broker: rises with each of them
	toldAt   time.Time // of an event that was given up
}

// A flight is an event that was sent, or is about to be.
type flight struct {
	event Event
	at    time.Time // zero: the identifier is free
}

// A brokerConn is the connection that autopaho keeps.
type brokerConn struct{ io.Writer }

// write writes whole packets, in between those that paho writes, and reports
// whether it could. It does not close a connection that is broken: answers may
// still be there to read. When there are no more, paho tells the window.
func (c *brokerConn) write(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if lock, ok := c.Writer.(sync.Locker); ok {
		lock.Lock()
		defer lock.Unlock()
	}
	_, err := c.Write(b)
	return err == nil
}

func (c *brokerConn) close() {
	if closer, ok := c.Writer.(io.Closer); ok {
		_ = closer.Close() // it is lost anyway
	}
}

func newWindow(p *Publisher) *window {
	w := &window{p: p, done: make(chan struct{}, 1), width: maxInFlight}
	w.changed.L = &w.mu
	return w
}

// put adds events that were read. It waits for room, and reports false when the
// window was stopped.
func (w *window) put(batch []Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.stopped && len(w.ready)+len(w.suspects) >= maxReady {
		w.changed.Wait()
	}
	w.ready = append(w.ready, batch...)
	w.changed.Broadcast()
	return !w.stopped
}

// A sending is a batch of events that a sender took, the identifiers that they
// have, and the connection to send them by.
type sending struct {
	events []Event
	ids    []uint16
	conn   *brokerConn
	limit  int // octets of a packet; 0 = any
}

// take fills s with up to batchEvents events, those to be sent again first. It
// waits for some, for a connection and for room, and reports false when the
// window was stopped.
func (w *window) take(s *sending) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	from, n := w.next()
	for !w.stopped && n <= 0 {
		w.changed.Wait()
		from, n = w.next()
	}
	if w.stopped {
		return false
	}
	if from == &w.suspects {
		w.width = 1
	}
	s.events = append(s.events[:0], (*from)[:n]...)
	*from = append((*from)[:0], (*from)[n:]...)
	s.ids = s.ids[:0]
	now := time.Now()
	for _, e := range s.events {
		id := w.identifier()
		w.flights[id] = flight{e, now}
		s.ids = append(s.ids, id)
	}
	w.flying += n
	s.conn, s.limit = w.conn, w.largest
	w.changed.Broadcast() // there is room in ready
	return true
}

// next returns the list to send from, and how many events: none, or less, if it
// is not the time. A suspect goes alone: after some of the others, or when there
// are none.
func (w *window) next() (from *[]Event, n int) {
	from = &w.ready
	if len(w.retry) > 0 {
		from = &w.retry
	}
	room := min(w.inFlight, w.width) - w.flying
	if len(w.suspects) > 0 && (len(*from) == 0 || w.onThis > 0 && w.tells(&w.suspects[0], w.suspects[0].faults)) {
		from, room = &w.suspects, 1-w.flying
	}
	if w.conn == nil || len(*from) == 0 || time.Now().Before(w.resumeAt) {
		return nil, 0
	}
	return from, min(batchEvents, len(*from), room)
}

// identifier returns one that is free, and of those the one that was used the
// longest ago: should a broker answer twice, the second answer is not taken for
// that to another event.
func (w *window) identifier() uint16 {
	for {
		w.last = w.last%maxInFlight + 1
		if w.flights[w.last].at.IsZero() {
			return w.last
		}
	}
}

// land frees an identifier. It returns the event that had it, and false if none
// had: the connection that it belonged to is gone.
func (w *window) land(id uint16) (flight, bool) {
	if int(id) >= len(w.flights) || w.flights[id].at.IsZero() {
		return flight{}, false
	}
	f := w.flights[id]
	w.flights[id] = flight{}
	w.flying--
	w.width = min(w.width+1, maxInFlight)
	return f, true
}

// finish counts what became of an event, and has it removed from the queue.
func (w *window) finish(e *Event, o Outcome) {
	w.finished = append(w.finished, e.Number)
	w.p.o.Counted(o, 1)
	if o == Delivered && !e.storable() {
		w.p.o.Counted(Unstorable, 1)
	}
	select {
	case w.done <- struct{}{}:
	default:
	}
	w.changed.Broadcast()
}

// over ends a flight without a PUBACK: of an event that is too large for the
// broker, or was sent with QoS 0. If the connection was lost, the event is sent
// again.
func (w *window) over(s *sending, i int, o Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != s.conn {
		return
	}
	if f, ok := w.land(s.ids[i]); ok {
		w.finish(&f.event, o)
	}
	s.ids[i] = 0 // is no identifier: it may be another event's by now
}

// PacketReceived is called with each PUBACK.
func (w *window) PacketReceived(cp *packets.ControlPacket, _ chan<- *packets.Publish) error {
	ack, ok := cp.Content.(*packets.Puback)
	if !ok {
		return fmt.Errorf("a packet of type %d where only PUBACK is due", cp.Type)
	}
	w.p.o.Answered(ack.ReasonCode)
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.land(ack.PacketID)
	switch {
	case !ok:
	case ack.ReasonCode < 0x80:
		w.delivered++
		w.onThis++
		w.wentWell(&f.event)
		if w.refusal != nil && !time.Now().Before(w.resumeAt) {
			w.recovered()
		}
		w.finish(&f.event, Delivered)
	case ack.ReasonCode == packets.DisconnectPacketTooLarge: // mosquitto, by its message_size_limit
		w.finish(&f.event, TooLarge)
	default:
		w.refused(&f, ack)
	}
	return nil
}

// ConAckReceived is called with each new connection.
func (w *window) ConAckReceived(conn io.Writer, _ *packets.Connect, ca *packets.Connack) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight, w.largest = maxInFlight, 0
	if p := ca.Properties; p != nil {
		if p.ReceiveMaximum != nil {
			w.inFlight = min(w.inFlight, int(*p.ReceiveMaximum))
		}
		if p.MaximumPacketSize != nil {
			w.largest = int(*p.MaximumPacketSize)
		}
		if p.MaximumQOS != nil && *p.MaximumQOS < w.p.o.QoS {
			return errors.New("the broker takes QoS 0 only, and mqtt_qos is 1")
		}
	}
	if w.inFlight == 0 {
		return errors.New("the broker says that it takes no message (Receive Maximum 0)")
	}
	w.conn, w.since, w.onThis = &brokerConn{conn}, time.Now(), 0
	w.resumeAt = time.Time{} // perhaps it is another broker, or another configuration
	w.p.o.Connected(true)
	w.p.o.State(w.refusal)
	w.changed.Broadcast()
	return nil
}

// ConnectionLost is called when a connection ends, more than once. One that was
// of use is no problem: the next attempt to connect tells whether there is one.
func (w *window) ConnectionLost(d *packets.Disconnect) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return nil
	}
	w.recall(d)
	w.conn = nil
	w.p.o.Connected(false)

	rival := d != nil && d.ReasonCode == packets.DisconnectSessionTakenOver // another one with our client id
	if w.quick++; !rival && (w.onThis > 0 || time.Since(w.since) > longConnection) {
		w.quick = 0
	}
	if !w.stopped && w.quick > 0 {
		w.p.o.State(lost(d))
	}
	return nil
}

// recall takes back what is in flight by a connection that ends, to send it
// again.
//
// The next connection begins with one event in flight, and takes one more for
// each that lands. So little is signed in vain for a broker that hangs up again,
// and if it does so because of one event, that one is soon alone: the oldest goes
// first.
func (w *window) recall(d *packets.Disconnect) {
	if w.flying == 0 {
		return
	}
	alone := w.flying == 1 && w.p.o.QoS > 0
	for id := range w.flights {
		f, ok := w.land(uint16(id))
		switch {
		case !ok:
		case alone:
			w.hungUp(&f.event, d)
		default:
			w.retry = append(w.retry, f.event)
		}
	}
	slices.SortFunc(w.retry, func(a, b Event) int { return cmp.Compare(a.Number, b.Number) })
	w.width = 1
	if !alone {
		w.endedRough()
	}
}

// backoff is how long to wait before the nth attempt to connect after the
// connection was lost. A connection that was of no use counts as an attempt.
func (w *window) backoff(attempt int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if attempt += w.quick; attempt > 0 {
		return backoffUpTo(longestReconnect, attempt)
	}
	return time.Until(w.since.Add(shortestBackoff))
}

// watch closes a connection by which an event was not answered in time, until
// ctx ends.
func (w *window) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if conn := w.late(now); conn != nil {
				conn.close()
			}
		}
	}
}

// late returns the connection if an event has waited too long for its answer.
func (w *window) late(now time.Time) *brokerConn {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flying == 0 {
		return nil
	}
	for id := range w.flights {
		if f := &w.flights[id]; !f.at.IsZero() && now.Sub(f.at) > packetTimeout {
			return w.conn
		}
	}
	return nil
}

// awaitEmpty waits until everything that was read is done with, or the window
// was stopped.
func (w *window) awaitEmpty() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.stopped && len(w.ready)+len(w.retry)+len(w.suspects)+w.flying > 0 {
		w.changed.Wait()
	}
}

// hangUp closes the connection, if there is one.
func (w *window) hangUp() {
	w.mu.Lock()
	conn := w.conn
	w.mu.Unlock()
	if conn != nil {
		conn.close()
	}
}

// stop lets everybody go who waits.
func (w *window) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.changed.Broadcast()
}

// takeDone returns the numbers of events that are done with, once each.
func (w *window) takeDone() []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	numbers := w.finished
	w.finished = nil
	return numbers
}

// What is left of a session has no use here: nothing is kept between two
// connections, and paho publishes nothing itself.

func (w *window) AddToSession(context.Context, session.Packet, chan<- packets.ControlPacket) error {
	return errors.New("only the window sends")
}
func (w *window) Ack(*packets.Publish) error { return nil }
func (w *window) Close() error               { return nil }
func (w *window) SetErrorLogger(log.Logger)  {}
func (w *window) SetDebugLogger(log.Logger)  {}
