package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
)

var brokerAway = flag.Duration("broker-away", 5*time.Second, "how long the broker is away in TestMQTTBrokerAway")

// Debian's mosquitto takes the events of a real edm, as the broker of DNS TAPIR
// Core would, and a subscriber verifies each.

func TestMQTT(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	need(t, "unbound", "unbound")
	for _, qos := range []int{1, 0} {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			m := startMosquitto(t)
			s := m.subscribe(t)
			d := m.plan(t, "node.test", "node.test")
			d.set(t, fmt.Sprintf("well_known_domains_file = %q", wellKnownFile(t)), fmt.Sprintf("mqtt_qos = %d", qos), fmt.Sprintf("mqtt_server = %q", local(m.mqtts)))
			d.start(t)
			r := startUnbound(t, fmt.Sprintf("dnstap-socket-path: %q", d.socket))
			d.awaitStreams(t, 1)
			d.await(t, 1, "edm_mqtt_up")
			began := time.Now()
			want := make(map[string]*dns.Msg)
			for range 2 {
				askNew(t, r, want)
			}
			s.await(t, len(want))
			d.await(t, float64(len(want)), "edm_new_qname_delivered_total")
			d.stop(t) // while the resolver runs on

			d.start(t)
			d.awaitStreams(t, 1)
			askNew(t, r, want) // all are known
			late := question("later.example.net.", dns.TypeTXT)
			want["later.example.net."] = ask(t, r, "127.0.0.1", "udp", late).answer
			s.await(t, len(want))
			d.await(t, 1, "edm_new_qname_delivered_total")
			if got := sum(d.scrape(t), "edm_new_qname_delivered_total"); got != 1 {
				t.Errorf("after a restart %v events, want 1", got)
			}
			d.stop(t)
			s.check(t, want, began)
		})
	}
}

// askNew asks for well-known names and others, hard ones among them, and notes
// the first answer for each of the others.
func askNew(t testing.TB, r *resolver, first map[string]*dns.Msg) {
	t.Helper()
	names := []string{"www.example.com.", "a.wild.example.org.", "MAIL.example.com.", "other.example.net.", "OTHER.example.net.", refusedName, "nowhere.example.net."}
	for i := range 40 {
		names = append(names, fmt.Sprintf("n%d.example.net.", i))
	}
	names = append(names, `a\.dot.example.net.`, `tab\009.example.net.`, `quote\".back\\slash.example.net.`, `\000\255.example.net.`, `\195\188.example.net.`, strings.Repeat("a.", 127))
	for i, name := range names {
		x := ask(t, r, fmt.Sprint("127.0.0.", 2+i), []string{"udp", "tcp"}[i%2], question(name, []uint16{dns.TypeA, dns.TypeHTTPS, dns.TypeTXT}[i%3]))
		if name := strings.ToLower(name); entry(name) == "" && first[name] == nil {
			first[name] = x.answer
		}
	}
}

// Every form of mqtt_server that there can be on a loopback address.
func TestMQTTServerForms(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	m := startMosquitto(t)
	s := m.subscribe(t)
	n := 0
	for _, server := range []string{
		local(m.mqtts), "mqtts://" + local(m.mqtts), "tls://" + local(m.mqtts), "ssl://" + local(m.mqtts) + "/",
		"mqtt://" + local(m.mqtt), "tcp://" + local(m.mqtt), "ws://" + local(m.ws), "wss://" + local(m.wss) + "/mqtt",
	} {
		t.Run(server, func(t *testing.T) {
			d := m.plan(t, "node.test", "node.test")
			d.set(t, fmt.Sprintf("mqtt_server = %q", server))
			d.start(t)
			from := n
			n += 200
			sendNames(t, d, from, n, 0)
			s.await(t, n)
			m := d.await(t, 200, "edm_new_qname_delivered_total")
			if sum(m, "edm_mqtt_puback_total", `code="0"`) != 200 || sum(m, "edm_mqtt_up") != 1 || sum(m, "edm_certificate_not_after_seconds") < float64(time.Now().Unix()) {
				t.Errorf("metrics %v", m)
			}
			d.stop(t)
		})
	}
	s.checkNames(t, n)
}

// A broker that refuses the topic: nothing is lost, everybody is told, and when
// it is allowed, it is delivered.
func TestMQTTRefused(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	m := startMosquitto(t)
	s := m.subscribe(t)
	d := m.plan(t, "other.test", "node.test") // its certificate is of another node
	d.set(t, fmt.Sprintf("mqtt_server = %q", local(m.mqtts)))
	d.start(t)
	if !strings.Contains(d.output.String(), "of different nodes") {
		t.Errorf("no warning that kid and certificate differ:\n%s", d.log())
	}
	sendNames(t, d, 0, 500, 0)
	metrics := d.await(t, 500, `edm_mqtt_puback_total`, `code="135"`)
	if sum(metrics, "edm_new_qname_delivered_total") != 0 || sum(metrics, "edm_new_qname_backlog") != 500 || sum(metrics, "edm_mqtt_up") != 1 {
		t.Errorf("metrics %v", metrics)
	}
	code, body := healthz(t, d)
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "refuses events for topic events/up/node.test/new_qname") {
		t.Errorf("/healthz says %d %q", code, body)
	}
	write(t, m.acl, "user other.test\ntopic write events/up/node.test/#\n")
	m.cmd.Process.Signal(syscall.SIGHUP)
	s.await(t, 500)
	d.await(t, 500, "edm_new_qname_delivered_total")
	until(t, func() bool { code, _ := healthz(t, d); return code == http.StatusOK }, func() string { return "/healthz stays bad\n" + d.log() })
	d.stop(t)
	s.checkNames(t, 500)
	problems := d.entries("error")
	if len(problems) != 1 {
		t.Errorf("%d lines about one problem: %v", len(problems), problems)
	}
}

// A broker whose certificate or whose client authority does not fit is not
// talked to.
func TestMQTTCertificates(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	m := startMosquitto(t)
	f := func(want string, settings ...string) {
		t.Helper()
		d := m.plan(t, "node.test", "node.test")
		d.set(t, settings...)
		d.start(t)
		sendNames(t, d, 0, 1, 0)
		until(t, func() bool { code, body := healthz(t, d); return code != http.StatusOK && strings.Contains(body, want) }, func() string {
			_, body := healthz(t, d)
			return fmt.Sprintf("/healthz says %q, want %q\n%s", body, want, d.log())
		})
		if got := d.scrape(t); sum(got, "edm_mqtt_up") != 0 || sum(got, "edm_new_qname_delivered_total") != 0 {
			t.Errorf("%s: connected", want)
		}
		began := time.Now()
		d.stop(t)
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("it takes %v to stop", took)
		}
	}
	t.Run("wrong host name", func(t *testing.T) {
		f("localhost", fmt.Sprintf(`mqtt_server = "localhost:%d"`, m.mqtts))
	})
	t.Run("TLS to a plain port", func(t *testing.T) {
		f("no connection", fmt.Sprintf("mqtt_server = %q", local(m.mqtt)))
	})
	t.Run("plain to a TLS port", func(t *testing.T) {
		f("no connection", fmt.Sprintf(`mqtt_server = "mqtt://%s"`, local(m.mqtts)))
	})
}

// A broker that hangs, or is killed, and comes back: every name is taken, and
// none twice but those in flight.
func TestMQTTBrokerAway(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	f := func(name string, leave, back func(*mosquitto)) {
		t.Run(name, func(t *testing.T) {
			m := startMosquitto(t)
			rec := startRecorder(t, local(m.mqtt))
			d := m.plan(t, "node.test", "node.test")
			d.set(t, fmt.Sprintf(`mqtt_server = "mqtt://%s"`, rec.address))
			d.start(t)
			const rate = 5000
			away, total := *brokerAway, int(brokerAway.Seconds()+4)*rate
			time.AfterFunc(time.Second, func() { leave(m) })
			time.AfterFunc(time.Second+away, func() { back(m) })
			sendNames(t, d, 0, total, rate)
			d.await(t, float64(total), "edm_new_qname_queued_total")
			began := time.Now()
			d.awaitUntil(t, 0, "edm_new_qname_backlog", patience+*brokerAway)
			t.Logf("%d names, the broker away for %v: delivered %v after the last", total, away, time.Since(began))
			d.stop(t)
			rec.check(t, total, 4096)
		})
	}
	f("stopped", func(m *mosquitto) { m.cmd.Process.Signal(syscall.SIGSTOP) }, func(m *mosquitto) { m.cmd.Process.Signal(syscall.SIGCONT) })
	f("killed", func(m *mosquitto) { m.kill() }, func(m *mosquitto) { m.start(t) })
}

// With the broker away edm stops in time, and the next start sends the rest.
func TestMQTTStopWithoutBroker(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	m := startMosquitto(t)
	rec := startRecorder(t, local(m.mqtt))
	d := m.plan(t, "node.test", "node.test")
	d.set(t, fmt.Sprintf(`mqtt_server = "mqtt://%s"`, rec.address))
	d.start(t)
	sendNames(t, d, 0, 100, 0)
	d.await(t, 100, "edm_new_qname_delivered_total")
	m.cmd.Process.Signal(syscall.SIGSTOP)
	sendNames(t, d, 100, 5000, 0)
	d.await(t, 5000, "edm_new_qname_queued_total")
	d.stop(t) // checks that it takes less than 10 s
	m.cmd.Process.Signal(syscall.SIGCONT)
	m.kill()
	d.start(t)
	sendNames(t, d, 0, 6000, 0) // 5000 of them are known
	d.await(t, 1000, "edm_new_qname_queued_total")
	d.stop(t)
	m.start(t)
	d.start(t)
	d.await(t, 1, "edm_mqtt_up")
	d.awaitUntil(t, 0, "edm_new_qname_backlog", patience)
	d.stop(t)
	rec.check(t, 6000, 4096)
}

// edm is killed under load, and the same names come again: every one has its
// event, and none twice but those of the last moment.
func TestMQTTKilled(t *testing.T) {
	t.Parallel()
	need(t, "mosquitto", "mosquitto")
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	for _, sync := range []bool{true, false} {
		t.Run(fmt.Sprint("pebble_sync ", sync), func(t *testing.T) {
			m := startMosquitto(t)
			rec := startRecorder(t, local(m.mqtt))
			d := m.plan(t, "node.test", "node.test")
			d.set(t, fmt.Sprintf(`mqtt_server = "mqtt://%s"`, rec.address), fmt.Sprint("pebble_sync = ", sync))
			const rate, total = 5000, 30000
			for range 3 {
				d.start(t)
				time.AfterFunc(2500*time.Millisecond, d.kill)
				trySendNames(t, d, 0, total, rate)
				<-d.exited
			}
			d.start(t)
			sendNames(t, d, 0, total, 0)
			d.await(t, total, "edm_processed_dnstap_total")
			until(t, func() bool {
				return len(d.missing(t, rec, total)) == 0 && sum(d.scrape(t), "edm_new_qname_backlog") == 0
			}, func() string {
				return fmt.Sprintf("%d names have no event\n%s", len(d.missing(t, rec, total)), d.log())
			})
			d.stop(t)
			twice := rec.check(t, total, -1)
			// In flight, or removed from the queue in the last moment; without syncs
			// also those whose marks were in the log not yet written.
			t.Logf("%d of %d names were sent twice after three kills", twice, total)
			if twice > total/4 {
				t.Errorf("%d names were sent twice", twice)
			}
		})
	}
}

func (d *daemon) missing(t testing.TB, rec *recorder, total int) (names []string) {
	t.Helper()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for i := range total {
		if rec.acked[nthName(i)] == 0 {
			names = append(names, nthName(i))
		}
	}
	return names
}

// awaitUntil polls until a metric is exactly as wanted.
func (d *daemon) awaitUntil(t testing.TB, want float64, name string, limit time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * tick) {
		got := sum(d.scrape(t), name)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %v after %v, want %v\n%s", name, got, limit, want, d.log())
		}
	}
}

func healthz(t testing.TB, d *daemon) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + d.metrics + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// An envelope is an event as it arrived.
type envelope struct {
	topic   string
	payload []byte // verified
}

// A subscriber takes what a broker delivers, and verifies it.
type subscriber struct {
	mu     sync.Mutex
	events map[string][]envelope // by name
	errors []string
}

// receive verifies an event with jwx and the schema of contract with the
// analyst, which refuses what it does not know.
func (s *subscriber) receive(p *paho.Publish) {
	name, payload, err := verify(p.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.errors = append(s.errors, fmt.Sprintf("%v: %s", err, p.Payload))
		return
	}
	s.events[name] = append(s.events[name], envelope{p.Topic, payload})
}

func verify(message []byte) (name string, payload []byte, err error) {
	set := jwk.NewSet()
	if err := set.AddKey(testNode.public); err != nil {
		return "", nil, err
	}
	if payload, err = jws.Verify(message, jws.WithJSON(), jws.WithKeySet(set, jws.WithRequireKid(true))); err != nil {
		return "", nil, err
	}
	var p eventPayload
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return "", nil, err
	}
	again, err := json.Marshal(p)
	if err != nil || p.Type != "new_qname" || p.Version != 0 || p.Timestamp.Second() != 0 || len(again) == 0 {
		return "", nil, fmt.Errorf("payload %s (%v)", payload, err)
	}
	return p.Qname, payload, nil
}

type eventPayload struct {
	Flags     uint16    `json:"flags"`
	Qclass    uint16    `json:"qclass"`
	Qname     string    `json:"qname"`
	Qtype     uint16    `json:"qtype"`
	Timestamp time.Time `json:"timestamp"`
	Type      string    `json:"type"`
	Version   int       `json:"version"`
}

func (s *subscriber) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

func (s *subscriber) await(t testing.TB, names int) {
	t.Helper()
	until(t, func() bool { return s.count() >= names }, func() string { return fmt.Sprintf("events of %d names came, want %d", s.count(), names) })
}

// check compares the events with the answers that were given: one for each
// name, as it was seen first.
func (s *subscriber) check(t testing.TB, want map[string]*dns.Msg, began time.Time) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.errors {
		t.Error(e)
	}
	for name, answer := range want {
		if len(s.events[name]) != 1 {
			t.Errorf("%s has %d events", name, len(s.events[name]))
			continue
		}
		e := s.events[name][0]
		raw, err := answer.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var p eventPayload
		if err := json.Unmarshal(e.payload, &p); err != nil {
			t.Fatal(err)
		}
		q := answer.Question[0]
		if e.topic != "events/up/node.test/new_qname" || p.Qtype != q.Qtype || p.Qclass != q.Qclass || p.Flags != uint16(raw[2])<<8|uint16(raw[3]) {
			t.Errorf("%s: topic %s, payload %s, flags are %x", name, e.topic, e.payload, raw[2:4])
		}
		if p.Timestamp.Before(began.Add(-time.Second).Truncate(time.Minute)) || p.Timestamp.After(time.Now()) {
			t.Errorf("%s: timestamp %v", name, p.Timestamp)
		}
	}
	for name := range s.events {
		if want[name] == nil {
			t.Errorf("an event of %s", name)
		}
	}
}

// checkNames checks that the first n names of nthName have one event each.
func (s *subscriber) checkNames(t testing.TB, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.errors {
		t.Error(e)
	}
	for i := range n {
		if got := len(s.events[nthName(i)]); got != 1 {
			t.Errorf("%s has %d events", nthName(i), got)
		}
	}
	if len(s.events) != n {
		t.Errorf("%d names, want %d", len(s.events), n)
	}
}

// A mosquitto is the broker: a plain port and, behind client certificates and
// the access list, one with TLS; both also with websockets.
type mosquitto struct {
	*process
	ca                   *authority
	config, acl          string
	mqtt, mqtts, ws, wss int
}

func startMosquitto(t testing.TB) *mosquitto {
	t.Helper()
	// (With max_queued_messages 0 this version hangs up when it refuses a message.)
	m := &mosquitto{ca: newAuthority(t, t.TempDir()), mqtt: freePort(t), mqtts: freePort(t), ws: freePort(t), wss: freePort(t)}
	m.config, m.acl = filepath.Join(m.ca.dir, "mosquitto.conf"), filepath.Join(m.ca.dir, "acl")
	cert, key := m.ca.issue("broker", x509.ExtKeyUsageServerAuth)
	write(t, m.acl, "pattern write events/up/%u/#\n")
	secure := fmt.Sprintf(`cafile %s
certfile %s
keyfile %s
require_certificate true
use_identity_as_username true
acl_file %s
`, filepath.Join(m.ca.dir, "ca.crt"), cert, key, m.acl)
	write(t, m.config, fmt.Sprintf(`user root
per_listener_settings true
max_queued_messages 200000
max_inflight_messages 1000
listener %d 127.0.0.1
allow_anonymous true
listener %d 127.0.0.1
tls_version tlsv1.3
%slistener %d
protocol websockets
allow_anonymous true
listener %d
protocol websockets
%s`, m.mqtt, m.mqtts, secure, m.ws, m.wss, secure))
	m.start(t)
	return m
}

// start starts the broker, also once more on the same ports.
func (m *mosquitto) start(t testing.TB) {
	t.Helper()
	m.process = run(t, exec.Command(need(t, "mosquitto", "mosquitto"), "-c", m.config))
	p := m.process
	t.Cleanup(func() { p.cmd.Process.Signal(syscall.SIGCONT) }) // to hear SIGTERM
	for _, port := range []int{m.mqtt, m.mqtts, m.ws, m.wss} {
		until(t, func() bool {
			c, err := net.Dial("tcp", local(port))
			if err == nil {
				c.Close()
			}
			return err == nil
		}, func() string { return "mosquitto does not listen\n" + p.log() })
	}
}

// subscribe takes all events from the plain port until the end of the test.
func (m *mosquitto) subscribe(t testing.TB) *subscriber {
	t.Helper()
	s := &subscriber{events: make(map[string][]envelope)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := paho.NewClient(paho.ClientConfig{
		Conn: dial(t, "tcp", local(m.mqtt)),
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			s.receive(p.Packet)
			return true, nil
		}},
	})
	if _, err := c.Connect(ctx, &paho.Connect{ClientID: "subscriber", KeepAlive: 60, CleanStart: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "events/up/#", QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	return s
}

// plan plans an edm with the client certificate of one node and the signing key
// of testNode, whose kid is given.
func (m *mosquitto) plan(t testing.TB, node, kid string) *daemon {
	t.Helper()
	cert, key := m.ca.issue(node, x509.ExtKeyUsageClientAuth)
	jwkFile := filepath.Join(m.ca.dir, "datakey-priv.json")
	write(t, jwkFile, testNode.private(kid))
	d := plan(t,
		fmt.Sprintf("mqtt_ca_file = %q", filepath.Join(m.ca.dir, "ca.crt")),
		fmt.Sprintf("mqtt_client_cert_file = %q", cert),
		fmt.Sprintf("mqtt_client_key_file = %q", key),
		fmt.Sprintf("mqtt_signing_key_file = %q", jwkFile),
		"session_files = false")
	d.set(t, fmt.Sprintf("input_unix = %q", d.socket), `input_unix_mode = "0666"`)
	return d
}

// testNode is a node's signing key.
var testNode = func() (n struct {
	private func(kid string) string
	public  jwk.Key
}) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	b64 := base64.RawURLEncoding.EncodeToString
	n.private = func(kid string) string {
		return fmt.Sprintf(`{"alg":"EdDSA","crv":"Ed25519","d":%q,"iss":"issuer","kid":%q,"kty":"OKP","x":%q}`, b64(key.Seed()), kid, b64(key[32:]))
	}
	private, err := jwk.ParseKey([]byte(n.private("node.test")))
	if err == nil {
		n.public, err = private.PublicKey()
	}
	if err != nil {
		panic(err)
	}
	return n
}()

// A recorder stands between edm and a broker, and notes what passes.
type recorder struct {
	address string
	to      string

	mu    sync.Mutex
	sent  map[string]int // events, by name
	acked map[string]int
	again int // events sent after the broker's answer was passed on
}

func startRecorder(t testing.TB, to string) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &recorder{address: l.Addr().String(), to: to, sent: make(map[string]int), acked: make(map[string]int)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	return r
}

// pass passes packets on in both directions, until one end is gone.
func (r *recorder) pass(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer broker.Close()
	var mu sync.Mutex
	names := make(map[uint16]string) // unanswered, by packet identifier; guarded by mu
	var wg sync.WaitGroup
	wg.Go(func() {
		defer client.Close()
		forward(client, broker, func(cp *packets.ControlPacket) {
			ack, ok := cp.Content.(*packets.Puback)
			if !ok {
				return
			}
			mu.Lock()
			name := names[ack.PacketID]
			mu.Unlock()
			if ack.ReasonCode < 0x80 && name != "" {
				r.mu.Lock()
				r.acked[name]++
				r.mu.Unlock()
			}
		})
	})
	forward(broker, client, func(cp *packets.ControlPacket) {
		if p, ok := cp.Content.(*packets.Publish); ok {
			name := nameOf(p.Payload)
			mu.Lock()
			names[p.PacketID] = name
			mu.Unlock()
			r.mu.Lock()
			r.sent[name]++
			if r.acked[name] > 0 {
				r.again++
			}
			r.mu.Unlock()
		}
	})
	broker.Close()
	wg.Wait()
}

// forward passes packets on, each after it was noted.
func forward(to io.Writer, from io.Reader, note func(*packets.ControlPacket)) {
	for {
		var raw bytes.Buffer
		cp, err := packets.ReadPacket(io.TeeReader(from, &raw))
		if err != nil {
			return
		}
		note(cp)
		if _, err := to.Write(raw.Bytes()); err != nil {
			return
		}
	}
}

// nameOf reads the name in an event, without verifying it.
func nameOf(message []byte) string {
	var j struct{ Payload string }
	var p eventPayload
	if json.Unmarshal(message, &j) != nil {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(j.Payload)
	if err != nil || json.Unmarshal(payload, &p) != nil {
		return ""
	}
	return p.Qname
}

// check checks that the broker took all names, and that no more than some were
// sent twice, unless that is negative. It returns how many were.
func (r *recorder) check(t testing.TB, total, inFlight int) (twice int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var lost []string
	for i := range total {
		name := nthName(i)
		if r.acked[name] == 0 {
			lost = append(lost, name)
		}
		if r.sent[name] > 1 {
			twice++
		}
	}
	if len(lost) > 0 {
		t.Errorf("%d of %d names were not delivered: %q…", len(lost), total, lost[:min(5, len(lost))])
	}
	if len(r.sent) != total {
		t.Errorf("%d names were sent, want %d", len(r.sent), total)
	}
	if inFlight >= 0 && (twice > inFlight || r.again > inFlight/10) {
		t.Errorf("%d names were sent twice, %d of them after an answer", twice, r.again)
	}
	return twice
}

func nthName(i int) string { return fmt.Sprintf("n%d.new.example.", i) }

// sendNames sends responses for the names from to until, at a rate a second, or
// as fast as it goes.
func sendNames(t testing.TB, d *daemon, from, until, rate int) {
	t.Helper()
	if err := trySendNames(t, d, from, until, rate); err != nil {
		t.Fatal(err)
	}
}

func trySendNames(t testing.TB, d *daemon, from, until, rate int) error {
	t.Helper()
	s := openStream(t, dial(t, "unix", d.socket))
	began := time.Now()
	const step = 100
	for i := from; i < until; i += step {
		var framed []byte
		for n := i; n < min(i+step, until); n++ {
			framed = append(framed, nameFrame(t, nthName(n))...)
		}
		if _, err := s.Write(framed); err != nil {
			return err
		}
		if rate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(i+step-from) * time.Second / time.Duration(rate))))
		}
	}
	return s.Close()
}

// nameFrame is a response for a name, as a whole frame with its length.
func nameFrame(t testing.TB, name string) []byte {
	t.Helper()
	answer, err := new(dns.Msg).SetReply(question(name, dns.TypeA)).Pack()
	if err != nil {
		t.Fatal(err)
	}
	family, protocol, port := dnstap.SocketFamily_INET, dnstap.SocketProtocol_UDP, uint32(53)
	frame, err := proto.Marshal(&dnstap.Dnstap{
		Type: dnstap.Dnstap_MESSAGE.Enum(),
		Message: &dnstap.Message{
			Type: dnstap.Message_CLIENT_RESPONSE.Enum(), SocketFamily: &family, SocketProtocol: &protocol,
			QueryAddress: []byte{192, 0, 2, 1}, ResponseAddress: []byte{192, 0, 2, 53}, QueryPort: &port, ResponsePort: &port,
			ResponseTimeSec: proto.Uint64(uint64(time.Now().Unix())), ResponseTimeNsec: proto.Uint32(0), ResponseMessage: answer,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}
