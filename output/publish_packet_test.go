package output

import (
	"bytes"
	"strings"
	"testing"

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
