package output

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

func TestBackoff(t *testing.T) {
	f := func(longest time.Duration, wait func(attempt int) time.Duration) {
		t.Helper()
		if wait(0) != 0 {
			t.Errorf("the first attempt waits %v", wait(0))
		}
		for attempt := 1; attempt < 100; attempt++ {
			want := longest
			if attempt < 10 {
				want = min(want, time.Second<<(attempt-1))
			}
			seen := make(map[time.Duration]bool)
			for range 50 {
				got := wait(attempt)
				if got < want*3/4 || got > want*5/4 {
					t.Errorf("attempt %d waits %v, want about %v", attempt, got, want)
				}
				seen[got] = true
			}
			if len(seen) < 10 {
				t.Errorf("attempt %d: all nodes come back at one moment", attempt)
			}
		}
	}
	f(5*time.Minute, backoff)
	f(48*time.Second, func(attempt int) time.Duration { return backoffUpTo(longestReconnect, attempt) })
}

// A broker that is of no use is not bothered more and more.
func TestBacksOff(t *testing.T) {
	f := func(name string, qos byte, problem string, useless script) {
		bubble(t, name, func(t *testing.T) {
			var better atomic.Bool
			r := newRig(t, settings{qos: qos, events: 100}, func(b *broker) {
				if better.Load() {
					good(b)
				} else {
					useless(b)
				}
			})
			time.Sleep(time.Minute)
			r.locked(func() {
				if n := len(r.dials); n < 4 || n > 9 {
					t.Errorf("%d connections in the first minute", n)
				}
			})
			// While there is a connection nothing is wrong, until it is lost again.
			var state string
			for range 10 * 60 {
				r.locked(func() { state = r.state })
				if strings.Contains(state, problem) {
					break
				}
				time.Sleep(time.Second)
			}
			if !strings.Contains(state, problem) {
				t.Errorf("state %q, want %q", state, problem)
			}
			time.Sleep(time.Hour)
			r.locked(func() {
				if n := len(r.dials); n < 60 || n > 110 {
					t.Errorf("%d connections in an hour", n)
				}
				for i := 1; i < len(r.dials); i++ {
					if gap := r.dials[i].Sub(r.dials[i-1]); gap > time.Minute+connectTimeout {
						t.Errorf("%v between two connections", gap)
					}
				}
			})
			better.Store(true)
			began := time.Now()
			r.await("the broker is used again", func() bool { return r.up && better.Load() })
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it takes %v until the broker is used again", took)
			}
			if qos == 0 { // what was written to the useless one is lost
				r.stop()
				<-r.ended
				return
			}
			r.awaitTaken()
			if r.state != "" {
				t.Errorf("all is well, and the state is %q", r.state)
			}
			r.drain()
		})
	}
	refuse := func(code byte) script { return func(b *broker) { b.accept(code, nil) } }
	f("closes at once", 1, "no connection", func(*broker) {})
	f("closes after CONNECT", 1, "no connection", func(b *broker) { packets.ReadPacket(b) })
	f("closes after CONNACK", 1, "lost", func(b *broker) { b.accept(0, nil) })
	f("closes after CONNACK, QoS 0", 0, "lost", func(b *broker) { b.accept(0, nil) })
	f("closes after PUBLISH", 1, "lost", func(b *broker) { b.accept(0, nil); b.next() })
	f("CONNACK not authorized", 1, "135", refuse(packets.ConnackNotAuthorized))
	f("CONNACK client id", 1, "133", refuse(packets.ConnackInvalidClientID))
	f("CONNACK busy", 1, "137", refuse(packets.ConnackServerBusy))
	f("no QoS 1", 1, "mqtt_qos is 1", func(b *broker) { b.accept(0, &packets.Properties{MaximumQOS: new(byte)}); b.next() })
	f("Receive Maximum 0", 1, "Receive Maximum 0", func(b *broker) { b.accept(0, &packets.Properties{ReceiveMaximum: new(uint16)}); b.next() })
	f("taken over", 1, "Session taken over", func(b *broker) {
		b.accept(0, nil)
		if pub, n, ok := b.next(); ok {
			b.answer(pub, n, 0) // it works, for a moment
		}
		d := packets.NewControlPacket(packets.DISCONNECT)
		d.Content.(*packets.Disconnect).ReasonCode = packets.DisconnectSessionTakenOver
		d.WriteTo(b)
		b.drop()
	})
	for i, b := range garbage {
		f(fmt.Sprint("garbage ", i), 1, "connection", func(p *broker) { packets.ReadPacket(p); p.Write(b) })
		if i != pings {
			f(fmt.Sprint("garbage later ", i), 1, "lost", func(p *broker) { p.accept(0, nil); p.Write(b); p.drop() })
		}
	}
	f("wants to authenticate", 1, "no connection", func(p *broker) {
		packets.ReadPacket(p)
		a := packets.NewControlPacket(packets.AUTH)
		a.Content.(*packets.Auth).ReasonCode = packets.AuthContinueAuthentication
		a.WriteTo(p)
		p.drop()
	})
	f("has authenticated", 1, "lost", func(p *broker) { p.accept(0, &packets.Properties{AuthMethod: "SCRAM"}) })
}

// drop reads until the other end closes the connection, for a while.
func (b *broker) drop() {
	t := time.AfterFunc(time.Second, func() { b.Close() })
	defer t.Stop()
	for buf := make([]byte, 1<<16); ; {
		if _, err := b.Read(buf); err != nil {
			return
		}
	}
}

// pings is the index in garbage of what is no reason to hang up.
const pings = 0

// garbage is what no broker sends, least of all in the place of CONNACK.
var garbage = [][]byte{
	{0xd0, 0x00, 0xd0, 0x00},
	{0x00, 0x00},
	{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	{0x40, 0x00},
	{0x40, 0x01, 0x00},
	{0x20, 0x03, 0x00, 0x00, 0x05},
	{0x20, 0x02, 0x00, 0x00},
	{0x40, 0x06, 0x00, 0x01, 0x00, 0x02, 0xfe, 0xfe},
	{0x30, 0x02, 0xff, 0xff},
	[]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html>"),
	[]byte("SSH-2.0-OpenSSH_9.2\r\n" + strings.Repeat("key exchange", 40)),
	{0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46},
	bytes.Repeat([]byte{0x80}, 1000),
	bytes.Repeat([]byte{0x10, 0x7f, 0xaa}, 1000),
}

func TestDialFails(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var there atomic.Bool
		r := newRig(t, settings{qos: 1, events: 5_000_000, dial: func() error {
			if there.Load() {
				return nil
			}
			return errors.New("connection refused")
		}}, good)
		time.Sleep(time.Hour)
		r.locked(func() {
			if n := len(r.dials); n < 60 || n > 110 {
				t.Errorf("%d attempts in an hour", n)
			}
			if r.cursor > maxReady+batchEvents {
				t.Errorf("%d events are read with the broker away", r.cursor)
			}
			if !strings.Contains(r.state, "connection refused") || r.up {
				t.Errorf("state %q, connected %v", r.state, r.up)
			}
			r.total = 1000
		})
		there.Store(true)
		r.awaitTaken()
		r.drain()
		r.once()
		checkOrder(t, r.order, maxInFlight)
	})
}

func TestNeverAcknowledges(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes many signatures")
	}
	bubble(t, "", func(t *testing.T) {
		var lasted time.Duration
		r := newRig(t, settings{qos: 1, events: 20000}, func(b *broker) {
			b.accept(0, nil)
			began := time.Now()
			for ok := true; ok; {
				_, _, ok = b.next()
			}
			lasted = time.Since(began)
		}, good)
		time.Sleep(time.Second)
		r.locked(func() {
			if len(r.sent) != maxInFlight {
				t.Errorf("%d events in flight, want %d", len(r.sent), maxInFlight)
			}
			if most := maxInFlight + maxReady + batchEvents; r.cursor > most {
				t.Errorf("%d events are read, want no more than %d", r.cursor, most)
			}
		})
		r.awaitTaken()
		if lasted < packetTimeout || lasted > packetTimeout+2*time.Second {
			t.Errorf("the connection is closed after %v", lasted)
		}
		r.drain()
		checkTwice(t, r, maxInFlight)
	})
}

// checkTwice checks that no more than some events were sent twice, and none
// more often.
func checkTwice(t testing.TB, r *rig, most int) {
	t.Helper()
	twice := 0
	for n, times := range r.sent {
		if times > 2 {
			t.Errorf("event %d was sent %d times", n, times)
		} else if times == 2 {
			twice++
		}
	}
	if twice > most {
		t.Errorf("%d events were sent twice, want no more than %d", twice, most)
	}
}

func TestDisconnectsOften(t *testing.T) {
	for _, how := range []string{"closes", "says so"} {
		bubble(t, how, func(t *testing.T) {
			events := few(3000)
			r := newRig(t, settings{qos: 1, events: events}, func(b *broker) {
				if !b.accept(0, nil) {
					return
				}
				for range 100 {
					pub, n, ok := b.next()
					if !ok {
						return
					}
					b.answer(pub, n, 0)
				}
				if how == "says so" {
					d := packets.NewControlPacket(packets.DISCONNECT)
					d.Content.(*packets.Disconnect).ReasonCode = packets.DisconnectServerBusy
					d.WriteTo(b)
				}
			})
			began := time.Now()
			r.awaitTaken()
			if took, n := time.Since(began), len(r.dials); n > 2*events/100+2 || took > time.Minute {
				t.Errorf("%d connections in %v", n, took)
			}
			r.drain()
			checkGaps(t, r, shortestBackoff)
		})
	}
}

// checkGaps checks that there was some time between any two connections.
func checkGaps(t testing.TB, r *rig, least time.Duration) {
	t.Helper()
	for i := 1; i < len(r.dials); i++ {
		if gap := r.dials[i].Sub(r.dials[i-1]); gap < least {
			t.Errorf("connection %d comes %v after the one before", i, gap)
			return
		}
	}
}

// Every event that is lost with a connection, in the middle of a packet in
// either direction, is sent again.
func TestCutConnections(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: few(5000)}, func(b *broker) {
			if !b.accept(0, nil) {
				return
			}
			for range 7 * (b.nth % 50) {
				pub, n, ok := b.next()
				if !ok {
					return
				}
				b.answer(pub, n, 0)
			}
			b.Read(make([]byte, 1+b.nth%500))
			b.Write([]byte{0x40, 0x04, 0x00}[:b.nth%4])
		})
		r.awaitTaken()
		r.drain()
		checkGaps(t, r, shortestBackoff)
	})
}
