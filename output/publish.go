package output

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"runtime"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// A Publisher sends events to the broker as MQTT 5 messages, signed.
//
// autopaho keeps the connection: it dials, says CONNECT, pings and dials again.
// Publishing goes past it, straight to the connection, because a call of its
// own for each event costs as much as the signature: see window.
//
//	Read ─▶ window ─▶ senders ─▶ connection ─PUBACK▶ window ─▶ Remove
//
// An event leaves the queue when the broker has taken it, or when it can never
// be delivered; until then it is sent again: after the connection was lost, at
// once, and after a refusal, later. See poison.go for when that ends.
type Publisher struct {
	o      PublisherOptions
	window *window
	dial   func(context.Context, autopaho.ClientConfig, *url.URL) (net.Conn, error) // nil: autopaho does
}

// PublisherOptions are what a Publisher needs. Its functions are called by
// goroutines of the Publisher's.
type PublisherOptions struct {
	Server    *url.URL
	TLS       *tls.Config // for the schemes that have it
	Key       func() *SigningKey
	QoS       byte // 0 or 1
	KeepAlive time.Duration

	// Read gives events that were not read before, in order, until its argument
	// returns false. The name is valid during the call. Wake is signalled when
	// there may be more.
	Read func(func(Event) bool) error
	Wake <-chan struct{}
	// Remove takes events off the queue.
	Remove func(numbers []uint64) error

	// State is called with what is wrong between us and the broker when that
	// changes, and with nil when nothing is.
	State func(error)
	// Connected is called when the connection comes and goes.
	Connected func(bool)
	// Counted is called for what became of events.
	Counted func(Outcome, int)
	// Answered is called for each PUBACK.
	Answered func(code byte)
	// GivenUp is called with an event that is dropped as Poisoned, and what was
	// wrong with it the last time, at most once a minute. The name is valid
	// during the call. If it is nil, nobody is told.
	GivenUp func(e Event, why string)
}

// An Outcome is what became of an event.
type Outcome uint8

const (
	Delivered  Outcome = iota
	TooLarge           // for the broker: dropped
	Poisoned           // refused, or hung up at, again and again while others were taken: dropped
	Unstorable         // sent, with a name that Core cannot store
	numOutcomes
)

// NumOutcomes is the number of Outcome values.
const NumOutcomes = int(numOutcomes)

const (
	batchEvents = 64 // in one write, and one signer's at a time

	packetTimeout   = 60 * time.Second
	connectTimeout  = 10 * time.Second
	longConnection  = time.Minute            // is of use even if there was nothing to send
	shortestBackoff = 100 * time.Millisecond // between two connections, of whatever use
	longestBackoff  = 5 * time.Minute
	// longestReconnect is, with a quarter more, a minute.
	longestReconnect = 48 * time.Second
	removeEvery      = 5 * time.Millisecond
)

// NewPublisher returns a publisher that does nothing until Run.
func NewPublisher(o PublisherOptions) *Publisher {
	p := &Publisher{o: o}
	p.window = newWindow(p)
	return p
}

// Run publishes until ctx ends. When closing is closed it publishes what is in
// the queue by then, and returns.
func (p *Publisher) Run(ctx context.Context, closing <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, p.window.stop)()
	conn, err := autopaho.NewConnection(context.Background(), p.autopaho())
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.o.Server.Redacted(), err)
	}
	var stages sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		stages.Go(p.send)
	}
	stages.Go(func() { p.window.watch(ctx) })
	stages.Go(func() { p.remove(ctx) })
	err = p.read(ctx, closing)
	if err == nil {
		p.window.awaitEmpty()
	}
	cancel()
	p.window.stop()
	// The broker gets a moment to see DISCONNECT. If it reads nothing, a sender
	// hangs in a write until the connection is closed.
	end, done := context.WithTimeout(context.Background(), time.Second)
	defer done()
	if conn.Disconnect(end) != nil {
		p.window.hangUp()
	}
	stages.Wait()
	p.removeDone()
	return err
}

func (p *Publisher) autopaho() autopaho.ClientConfig {
	return autopaho.ClientConfig{
		ServerUrls:                    []*url.URL{p.o.Server},
		TlsCfg:                        p.o.TLS,
		KeepAlive:                     uint16(p.o.KeepAlive / time.Second),
		CleanStartOnInitialConnection: true,
		ConnectTimeout:                connectTimeout,
		AttemptConnection:             p.dial,
		ReconnectBackoff:              p.window.backoff,
		ConnectPacketBuilder: func(c *paho.Connect, _ *url.URL) (*paho.Connect, error) {
			c.CleanStart = true // only our own queue sends again
			c.ClientID = p.o.Key().ID + "-edm"
			return c, nil
		},
		OnConnectError: func(err error) {
			p.o.State(fmt.Errorf("no connection to the broker: %w", err))
		},
		ClientConfig: paho.ClientConfig{
			Session:       p.window,
			AuthHandler:   unauthenticated{},
			PacketTimeout: connectTimeout,
		},
	}
}

// unauthenticated answers a broker that wants the extended authentication of
// MQTT 5, which we never ask for. Without it, paho panics.
type unauthenticated struct{}

func (unauthenticated) Authenticated() {}
func (unauthenticated) Authenticate(*paho.Auth) *paho.Auth {
	return &paho.Auth{ReasonCode: packets.AuthContinueAuthentication}
}

// backoff is how long to wait before the nth attempt after a failure: none
// before the first, then 1 s and twice as long each time, give or take a
// quarter, so that many nodes do not come back at one moment.
func backoff(attempt int) time.Duration { return backoffUpTo(longestBackoff, attempt) }

func backoffUpTo(longest time.Duration, attempt int) time.Duration {
	if attempt == 0 {
		return 0
	}
	d := min(time.Second<<min(attempt-1, 16), longest)
	return d*3/4 + rand.N(d/2)
}

// read reads the queue into the window until ctx ends, or closing is closed and
// the queue is read.
func (p *Publisher) read(ctx context.Context, closing <-chan struct{}) error {
	var batch []Event
	for last := false; ; {
		batch = batch[:0]
		names := make([]byte, 0, batchEvents*32)
		err := p.o.Read(func(e Event) bool {
			if len(batch) == batchEvents {
				return false
			}
			at := len(names)
			names = append(names, e.Name...)
			e.Name = names[at:]
			batch = append(batch, e)
			return true
		})
		if err != nil {
			return fmt.Errorf("read the queue of events: %w", err)
		}
		switch {
		case len(batch) > 0:
			if !p.window.put(batch) {
				return ctx.Err()
			}
		case last:
			return nil
		default:
			select {
			case <-p.o.Wake:
			case <-closing:
				last = true
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// send signs events and writes them to the connection, until the window is
// stopped. There is one for each CPU, for signing is most of the work.
func (p *Publisher) send() {
	var s *signer
	var taken sending
	var out []byte
	for p.window.take(&taken) {
		if key := p.o.Key(); s == nil || s.key != key {
			s = newSigner(key)
		}
		out = p.packets(out[:0], s, &taken)
		written := taken.conn.write(out)
		if p.o.QoS == 0 && written {
			for i := range taken.ids {
				p.window.over(&taken, i, Delivered)
			}
		}
	}
}

// packets appends a PUBLISH of each event that the broker takes.
func (p *Publisher) packets(dst []byte, s *signer, taken *sending) []byte {
	topic := s.key.Topic()
	for i := range taken.events {
		e := &taken.events[i]
		start := len(dst)
		dst = appendPublish(dst, s, e, publishHeader{topic, taken.ids[i], p.o.QoS})
		if taken.limit > 0 && len(dst)-start > taken.limit {
			dst = dst[:start]
			p.window.over(taken, i, TooLarge)
		}
	}
	return dst
}

// A publishHeader is what a PUBLISH says besides its payload.
type publishHeader struct {
	topic string
	id    uint16
	qos   byte
}

// appendPublish appends a PUBLISH packet (MQTT 5 section 3.3) without
// properties.
func appendPublish(dst []byte, s *signer, e *Event, h publishHeader) []byte {
	const room = 5 // type, and a length of up to four octets
	start := len(dst)
	dst = append(dst, make([]byte, room)...)
	dst = append(dst, byte(len(h.topic)>>8), byte(len(h.topic)))
	dst = append(dst, h.topic...)
	if h.qos > 0 {
		dst = append(dst, byte(h.id>>8), byte(h.id))
	}
	dst = append(dst, 0) // no properties
	dst = s.appendSigned(dst, e)

	var header [room]byte
	header[0] = 3<<4 | h.qos<<1
	n := 1
	for length := len(dst) - start - room; ; n++ {
		header[n] = byte(length & 0x7f)
		if length >>= 7; length == 0 {
			n++
			break
		}
		header[n] |= 0x80
	}
	copy(dst[start+room-n:], header[:n])
	return append(dst[:start], dst[start+room-n:]...)
}

// remove takes what is done with off the queue, some at a time.
func (p *Publisher) remove(ctx context.Context) {
	for {
		select {
		case <-p.window.done:
		case <-ctx.Done():
			return
		}
		p.removeDone()
		select { // let some more gather
		case <-time.After(removeEvery):
		case <-ctx.Done():
		}
	}
}

func (p *Publisher) removeDone() {
	numbers := p.window.takeDone()
	if len(numbers) == 0 {
		return
	}
	if err := p.o.Remove(numbers); err != nil {
		p.o.State(fmt.Errorf("delivered events could not be taken off the queue, and will be sent again after a restart: %w", err))
	}
}
