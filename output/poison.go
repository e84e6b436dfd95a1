package output

import (
	"errors"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// An event that the broker will never take is poison: sent again for ever, it
// would cost the others their connection each time. But an event is only given
// up when it must be the event that is to blame, and not the broker or the
// network: it went wrong tooManyFaults times, and in between the broker took
// others, with which all went well. A broker that takes nothing, or is away, is
// waited for, however long.
//
// An event goes wrong when the broker refuses it, or when the connection ends
// with that event alone in flight. Then it is a suspect: it goes alone, and, if
// others wait, after some of them. That the connection ends once more only tells
// against it if one other was taken in between, then two more, three, four, and
// if the broker is in good standing: it loses roughEnd for each connection that
// it ends at other events. So one that hangs up at a tenth of all events, or
// more, has none given up; and with one that does so less often, five times at
// the same event is no chance.

const (
	tooManyFaults = 5
	roughEnd      = 10          // events that make good for an end of a connection
	bestStanding  = 100         // and the worst is -bestStanding: a broker may change
	toldEvery     = time.Minute // of events that are given up: there may be many
)

// wentWell notes that an event was taken. One that had gone wrong proves nothing.
func (w *window) wentWell(e *Event) {
	if e.faults == 0 {
		w.smooth++
		w.standing = min(w.standing+1, bestStanding)
	}
}

// endedRough notes that a connection ended, and not at a suspect.
func (w *window) endedRough() { w.standing = max(w.standing-roughEnd, -bestStanding) }

// tells reports whether it tells against an event if it goes wrong now: so many
// others went well since the last time.
func (w *window) tells(e *Event, others int) bool {
	return e.faults == 0 || w.standing > 0 && w.smooth >= e.smooth+others
}

// blame notes that an event went wrong, after others went well, and reports
// whether it is given up.
func (w *window) blame(e *Event, weight, others int, why string) bool {
	if w.tells(e, others) {
		e.faults += weight
		e.smooth = w.smooth
	}
	if e.faults < tooManyFaults {
		return false
	}
	w.finish(e, Poisoned)
	if now := time.Now(); now.Sub(w.toldAt) >= toldEvery && w.p.o.GivenUp != nil {
		w.toldAt = now
		w.p.o.GivenUp(*e, why)
	}
	return true
}

// refused puts back an event that the broker did not take, and holds all back
// for a while: the longer, the more often it took nothing in between.
func (w *window) refused(f *flight, ack *packets.Puback) {
	weight := 1
	if ack.ReasonCode == packets.PubackQuotaExceeded {
		weight = 0
	}
	if w.blame(&f.event, weight, 1, ack.Reason()) {
		return
	}
	w.retry = append(w.retry, f.event)
	now := time.Now()
	if now.Before(w.resumeAt) {
		return
	}
	if w.delivered > w.before {
		w.refusals = 0
	}
	w.refusals++
	w.before = w.delivered
	wait := backoff(w.refusals)
	w.resumeAt = now.Add(wait)
	time.AfterFunc(wait, w.resume)
	w.refusal = fmt.Errorf("the broker refuses events for topic %s: %s", w.p.o.Key().Topic(), ack.Reason())
	w.p.o.State(w.refusal)
}

// resume lets go what was held back after a refusal. There is nothing if what
// was refused is given up.
func (w *window) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil && w.refusal != nil && len(w.retry)+w.flying == 0 {
		w.recovered()
	}
	w.changed.Broadcast()
}

func (w *window) recovered() {
	w.refusal, w.refusals = nil, 0
	w.p.o.State(nil)
}

// hungUp makes a suspect of an event that was alone in flight when the
// connection ended, or gives it up.
func (w *window) hungUp(e *Event, d *packets.Disconnect) {
	weight := hangUpWeight(d)
	if w.stopped {
		weight = 0 // it was us
	}
	if e.faults == 0 {
		w.endedRough()
	}
	if !w.blame(e, weight, e.faults, lost(d).Error()) {
		w.suspects = append(w.suspects, *e)
	}
}

// hangUpWeight is how much it tells against the one event in flight that the
// broker hangs up: twice as much if it says that something is wrong with it, and
// nothing if it gives a reason of its own.
func hangUpWeight(d *packets.Disconnect) int {
	if d == nil {
		return 1
	}
	switch d.ReasonCode {
	case packets.DisconnectMalformedPacket, packets.DisconnectProtocolError, packets.DisconnectTopicNameInvalid,
		packets.DisconnectPacketTooLarge, packets.DisconnectPayloadFormatInvalid, packets.DisconnectQoSNotSupported:
		return 2
	case packets.DisconnectServerBusy, packets.DisconnectServerShuttingDown, packets.DisconnectKeepAliveTimeout,
		packets.DisconnectSessionTakenOver, packets.DisconnectMessageRateTooHigh, packets.DisconnectQuotaExceeded,
		packets.DisconnectUseAnotherServer, packets.DisconnectServerMoved, packets.DisconnectConnectionRateExceeded,
		packets.DisconnectMaximumConnectTime:
		return 0
	}
	return 1
}

// lost says how a connection ended.
func lost(d *packets.Disconnect) error {
	if d != nil {
		return errors.New("the broker closed the connection: " + d.Reason())
	}
	return errors.New("the connection to the broker is lost")
}
