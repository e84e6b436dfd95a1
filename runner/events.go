package runner

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"edm/dnstap"
	"edm/output"
	"edm/store"
)

const (
	seenDir = "seen" // below data_dir

	// namesQueue is how many batches of names may wait for the store: those of
	// about a second, at 200 000 frames a second.
	namesQueue = 256

	// How long names gather for a commit: those whose events somebody waits for,
	// and those that are only remembered.
	gatherEvents = 50 * time.Millisecond
	gatherMarks  = 100 * time.Millisecond

	// brokerGrace is what the broker gets at the stop to take what is queued.
	brokerGrace = 5 * time.Second
)

// events is the stage of names that were never seen before: the store that
// knows, and the publisher that tells.
type events struct {
	seen      *store.Seen
	publisher *output.Publisher // nil without mqtt_server
	names     chan *store.Names
	spare     *namesList
	log       *zap.Logger

	// The watchdog's.
	probe    atomic.Pointer[store.Names] // the last one on its way through the store
	answered chan struct{}               // it came back; room for one
}

// openEvents opens the store, and makes the publisher.
func openEvents(cfg *Config, files *tlsFiles, m *metrics, h *health) (*events, error) {
	e := &events{names: make(chan *store.Names, namesQueue), spare: &namesList{}, log: m.log}
	commits := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "edm_seen_commit_seconds", Help: "How long commits of the store of seen names took.",
		Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10),
	})
	m.registry.MustRegister(commits)
	o := store.SeenOptions{
		Dir:       filepath.Join(cfg.DataDir, seenDir),
		Entries:   cfg.QnameSeenEntries,
		Sync:      cfg.PebbleSync,
		Retention: time.Duration(cfg.SeenRetention),
		MaxBytes:  cfg.SeenMaxBytes,
		Gather:    gatherMarks,
		Report:    h.reporter(m.log, "seen names"),
		OnCommit:  func(d time.Duration) { commits.Observe(d.Seconds()) },
	}
	if cfg.MQTTServer.URL != nil {
		o.Backlog, o.Gather = cfg.NewQnameBacklog, gatherEvents
	}
	var err error
	if e.seen, err = store.OpenSeen(o); err != nil {
		return nil, err
	}
	e.count(m)
	if cfg.MQTTServer.URL != nil {
		e.publisher = output.NewPublisher(e.publishing(cfg, files, m, h))
	}
	return e, nil
}

func (e *events) publishing(cfg *Config, files *tlsFiles, m *metrics, h *health) output.PublisherOptions {
	var up atomic.Bool
	m.gauge("mqtt_up", "Whether there is a connection to the broker.", nil, func() float64 {
		if up.Load() {
			return 1
		}
		return 0
	})
	var outcomes [output.NumOutcomes]atomic.Uint64
	for i, name := range []string{"new_qname_delivered_total", "new_qname_too_large_total", "new_qname_poisoned_total", "new_qname_unstorable_total"} {
		help := []string{
			"Events that the broker took.",
			"Events dropped because the broker takes no packet of their size.",
			"Events dropped because the broker refused them, or hung up at them, again and again while it took others.",
			"Events sent with a name that Core cannot store.",
		}[i]
		m.counter(name, help, nil, &outcomes[i])
	}
	answers := newAnswers(m)
	report := h.reporter(m.log, "mqtt")
	return output.PublisherOptions{
		Server:    cfg.MQTTServer.URL,
		TLS:       files.mqttTLS,
		Key:       func() *output.SigningKey { return files.key },
		QoS:       byte(cfg.MQTTQoS),
		KeepAlive: time.Duration(cfg.MQTTKeepalive),
		Read: func(f func(output.Event) bool) error {
			return e.seen.Read(func(ev store.Event) bool {
				return f(output.Event{Number: ev.Number, Name: ev.Name, Flags: ev.Flags, Type: ev.Type, Class: ev.Class, Minute: ev.Minute})
			})
		},
		Wake:      e.seen.Wake(),
		Remove:    e.seen.Remove,
		State:     report,
		Connected: up.Store,
		Counted:   func(o output.Outcome, n int) { outcomes[o].Add(uint64(n)) },
		Answered:  answers.add,
		GivenUp: func(ev output.Event, why string) {
			e.log.Warn("an event was dropped: the broker takes others, and not this one",
				zap.ByteString("name", dnstap.AppendName(nil, ev.Name)), zap.String("problem", why))
		},
	}
}

// count registers what the store counts.
func (e *events) count(m *metrics) {
	counter := func(name, help string, f func(store.SeenStats) uint64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "edm_" + name, Help: help},
			func() float64 { return float64(f(e.seen.Stats())) }))
	}
	counter("new_qname_queued_total", "Events queued: names that were never seen before.", func(s store.SeenStats) uint64 { return s.Queued })
	counter("new_qname_discarded_total", "Names that could not be stored or queued, or were lost with a part of the store; they are new again when they are seen next.",
		func(s store.SeenStats) uint64 { return s.Discarded + m.forgotten.Load() })
	counter("new_qname_damaged_total", "Events set aside in the store because they could not be read.", func(s store.SeenStats) uint64 { return s.Damaged })
	counter("seen_store_replaced_total", "Stores of seen names that were damaged and moved aside.", func(s store.SeenStats) uint64 { return s.Replaced })
	m.gauge("new_qname_backlog", "Events that wait for their delivery.", nil, func() float64 { return float64(e.seen.Backlog()) })
	m.gauge("seen_memory_entries", "Names remembered in memory.", nil, func() float64 { return float64(e.seen.Stats().Entries) })
	m.gauge("seen_store_bytes", "Octets that the store of seen names takes on the disk.", nil, func() float64 { return float64(e.seen.Size()) })
}

// run commits names until the workers have closed the channel, gives the broker
// a moment to take what is queued, and closes the store.
func (e *events) run() {
	var publishing sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	closing := make(chan struct{})
	if e.publisher != nil {
		publishing.Go(func() {
			if err := e.publisher.Run(ctx, closing); err != nil && ctx.Err() == nil {
				e.log.Error("events are no longer sent", zap.Error(err))
			}
		})
	}
	e.seen.Run(e.names, e.giveBack)
	close(closing)
	timer := time.AfterFunc(brokerGrace, cancel)
	publishing.Wait()
	timer.Stop()
	if n := e.seen.Backlog(); n > 0 {
		e.log.Info("events wait in the queue for the next start", zap.Int("events", n))
	}
	if err := e.seen.Close(); err != nil {
		e.log.Error("closing the store of seen names failed", zap.Error(err))
	}
}

// answers counts PUBACK by reason code.
type answers struct {
	vec   *prometheus.CounterVec
	codes [256]atomic.Pointer[prometheus.Counter]
}

func newAnswers(m *metrics) *answers {
	a := &answers{vec: m.counterVec("mqtt_puback_total", "Answers of the broker to events, by MQTT reason code: 0 taken, 16 taken and nobody subscribes, from 128 on refused.", "code")}
	for _, code := range []byte{0, 16, 135} {
		a.counter(code)
	}
	return a
}

func (a *answers) counter(code byte) prometheus.Counter {
	c := a.vec.WithLabelValues(strconv.Itoa(int(code)))
	a.codes[code].Store(&c)
	return c
}

func (a *answers) add(code byte) {
	if c := a.codes[code].Load(); c != nil {
		(*c).Inc()
		return
	}
	a.counter(code).Inc()
}
