package runner

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"edm/traffic"
)

// What was read before the signal is in a file after it, from streams that had
// ended and from streams that had not.
func TestRunDrains(t *testing.T) {
	pool, names := bulk(t)
	cfg := testConfig(t)
	cfg.WellKnownDomainsFile, cfg.InputTCP = names, freeAddress(t)
	r := runDaemon(t, cfg)
	const streams = 6
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			p := r.connect()
			p.send(pool.Framed(0, pool.Len()))
			if i%2 == 0 {
				p.finish()
			}
		})
	}
	wg.Wait()
	p := newPeer(t, dial(t, "tcp", cfg.InputTCP))
	p.send(startFrame, pool.Framed(0, pool.Len()), []byte{0, 0, 1}) // cut
	p.Close()
	until(t, "the cut stream to end", func() bool { return len(r.log.entries("resolver gone")) == 1+streams/2 })
	ends := r.stop()

	counts := pool.Counts()
	known, others := counts.Kinds[traffic.WellKnown], counts.Kinds[traffic.Seen]+counts.Kinds[traffic.Novel]
	if want := uint64((streams + 1) * known); ends["well_known"] != want || answersIn(t, cfg.histograms()) != int(want) {
		t.Errorf("%d frames for well-known names, %d in files, of %d", ends["well_known"], answersIn(t, cfg.histograms()), want)
	}
	if want := uint64((streams + 1) * others); ends["session"] != want || rowsIn(t, cfg.sessions()) != int(want) {
		t.Errorf("%d frames for others, %d in files, of %d", ends["session"], rowsIn(t, cfg.sessions()), want)
	}
	if want := uint64((streams+1)*pool.Len() + 1); ends["received"] != want || ends["dropped_cut"] != 1 {
		t.Errorf("%d frames received of %d, %d cut", ends["received"], want, ends["dropped_cut"])
	}
	if _, err := os.Lstat(cfg.InputUnix); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// Frames come without a pause while it stops: each frame that was counted is in
// a file.
func TestRunStopsUnderLoad(t *testing.T) {
	pool, names := bulk(t)
	cfg := testConfig(t)
	cfg.WellKnownDomainsFile = names
	r := runDaemon(t, cfg)
	var senders sync.WaitGroup
	for range 3 {
		p := r.connect()
		senders.Go(func() {
			for {
				if _, err := p.Write(pool.Framed(0, pool.Len())); err != nil {
					return
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // some load; how much does not matter
	ends := r.stop()
	senders.Wait()
	if n := answersIn(t, cfg.histograms()); n != int(ends["well_known"]) || n == 0 {
		t.Errorf("%d answers in files of %d", n, ends["well_known"])
	}
	if n := rowsIn(t, cfg.sessions()); n != int(ends["session"]) || n == 0 {
		t.Errorf("%d rows in files of %d", n, ends["session"])
	}
}

// Five requests in a second to end the interval lose nothing, and no two files
// have the same name.
func TestRunRotates(t *testing.T) {
	pool, names := bulk(t)
	cfg := testConfig(t)
	cfg.WellKnownDomainsFile = names
	r := runDaemon(t, cfg)
	p := r.connect()
	for range 5 {
		p.send(pool.Framed(0, pool.Len()))
		r.signals <- syscall.SIGUSR1
		time.Sleep(150 * time.Millisecond)
	}
	until(t, "an interval to end", func() bool { return len(parquetFiles(t, cfg.histograms())) > 0 })
	p.send(pool.Framed(0, pool.Len()))
	p.finish()
	ends := r.stop()
	if n := answersIn(t, cfg.histograms()); n != int(ends["well_known"]) {
		t.Errorf("%d answers in files of %d", n, ends["well_known"])
	}
	if n := rowsIn(t, cfg.sessions()); n != int(ends["session"]) {
		t.Errorf("%d rows in files of %d", n, ends["session"])
	}
	files := parquetFiles(t, cfg.histograms())
	if len(files) < 2 || len(files) > 4 || len(r.log.entries("histogram written")) != len(files) {
		t.Errorf("files: %q", files)
	}
	intervals := regexp.MustCompile(`^dns_histogram-(\S{20})_(\S{20})\.parquet$`)
	var stop string
	for _, path := range files {
		m := intervals.FindStringSubmatch(filepath.Base(path))
		if m == nil || stop != "" && m[1] != stop {
			t.Errorf("%s does not begin when the one before ended: %q", path, files)
			continue
		}
		stop = m[2]
	}
}

// Nothing is left when Run has returned: no goroutine, no file, no socket, no
// lock. So it can be called again.
func TestRunLeavesNothing(t *testing.T) {
	cfg := testConfig(t)
	cfg.InputTCP, cfg.MetricsListen = freeAddress(t), freeAddress(t)
	a := newAuthority(t, socketDir(t))
	a.issue("server", a)
	cfg.InputTLS, cfg.InputTLSCertFile, cfg.InputTLSKeyFile = freeAddress(t), a.path("server.pem"), a.path("server.key")
	cfg.DebugDnstapFilename = filepath.Join(t.TempDir(), "dump.json")
	frame := framed(response(t, "example.com.", nil))
	once := func() {
		r := runDaemon(t, cfg)
		p := r.connect()
		p.send(frame)
		p.finish()
		for _, conn := range []net.Conn{dial(t, "tcp", cfg.InputTCP), tls.Client(dial(t, "tcp", cfg.InputTLS), a.client(""))} {
			p := newPeer(t, conn)
			p.open()
			p.send(frame)
			defer p.Close()
			until(t, "the stream to be open", func() bool { return r.metric("edm_processed_dnstap_total") >= 2 })
		}
		r.get("/healthz")
		if ends := r.stop(); ends["session"] != 3 {
			t.Errorf("frames: %v", ends)
		}
	}
	once() // opens what stays open, of the runtime and of the network
	files := openFiles(t, "")
	for range 2 {
		once()
	}
	until(t, "every goroutine to end", func() bool { return len(ourGoroutines()) == 0 })
	until(t, "every file to be closed", func() bool { return openFiles(t, "") <= files })
	if n := rowsIn(t, cfg.sessions()); n != 9 {
		t.Errorf("%d rows of 9", n)
	}
	checkFolder(t, filepath.Dir(cfg.InputUnix), "data")
}

// ourGoroutines returns the stacks of goroutines that run code of this package
// that is no test.
func ourGoroutines() (found []string) {
	b := make([]byte, 4<<20)
	for _, stack := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		for line := range strings.Lines(stack) {
			if strings.Contains(line, "/runner/") && !strings.Contains(line, "_test.go") {
				found = append(found, stack)
				break
			}
		}
	}
	return found
}

// openFiles counts what this process has open below a path, "" for anywhere.
func openFiles(t *testing.T, below string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(path, below) {
			n++
		}
	}
	return n
}

// When something cannot be opened, Run says what, and leaves nothing that would
// be in the way of the next try.
func TestRunCannotStart(t *testing.T) {
	cfg := testConfig(t)
	f := func(want string, setUp func(*Config)) {
		t.Run(want, func(t *testing.T) {
			bad := *cfg
			setUp(&bad)
			r := tryDaemon(t, &bad)
			select {
			case err := <-r.done:
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			case <-time.After(patience):
				t.Fatalf("it starts: %s", r.log)
			}
			r.stopped = true
			if n := len(r.log.entries("started")); n != 0 {
				t.Errorf("logged %s", r.log)
			}
			if _, err := os.Lstat(bad.InputUnix); err == nil {
				t.Error("the socket is left")
			}
			if dir, err := openDataDir(cfg.DataDir); err != nil {
				t.Error(err)
			} else {
				dir.Close()
			}
		})
	}
	busy := busyAddress(t)
	file := list(t, "x")
	f("well_known_domains_file: ", func(cfg *Config) { cfg.WellKnownDomainsFile = filepath.Join(t.TempDir(), "absent") })
	f("metrics_listen: ", func(cfg *Config) { cfg.MetricsListen = busy })
	f("input_tcp: ", func(cfg *Config) { cfg.InputTCP = busy })
	f("input_unix: ", func(cfg *Config) { cfg.InputUnix = filepath.Join(t.TempDir(), "absent", "s") })
	f("input_unix: ", func(cfg *Config) { cfg.InputUnixGroup = "no such group" })
	f("data_dir: ", func(cfg *Config) { cfg.DataDir = file })
	f("debug_dnstap_filename: ", func(cfg *Config) { cfg.DebugDnstapFilename = filepath.Join(t.TempDir(), "absent", "d") })
	runDaemon(t, cfg).stop()
}

// Two daemons share nothing that only one can have. One whose socket is taken
// makes no folder.
func TestRunTwoAtOnce(t *testing.T) {
	cfg := testConfig(t)
	first := runDaemon(t, cfg)
	f := func(want string, setUp func(*Config)) {
		t.Helper()
		other := *testConfig(t)
		dataDir := other.DataDir
		setUp(&other)
		r := tryDaemon(t, &other)
		r.stopped = true
		select {
		case err := <-r.done:
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "in use") {
				t.Errorf("got %v, want %s", err, want)
			}
		case <-time.After(patience):
			t.Fatalf("it starts: %s", r.log)
		}
		if _, err := os.Lstat(dataDir); !os.IsNotExist(err) {
			t.Errorf("its data_dir was made: %v", err)
		}
	}
	f("data_dir: ", func(other *Config) { other.DataDir = cfg.DataDir })
	f("input_unix: ", func(other *Config) { other.InputUnix = cfg.InputUnix })
	p := first.connect() // still the first one's
	p.send(framed(response(t, "example.com.", nil)))
	p.finish()
	if ends := first.stop(); ends["session"] != 1 {
		t.Errorf("frames: %v", ends)
	}
}

// The socket may be in data_dir, though that is locked.
func TestRunWithTheSocketInDataDir(t *testing.T) {
	cfg := testConfig(t)
	cfg.InputUnix = filepath.Join(cfg.DataDir, "s")
	r := runDaemon(t, cfg)
	r.connect().finish()
	r.stop()
}

// A daemon that has been killed leaves a socket and half a file. The next one
// takes the socket over and removes the file.
func TestRunAfterKill(t *testing.T) {
	cfg := testConfig(t)
	c := startChild(t, childSettings(cfg))
	c.ready()
	r := &running{t: t, cfg: cfg}
	p := r.connect()
	p.send(framed(response(t, "example.com.", nil)))
	p.finish()
	if err := c.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	until(t, "a file", func() bool { return len(parquetFiles(t, cfg.sessions())) == 1 })
	left := filepath.Join(cfg.sessions(), ".dns_session_block-2026-11-30T10-00-00Z.parquet")
	if err := os.WriteFile(left, []byte("PAR1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.exited()
	if _, err := os.Lstat(cfg.InputUnix); err != nil {
		t.Fatalf("there is nothing to take over: %v", err)
	}
	if _, err := net.Dial("unix", cfg.InputUnix); err == nil {
		t.Fatal("somebody listens")
	}
	r = runDaemon(t, cfg)
	p = r.connect()
	p.send(framed(response(t, "example.com.", nil)))
	p.finish()
	r.stop()
	if n := rowsIn(t, cfg.sessions()); n != 2 {
		t.Errorf("%d rows of 2", n)
	}
	if _, err := os.Lstat(left); !os.IsNotExist(err) {
		t.Errorf("half a file is left: %v", err)
	}
}

// Of two processes that start at once on one socket, exactly one serves.
func TestRunTwoProcessesAtOnce(t *testing.T) {
	cfg, other := testConfig(t), testConfig(t)
	other.InputUnix = cfg.InputUnix
	deadSocket(t, cfg.InputUnix)
	one, two := startChild(t, childSettings(cfg)), startChild(t, childSettings(other))
	var loser *child
	until(t, "one of the two to give up", func() bool {
		for _, c := range []*child{one, two} {
			select {
			case <-c.done:
				loser = c
				return true
			default:
			}
		}
		return false
	})
	winner := one
	if loser == one {
		winner = two
	}
	if code := loser.exited(); code != 1 || !strings.Contains(loser.log.String(), "in use") {
		t.Errorf("exit code %d\n%s", code, loser.log)
	}
	winner.ready()
	r := &running{t: t, cfg: cfg}
	r.connect().finish()
	winner.Process.Signal(syscall.SIGTERM)
	if code := winner.exited(); code != 0 {
		t.Errorf("exit code %d\n%s", code, winner.log)
	}
}

// The service manager is told when it listens, so that a connect succeeds from
// then on, and when it stops, however fast that is.
func TestRunTellsTheServiceManager(t *testing.T) {
	cfg := testConfig(t)
	path := filepath.Join(socketDir(t), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	hear := func() string {
		t.Helper()
		manager.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, 1000)
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	for range 3 {
		c := startChild(t, childSettings(cfg), "NOTIFY_SOCKET="+path)
		if got := hear(); got != "READY=1" {
			t.Fatalf("got %q", got)
		}
		conn, err := net.Dial("unix", cfg.InputUnix)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		c.Process.Signal(syscall.SIGTERM)
		if code := c.exited(); code != 0 {
			t.Errorf("exit code %d\n%s", code, c.log)
		}
		if got := hear(); got != "STOPPING=1" {
			t.Errorf("got %q", got)
		}
	}
}

// A resolver that connects again and again meets three restarts. It is at the
// same path with the same mode soon after each, every frame of a stream that
// was finished is in a file, and half a frame is counted.
func TestRunRestarts(t *testing.T) {
	cfg := testConfig(t)
	frame := framed(response(t, "example.com.", nil))
	finished := 0
	for round := range 4 {
		began := time.Now()
		r := runDaemon(t, cfg)
		t.Logf("listens after %v", time.Since(began))
		if info, err := os.Lstat(cfg.InputUnix); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		for range 5 {
			p := r.connect()
			p.send(slices.Repeat(frame, 10))
			p.finish()
			finished += 10
		}
		p := r.connect()
		p.send(frame, frame[:20]) // killed in the middle
		p.Close()
		until(t, "the cut to be seen", func() bool { return len(r.log.entries("resolver gone")) == 6 })
		finished++
		ends := r.stop()
		if ends["dropped_cut"] != 1 || ends["session"] != 51 {
			t.Errorf("round %d: frames %v", round, ends)
		}
	}
	if n := rowsIn(t, cfg.sessions()); n != finished {
		t.Errorf("%d rows of %d", n, finished)
	}
}

// The log tells the life of the daemon and says nothing of a client.
func TestRunLog(t *testing.T) {
	cfg := testConfig(t)
	cfg.WellKnownDomainsFile = list(t, "example.com\n")
	r := runDaemon(t, cfg)
	p := r.connect()
	for _, name := range []string{"example.com.", "client.example."} {
		p.send(framed(response(t, name, nil)))
	}
	p.send(framed([]byte("garbage"), noProtobuf))
	p.finish()
	r.stop()
	var got []string
	for _, e := range r.log.entries("") {
		got = append(got, fmt.Sprint(e["level"], " ", e["msg"]))
	}
	slices.Sort(got[len(got)-4 : len(got)-1]) // a stream ends and files are written at once
	for _, want := range []string{"info listening", "info started", "info resolver connected", "info resolver gone", "info histogram written", "info session file written", "info stopped"} {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != want })); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", want, n, strings.Join(got, "\n"))
		}
	}
	for _, secret := range []string{"198.51.100", "client.example", "secret"} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("%s is in the log:\n%s", secret, r.log)
		}
	}
	if got := r.log.entries("listening")[0]["address"]; got != cfg.InputUnix {
		t.Errorf("it says that it listens on %v", got)
	}
}

// noProtobuf is a frame of two octets that are no protobuf.
var noProtobuf = []byte{0xff, 0xff}

// Check, a replay and a cancelled context at the start do not hang.
func TestRunEndsAtOnce(t *testing.T) {
	cfg := testConfig(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var book logBook
	if err := Run(ctx, cfg, NewLogger(&book, false), nil, "test"); err != nil {
		t.Error(err)
	}
	if ends := endsLogged(t, &book); ends["received"] != 0 {
		t.Errorf("frames: %v", ends)
	}
	checkFolder(t, filepath.Dir(cfg.InputUnix), "data")
}
