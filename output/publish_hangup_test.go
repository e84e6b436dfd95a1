package output

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// A dislike is what a broker hangs up at.
type dislike func(b *broker, n int) bool

func everything(*broker, int) bool { return true }

// closes ends a connection without a word.
const closes = -1

// hangUp ends a connection, with a DISCONNECT for any reason but closes. It
// leaves paho the time for its first ping: paho does not read when it cannot
// write.
func (b *broker) hangUp(reason int) {
	time.Sleep(time.Millisecond)
	if reason != closes {
		d := packets.NewControlPacket(packets.DISCONNECT)
		d.Content.(*packets.Disconnect).ReasonCode = byte(reason)
		d.WriteTo(b)
	}
	b.Close()
}

// except takes every event until it meets one that is bad, and returns true.
func (b *broker) except(bad dislike) bool {
	for {
		pub, n, ok := b.next()
		if !ok || bad(b, n) {
			return ok
		}
		b.answer(pub, n, 0)
	}
}

// hangsUp is the script of a broker that hangs up at what is bad.
func hangsUp(reason int) func(dislike) script {
	return func(bad dislike) script {
		return func(b *broker) {
			b.accept(0, nil)
			if b.except(bad) {
				b.hangUp(reason)
			}
		}
	}
}

// oneByOne is hangsUp with only one event in flight.
func oneByOne(reason int) func(dislike) script {
	return func(bad dislike) script {
		return func(b *broker) {
			one := uint16(1)
			b.accept(0, &packets.Properties{ReceiveMaximum: &one})
			if b.except(bad) {
				b.hangUp(reason)
			}
		}
	}
}

// parallel is the script of a broker that works on many events at a time: it
// answers some that came after what is bad.
func parallel(bad dislike) script {
	return func(b *broker) {
		b.accept(0, nil)
		if b.except(bad) {
			time.AfterFunc(10*time.Millisecond, func() { b.Close() })
			for b.except(bad) {
			}
		}
	}
}

// silent is the script of a broker that never answers what is bad.
func silent(bad dislike) script {
	return func(b *broker) {
		b.accept(0, nil)
		for b.except(bad) {
		}
	}
}

// takes is the script of a broker that answers so many events, and then hangs up
// at the next.
func takes(events int, maximum uint16) script {
	return func(b *broker) {
		b.accept(0, &packets.Properties{ReceiveMaximum: &maximum})
		if b.except(func(*broker, int) bool { events--; return events < 0 }) {
			b.hangUp(closes)
		}
	}
}

// An event at which the broker hangs up again and again, while it takes others,
// is dropped, and no other is.
func TestHangsUpAtPoison(t *testing.T) {
	type load struct {
		events int // at once
		later  int
		every  time.Duration
	}
	// most is how often an event may be sent.
	f := func(name string, hangs func(dislike) script, l load, most int, poison ...int) {
		bubble(t, name, func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: l.events}, hangs(func(_ *broker, n int) bool { return slices.Contains(poison, n) }))
			began := time.Now()
			for range l.later {
				time.Sleep(l.every)
				r.add(1)
			}
			r.await("all are done with", func() bool { return len(r.taken)+r.outcomes[Poisoned] == r.total })
			if took := time.Since(began); l.later == 0 && took > time.Minute {
				t.Errorf("it takes %v", took)
			}
			r.await("all is well", func() bool { return r.state == "" })
			r.drain(poison...)
			if r.outcomes[Poisoned] != len(poison) {
				t.Errorf("outcomes %v", r.outcomes)
			}
			for _, n := range poison {
				if r.sent[n] > most {
					t.Errorf("event %d was sent %d times", n, r.sent[n])
				}
			}
			if n := len(r.givenUp); n == 0 || n > 1+int(time.Since(began).Minutes()) || !strings.HasPrefix(r.givenUp[0], "e") || !strings.Contains(r.givenUp[0], "connection") {
				t.Errorf("told of %q", r.givenUp)
			}
		})
	}
	thousand := load{events: 1000}
	f("closes", oneByOne(closes), thousand, tooManyFaults, 500)
	f("says nothing in particular", oneByOne(packets.DisconnectUnspecifiedError), thousand, tooManyFaults, 500)
	f("says goodbye", oneByOne(packets.DisconnectNormalDisconnection), thousand, tooManyFaults, 500)
	for _, reason := range []int{packets.DisconnectMalformedPacket, packets.DisconnectProtocolError, packets.DisconnectTopicNameInvalid,
		packets.DisconnectPacketTooLarge, packets.DisconnectPayloadFormatInvalid, packets.DisconnectQoSNotSupported} {
		f(fmt.Sprint("says ", reason), oneByOne(reason), thousand, (tooManyFaults+1)/2, 500)
	}
	// With many in flight, it is alone only after some connections.
	f("among many", hangsUp(closes), thousand, tooManyFaults+8, 500)
	f("the first", hangsUp(closes), thousand, tooManyFaults+2, 1)
	f("some", hangsUp(closes), thousand, 30, 1, 200, 201, 202, 400, 900)
	f("parallel", parallel, load{1000, 100, time.Second}, 60, 500)
	f("some, parallel", parallel, load{1000, 100, time.Second}, 60, 1, 200, 201, 202, 400, 900)
	f("the last, then one each second", hangsUp(closes), load{100, 100, time.Second}, 60, 100)
	f("one each second", hangsUp(closes), load{1, 100, time.Second}, 60, 5)
	f("one each minute", hangsUp(closes), load{1, 100, time.Minute}, 250, 1, 5)
	f("two a second", hangsUp(closes), load{1, 300, time.Second / 2}, 80, 5, 6, 70)
	// Here it is our patience that ends the connection.
	f("never answers", silent, load{1000, 100, 10 * time.Second}, 10, 500)
}

// A broker that hangs up at everything does not make any event be dropped,
// however long it does.
func TestHangsUpAtEverything(t *testing.T) {
	f := func(name string, most int, useless script) {
		bubble(t, name, func(t *testing.T) {
			var better atomic.Bool
			r := newRig(t, settings{qos: 1, events: 700}, func(b *broker) {
				if better.Load() {
					good(b)
				} else {
					useless(b)
				}
			})
			time.Sleep(6 * time.Hour)
			r.locked(func() {
				if r.outcomes != [NumOutcomes]int{} || len(r.removed) > 0 {
					t.Errorf("outcomes %v, %d removed", r.outcomes, len(r.removed))
				}
				if n := len(r.dials); n < 6*50 || n > 6*110 {
					t.Errorf("%d connections in six hours", n)
				}
				if r.cursor > most {
					t.Errorf("%d events are read, want no more than %d", r.cursor, most)
				}
			})
			better.Store(true)
			began := time.Now()
			r.awaitTaken()
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("it takes %v until all is taken", took)
			}
			r.drain()
			if r.state != "" || len(r.givenUp) > 0 {
				t.Errorf("state %q, given up %q", r.state, r.givenUp)
			}
		})
	}
	f("closes", 700, hangsUp(closes)(everything))
	f("closes, one by one", maxReady+2*batchEvents, oneByOne(closes)(everything))
	f("malformed", 700, hangsUp(packets.DisconnectMalformedPacket)(everything))
	f("too large", 700, hangsUp(packets.DisconnectPacketTooLarge)(everything))
	f("shuts down", 700, hangsUp(packets.DisconnectServerShuttingDown)(everything))
	f("closes at once", 700, func(b *broker) { b.accept(0, nil) })
	f("closes later", 700, func(b *broker) { b.accept(0, nil); b.next(); time.Sleep(10 * time.Second) })
	f("never answers", 700, silent(everything))
}

// A broker that hangs up often, but not at some events more than at others, gets
// all of them in the end.
func TestHangsUpAtAny(t *testing.T) {
	f := func(name string, events int, s func() script) (standing int) {
		bubble(t, name, func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: events}, func(b *broker) { s()(b) })
			r.awaitTaken()
			r.drain()
			if len(r.givenUp) > 0 {
				t.Errorf("given up %q", r.givenUp)
			}
			standing = r.p.window.standing
		})
		return standing
	}
	for _, events := range []int{1, 2, 3, 4, 5, 6, 7, 13, 16, 20, 32} {
		for _, maximum := range []uint16{1, 2, 65535} {
			name := fmt.Sprintf("takes %d, Receive Maximum %d", events, maximum)
			if got := f(name, 200, func() script { return takes(events, maximum) }); got > 0 != (events > roughEnd) {
				t.Errorf("%s: standing %d", name, got)
			}
		}
	}
	for _, likely := range []float64{0.01, 0.05, 0.1, 0.3, 0.5} {
		for how, hangs := range map[string]func(int) func(dislike) script{"many": hangsUp, "one": oneByOne} {
			seen := make(map[int]*rand.Rand) // by event: one connection comes after the other
			f(fmt.Sprint("now and then ", likely, " of ", how), 1000, func() script {
				return hangs(closes)(func(_ *broker, n int) bool {
					if seen[n] == nil {
						seen[n] = rand.New(rand.NewPCG(1, uint64(n)))
					}
					return seen[n].Float64() < likely
				})
			})
		}
	}
	for _, times := range []int{1, 3, 10} {
		f(fmt.Sprintf("at each event %d times", times), 20, func() script {
			return hangsUp(closes)(func(b *broker, n int) (bad bool) {
				b.rig.locked(func() { bad = b.rig.sent[n] <= times })
				return bad
			})
		})
	}
	// A broker that has a reason of its own does not hang up at an event, even if
	// it is the same each time.
	bubble(t, "shuts down", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 100}, hangsUp(packets.DisconnectServerShuttingDown)(func(_ *broker, n int) bool { return n == 50 }))
		for range 300 {
			time.Sleep(time.Second)
			r.add(1)
		}
		r.locked(func() {
			if len(r.taken) < r.total-20 || r.outcomes[Poisoned] > 0 {
				t.Errorf("%d of %d are taken, outcomes %v", len(r.taken), r.total, r.outcomes)
			}
		})
		r.abort()
	})
}

// A broker that hangs up often costs no more than a few signatures for each
// event, and sees no more than that either.
func TestHangsUpSignatures(t *testing.T) {
	for _, events := range []int{10, 100} {
		bubble(t, fmt.Sprint(events), func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: few(6000)}, func(b *broker) { takes(events, 65535)(b) })
			r.awaitTaken()
			r.drain()
			e := Event{Name: wire(t, r.names(1)), Flags: 0x8180, Type: 1, Class: 1, Minute: 1e6}
			size := len(appendPublish(nil, newSigner(testKey), &e, publishHeader{testKey.Topic(), 1, 1}))
			for n, times := range r.taken {
				if times > 1 {
					t.Errorf("event %d was taken %d times", n, times)
				}
			}
			// The first connection begins with all that may be in flight.
			signed, most := int(r.written.Load())/size, min(r.total, maxInFlight)+r.total*11/5
			if signed > most {
				t.Errorf("%d signatures for %d events, want %d at most", signed, r.total, most)
			}
		})
	}
}

// A broker may change, to the better and to the worse, and neither takes long to
// show.
func TestStanding(t *testing.T) {
	w := newWindow(nil)
	other, suspect := &Event{}, &Event{faults: 1}
	f := func(times int, what func(), want bool) {
		t.Helper()
		for range times {
			what()
		}
		if got := w.tells(suspect, 1); got != want {
			t.Errorf("standing %d: %v", w.standing, got)
		}
	}
	f(1, func() { w.wentWell(suspect) }, false)
	f(1, func() { w.wentWell(other) }, true)
	f(1000, func() { w.wentWell(other) }, true)
	f(10, w.endedRough, false)
	f(1000, w.endedRough, false)
	f(100, func() { w.wentWell(other) }, false)
	f(1, func() { w.wentWell(other) }, true)
}

// far answers every PUBLISH some time after it came.
func (b *broker) far(away time.Duration) {
	var answers sync.WaitGroup
	defer answers.Wait()
	due := make(chan func(), maxInFlight)
	defer close(due)
	answers.Go(func() {
		for answer := range due {
			answer()
		}
	})
	for {
		pub, n, ok := b.next()
		if !ok {
			return
		}
		if at := time.Now().Add(away); pub.QoS > 0 {
			due <- func() { time.Sleep(time.Until(at)); b.answer(pub, n, 0) }
		}
	}
}

// After a connection that was lost the window opens again.
func TestHangsUpAndOpens(t *testing.T) {
	for qos := range byte(2) {
		bubble(t, fmt.Sprint("QoS ", qos), func(t *testing.T) {
			r := newRig(t, settings{qos: qos, events: 3000, buffer: 10000}, func(b *broker) { b.accept(0, nil); b.next() }, func(b *broker) {
				b.accept(0, nil)
				b.far(100 * time.Millisecond)
			})
			began := time.Now()
			r.await("all are done with", func() bool { return len(r.removed) == r.total })
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it takes %v", took)
			}
			r.stop()
			<-r.ended
		})
	}
}

// Without answers nobody knows what the broker hung up at: what was not sent yet
// is the first by the next connection.
func TestHangsUpQoS0(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 0, events: 1, buffer: 100}, func(b *broker) {
			b.accept(0, nil)
			time.Sleep(time.Second)
			b.Close()
			time.Sleep(time.Millisecond)
			b.rig.add(few(1000))
		}, good)
		r.awaitTaken()
		if r.order[0] != 1 {
			t.Errorf("event %d comes first", r.order[0])
		}
		r.drain()
	})
}

// When the publisher is told to close, a suspect is still sent; and when it has
// closed, that is not the broker's verdict.
func TestHangsUpAndCloses(t *testing.T) {
	bubble(t, "closing", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 1}, hangsUp(closes)(everything), hangsUp(closes)(everything), good)
		r.drain()
	})
	bubble(t, "waiting", func(t *testing.T) {
		w := newWindow(nil)
		w.suspects = append(w.suspects, Event{})
		empty := make(chan bool, 1)
		go func() { w.awaitEmpty(); empty <- true }()
		synctest.Wait()
		if len(empty) > 0 {
			t.Error("it closes with a suspect")
		}
		w.stop()
		<-empty
	})
	bubble(t, "stopped", func(t *testing.T) {
		var outcomes [NumOutcomes]int
		p := NewPublisher(PublisherOptions{
			QoS: 1, State: func(error) {}, Connected: func(bool) {},
			Counted: func(o Outcome, n int) { outcomes[o] += n },
		})
		w, s := p.window, sending{}
		w.smooth, w.standing = 1000, 1
		w.put([]Event{{Number: 1, Name: wire(t, "e1."), faults: tooManyFaults - 1}})
		if err := w.ConAckReceived(io.Discard, nil, &packets.Connack{}); err != nil || !w.take(&s) {
			t.Fatal(err)
		}
		w.stop()
		w.ConnectionLost(nil)
		if outcomes != [NumOutcomes]int{} {
			t.Errorf("outcomes %v", outcomes)
		}
	})
}
