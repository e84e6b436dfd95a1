package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	framestream "github.com/farsightsec/golang-framestream"

	"edm/traffic"
)

// A second implementation of Frame Streams, Farsight's fstrm, on the other
// side of ours: its sender sends to edm, its receiver takes what our sender
// sends.

const contentType = "protobuf:dnstap.Dnstap"

// replayInto runs fstrm_replay and returns when it has ended, after FINISH.
func replayInto(t *testing.T, file, content string, to ...string) error {
	t.Helper()
	args := append([]string{"-t", content, "-r", file}, to...)
	out, err := exec.Command(need(t, "fstrm_replay", "fstrm-bin"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestFstrmReplay(t *testing.T) {
	t.Parallel()
	need(t, "fstrm_replay", "fstrm-bin")
	f := func(pool *traffic.Pool, network func(*daemon) []string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "traffic.fstrm")
		if err := pool.WriteFile(file); err != nil {
			t.Fatal(err)
		}
		d := startResolverEDM(t)
		if err := replayInto(t, file, contentType, network(d)...); err != nil {
			t.Fatal(err)
		}
		want := pool.Counts()
		m := d.await(t, float64(want.Frames), "edm_processed_dnstap_total")
		if got := checkConservation(t, m); got != float64(want.Frames) {
			t.Errorf("%v frames arrived, want %d", got, want.Frames)
		}
		for result, n := range map[string]int{
			"well_known": want.Kinds[traffic.WellKnown],
			"session":    want.Kinds[traffic.Seen] + want.Kinds[traffic.Novel],
		} {
			if got := sum(m, "edm_frames_total", fmt.Sprintf("result=%q", result)); got != float64(n) {
				t.Errorf("%v frames counted as %s, want %d", got, result, n)
			}
		}
		if got := sum(m, "edm_frames_dropped_total"); got != float64(want.Kinds[traffic.Malformed]) {
			t.Errorf("%v frames dropped, want %d", got, want.Kinds[traffic.Malformed])
		}
		d.stop(t)
		if got, n := len(readAll(t, d.sessionFiles(t))), want.Kinds[traffic.Seen]+want.Kinds[traffic.Novel]; got != n {
			t.Errorf("%d session rows, want %d", got, n)
		}
	}
	pool := smallTraffic(t)
	f(pool, func(d *daemon) []string { return []string{"-u", d.socket} })
	f(pool, func(d *daemon) []string {
		host, port, _ := net.SplitHostPort(d.tcp)
		return []string{"-a", host, "-p", port}
	})
}

// smallTraffic is 5000 frames, some of them damaged, for the well-known names
// of the tests.
func smallTraffic(t testing.TB) *traffic.Pool {
	t.Helper()
	pool, err := traffic.Build(traffic.Config{
		Seed: 7, Frames: 5000, SeenNames: 300, Clients: 400, V6Share: 0.3,
		WellKnown:      []string{"mail.example.com.", "www.example.com.", ".wild.example.org."},
		WellKnownShare: 0.5, SeenShare: 0.3,
		QueryShare: 0.05, ResolverShare: 0.05, MalformedShare: 0.02,
	})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// A stream of another content type is refused, and the log says so.
func TestForeignContent(t *testing.T) {
	t.Parallel()
	need(t, "fstrm_replay", "fstrm-bin")
	d := startResolverEDM(t)
	replayInto(t, "testdata/captures/fstrm-test.fstrm", "test:hello", "-u", d.socket)
	m := d.await(t, 1, "edm_handshake_failures_total")
	if got := sum(m, "edm_handshake_failures_total"); got != 1 {
		t.Errorf("%v failures counted, want 1", got)
	}
	if got := sum(m, "edm_processed_dnstap_total"); got != 0 {
		t.Errorf("%v frames counted, want none", got)
	}
	if n := strings.Count(d.output.String(), "test:hello"); n != 1 {
		t.Errorf("%d lines name the content type, want 1\n%s", n, d.log())
	}
}

// A frame above max_frame_size is skipped and counted, and the stream goes on.
func TestLargeFrame(t *testing.T) {
	t.Parallel()
	need(t, "fstrm_replay", "fstrm-bin")
	d := startResolverEDM(t)
	_, good := smallTraffic(t).Frame(0)
	file := filepath.Join(t.TempDir(), "large.fstrm")
	writeFrames(t, file, [][]byte{good, bytes.Repeat([]byte{'x'}, 300_000), good})
	if err := replayInto(t, file, contentType, "-u", d.socket); err != nil {
		t.Fatal(err)
	}
	m := d.await(t, 3, "edm_processed_dnstap_total")
	if got := checkConservation(t, m); got != 3 {
		t.Errorf("%v frames counted, want 3", got)
	}
	if got := sum(m, "edm_frames_dropped_total", `reason="oversize"`); got != 1 {
		t.Errorf("%v frames counted as too large, want 1", got)
	}
	d.stop(t)
}

// Whoever speaks another protocol is refused at once, and one line of the log
// says what it seems to be.
func TestWrongProtocol(t *testing.T) {
	t.Parallel()
	d := startResolverEDM(t)
	failures := 0
	f := func(says string, talk func(net.Conn)) {
		t.Helper()
		conn := dial(t, "tcp", d.tcp)
		began := time.Now()
		talk(conn)
		conn.SetReadDeadline(began.Add(patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", says)
		}
		if took := time.Since(began); took > 2*time.Second { // the handshake may take 5
			t.Errorf("%s: closed after %v", says, took)
		}
		failures++
		m := d.await(t, float64(failures), "edm_handshake_failures_total")
		if got := sum(m, "edm_handshake_failures_total"); got != float64(failures) {
			t.Errorf("%s: %v failures counted, want %d", says, got, failures)
		}
		until(t, func() bool { return len(d.entries("warn")) >= failures }, func() string { return says + ": no warning" })
		warnings := d.entries("warn")
		if last := fmt.Sprint(warnings[len(warnings)-1]); len(warnings) != failures || !strings.Contains(last, says) {
			t.Errorf("%d warnings, want %d; the last does not say %q: %s", len(warnings), failures, says, last)
		}
	}
	send := func(b []byte) func(net.Conn) {
		return func(c net.Conn) { c.Write(b) }
	}
	protobuf, err := os.ReadFile("testdata/captures/bind9-correct-response-nanosec.pb")
	if err != nil {
		t.Fatal(err)
	}
	f("TLS", func(c net.Conn) { tls.Client(c, &tls.Config{ServerName: "edm.test"}).Handshake() })
	f("HTTP", send([]byte("GET /metrics HTTP/1.1\r\nHost: edm.test\r\n\r\n")))
	f("protobuf", send(protobuf))
	f("text", send([]byte("hello\r\n")))
}

// fstrm_capture receives what our own sender sends.
func TestFstrmCapture(t *testing.T) {
	t.Parallel()
	path := need(t, "fstrm_capture", "fstrm-bin")
	pool := smallTraffic(t)
	f := func(network, address string, args ...string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "captured.fstrm")
		p := run(t, exec.Command(path, append(args, "-t", contentType, "-w", file)...))
		var conn net.Conn
		until(t, func() (up bool) {
			c, err := net.Dial(network, address)
			conn = c
			return err == nil
		}, p.log)
		s, err := traffic.Open(conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(pool.Framed(0, pool.Len())); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil { // waits for FINISH
			t.Fatal(err)
		}
		p.terminate(t, patience)
		frames := readFrames(t, file)
		if len(frames) != pool.Len() {
			t.Fatalf("%d frames captured, want %d", len(frames), pool.Len())
		}
		for i, got := range frames {
			if _, want := pool.Frame(i); !bytes.Equal(got, want) {
				t.Fatalf("frame %d: %x, want %x", i, got, want)
			}
		}
	}
	socket := filepath.Join(t.TempDir(), "s")
	f("unix", socket, "-u", socket)
	port := freePort(t)
	f("tcp", local(port), "-a", "127.0.0.1", "-p", fmt.Sprint(port))
}

// readFrames reads a Frame Streams file whole.
func readFrames(t testing.TB, path string) [][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := framestream.NewDecoder(f, &framestream.DecoderOptions{ContentType: []byte(contentType), MaxPayloadSize: 1 << 20})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var frames [][]byte
	for {
		frame, err := d.Decode()
		if err == io.EOF {
			return frames
		}
		if err != nil {
			t.Fatalf("%s: frame %d: %v", path, len(frames), err)
		}
		frames = append(frames, bytes.Clone(frame))
	}
}

// A sender that dies inside a frame: what came whole is used, the half frame
// is counted, and the next sender is served.
func TestHalfFrame(t *testing.T) {
	t.Parallel()
	d := startResolverEDM(t)
	pool := smallTraffic(t)
	s := openStream(t, dial(t, "unix", d.socket))
	framed := pool.Framed(0, 10)
	if _, err := s.Write(framed[:len(framed)-5]); err != nil {
		t.Fatal(err)
	}
	d.await(t, 9, "edm_processed_dnstap_total")
	s.abort()
	d.await(t, 1, "edm_frames_dropped_total", `reason="cut"`)
	m := d.await(t, 10, "edm_processed_dnstap_total") // it is counted last
	if got := checkConservation(t, m); got != 10 {
		t.Errorf("%v frames, want 10 with the cut one", got)
	}
	s = openStream(t, dial(t, "unix", d.socket))
	if _, err := s.Write(pool.Framed(0, 10)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	m = d.await(t, 20, "edm_processed_dnstap_total")
	if got := checkConservation(t, m); got != 20 {
		t.Errorf("%v frames, want 20", got)
	}
	d.stop(t)
}

// A stream is a traffic.Sender whose connection a test can break.
type stream struct {
	*traffic.Sender
	conn net.Conn
}

func (s stream) abort() { s.conn.Close() }

func openStream(t testing.TB, conn net.Conn) stream {
	t.Helper()
	s, err := traffic.Open(conn)
	if err != nil {
		t.Fatal(err)
	}
	return stream{s, conn}
}

func dial(t testing.TB, network, address string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
