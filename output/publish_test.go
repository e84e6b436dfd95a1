package output

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

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
