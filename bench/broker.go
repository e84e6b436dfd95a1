package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"edm/receiver"
)

// broker is Debian's mosquitto: a TLS 1.3 listener that wants edm's client
// certificate, and a plain one for the subscriber that counts the events.
type broker struct {
	cmd      *exec.Cmd
	logged   string   // file with what it wrote
	settings []string // of an edm that sends its events here
	exited   chan struct{}
	events   events
}

// events counts the messages of one run that differ. A message sent twice has
// the same bytes, as its signature is deterministic.
type events struct {
	count atomic.Int64 // messages that differ
	again atomic.Int64 // messages that came before

	mu   sync.Mutex      // guards what follows
	seed maphash.Seed    // of the hashes
	seen map[uint64]bool // hashes of messages
	late *latencies      // is told of each message, unless nil
}

// reset begins to count from zero, and tells late of each event.
func (e *events) reset(late *latencies) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seed, e.seen, e.late = maphash.MakeSeed(), map[uint64]bool{}, late
	e.count.Store(0)
	e.again.Store(0)
}

func (e *events) add(message []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := maphash.Bytes(e.seed, message); e.seen[h] {
		e.again.Add(1)
	} else {
		e.seen[h] = true
		e.count.Add(1)
	}
	if e.late != nil {
		e.late.arrived(message)
	}
}

const (
	node     = "bench.test" // kid, and name in the client certificate
	inFlight = 1000         // events that mosquitto takes before it acknowledges the first
)

func findMosquitto() (string, error) {
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto"} { // where only root looks
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("events need the program mosquitto: install Debian's package mosquitto")
}

// startBroker starts mosquitto with throw-away keys and a subscriber.
func startBroker(dir string) (*broker, error) {
	mosquitto, err := findMosquitto()
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	b := &broker{logged: filepath.Join(dir, "log"), exited: make(chan struct{})}
	b.events.reset(nil)
	plain, err1 := freePort()
	secure, err2 := freePort()
	if err := errors.Join(err1, err2, b.configure(dir, plain, secure)); err != nil {
		return nil, err
	}
	log, err := os.Create(b.logged)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	b.cmd = exec.Command(mosquitto, "-c", filepath.Join(dir, "mosquitto.conf"))
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		b.cmd.Wait()
		close(b.exited)
	}()
	if err := b.subscribe(plain); err != nil {
		b.stop()
		said, _ := os.ReadFile(b.logged)
		return nil, fmt.Errorf("subscribing at mosquitto: %w\n%s", err, said)
	}
	return b, nil
}

// configure writes the configuration of mosquitto, all keys and certificates,
// and the settings of edm.
func (b *broker) configure(dir, plain, secure string) error {
	path := func(name string) string { return filepath.Join(dir, name) }
	ca := receiver.NewAuthority()
	serverCert, serverKey := ca.Issue("127.0.0.1")
	clientCert, clientKey := ca.Issue(node)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	b64 := base64.RawURLEncoding.EncodeToString
	jwk := fmt.Sprintf(`{"alg":"EdDSA","crv":"Ed25519","d":%q,"kid":%q,"kty":"OKP","x":%q}`, b64(key.Seed()), node, b64(key[32:]))
	port := func(address string) string { _, p, _ := net.SplitHostPort(address); return p }
	// The user counts when root starts it: another could not read the keys. No
	// event may be dropped because the subscriber is slow.
	config := fmt.Sprintf(`user root
per_listener_settings true
max_queued_messages 10000000
max_inflight_messages %d
listener %s 127.0.0.1
allow_anonymous true
listener %s 127.0.0.1
tls_version tlsv1.3
cafile %s
certfile %s
keyfile %s
require_certificate true
use_identity_as_username true
acl_file %s
`, inFlight, port(plain), port(secure), path("ca.crt"), path("broker.crt"), path("broker.key"), path("acl"))
	b.settings = []string{
		fmt.Sprintf("mqtt_server = %q", secure),
		fmt.Sprintf("mqtt_ca_file = %q", path("ca.crt")),
		fmt.Sprintf("mqtt_client_cert_file = %q", path("edm.crt")),
		fmt.Sprintf("mqtt_client_key_file = %q", path("edm.key")),
		fmt.Sprintf("mqtt_signing_key_file = %q", path("datakey-priv.json")),
	}
	var errs []error
	for name, content := range map[string][]byte{
		"mosquitto.conf": []byte(config), "acl": []byte("pattern write events/up/%u/#\n"), "ca.crt": ca.PEM,
		"broker.crt": serverCert, "broker.key": serverKey, "edm.crt": clientCert, "edm.key": clientKey,
		"datakey-priv.json": []byte(jwk),
	} {
		errs = append(errs, os.WriteFile(path(name), content, 0o600))
	}
	return errors.Join(errs...)
}

// subscribe waits until mosquitto listens and takes all events from then on.
func (b *broker) subscribe(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := net.Dial("tcp", address)
	for ; err != nil; conn, err = net.Dial("tcp", address) {
		select {
		case <-b.exited:
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	c := paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			b.events.add(p.Packet.Payload)
			return true, nil
		}},
	})
	if _, err := c.Connect(ctx, &paho.Connect{ClientID: "bench", KeepAlive: 60, CleanStart: true}); err != nil {
		return err
	}
	_, err = c.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "events/up/#"}}})
	return err
}

// await waits until so many events have come since the last reset.
func (b *broker) await(d *daemon, events int) error {
	err := d.wait(60*time.Second, 5*time.Millisecond, func() bool { return b.events.count.Load() >= int64(events) })
	if err != nil {
		return fmt.Errorf("%d of %d events have come: %w", b.events.count.Load(), events, err)
	}
	return nil
}

// compareEvents notes where there is not one event for each name. Those in
// flight at a stall may come twice: as many as edm has waiting for the broker's
// acknowledgement at most.
func (r *result) compareEvents(b *broker, m metrics, names int) {
	again := int(b.events.again.Load())
	if r.Stall != nil {
		r.Stall.Again, again = again, max(0, again-inFlight)
	}
	for _, c := range []struct {
		what      string
		got, want int
	}{
		{"events that came", int(b.events.count.Load()), names},
		{"events that came twice", again, 0},
		{"events that edm queued", m.sum("edm_new_qname_queued_total"), names},
		{"new names that edm discarded", m.sum("edm_new_qname_discarded_total"), 0},
	} {
		if c.got != c.want {
			r.Failures = append(r.Failures, fmt.Sprintf("%s: %d, want %d", c.what, c.got, c.want))
		}
	}
}

// stop ends mosquitto. The subscriber ends with its connection.
func (b *broker) stop() {
	b.cmd.Process.Kill() // fails if it has ended
	<-b.exited
}
