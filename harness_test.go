package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The tests beside this file run the real binary: built once, started with a
// configuration of its own in a folder of its own, asked by its metrics, ended
// by SIGTERM, and its files read back. Everything stays on the loopback
// addresses; nothing waits for a time, only for a condition with a deadline.

const (
	// patience bounds every wait for a condition. It is long because the
	// machine may be busy; no test needs it when all is well.
	patience = 30 * time.Second
	tick     = 10 * time.Millisecond

	testKey  = "the key of the tests"
	testSalt = "edm-kdf-salt-val" // the default of cryptopan_key_salt
)

// edmBinary builds edm once for all tests and returns its path.
var edmBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "edm")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build edm: %w\n%s", err, out)
	}
	return path, nil
})

// scratch holds the binary while the tests run.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "edm-test-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		return m.Run()
	}())
}

// need returns the path of a program that Debian's package brings, or ends the
// test: skipped where a person runs it, failed with CI=true.
func need(t testing.TB, program, debianPackage string) string {
	t.Helper()
	// Daemons are in sbin, which is not in every user's PATH.
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/local/sbin", "/usr/lib/postgresql/15/bin") {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path
		}
	}
	missing(t, "%s is not installed: apt-get install %s", program, debianPackage)
	return ""
}

// missing skips the test, or with CI=true fails it.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// A daemon is one run of edm. Its paths may be shared with later runs.
type daemon struct {
	*process
	dir     string // data_dir
	socket  string // input_unix
	tcp     string // input_tcp
	tls     string // input_tls
	metrics string // metrics_listen
	config  string
}

// plan writes a configuration into a new folder, without starting anything.
// settings are TOML lines, in addition to or in the place of those that every
// test needs.
func plan(t testing.TB, settings ...string) *daemon {
	t.Helper()
	// Not t.TempDir: a socket's path must be shorter than 108 bytes.
	run, err := os.MkdirTemp("", "edm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &daemon{
		dir:     filepath.Join(run, "data"),
		socket:  filepath.Join(run, "dnstap.sock"),
		tcp:     local(freePort(t)),
		tls:     local(freePort(t)),
		metrics: local(freePort(t)),
		config:  filepath.Join(run, "edm.toml"),
	}
	for _, line := range []string{
		fmt.Sprintf("cryptopan_key = %q", testKey),
		fmt.Sprintf("data_dir = %q", d.dir),
		fmt.Sprintf("metrics_listen = %q", d.metrics),
	} {
		key, _, _ := strings.Cut(line, " ")
		if !slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, key+" ") }) {
			settings = append(settings, line)
		}
	}
	write(t, d.config, strings.Join(settings, "\n")+"\n")
	return d
}

// set appends TOML lines to the configuration.
func (d *daemon) set(t testing.TB, lines ...string) {
	t.Helper()
	old, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, d.config, string(old)+strings.Join(lines, "\n")+"\n")
}

// start runs edm with the configuration and returns when it says that it
// listens. It returns how long that took.
func (d *daemon) start(t testing.TB) time.Duration {
	t.Helper()
	path, err := edmBinary()
	if err != nil {
		t.Fatal(err)
	}
	notify := filepath.Join(t.TempDir(), "n")
	ear, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-config", d.config)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify)
	began := time.Now()
	d.process = run(t, cmd)
	go func(p *process) { <-p.exited; ear.Close() }(d.process)

	ready := make(chan time.Duration, 1)
	go func() {
		defer close(ready)
		buf := make([]byte, 4096)
		for {
			n, err := ear.Read(buf)
			if err != nil {
				return // edm has ended
			}
			if slices.Contains(strings.Split(string(buf[:n]), "\n"), "READY=1") {
				select {
				case ready <- time.Since(began):
				default: // after a reload
				}
			}
		}
	}()
	select {
	case took, ok := <-ready:
		if ok {
			return took
		}
	case <-time.After(patience):
	}
	t.Fatalf("edm does not become ready:\n%s", d.log())
	return 0
}

// stop ends edm by SIGTERM and fails the test if it takes 10 s or does not
// exit with 0.
func (d *daemon) stop(t testing.TB) {
	t.Helper()
	if code := d.terminate(t, 10*time.Second); code != 0 {
		t.Fatalf("edm exits %d\n%s", code, d.log())
	}
}

// scrape returns the metrics as printed: `name{label="value"}` to value.
func (d *daemon) scrape(t testing.TB) map[string]float64 {
	t.Helper()
	resp, err := http.Get("http://" + d.metrics + "/metrics")
	if err != nil {
		t.Fatalf("read the metrics: %v\n%s", err, d.log())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]float64)
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		m[line[:i]] = v
	}
	return m
}

// sum adds up all series of a metric, or of those with the given label.
func sum(m map[string]float64, name string, label ...string) float64 {
	var s float64
	for series, v := range m {
		if family, labels, _ := strings.Cut(series, "{"); family == name && (len(label) == 0 || strings.Contains(labels, label[0])) {
			s += v
		}
	}
	return s
}

// await polls until the sum of the metric is at least want, and returns the
// metrics after that moment: what is read at once is not of one moment.
func (d *daemon) await(t testing.TB, want float64, name string, label ...string) map[string]float64 {
	t.Helper()
	var m map[string]float64
	until(t, func() bool { m = d.scrape(t); return sum(m, name, label...) >= want }, func() string {
		return fmt.Sprintf("%s %v is %v, want %v\n%s", name, label, sum(m, name, label...), want, d.log())
	})
	return d.scrape(t)
}

// awaitStreams waits until n streams have begun: a resolver throws away what it
// has to say before that.
func (d *daemon) awaitStreams(t testing.TB, n int) {
	t.Helper()
	until(t, func() bool { return strings.Count(d.output.String(), "resolver connected") >= n }, func() string {
		return fmt.Sprintf("%d streams have not begun\n%s", n, d.log())
	})
}

// checkConservation checks that every frame received ended in exactly one
// counter, and returns how many were received.
func checkConservation(t testing.TB, m map[string]float64) float64 {
	t.Helper()
	got := sum(m, "edm_processed_dnstap_total")
	ends := sum(m, "edm_frames_total") + sum(m, "edm_frames_dropped_total") + sum(m, "edm_messages_skipped_total")
	if got != ends {
		t.Errorf("received %v frames, %v ended in a counter: %v", got, ends, m)
	}
	return got
}

// until polls a condition until it holds, or fails the test with what say
// tells.
func until(t testing.TB, holds func() bool, say func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(tick) {
		if time.Now().After(deadline) {
			t.Fatal(say())
		}
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// nextPort walks through ports below the range that the kernel takes for
// outgoing connections, so that no client takes one before its server does.
var nextPort atomic.Uint32

func init() { nextPort.Store(20000 + rand.Uint32N(8000)) }

// freePort returns a port that nobody has, over UDP and TCP, IPv4 and IPv6.
func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := int(nextPort.Add(1))
		if isFree(port) {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func isFree(port int) bool {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		if ip == "::1" && !haveIPv6() {
			continue
		}
		address := net.JoinHostPort(ip, strconv.Itoa(port))
		l, err := net.Listen("tcp", address)
		if err != nil {
			return false
		}
		l.Close()
		p, err := net.ListenPacket("udp", address)
		if err != nil {
			return false
		}
		p.Close()
	}
	return true
}

// haveIPv6 tells whether ::1 is there: in some containers it is not.
var haveIPv6 = sync.OnceValue(func() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	l.Close()
	return true
})
