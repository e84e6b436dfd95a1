package output

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
)

// A rig is a Publisher between a queue and a broker that does what a test says.
// Time is that of synctest, unless the broker listens on a real socket.
type rig struct {
	t       testing.TB
	p       *Publisher
	stop    context.CancelFunc
	closing chan struct{}
	ended   chan error

	mu       sync.Mutex
	total    int // events added, with the numbers 1 to total
	cursor   int // events read
	wake     chan struct{}
	sent     map[int]int // times that the broker got an event
	order    []int       // of the first time
	taken    map[int]int // times that the broker took it
	removed  map[int]int
	outcomes [NumOutcomes]int
	givenUp  []string
	answered map[byte]int
	state    string   // of the moment
	states   []string // each change
	up       bool
	dials    []time.Time
	names    func(number int) string

	written atomic.Int64 // octets, by the publisher, or that it wanted to
}

// A script is what the broker does with a connection, which is closed when it
// returns.
type script func(b *broker)

type settings struct {
	qos    byte
	events int
	names  func(int) string // of events; nil: small ones
	key    func() *SigningKey
	buffer int          // octets that the broker's end holds unread; 0: many
	dial   func() error // nil: always there
	server string       // a real one
}

const keepAlive = 30 * time.Second

// few is how many events a test takes with -short, of those it takes without.
// Each is signed and verified, which the race detector makes ten times as slow.
func few(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// newRig starts a publisher whose nth connection, from 0, meets the nth script,
// or the last.
func newRig(t testing.TB, s settings, scripts ...script) *rig {
	t.Helper()
	r := &rig{
		t: t, closing: make(chan struct{}), ended: make(chan error, 1), wake: make(chan struct{}, 1), total: s.events,
		sent: make(map[int]int), taken: make(map[int]int), removed: make(map[int]int), answered: make(map[byte]int), names: s.names,
	}
	if r.names == nil {
		r.names = func(n int) string { return fmt.Sprintf("e%d.example.", n) }
	}
	if s.key == nil {
		s.key = func() *SigningKey { return testKey }
	}
	server, err := url.Parse("mqtt://broker.test:1883")
	if s.server != "" {
		server, err = url.Parse(s.server)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.p = NewPublisher(PublisherOptions{
		Server: server, Key: s.key, QoS: s.qos, KeepAlive: keepAlive,
		Read: r.read, Wake: r.wake, Remove: r.remove,
		State: r.setState, Connected: r.connected,
		Counted:  func(o Outcome, n int) { r.locked(func() { r.outcomes[o] += n }) },
		Answered: func(code byte) { r.locked(func() { r.answered[code]++ }) },
		GivenUp: func(e Event, why string) {
			r.locked(func() { r.givenUp = append(r.givenUp, fmt.Sprint(string(appendJSONName(nil, e.Name)), ": ", why)) })
		},
	})
	if s.server == "" {
		r.p.dial = func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) {
			n := 0
			r.locked(func() { n = len(r.dials); r.dials = append(r.dials, time.Now()) })
			if s.dial != nil {
				if err := s.dial(); err != nil {
					return nil, err
				}
			}
			ours, theirs := memoryPipe(s.buffer)
			ours.(*memoryConn).written = &r.written
			b := &broker{Conn: theirs, rig: r, nth: n}
			go func() {
				defer theirs.Close()
				scripts[min(n, len(scripts)-1)](b)
			}()
			return ours, nil
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.ended <- r.p.Run(ctx, r.closing) }()
	return r
}

func (r *rig) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *rig) read(f func(Event) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.cursor < r.total {
		n := r.cursor + 1
		name := wire(r.t, r.names(n))
		ok := f(Event{Number: uint64(n), Name: name, Flags: 0x8180, Type: 1, Class: 1, Minute: 1e6})
		for i := range name { // it was lent
			name[i] = 0xCC
		}
		if !ok {
			return nil
		}
		r.cursor = n
	}
	return nil
}

func (r *rig) add(n int) {
	r.locked(func() { r.total += n })
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *rig) remove(numbers []uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range numbers {
		r.removed[int(n)]++
	}
	return nil
}

func (r *rig) setState(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := ""
	if err != nil {
		state = err.Error()
	}
	if state != r.state {
		r.state = state
		r.states = append(r.states, state)
	}
}

func (r *rig) connected(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up == up {
		r.t.Errorf("told twice that connected is %v", up)
	}
	r.up = up
}

// got notes that the broker got an event, after it has checked it.
func (r *rig) got(pub *packets.Publish) int {
	payload, err := open(pub.Payload, testKey)
	if err != nil {
		r.t.Errorf("a message that is not signed: %v: %q", err, pub.Payload)
		return 0
	}
	var body struct{ Qname string }
	if err := json.Unmarshal(payload, &body); err != nil {
		r.t.Errorf("payload %q: %v", payload, err)
		return 0
	}
	digits, _, _ := strings.Cut(strings.TrimPrefix(body.Qname, "e"), ".")
	n, err := strconv.Atoi(digits)
	if err != nil || r.names(n) != body.Qname || pub.Topic != testKey.Topic() || pub.QoS != r.p.o.QoS || pub.Retain || pub.Duplicate {
		r.t.Errorf("a message that was not queued: %v, %q", pub, payload)
		return 0
	}
	r.locked(func() {
		if r.sent[n]++; r.sent[n] == 1 {
			r.order = append(r.order, n)
		}
	})
	return n
}

// open verifies a flattened JWS and returns its payload.
func open(jws []byte, key *SigningKey) ([]byte, error) {
	var j struct{ Payload, Protected, Signature string }
	if err := json.Unmarshal(jws, &j); err != nil {
		return nil, err
	}
	signature, err := base64.RawURLEncoding.DecodeString(j.Signature)
	if err != nil || !ed25519.Verify(key.private.Public().(ed25519.PublicKey), []byte(j.Protected+"."+j.Payload), signature) {
		return nil, fmt.Errorf("bad signature (%v)", err)
	}
	return base64.RawURLEncoding.DecodeString(j.Payload)
}

// await waits until a condition holds, in the time of synctest for as long as
// it takes.
func (r *rig) await(what string, holds func() bool) {
	r.t.Helper()
	for end := time.Now().Add(24 * time.Hour); ; time.Sleep(10 * time.Millisecond) {
		ok := false
		if r.locked(func() { ok = holds() }); ok {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("waited a day for: %s; state %q, %d of %d taken, outcomes %v", what, r.state, len(r.taken), r.total, r.outcomes)
		}
	}
}

// awaitTaken waits until the broker has taken all events.
func (r *rig) awaitTaken() {
	r.t.Helper()
	r.await("all events taken", func() bool { return len(r.taken) == r.total })
}

// drain ends the publisher as a clean stop does, and checks that nothing is
// lost: every event but dropped was taken and was removed once.
func (r *rig) drain(dropped ...int) {
	r.t.Helper()
	close(r.closing)
	if err := <-r.ended; err != nil {
		r.t.Errorf("the publisher ends with %v", err)
	}
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := 1; n <= r.total; n++ {
		if r.taken[n] == 0 && !slices.Contains(dropped, n) {
			r.t.Errorf("event %d of %d was not delivered (sent %d times)", n, r.total, r.sent[n])
		}
		if r.removed[n] != 1 {
			r.t.Errorf("event %d was removed %d times", n, r.removed[n])
		}
		if r.t.Failed() {
			return
		}
	}
	if got := r.outcomes[Delivered]; got != r.total-len(dropped) {
		r.t.Errorf("%d counted as delivered, want %d", got, r.total-len(dropped))
	}
	if r.up {
		r.t.Error("it ends and does not say that the connection is gone")
	}
}

// abort ends the context and checks that the publisher returns in time and has
// removed nothing that the broker had not taken.
func (r *rig) abort() {
	r.t.Helper()
	began := time.Now()
	r.stop()
	<-r.ended
	if took := time.Since(began); took >= 2*time.Second {
		r.t.Errorf("it takes %v to stop", took)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, times := range r.removed {
		if r.taken[n] == 0 && r.p.o.QoS > 0 || times != 1 {
			r.t.Errorf("event %d was removed %d times, and taken %d times", n, times, r.taken[n])
			return
		}
	}
}

// once checks that no event but those was sent more than once.
func (r *rig) once(except ...int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, times := range r.sent {
		if times > 1 && !slices.Contains(except, n) {
			r.t.Errorf("event %d was sent %d times", n, times)
			return
		}
	}
}

// A broker is the far end of a connection.
type broker struct {
	net.Conn
	rig *rig
	nth int
}

// accept reads CONNECT and answers with CONNACK.
func (b *broker) accept(code byte, p *packets.Properties) bool {
	cp, err := packets.ReadPacket(b)
	if err != nil {
		return false
	}
	c, ok := cp.Content.(*packets.Connect)
	if !ok || c.ProtocolVersion != 5 || !c.CleanStart || c.ClientID != testKey.ID+"-edm" || c.KeepAlive != 30 || c.Properties.SessionExpiryInterval != nil {
		b.rig.t.Errorf("CONNECT is %v", cp)
	}
	if p == nil {
		p = &packets.Properties{}
	}
	ack := packets.Connack{ReasonCode: code, Properties: p}
	_, err = ack.WriteTo(b)
	return err == nil && code == 0
}

// next returns the next PUBLISH, and false when there will be none. It answers
// pings.
func (b *broker) next() (*packets.Publish, int, bool) {
	for {
		cp, err := packets.ReadPacket(b)
		if err != nil {
			return nil, 0, false
		}
		switch c := cp.Content.(type) {
		case *packets.Publish:
			if (c.PacketID == 0) == (c.QoS == 1) {
				b.rig.t.Errorf("packet identifier %d with QoS %d", c.PacketID, c.QoS)
			}
			return c, b.rig.got(c), true
		case *packets.Pingreq:
			if _, err := packets.NewControlPacket(packets.PINGRESP).WriteTo(b); err != nil {
				return nil, 0, false
			}
		case *packets.Disconnect:
			if c.ReasonCode != 0 {
				b.rig.t.Errorf("DISCONNECT with %d", c.ReasonCode)
			}
			return nil, 0, false
		default:
			b.rig.t.Errorf("unexpected packet %v", cp)
			return nil, 0, false
		}
	}
}

// answer sends a PUBACK, and notes that the event is taken.
func (b *broker) answer(pub *packets.Publish, n int, code byte) {
	if code < 0x80 {
		b.rig.locked(func() { b.rig.taken[n]++ })
	}
	b.puback(pub.PacketID, code)
}

func (b *broker) puback(id uint16, code byte) {
	ack := packets.Puback{PacketID: id, ReasonCode: code, Properties: &packets.Properties{}}
	ack.WriteTo(b)
}

// good is the script of a broker that takes everything.
func good(b *broker) {
	if b.accept(0, nil) {
		b.serve(func(int) byte { return 0 })
	}
}

// serve answers every PUBLISH as told.
func (b *broker) serve(code func(n int) byte) {
	for {
		pub, n, ok := b.next()
		if !ok {
			return
		}
		if pub.QoS == 0 {
			b.rig.locked(func() { b.rig.taken[n]++ })
			continue
		}
		b.answer(pub, n, code(n))
	}
}

// bubble runs a test in the time of synctest, which also finds goroutines that
// are left a minute after it.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t)
			time.Sleep(time.Minute)
		})
	})
}
