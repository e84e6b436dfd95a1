package output

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// What is written is a PUBLISH for paho too, around the sizes at which its
// length takes one octet more.
func TestAppendPublish(t *testing.T) {
	f := func(kid int, name string, qos byte) (size int) {
		t.Helper()
		s := newSigner(keyNamed(t, strings.Repeat("k", kid)))
		e := Event{Name: wire(t, name), Flags: 33152, Type: 1, Class: 1, Minute: testMinute}
		h := publishHeader{s.key.Topic(), 0, qos}
		if qos > 0 {
			h.id = 0xfe01
		}
		got := appendPublish([]byte("before"), s, &e, h)[6:]
		r := bytes.NewReader(got)
		cp, err := packets.ReadPacket(r)
		if err != nil || r.Len() > 0 {
			t.Fatalf("kid of %d, %s: %v, %d octets left", kid, name, err, r.Len())
		}
		p, ok := cp.Content.(*packets.Publish)
		if !ok || p.Topic != h.topic || p.PacketID != h.id || p.QoS != qos || p.Duplicate || p.Retain {
			t.Fatalf("kid of %d, %s: %v", kid, name, cp)
		}
		if payload, err := open(p.Payload, s.key); err != nil || !bytes.Equal(payload, e.appendPayload(nil)) {
			t.Errorf("kid of %d, %s: %v: %q", kid, name, err, payload)
		}
		// paho writes the same octets.
		p.Properties = &packets.Properties{}
		var again bytes.Buffer
		if _, err := p.WriteTo(&again); err != nil || !bytes.Equal(again.Bytes(), got) {
			t.Errorf("kid of %d, %s: paho writes %q, we %q", kid, name, again.Bytes(), got)
		}
		n := len(got) - 1
		for ; got[len(got)-n] >= 0x80; n-- {
		}
		return n - 1
	}
	around := make(map[int]bool)
	for qos := range byte(2) {
		for _, name := range []string{".", "a.", "ab.", "abc."} { // base64 has steps of its own
			// A longer kid is longer in the topic, and in the header in base64.
			for kid := 1; kid < 120; kid++ {
				around[f(kid, name, qos)] = true
			}
			for kid := 6840; kid < 6920; kid++ {
				around[f(kid, name, qos)] = true
			}
			f(65000, name, qos) // three octets of length
		}
	}
	for _, size := range []int{16382, 16383, 16384, 16385} {
		if !around[size] {
			t.Errorf("no packet with the length %d was tried", size)
		}
	}
}

// The length of a packet takes one octet more at any topic's length.
func TestAppendPublishLength(t *testing.T) {
	s := newSigner(testKey)
	e := Event{Name: []byte{0}}
	least := len(s.appendSigned(nil, &e))
	for n := 0; n < 16500; n++ {
		if n == 500 {
			n = 15900
		}
		got := appendPublish(nil, s, &e, publishHeader{topic: strings.Repeat("t", n), qos: 0})
		r := bytes.NewReader(got)
		cp, err := packets.ReadPacket(r)
		if err != nil || r.Len() > 0 || len(cp.Content.(*packets.Publish).Topic) != n || len(cp.Content.(*packets.Publish).Payload) != least {
			t.Fatalf("topic of %d octets: %v, %d octets left", n, err, r.Len())
		}
	}
}

func TestBackoff(t *testing.T) {
	if backoff(0) != 0 {
		t.Errorf("the first attempt waits %v", backoff(0))
	}
	for attempt := 1; attempt < 100; attempt++ {
		want := 300 * time.Second
		if attempt < 10 {
			want = min(want, time.Second<<(attempt-1))
		}
		seen := make(map[time.Duration]bool)
		for range 50 {
			got := backoff(attempt)
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

func TestPublish(t *testing.T) {
	for qos := range byte(2) {
		bubble(t, fmt.Sprint("QoS ", qos), func(t *testing.T) {
			r := newRig(t, settings{qos: qos, events: few(5000)}, good)
			r.awaitTaken()
			r.add(1) // and one by itself, later
			r.awaitTaken()
			r.drain()
			r.once()
			checkOrder(t, r.order, maxInFlight)
			if len(r.dials) != 1 || !slices.Equal(r.states, nil) {
				t.Errorf("%d connections, states %q", len(r.dials), r.states)
			}
			if want := (few(5000) + 1) * int(qos); r.answered[0] != want {
				t.Errorf("answers %v", r.answered)
			}
		})
	}
}

// checkOrder checks that events came roughly in order: none after one that is
// more than slack later.
func checkOrder(t testing.TB, order []int, slack int) {
	t.Helper()
	highest := 0
	for _, n := range order {
		if highest = max(highest, n); highest-n > slack {
			t.Errorf("event %d comes after %d", n, highest)
			return
		}
	}
}

// What is queued when the publisher is told to close is still sent.
func TestClosing(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: few(20000)}, good)
		r.drain()
		r.once()
	})
	bubble(t, "nothing", func(t *testing.T) {
		r := newRig(t, settings{qos: 1}, good)
		r.drain()
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
				if n := len(r.dials); n < 15 || n > 35 {
					t.Errorf("%d connections in an hour", n)
				}
				for i := 1; i < len(r.dials); i++ {
					if gap := r.dials[i].Sub(r.dials[i-1]); gap > longestBackoff*5/4+connectTimeout {
						t.Errorf("%v between two connections", gap)
					}
				}
			})
			better.Store(true)
			began := time.Now()
			r.await("the broker is used again", func() bool { return r.up && better.Load() })
			if took := time.Since(began); took > longestBackoff*5/4 {
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
			if n := len(r.dials); n < 15 || n > 30 {
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

func TestTopicRefused(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var allowed atomic.Bool
		r := newRig(t, settings{qos: 1, events: 1000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte {
				if n <= 200 || allowed.Load() {
					return 0
				}
				return packets.PubackNotAuthorized
			})
		})
		time.Sleep(10 * time.Minute)
		r.locked(func() {
			if !strings.Contains(r.state, "refuses events for topic events/up/node.example/new_qname") {
				t.Errorf("state %q", r.state)
			}
			if len(r.states) != 1 {
				t.Errorf("each refusal is a state of its own: %q", r.states)
			}
			if r.sent[201] > 12 {
				t.Errorf("an event was sent %d times in ten minutes", r.sent[201])
			}
			if r.answered[135] == 0 {
				t.Error("135 is not counted")
			}
		})
		allowed.Store(true)
		r.awaitTaken()
		r.drain()
		if len(r.states) != 2 || r.state != "" {
			t.Errorf("states %q", r.states)
		}
		if len(r.dials) != 1 {
			t.Errorf("%d connections", len(r.dials))
		}
	})
}

// A new connection is a new chance: the wait after a refusal ends.
func TestTopicRefusedReconnect(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		restarted := time.Now().Add(20 * time.Minute)
		r := newRig(t, settings{qos: 1, events: 10}, func(b *broker) {
			time.AfterFunc(time.Until(restarted), func() { b.Close() })
			b.accept(0, nil)
			b.serve(func(int) byte { return packets.PubackNotAuthorized })
		}, good)
		r.awaitTaken()
		if late := time.Since(restarted); late > 2*time.Second {
			t.Errorf("events are taken %v after the broker is back", late)
		}
		r.drain()
	})
}

// An event that is refused again and again while others are taken is dropped.
func TestPoison(t *testing.T) {
	f := func(name string, first int, every time.Duration, poison ...int) {
		bubble(t, name, func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: first}, func(b *broker) {
				b.accept(0, nil)
				b.serve(func(n int) byte {
					if slices.Contains(poison, n) {
						return packets.PubackImplementationSpecificError
					}
					return 0
				})
			})
			for range 100 {
				time.Sleep(every)
				r.add(1)
			}
			r.await("all are done with", func() bool { return len(r.taken)+r.outcomes[Poisoned] == r.total })
			r.await("all is well", func() bool { return r.state == "" })
			r.drain(poison...)
			if r.outcomes[Poisoned] != len(poison) {
				t.Errorf("outcomes %v", r.outcomes)
			}
			for n, times := range r.sent {
				if slices.Contains(poison, n) != (times > 1) || times > 30 {
					t.Errorf("event %d was sent %d times", n, times)
				}
			}
			if n := len(r.states); n > 4*refusedTooMuch {
				t.Errorf("%d changes of state", n)
			}
		})
	}
	f("the first of many", 2000, time.Second, 1)
	f("the last of many", 2000, time.Second, 2000)
	f("some of many", 2000, time.Second, 1, 2, 3, 500, 501, 1999)
	f("the first, then one each second", 1, time.Second, 1)
	f("one each second", 1, time.Second, 5)
	f("one each minute", 1, time.Minute, 5)
	f("two a second", 1, time.Second/2, 5, 6, 70)
}

// An event alone is never poison: nobody knows that it is not the broker.
func TestRefusedAlone(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 3}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(int) byte { return packets.PubackUnspecifiedError })
		})
		time.Sleep(24 * time.Hour)
		r.locked(func() {
			if r.outcomes != [NumOutcomes]int{} || len(r.removed) > 0 {
				t.Errorf("outcomes %v", r.outcomes)
			}
		})
		r.abort()
	})
}

// A broker that takes some a second and refuses the others gets all in the end.
func TestQuota(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var left atomic.Int64
		r := newRig(t, settings{qos: 1, events: few(1000)}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte {
				if left.Add(-1) < 0 {
					return packets.PubackQuotaExceeded
				}
				return 0
			})
		})
		done := make(chan bool)
		go func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Second):
					left.Store(50)
				}
			}
		}()
		began := time.Now()
		r.awaitTaken()
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("a thousand events at 50 a second take %v", took)
		}
		done <- true
		r.drain()
		if n := len(r.states); n > 400 {
			t.Errorf("%d changes of state", n)
		}
	})
}

func TestReceiveMaximum(t *testing.T) {
	for _, maximum := range []uint16{1, 2, 20, 65535} {
		bubble(t, fmt.Sprint(maximum), func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: 2000}, func(b *broker) {
				b.accept(0, &packets.Properties{ReceiveMaximum: &maximum})
				var open []*packets.Publish
				var numbers []int
				for {
					// All that it may send is sent, and not one more.
					pub, n, ok := b.next()
					if !ok {
						return
					}
					open, numbers = append(open, pub), append(numbers, n)
					if len(open) < min(int(maximum), maxInFlight, 2000-len(b.rig.taken)) {
						continue
					}
					time.Sleep(time.Millisecond)
					if buffered := b.Conn.(*memoryConn).in.len(); buffered > 2 { // a ping
						b.rig.t.Errorf("%d octets more than Receive Maximum allows", buffered)
					}
					for i, pub := range open {
						b.answer(pub, numbers[i], 0)
					}
					open, numbers = nil, nil
				}
			})
			r.awaitTaken()
			r.drain()
			r.once()
		})
	}
}

func (s *stream) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.octets.Len()
}

func TestMaximumPacketSize(t *testing.T) {
	names := func(n int) string {
		if n == 500 {
			return "e500." + strings.Repeat("a", 63) + "."
		}
		return fmt.Sprintf("e%d.", n)
	}
	size := func(n int) uint32 {
		e := Event{Name: wire(t, names(n)), Flags: 0x8180, Type: 1, Class: 1, Minute: 1e6}
		return uint32(len(appendPublish(nil, newSigner(testKey), &e, publishHeader{testKey.Topic(), 1, 1})))
	}
	f := func(name string, limit uint32, dropped ...int) {
		bubble(t, name, func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: 1000, names: names}, func(b *broker) {
				b.accept(0, &packets.Properties{MaximumPacketSize: &limit})
				b.serve(func(int) byte { return 0 })
			})
			r.await("all are done with", func() bool { return len(r.removed) == r.total })
			r.drain(dropped...)
			r.once()
			if r.outcomes[TooLarge] != len(dropped) || len(r.sent) != r.total-len(dropped) {
				t.Errorf("outcomes %v, %d sent", r.outcomes, len(r.sent))
			}
		})
	}
	var all []int
	for n := range 1000 {
		all = append(all, n+1)
	}
	f("too small for all", size(1)-1, all...)
	f("too small for one", size(500)-1, 500)
	f("just enough", size(500))
	f("1", 1, all...)

	// mosquitto has a limit that it does not tell of.
	bubble(t, "PUBACK 149", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 1000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte {
				if n%100 == 0 {
					return 149
				}
				return 0
			})
		})
		r.await("all are done with", func() bool { return len(r.removed) == r.total })
		r.drain(100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
		r.once()
		if r.outcomes[TooLarge] != 10 || len(r.states) > 0 {
			t.Errorf("outcomes %v, states %q", r.outcomes, r.states)
		}
	})
}

func TestNobodySubscribes(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 1000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte { return byte(n % 2 * 16) })
		})
		r.awaitTaken()
		r.drain()
		r.once()
		if r.answered[16] != 500 || r.answered[0] != 500 || len(r.states) > 0 {
			t.Errorf("answers %v, states %q", r.answered, r.states)
		}
	})
}

func TestUnstorable(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		names := func(n int) string {
			if n%10 == 0 {
				return fmt.Sprintf("e%d.*.example.", n)
			}
			return fmt.Sprintf("e%d.example.", n)
		}
		// Lost once, sent twice, counted once.
		r := newRig(t, settings{qos: 1, events: 1000, names: names}, func(b *broker) {
			b.accept(0, nil)
			for range 1000 {
				b.next()
			}
		}, good)
		r.awaitTaken()
		r.drain()
		if r.outcomes[Unstorable] != 100 {
			t.Errorf("outcomes %v", r.outcomes)
		}
	})
}

// Answers that nobody waits for do no harm, and neither do two answers to one
// event.
func TestStrangeAnswers(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: few(20000)}, func(b *broker) {
			maximum := uint16(7)
			b.accept(0, &packets.Properties{ReceiveMaximum: &maximum})
			for _, kind := range []byte{packets.PUBREC, packets.PUBREL, packets.PUBCOMP, packets.SUBACK, packets.UNSUBACK, packets.PINGRESP} {
				cp := packets.NewControlPacket(kind)
				cp.WriteTo(b)
			}
			for qos := range byte(3) {
				p := packets.Publish{Topic: "a/b", Payload: []byte("unasked"), QoS: qos, PacketID: uint16(qos), Properties: &packets.Properties{}}
				p.WriteTo(b)
			}
			for {
				pub, n, ok := b.next()
				if !ok {
					return
				}
				b.puback(0, 0)
				b.puback(65535, 0)
				b.puback(maxInFlight+1, 0)
				b.puback((pub.PacketID+2000)%maxInFlight+1, 0)
				b.answer(pub, n, 0)
				b.puback(pub.PacketID, 0)
				b.puback(pub.PacketID, 135)
			}
		})
		r.awaitTaken()
		r.drain()
		r.once()
	})
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

// A broker that reads nothing.
func TestNotReading(t *testing.T) {
	for qos := range byte(2) {
		bubble(t, fmt.Sprint("QoS ", qos), func(t *testing.T) {
			var gone time.Duration
			r := newRig(t, settings{qos: qos, events: 5000, buffer: 10000}, func(b *broker) {
				b.accept(0, nil)
				began := time.Now()
				for !b.Conn.(*memoryConn).in.isEnded() {
					time.Sleep(100 * time.Millisecond)
				}
				gone = time.Since(began)
			}, good)
			r.await("another connection", func() bool { return len(r.dials) > 1 })
			if gone > packetTimeout+2*time.Second {
				t.Errorf("the connection is kept for %v", gone)
			}
			if qos == 1 {
				r.awaitTaken()
				r.drain()
				return
			}
			// Of the first connection, no more is lost than it held.
			r.await("the rest", func() bool { return len(r.removed) == r.total })
			r.locked(func() {
				if n := len(r.taken); n < 5000-10000/300 {
					t.Errorf("%d events came", n)
				}
			})
			r.stop()
			<-r.ended
		})
	}
}

func (s *stream) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.broken
}

func TestSlowBroker(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: few(10000), buffer: 20000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(int) byte { time.Sleep(10 * time.Millisecond); return 0 })
		})
		r.awaitTaken()
		r.drain()
		r.once()
		checkOrder(t, r.order, maxInFlight)
		if len(r.dials) != 1 || len(r.states) > 0 {
			t.Errorf("%d connections, states %q", len(r.dials), r.states)
		}
	})
}

// Whatever the broker does, the publisher ends soon after its context.
func TestAbort(t *testing.T) {
	forever := func(b *broker) {
		for !b.Conn.(*memoryConn).in.isEnded() {
			time.Sleep(100 * time.Millisecond)
		}
	}
	f := func(name string, buffer int, script script) {
		for qos := range byte(2) {
			for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Second} {
				bubble(t, fmt.Sprint(name, " QoS ", qos, " after ", after), func(t *testing.T) {
					r := newRig(t, settings{qos: qos, events: few(5000), buffer: buffer}, script)
					time.Sleep(after)
					r.abort()
				})
			}
		}
	}
	f("good", 0, good)
	f("closes at once", 0, func(*broker) {})
	f("no CONNACK", 0, forever)
	f("not reading", 10000, func(b *broker) { b.accept(0, nil); forever(b) })
	f("never acknowledges", 0, func(b *broker) {
		b.accept(0, nil)
		for ok := true; ok; {
			_, _, ok = b.next()
		}
	})
	f("refuses", 0, func(b *broker) {
		b.accept(0, nil)
		b.serve(func(int) byte { return 135 })
	})
	f("refuses connections", 0, func(b *broker) { b.accept(135, nil) })
	// It was told to close, and has waited long enough.
	bubble(t, "closing", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 20000, buffer: 10000}, func(b *broker) { b.accept(0, nil); forever(b) })
		close(r.closing)
		time.Sleep(5 * time.Second)
		r.abort()
	})
}

// The key may change between two events, and with it the topic and the kid.
func TestKeyChanges(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		other := keyNamed(t, "other")
		var key atomic.Pointer[SigningKey]
		key.Store(testKey)
		r := newRig(t, settings{qos: 1, events: 1, key: key.Load}, func(b *broker) {
			b.accept(0, nil)
			pub, n, ok := b.next()
			if !ok {
				return
			}
			b.answer(pub, n, 0)
			key.Store(other)
			b.rig.add(1)
			cp, err := packets.ReadPacket(b)
			for err == nil && cp.Type == packets.PINGREQ {
				packets.NewControlPacket(packets.PINGRESP).WriteTo(b)
				cp, err = packets.ReadPacket(b)
			}
			if err != nil {
				return
			}
			pub = cp.Content.(*packets.Publish)
			if pub.Topic != other.Topic() || !bytes.Contains(pub.Payload, newSigner(other).protected) {
				b.rig.t.Errorf("after the change: %v", pub)
			}
			b.answer(pub, 2, 0)
			b.next()
		})
		r.awaitTaken()
		r.drain()
	})
}

// A real socket that is not read, or reset, in a real time.
func TestSockets(t *testing.T) {
	listen := func(t *testing.T, s script) (string, *rig) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		server := "tcp://" + l.Addr().String()
		r := newRig(t, settings{qos: 1, events: few(8000), server: server})
		go func() {
			for nth := 0; ; nth++ {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					s(&broker{Conn: c, rig: r, nth: nth})
				}()
			}
		}()
		return server, r
	}
	t.Run("not read", func(t *testing.T) {
		held := make(chan bool)
		defer close(held)
		_, r := listen(t, func(b *broker) {
			b.Conn.(*net.TCPConn).SetReadBuffer(4096)
			b.accept(0, nil)
			<-held
		})
		r.await("a connection", func() bool { return r.up })
		time.Sleep(200 * time.Millisecond) // the window fills; nothing depends on whether it has
		r.abort()
	})
	t.Run("reset", func(t *testing.T) {
		_, r := listen(t, func(b *broker) {
			b.Conn.(*net.TCPConn).SetLinger(0)
			b.accept(0, nil)
			for range few(3000) {
				pub, n, ok := b.next()
				if !ok {
					return
				}
				b.answer(pub, n, 0)
			}
			b.Read(make([]byte, 100))
		})
		r.awaitTaken()
		r.drain()
	})
}
