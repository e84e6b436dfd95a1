package runner

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"edm/output"
	"edm/receiver"
)

const uploadNode = "node.example.test"

// A core is a receiver on the network, and the files that a node needs for it.
type core struct {
	*receiver.Receiver
	t      testing.TB
	server *httptest.Server
	dir    string // of the files

	mu    sync.Mutex
	serve http.HandlerFunc // in front of the receiver; guarded by mu
}

func newCore(t testing.TB) *core {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &core{t: t, dir: t.TempDir(), Receiver: &receiver.Receiver{Keys: map[string]ed25519.PublicKey{uploadNode: public}}}
	c.serve = c.ServeHTTP
	authority := receiver.NewAuthority()
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.mu.Lock()
		serve := c.serve
		c.mu.Unlock()
		serve(w, req)
	}))
	c.server.TLS = authority.Server("127.0.0.1")
	c.server.EnableHTTP2 = true
	c.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.server.StartTLS()
	t.Cleanup(c.server.Close)

	cert, key := authority.Issue(uploadNode)
	jwk, err := json.Marshal(map[string]string{
		"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": uploadNode,
		"d": base64.RawURLEncoding.EncodeToString(private.Seed()), "x": base64.RawURLEncoding.EncodeToString(public),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": authority.PEM, "tls.crt": cert, "tls.key": key, "datakey-priv.json": jwk} {
		if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *core) path(name string) string { return filepath.Join(c.dir, name) }

func (c *core) do(serve http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serve = serve
}

// configure makes cfg that of a node of c.
func (c *core) configure(cfg *Config) {
	cfg.HTTPURL = c.server.URL
	cfg.HTTPCAFile, cfg.HTTPClientCertFile, cfg.HTTPClientKeyFile = c.path("ca.crt"), c.path("tls.crt"), c.path("tls.key")
	cfg.HTTPSigningKeyFile = c.path("datakey-priv.json")
}

// settings are the same in TOML.
func (c *core) settings() string {
	var cfg Config
	c.configure(&cfg)
	return fmt.Sprintf("http_url = %q\nhttp_ca_file = %q\nhttp_client_cert_file = %q\nhttp_client_key_file = %q\nhttp_signing_key_file = %q\n",
		cfg.HTTPURL, cfg.HTTPCAFile, cfg.HTTPClientCertFile, cfg.HTTPClientKeyFile, cfg.HTTPSigningKeyFile)
}

func (cfg *Config) sent() string { return filepath.Join(cfg.DataDir, histogramsDir, output.SentFolder) }
func (cfg *Config) refused() string {
	return filepath.Join(cfg.DataDir, histogramsDir, output.RefusedFolder)
}

// putHistograms writes histograms of n minutes into the outbox, as an earlier
// run left them, and returns the digests of their octets by name.
func putHistograms(t testing.TB, cfg *Config, n int) map[string]string {
	t.Helper()
	if err := makeFolders(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	start := time.Now().UTC().Truncate(time.Minute).Add(-time.Hour)
	for i := range n {
		iv := output.Interval{Start: start.Add(time.Duration(i) * time.Minute), Stop: start.Add(time.Duration(i+1) * time.Minute)}
		row := output.HistogramRow{Name: []byte("\x07example\x03com\x00"), Counts: output.Counts{A: uint64(i), OK: uint64(i)}}
		histogram := output.Histogram{Interval: iv, Rows: 1, Row: func(int) output.HistogramRow { return row }}
		if _, err := output.WriteHistogram(cfg.histograms(), output.Meta{Version: "test", Node: uploadNode}, histogram); err != nil {
			t.Fatal(err)
		}
	}
	return digestsIn(t, cfg.histograms())
}

// digestsIn returns the digests of the files in folders, by name, which no two
// may have.
func digestsIn(t testing.TB, dirs ...string) map[string]string {
	t.Helper()
	digests := map[string]string{}
	for _, dir := range dirs {
		for _, path := range parquetFiles(t, dir) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(b)
			if digests[filepath.Base(path)] != "" {
				t.Errorf("%s is there twice", path)
			}
			digests[filepath.Base(path)] = "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
		}
	}
	return digests
}

// checkDelivered checks that the receiver has the octets of each file, and that
// it never got others for the same interval.
func (c *core) checkDelivered(digests map[string]string) {
	c.t.Helper()
	intervals := map[string]string{}
	for _, taken := range c.Taken() {
		if before := intervals[taken.Interval]; before != "" && before != taken.Digest {
			c.t.Errorf("%s came with other octets", taken.Interval)
		}
		intervals[taken.Interval] = taken.Digest
	}
	for name, digest := range digests {
		if c.Times(digest) == 0 {
			c.t.Errorf("the receiver has not got %s", name)
		}
	}
	if len(intervals) != len(digests) {
		c.t.Errorf("the receiver has %d files, want %d", len(intervals), len(digests))
	}
}

// The whole daemon: what is left from before is delivered, and what it counts
// itself, at once; at the stop, too.
func TestUploads(t *testing.T) {
	before := runtime.NumGoroutine()
	c := newCore(t)
	cfg := testConfig(t)
	c.configure(cfg)
	left := putHistograms(t, cfg, 3)
	pool, list := bulk(t)
	cfg.WellKnownDomainsFile = list
	r := runDaemon(t, cfg)
	until(t, "what is left to be delivered", func() bool { return len(r.log.entries("histogram delivered")) == 3 })
	send := func() {
		p := r.connect()
		p.send(pool.Framed(0, pool.Len()))
		p.finish()
	}
	send()
	until(t, "a histogram of this run to be delivered", func() bool { // the frames may be counted later than they are sent
		select {
		case r.signals <- syscall.SIGUSR1:
		default:
		}
		return len(r.log.entries("histogram delivered")) > 3
	})
	send()
	r.stop()
	if n := len(parquetFiles(t, cfg.histograms())); n != 0 {
		t.Errorf("%d files are left\n%s", n, r.log)
	}
	all := digestsIn(t, cfg.sent())
	if len(all) < 5 {
		t.Errorf("%d files were sent, want the three and those of this run\n%s", len(all), r.log)
	}
	for name, digest := range left {
		if all[name] != digest {
			t.Errorf("%s changed", name)
		}
	}
	c.checkDelivered(all)
	if taken := c.Taken()[0]; taken.KeyID != uploadNode || taken.UserAgent != "edm/test" || taken.Proto != "HTTP/2.0" {
		t.Errorf("signed by %s, of %s, by %s", taken.KeyID, taken.UserAgent, taken.Proto)
	}
	c.server.Close()
	until(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}

// A receiver that is broken, and one that hangs at the stop, cost nothing but
// time, and health and metrics tell.
func TestUploadsDegraded(t *testing.T) {
	c := newCore(t)
	c.do(func(w http.ResponseWriter, req *http.Request) {
		http.Error(w, "broken", http.StatusInternalServerError)
	})
	cfg := testConfig(t)
	c.configure(cfg)
	cfg.MetricsListen = freeAddress(t)
	digests := putHistograms(t, cfg, 2)
	r := runDaemon(t, cfg)
	until(t, "the upload to be degraded", func() bool {
		status, body := r.get("/healthz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "upload: ") && strings.Contains(body, "broken")
	})
	if n := r.metric(`edm_upload_total{code="500"}`); n < 1 {
		t.Errorf("%v uploads with 500", n)
	}
	c.do(c.ServeHTTP)
	until(t, "the upload to recover", func() bool { status, _ := r.get("/healthz"); return status == http.StatusOK })
	until(t, "both to be sent", func() bool { return len(parquetFiles(t, cfg.sent())) == 2 })
	if n := r.metric(`edm_upload_total{code="201"}`); n != 2 {
		t.Errorf("%v uploads with 201", n)
	}
	c.checkDelivered(digests)
	r.stop()

	c.do(func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done(); panic(http.ErrAbortHandler) })
	digests = putHistograms(t, cfg, 1)
	r = runDaemon(t, cfg)
	r.stop() // checks that it takes less than 10 s
	if left := digestsIn(t, cfg.histograms()); !maps.Equal(left, digests) {
		t.Errorf("left is %v, want %v", left, digests)
	}
}

// A disk without room does not stop a delivery: to move a file takes none.
func TestUploadsFullDisk(t *testing.T) {
	c := newCore(t)
	cfg := testConfig(t)
	c.configure(cfg)
	cfg.DataDir = mountSmall(t, "8m")
	digests := putHistograms(t, cfg, 3)
	moves := make(chan struct{})
	c.do(func(w http.ResponseWriter, req *http.Request) { <-moves; c.ServeHTTP(w, req) })
	r := runDaemon(t, cfg)
	fill, err := os.Create(filepath.Join(cfg.DataDir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	fill.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	close(moves)
	until(t, "all to be sent", func() bool { return len(parquetFiles(t, cfg.sent())) == 3 })
	r.stop()
	c.checkDelivered(digests)
	if sent := digestsIn(t, cfg.sent(), cfg.histograms(), cfg.refused()); !maps.Equal(sent, digests) {
		t.Errorf("sent is %v, want %v", sent, digests)
	}
	for _, digest := range digests {
		if n := c.Times(digest); n != 1 {
			t.Errorf("%s was sent %d times", digest, n)
		}
	}
}

// A folder that is another file system cannot be moved to. What was delivered
// stays in the outbox, is told of, and is not sent again and again.
func TestUploadsCannotMove(t *testing.T) {
	c := newCore(t)
	cfg := testConfig(t)
	c.configure(cfg)
	cfg.MetricsListen = freeAddress(t)
	digests := putHistograms(t, cfg, 2)
	if err := syscall.Mount("none", cfg.sent(), "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a folder of another file system needs a tmpfs, and mounting one needs root: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(cfg.sent(), syscall.MNT_DETACH) })
	r := runDaemon(t, cfg)
	until(t, "the outbox to be degraded", func() bool {
		_, body := r.get("/healthz")
		return strings.Contains(body, "outbox: a histogram cannot be moved") && len(c.Taken()) == 2
	})
	r.stop()
	for _, digest := range digests {
		if n := c.Times(digest); n != 1 {
			t.Errorf("%s was sent %d times", digest, n)
		}
	}
	if left := digestsIn(t, cfg.histograms()); !maps.Equal(left, digests) {
		t.Errorf("left is %v, want %v", left, digests)
	}
	if err := syscall.Unmount(cfg.sent(), 0); err != nil {
		t.Fatal(err)
	}
	r = runDaemon(t, cfg) // knows nothing of it, and sends them again
	until(t, "all to be sent", func() bool { return len(parquetFiles(t, cfg.sent())) == 2 })
	r.stop()
	c.checkDelivered(digests)
}

// The process is killed at any moment from the first octet that the receiver
// gets to the move of the file. No file is lost, none is in two places, none
// comes with other octets.
func TestUploadsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	c := newCore(t)
	cfg := testConfig(t)
	digests := putHistograms(t, cfg, 4)
	settings := childSettings(cfg) + c.settings()

	// A kill is a moment in a try; the last one lets it be.
	kill := make(chan func(w http.ResponseWriter, req *http.Request), 1)
	c.do(func(w http.ResponseWriter, req *http.Request) {
		select {
		case f := <-kill:
			f(w, req)
		default:
			c.ServeHTTP(w, req)
		}
	})
	kills := 0
	f := func(moment func(child *child, w http.ResponseWriter, req *http.Request)) {
		t.Helper()
		if len(parquetFiles(t, cfg.histograms())) == 0 { // sent, all of them: start again
			for name := range digests {
				if err := os.Rename(filepath.Join(cfg.sent(), name), filepath.Join(cfg.histograms(), name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		ready := make(chan *child, 1)
		kill <- func(w http.ResponseWriter, req *http.Request) {
			moment(<-ready, w, req)
		}
		child := startChild(t, settings)
		ready <- child
		if code := child.exited(); code != -1 {
			t.Fatalf("the process ended by itself, with %d\n%s", code, child.log)
		}
		kills++
		if all := digestsIn(t, cfg.histograms(), cfg.sent(), cfg.refused()); !maps.Equal(all, digests) {
			t.Fatalf("after kill %d there are %v, want %v", kills, all, digests)
		}
	}
	f(func(child *child, _ http.ResponseWriter, req *http.Request) { child.Process.Kill() })
	f(func(child *child, _ http.ResponseWriter, req *http.Request) {
		io.ReadFull(req.Body, make([]byte, 100))
		child.Process.Kill()
	})
	f(func(child *child, _ http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		child.Process.Kill()
	})
	f(func(child *child, w http.ResponseWriter, req *http.Request) {
		c.ServeHTTP(w, req) // taken, and the answer not sent yet
		child.Process.Kill()
	})
	// From the answer to long after the move: later and later until the file had
	// been moved, then at random moments before that.
	moved := func(delay time.Duration) bool {
		before := make(chan int, 1)
		f(func(child *child, w http.ResponseWriter, req *http.Request) {
			before <- len(parquetFiles(t, cfg.sent()))
			c.ServeHTTP(w, req)
			go func() { // the answer is whole when this function returns
				for began := time.Now(); time.Since(began) < delay; {
					runtime.Gosched()
				}
				child.Process.Kill()
			}()
		})
		return len(parquetFiles(t, cfg.sent())) > <-before
	}
	delay, notMoved := 50*time.Microsecond, 0
	for ; !moved(delay); delay *= 2 {
		if notMoved++; delay > 10*time.Second {
			t.Fatal("a file that was delivered is not moved in 10 s")
		}
	}
	for range 10 {
		if !moved(rand.N(delay)) {
			notMoved++
		}
	}
	t.Logf("%d kills, %d of them between the answer and the move, which takes up to %v", kills, notMoved, delay)
	if notMoved == 0 {
		t.Error("no kill came between the answer and the move")
	}

	for len(kill) > 0 {
		<-kill
	}
	cfg.HTTPURL = ""
	c.configure(cfg)
	r := runDaemon(t, cfg)
	until(t, "all to be sent", func() bool { return len(parquetFiles(t, cfg.histograms())) == 0 })
	r.stop()
	if sent := digestsIn(t, cfg.sent()); !maps.Equal(sent, digests) {
		t.Errorf("sent is %v, want %v", sent, digests)
	}
	c.checkDelivered(digests)
}

// What is wrong with files is told by the check, before anything starts.
func TestCheckUploads(t *testing.T) {
	c := newCore(t)
	f := func(change func(cfg *Config), want string) {
		t.Helper()
		cfg := testConfig(t)
		c.configure(cfg)
		change(cfg)
		err := Check(cfg)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	write := func(name, content string) string {
		t.Helper()
		path := c.path(name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	f(func(*Config) {}, "")
	f(func(cfg *Config) { cfg.HTTPCAFile, cfg.HTTPClientCertFile, cfg.HTTPClientKeyFile = "", "", "" }, "")
	f(func(cfg *Config) { cfg.HTTPCAFile = c.path("absent") }, "http_ca_file: ")
	f(func(cfg *Config) { cfg.HTTPCAFile = c.path("tls.key") }, "http_ca_file: ")
	f(func(cfg *Config) { cfg.HTTPClientCertFile = c.path("absent") }, "http_client_cert_file: ")
	f(func(cfg *Config) { cfg.HTTPClientCertFile = c.path("ca.crt") }, "http_client_cert_file: ") // of another key
	f(func(cfg *Config) { cfg.HTTPSigningKeyFile = c.path("absent") }, "http_signing_key_file: ")
	f(func(cfg *Config) { cfg.HTTPSigningKeyFile = c.path("tls.key") }, "http_signing_key_file: ")
	jwk, err := os.ReadFile(c.path("datakey-priv.json"))
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(jwk), uploadNode, "nöde", 1)
	f(func(cfg *Config) { cfg.HTTPSigningKeyFile = write("other.json", other) }, "http_signing_key_file: ")
	f(func(cfg *Config) {
		cfg.HTTPURL = ""
		cfg.HTTPCAFile, cfg.HTTPSigningKeyFile = c.path("absent"), c.path("absent")
	}, "")

	// The node's name comes from the key.
	cfg := testConfig(t)
	c.configure(cfg)
	d, err := newDaemon(cfg, zap.NewNop(), "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if d.minutes.meta.Node != uploadNode {
		t.Errorf("the node is %q", d.minutes.meta.Node)
	}
}
