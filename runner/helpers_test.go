package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	framestream "github.com/farsightsec/golang-framestream"
	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"edm/dnstap"
	"edm/traffic"
)

const (
	// patience bounds every wait for a condition. No test needs it when all is
	// well, on however busy a machine.
	patience = 30 * time.Second

	// childConfig names the configuration that this binary is to run the daemon
	// by, in the place of tests.
	childConfig = "EDM_TEST_CHILD_CONFIG"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if path := os.Getenv(childConfig); path != "" {
		os.Exit(runChild(path))
	}
	flag.Parse()
	// A benchmark would measure it.
	poison = flag.Lookup("test.bench").Value.String() == ""
	os.Exit(m.Run())
}

// raceEnabled says that everything is several times as slow.
var raceEnabled = func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// until polls until a condition holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// socketDir returns a folder with a path short enough for sockets.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "edm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// mountSmall mounts a file system of some size, or skips the test.
func mountSmall(t testing.TB, size string) string {
	t.Helper()
	dir := socketDir(t)
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a full disk needs a tmpfs, and mounting one needs root: %v", err)
	}
	// A store that has met a full disk may keep its files open until the process
	// ends.
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// A logBook is what a logger of NewLogger writes to.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// entries returns what was logged with a message, "" for all.
func (l *logBook) entries(msg string) (found []map[string]any) {
	for line := range strings.Lines(l.String()) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil && (msg == "" || e["msg"] == msg) {
			found = append(found, e)
		}
	}
	return found
}

// control returns a control frame with its escape.
func control(kind uint32, contentTypes ...string) []byte {
	f := framestream.ControlFrame{ControlType: kind}
	for _, c := range contentTypes {
		f.ContentTypes = append(f.ContentTypes, []byte(c))
	}
	var b bytes.Buffer
	if err := f.Encode(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// framed returns data frames, each behind its length.
func framed(frames ...[]byte) (b []byte) {
	for _, f := range frames {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}

var (
	readyFrame = control(framestream.CONTROL_READY, dnstap.ContentType)
	startFrame = control(framestream.CONTROL_START, dnstap.ContentType)
	stopFrame  = control(framestream.CONTROL_STOP)
)

// A reply is a control frame that edm sent, or the error that ended the stream.
type reply struct {
	kind uint32
	at   time.Time
	err  error
}

// A peer is the resolver's end of a stream. What comes back is read all the
// time.
type peer struct {
	net.Conn
	t       testing.TB
	replies chan reply
}

func newPeer(t testing.TB, conn net.Conn) *peer {
	p := &peer{conn, t, make(chan reply, 10)}
	go func() {
		r := bufio.NewReader(conn)
		for {
			var f framestream.ControlFrame
			err := f.DecodeEscape(r)
			p.replies <- reply{f.ControlType, time.Now(), err}
			if err != nil {
				return
			}
		}
	}()
	return p
}

// send writes everything at once.
func (p *peer) send(parts ...[]byte) {
	p.t.Helper()
	if _, err := p.Write(bytes.Join(parts, nil)); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// expect waits for a control frame and returns when it came.
func (p *peer) expect(kind uint32) time.Time {
	p.t.Helper()
	select {
	case r := <-p.replies:
		if r.err != nil || r.kind != kind {
			p.t.Fatalf("control frame of type %d, %v; want %d", r.kind, r.err, kind)
		}
		return r.at
	case <-time.After(patience):
		p.t.Fatalf("waited %v for a control frame of type %d", patience, kind)
	}
	return time.Time{}
}

// closed waits for the other end to close, and returns when it did.
func (p *peer) closed() time.Time {
	p.t.Helper()
	select {
	case r := <-p.replies:
		if r.err == nil {
			p.t.Fatalf("control frame of type %d, want the end of the stream", r.kind)
		}
		return r.at
	case <-time.After(patience):
		p.t.Fatalf("waited %v for the end of the stream", patience)
	}
	return time.Time{}
}

// open shakes hands as a bidirectional sender.
func (p *peer) open() {
	p.t.Helper()
	p.send(readyFrame)
	p.expect(framestream.CONTROL_ACCEPT)
	p.send(startFrame)
}

// finish says STOP, waits for FINISH and closes.
func (p *peer) finish() {
	p.t.Helper()
	p.send(stopFrame)
	p.expect(framestream.CONTROL_FINISH)
	p.Close()
}

// A reception is the first stage on its own: streams come in, and their chunks
// are taken by the test, or by nobody.
type reception struct {
	reading
	out    chan *dnstap.Chunk
	log    *logBook
	takers sync.WaitGroup

	mu     sync.Mutex
	frames [][]byte    // guarded by mu; copies of what was taken
	at     []time.Time // guarded by mu; when each was taken
	chunks int         // guarded by mu
}

// newReception makes one with a given room in the channel of chunks.
func newReception(limit, room int) *reception {
	r := &reception{log: &logBook{}, out: make(chan *dnstap.Chunk, room)}
	log := NewLogger(r.log, true)
	r.reading.limit, r.free, r.reading.chunks = limit, newFreeList(limit), r.out
	r.metrics, r.reading.log = newMetrics("test", log), log
	return r
}

// take takes chunks from now on, until their channel is closed.
func (r *reception) take() {
	r.takers.Go(func() {
		for c := range r.out {
			r.mu.Lock()
			r.chunks++
			for rest := c.Frames(); len(rest) > 0; {
				var frame []byte
				frame, rest = dnstap.Next(rest)
				r.frames, r.at = append(r.frames, bytes.Clone(frame)), append(r.at, time.Now())
			}
			r.mu.Unlock()
			r.free.give(c)
		}
	})
}

// taken returns the frames taken so far.
func (r *reception) taken() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.frames)
}

// ended returns how often streams ended in each way.
func (r *reception) ended() map[string]uint64 {
	ends := map[string]uint64{}
	for i := range r.metrics.streamEnds {
		if n := r.metrics.streamEnds[i].Load(); n > 0 {
			ends[endNames[i]] = n
		}
	}
	return ends
}

// pipe serves one end of a pipe in memory and returns the other. done is closed
// when the stream has ended.
func (r *reception) pipe(t testing.TB) (p *peer, done chan struct{}) {
	ours, theirs := net.Pipe()
	return newPeer(t, theirs), r.serveConn(ours)
}

func (r *reception) serveConn(conn net.Conn) (done chan struct{}) {
	c := &connection{input: "input_unix", conn: conn, source: &plainSource{Conn: conn}, shared: &r.reading}
	done = make(chan struct{})
	go func() { c.serve(); close(done) }()
	return done
}

// testConfig is a configuration for Run with a unix socket and without metrics.
func testConfig(t testing.TB) *Config {
	t.Helper()
	cfg := DefaultConfig()
	dir := socketDir(t)
	cfg.CryptopanKey = "secret"
	cfg.CryptopanAddressEntries, cfg.QnameSeenEntries = 1000, 10_000
	cfg.MinimiserWorkers = 2
	cfg.MetricsListen = ""
	cfg.InputUnix = filepath.Join(dir, "dnstap.sock")
	cfg.DataDir = filepath.Join(dir, "data")
	return &cfg
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A running is a Run in this process.
type running struct {
	t       testing.TB
	cfg     *Config
	log     *logBook
	signals chan os.Signal
	cancel  context.CancelFunc
	done    chan error
	stopped bool
}

// runDaemon starts Run and returns when it listens.
func runDaemon(t testing.TB, cfg *Config) *running {
	t.Helper()
	r := tryDaemon(t, cfg)
	until(t, "the daemon to start", func() bool {
		select {
		case err := <-r.done:
			t.Fatalf("Run: %v\n%s", err, r.log)
		default:
		}
		return len(r.log.entries("started")) > 0
	})
	t.Cleanup(func() { r.stop() })
	return r
}

// tryDaemon starts Run.
func tryDaemon(t testing.TB, cfg *Config) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, cfg: cfg, log: &logBook{}, signals: make(chan os.Signal, 1), cancel: cancel, done: make(chan error, 1)}
	t.Cleanup(cancel)
	go func() { r.done <- Run(ctx, cfg, NewLogger(r.log, cfg.Debug), r.signals, "test") }()
	return r
}

// stop ends Run, within 10 s, and returns what became of the frames, of which
// each has one end.
func (r *running) stop() map[string]uint64 {
	r.t.Helper()
	if r.stopped {
		return nil
	}
	r.stopped = true
	r.cancel()
	began := time.Now()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		r.t.Fatalf("Run does not return\n%s\n%s", r.log, stacks[:runtime.Stack(stacks, true)])
	}
	if took := time.Since(began); took > 10*time.Second {
		r.t.Errorf("Run took %v to end", took)
	}
	return endsLogged(r.t, r.log)
}

// endsLogged returns what the last line of a log says became of the frames.
func endsLogged(t testing.TB, log *logBook) map[string]uint64 {
	t.Helper()
	last := log.entries("stopped")
	if len(last) != 1 {
		t.Fatalf("%d lines say that it stopped\n%s", len(last), log)
	}
	ends := map[string]uint64{}
	var sum uint64
	for name, n := range last[0]["frames"].(map[string]any) {
		ends[name] = uint64(n.(float64))
		sum += ends[name]
	}
	if sum != 2*ends["received"] {
		t.Errorf("the frames received and what became of them: %v", ends)
	}
	return ends
}

// dial connects to an address of the daemon's.
func dial(t testing.TB, network, address string) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout(network, address, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// connect opens a stream to the daemon's unix socket.
func (r *running) connect() *peer {
	r.t.Helper()
	p := newPeer(r.t, dial(r.t, "unix", r.cfg.InputUnix))
	p.open()
	return p
}

// get asks the daemon's metrics_listen.
func (r *running) get(path string) (status int, body string) {
	r.t.Helper()
	return httpGet(r.t, "http://"+r.cfg.MetricsListen+path)
}

func httpGet(t testing.TB, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// metric returns the sum of all series that begin with name.
func (r *running) metric(name string) (sum float64) {
	r.t.Helper()
	_, body := r.get("/metrics")
	for line := range strings.Lines(body) {
		at := strings.LastIndexByte(line, ' ')
		if !strings.HasPrefix(line, name) || !strings.ContainsRune(" {},", rune(line[len(name)])) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			r.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// parquetFiles returns the files of a folder below data_dir, and fails if
// there is anything else in it but temporary files.
func parquetFiles(t testing.TB, dir string) (paths []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name()[0] == '.' {
			continue
		}
		if filepath.Ext(e.Name()) != ".parquet" {
			t.Errorf("%s is in %s", e.Name(), dir)
		}
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

// withParquet opens a file for f.
func withParquet(t testing.TB, path string, f func(*parquet.File)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := parquet.OpenFile(file, st.Size())
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	f(p)
}

// rowsIn counts the rows of all files in a folder.
func rowsIn(t testing.TB, dir string) (rows int) {
	t.Helper()
	for _, path := range parquetFiles(t, dir) {
		withParquet(t, path, func(p *parquet.File) { rows += int(p.NumRows()) })
	}
	return rows
}

func (cfg *Config) sessions() string   { return filepath.Join(cfg.DataDir, sessionsDir) }
func (cfg *Config) histograms() string { return filepath.Join(cfg.DataDir, outboxDir) }

// bulk returns traffic of all kinds, and the path of its list of well-known
// names.
func bulk(t testing.TB) (*traffic.Pool, string) {
	t.Helper()
	pool, err := bulkPool()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "names")
	if err := traffic.WriteList(path, bulkNames); err != nil {
		t.Fatal(err)
	}
	return pool, path
}

var (
	bulkNames = traffic.List(1, 300)
	bulkPool  = sync.OnceValues(func() (*traffic.Pool, error) {
		config := traffic.Default()
		config.Frames, config.WellKnown, config.SeenNames, config.Clients = 8000, bulkNames, 500, 1000
		config.QueryShare, config.ResolverShare, config.MalformedShare = 0.02, 0.02, 0.02
		return traffic.Build(config)
	})
)

// answersIn adds up the answers of all histograms in a folder.
func answersIn(t testing.TB, dir string) (sum int) {
	t.Helper()
	type row struct {
		OK    int `parquet:"ok_count"`
		NX    int `parquet:"nx_count"`
		Fail  int `parquet:"fail_count"`
		Other int `parquet:"other_rcode_count"`
	}
	for _, path := range parquetFiles(t, dir) {
		rows, err := parquet.ReadFile[row](path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, r := range rows {
			sum += r.OK + r.NX + r.Fail + r.Other
		}
	}
	return sum
}

// A child is the daemon in a process of its own.
type child struct {
	*exec.Cmd
	t    testing.TB
	log  *logBook
	done chan struct{}
}

// startChild runs the daemon by lines of TOML in a process.
func startChild(t testing.TB, settings string, env ...string) *child {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edm.toml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &child{exec.Command(os.Args[0]), t, &logBook{}, make(chan struct{})}
	c.Env = append(append(os.Environ(), childConfig+"="+path), env...)
	c.Stderr = c.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.Wait(); close(c.done) }()
	t.Cleanup(func() { c.Process.Kill(); <-c.done })
	return c
}

// childSettings are lines of TOML for a daemon with a unix socket.
func childSettings(cfg *Config) string {
	return fmt.Sprintf("cryptopan_key = 'secret'\ncryptopan_address_entries = 1000\nqname_seen_entries = 10000\nminimiser_workers = 2\n"+
		"input_unix = %q\ndata_dir = %q\nmetrics_listen = %q\n", cfg.InputUnix, cfg.DataDir, cfg.MetricsListen)
}

func runChild(config string) int {
	cl, err := ParseCommandLine([]string{"-config", config})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg, err := cl.LoadConfig()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	log := NewLogger(os.Stderr, cfg.Debug)
	if err := Run(ctx, cfg, log, signals, "test"); err != nil {
		log.Error("failed", zap.Error(err))
		return 1
	}
	return 0
}

// exited waits for the process to end and returns its exit code.
func (c *child) exited() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatalf("the process does not end\n%s", c.log)
	}
	return c.ProcessState.ExitCode()
}

// ready waits until the process listens.
func (c *child) ready() {
	c.t.Helper()
	until(c.t, "the process to start", func() bool {
		select {
		case <-c.done:
			c.t.Fatalf("the process has ended\n%s", c.log)
		default:
		}
		return len(c.log.entries("started")) > 0
	})
}

// counted returns the value of a counter.
func counted(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
