package runner

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"edm/output"
	"edm/store"
)

// Where the broker is, in every form.
func TestServerURL(t *testing.T) {
	f := func(input, want string) {
		t.Helper()
		var s ServerURL
		if err := s.UnmarshalText([]byte(input)); err != nil {
			t.Errorf("%q: %v", input, err)
		} else if s.String() != want {
			t.Errorf("%q is %q, want %q", input, s, want)
		}
	}
	f("", "")
	f("broker.test", "mqtts://broker.test:8883")
	f("broker.test:1234", "mqtts://broker.test:1234")
	f("192.0.2.1", "mqtts://192.0.2.1:8883")
	f("[2001:db8::1]", "mqtts://[2001:db8::1]:8883")
	f("[2001:db8::1]:1234", "mqtts://[2001:db8::1]:1234")
	f("mqtts://broker.test", "mqtts://broker.test:8883")
	f("tls://broker.test", "tls://broker.test:8883")
	f("ssl://broker.test/", "ssl://broker.test:8883/")
	f("mqtt://broker.test", "mqtt://broker.test:1883")
	f("tcp://broker.test", "tcp://broker.test:1883")
	f("ws://broker.test", "ws://broker.test:80")
	f("wss://broker.test/mqtt", "wss://broker.test:443/mqtt")
	f("wss://broker.test:9001/a/b", "wss://broker.test:9001/a/b")
	f("mqtt://[::1]:1884", "mqtt://[::1]:1884")
	f("MQTTS://broker.test", "mqtts://broker.test:8883")

	bad := func(input, want string) {
		t.Helper()
		var s ServerURL
		if err := s.UnmarshalText([]byte(input)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", input, err, want)
		}
	}
	bad("http://broker.test", "scheme")
	bad("broker.test:0", "port")
	bad("broker.test:65536", "port")
	bad("broker.test:http", "")
	bad("user:secret@broker.test", "user or password")
	bad("mqtts://broker.test/path", "more than a host")
	bad("mqtts://broker.test?x=1", "more than a host")
	bad("mqtts://", "")
	bad("::1", "brackets")
	bad(":8883", "")
	bad("two words", "")
}

// Every reason code has its counter, and those to be looked for are there from
// the start.
func TestAnswers(t *testing.T) {
	m := newMetrics("test", zap.NewNop())
	a := newAnswers(m)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for code := range 256 {
				if code != 16 {
					a.add(byte(code))
				}
			}
		})
	}
	wg.Wait()
	values := make(map[string]float64)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "edm_mqtt_puback_total" {
			for _, metric := range family.GetMetric() {
				values[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	for code := range 256 {
		want := 4.0
		if code == 16 {
			want = 0
		}
		if got, ok := values[fmt.Sprint(code)]; !ok || got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
}

// testEvents opens the stage of new names in a folder, without workers.
func testEvents(t testing.TB, dir, server string) (*events, *health) {
	t.Helper()
	cfg := &Config{DataDir: dir, QnameSeenEntries: 1000, NewQnameBacklog: 1000, MQTTQoS: 1, MQTTKeepalive: Duration(30 * time.Second)}
	if err := cfg.MQTTServer.UnmarshalText([]byte(server)); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	t.Cleanup(func() {
		if t.Failed() {
			for _, e := range logs.All() {
				t.Log(e.Level, e.Message, e.ContextMap())
			}
		}
	})
	h := &health{}
	e, err := openEvents(cfg, &tlsFiles{key: &output.SigningKey{ID: "node.test"}}, newMetrics("test", zap.New(core)), h)
	if err != nil {
		t.Fatal(err)
	}
	return e, h
}

// hand gives names to the stage as a worker does.
func (e *events) hand(names ...string) {
	batch := &store.Names{}
	for _, name := range names {
		wire := []byte(string(rune(len(name))) + name + "\x00")
		batch.Add(e.seen.Fingerprint(wire), store.Sighting{Name: wire, Type: 1, Class: 1, Minute: 1})
	}
	e.names <- batch
}

// Without a broker in the configuration names are remembered, and nothing is
// queued.
func TestEventsWithoutServer(t *testing.T) {
	dir := t.TempDir()
	e, _ := testEvents(t, dir, "")
	if e.publisher != nil {
		t.Error("there is a publisher")
	}
	ended := make(chan struct{})
	go func() { e.run(); close(ended) }()
	e.hand("a", "b")
	until(t, "the names to be stored", func() bool { return e.seen.Stats().Entries == 2 })
	if n := e.seen.Backlog(); n != 0 {
		t.Errorf("%d events are queued", n)
	}
	close(e.names)
	<-ended

	e, _ = testEvents(t, dir, "tcp://127.0.0.1:1")
	if n := e.seen.Backlog(); n != 0 {
		t.Errorf("after a start with a broker %d events are queued", n)
	}
	if err := e.seen.Close(); err != nil {
		t.Error(err)
	}
}

// A broker that does not answer gets its time at the stop and no more, and what
// it did not take is there at the next start.
func TestEventsStopWithoutBroker(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the broker")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	e, _ := testEvents(t, dir, "tcp://"+l.Addr().String())
	ended := make(chan struct{})
	go func() { e.run(); close(ended) }()
	e.hand("a", "b", "c")
	until(t, "the events to be queued", func() bool { return e.seen.Backlog() == 3 })
	began := time.Now()
	close(e.names)
	<-ended
	if took := time.Since(began); took < brokerGrace || took > brokerGrace+3*time.Second {
		t.Errorf("it takes %v to stop", took)
	}
	e, _ = testEvents(t, dir, "tcp://"+l.Addr().String())
	if n := e.seen.Backlog(); n != 3 {
		t.Errorf("%d events after a restart, want 3", n)
	}
	if err := e.seen.Close(); err != nil {
		t.Error(err)
	}
}

// A broker that is not there is told of, once.
func TestEventsHealth(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	e, h := testEvents(t, t.TempDir(), "tcp://"+address)
	ended := make(chan struct{})
	go func() { e.run(); close(ended) }()
	until(t, "the problem to be told", func() bool {
		list := h.list()
		return len(list) == 1 && strings.HasPrefix(list[0], "mqtt: no connection to the broker: ") && strings.Contains(list[0], address)
	})
	close(e.names)
	<-ended
}
