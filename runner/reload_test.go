package runner

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// reloadable starts a daemon by a configuration file, which may be changed.
func reloadable(t *testing.T, lines ...string) (r *running, path string) {
	t.Helper()
	base := testConfig(t)
	path = filepath.Join(t.TempDir(), "edm.toml")
	lines = append([]string{
		`cryptopan_key = "secret"`,
		fmt.Sprintf("input_unix = %q", base.InputUnix),
		fmt.Sprintf("data_dir = %q", base.DataDir),
		`minimiser_workers = 2`,
		`qname_seen_entries = 10000`,
		fmt.Sprintf("metrics_listen = %q", freeAddress(t)),
	}, lines...)
	write(t, path, strings.Join(lines, "\n"))
	cl, err := ParseCommandLine([]string{"-config", path})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := cl.LoadConfig()
	if err != nil {
		t.Fatal(err)
	}
	return runDaemon(t, cfg), path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload asks for a reload and waits until it is in use.
func (r *running) reload() {
	r.t.Helper()
	before := len(r.log.entries("reloaded"))
	r.signals <- syscall.SIGHUP
	until(r.t, "the reload to be in use", func() bool { return len(r.log.entries("reloaded")) > before })
}

// A new list counts for new frames, and each list's counts are in files of their
// own.
func TestReloadOfTheList(t *testing.T) {
	names := list(t, "a.example\n")
	r, _ := reloadable(t, fmt.Sprintf("well_known_domains_file = %q", names))
	p := r.connect()
	both := framed(response(t, "a.example.", nil), response(t, "b.example.", nil))
	p.send(both)
	until(t, "two frames", func() bool { return r.metric("edm_processed_dnstap_total") == 2 })

	write(t, names, "b.example\n")
	r.reload()
	until(t, "the first histogram", func() bool { return len(parquetFiles(t, r.cfg.histograms())) == 1 })
	p.send(both)
	p.finish()
	ends := r.stop()
	if ends["well_known"] != 2 || ends["session"] != 2 {
		t.Errorf("the frames ended as %v", ends)
	}
	var labels []string
	for _, path := range parquetFiles(t, r.cfg.histograms()) {
		rows := rowsOf(t, path)
		if len(rows) != 1 {
			t.Errorf("%s has %d rows", path, len(rows))
			continue
		}
		labels = append(labels, rows[0])
	}
	if len(labels) != 2 || labels[0] == labels[1] {
		t.Errorf("the histograms are of %q", labels)
	}
}

// rowsOf returns the second label of each row of a histogram.
func rowsOf(t *testing.T, path string) (labels []string) {
	t.Helper()
	dir := t.TempDir()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "one.parquet"), string(b))
	for _, row := range rowsBelow(t, dir) {
		for _, want := range []string{"a", "b"} {
			if strings.Contains(row, fmt.Sprintf(" %q ", want)) || strings.Contains(row, fmt.Sprintf("%q", want)) {
				labels = append(labels, want)
			}
		}
	}
	return labels
}

func TestReloadIsAllOrNothing(t *testing.T) {
	names, clients := list(t, "a.example\n"), list(t, "192.0.2.1\n")
	r, path := reloadable(t, fmt.Sprintf("well_known_domains_file = %q", names), fmt.Sprintf("ignored_client_ips_file = %q", clients))
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := r.connect()
	sent := 0
	// wellKnown sends a frame for each of two names and returns how many were
	// well known.
	wellKnown := func() float64 {
		before := r.metric(`edm_frames_total{result="well_known"}`)
		p.send(framed(response(t, "a.example.", nil), response(t, "b.example.", nil)))
		sent += 2
		until(t, "the frames", func() bool { return r.metric("edm_processed_dnstap_total") == float64(sent) })
		return r.metric(`edm_frames_total{result="well_known"}`) - before
	}
	fails := func(what, cause string) {
		t.Helper()
		const line = "reload failed, everything stays as it was"
		before := len(r.log.entries(line))
		r.signals <- syscall.SIGHUP
		until(t, what, func() bool { return len(r.log.entries(line)) > before })
		last := r.log.entries(line)[before]
		if s := fmt.Sprint(last["error"]); !strings.Contains(s, cause) {
			t.Errorf("%s: the log says %v", what, last)
		}
		if r.metric("edm_reload_success") != 0 {
			t.Errorf("%s: edm_reload_success is not 0", what)
		}
		if status, body := r.get("/healthz"); status != 503 || !strings.Contains(body, "reload") {
			t.Errorf("%s: /healthz says %d %q", what, status, body)
		}
		if n := wellKnown(); n != 1 {
			t.Errorf("%s: %v of two names are well known", what, n)
		}
	}
	mend := func() {
		t.Helper()
		r.reload()
		if status, _ := r.get("/healthz"); status != 200 || r.metric("edm_reload_success") != 1 {
			t.Errorf("after a good reload /healthz says %d", status)
		}
	}

	write(t, names, "a.example\nb.example\n")
	write(t, clients, "192.0.2.1\r\n 198.51.100.0/24 # a comment\n\nnot an address\n")
	fails("a bad line", clients+":4")
	write(t, clients, "192.0.2.1\nstill not an address\n")
	fails("another bad line", clients+":2")
	if err := os.Remove(clients); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(clients, 0o600); err != nil {
		t.Fatal(err)
	}
	fails("a pipe", "not a file")
	if err := os.Remove(clients); err != nil {
		t.Fatal(err)
	}
	write(t, clients, "192.0.2.1\n")
	mend()

	write(t, names, "a.example\n")
	mend()
	write(t, path, string(config)+"\nno_such_key = 1\n")
	fails("an unknown key", "no_such_key")
	write(t, path, string(config))
	mend()
	write(t, names, "")
	fails("an empty list", names)
	write(t, names, "a.example\n")
	mend()
	p.finish()
	r.stop()
}

func TestReloadNamesWhatNeedsARestart(t *testing.T) {
	r, path := reloadable(t)
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(config), "minimiser_workers = 2", "minimiser_workers = 3", 1)+"\npebble_sync = true\nsession_files = false\n")
	r.reload()
	told := r.log.entries("these settings have changed and need a restart")
	if len(told) != 1 || fmt.Sprint(told[0]["settings"]) != "[pebble_sync minimiser_workers]" {
		t.Errorf("the log says %v", told)
	}
	p := r.connect()
	p.send(framed(response(t, "a.example.", nil)))
	p.finish()
	if ends := r.stop(); ends["session"] != 1 || rowsIn(t, r.cfg.sessions()) != 0 {
		t.Errorf("with session files off: %v, %d rows", ends, rowsIn(t, r.cfg.sessions()))
	}
}

// Reloads in a loop under full load lose nothing, and every frame is counted by
// one list.
func TestReloadUnderLoad(t *testing.T) {
	pool, path := bulk(t)
	r, _ := reloadable(t, fmt.Sprintf("well_known_domains_file = %q", path))
	var sending sync.WaitGroup
	var sent atomic.Int64
	enough := make(chan struct{})
	for range 2 {
		sending.Go(func() {
			p := r.connect()
			for {
				select {
				case <-enough:
					p.finish()
					return
				default:
					p.send(pool.Framed(0, pool.Len()))
					sent.Add(int64(pool.Len()))
				}
			}
		})
	}
	until(t, "three reloads under load", func() bool {
		select {
		case r.signals <- syscall.SIGHUP:
		default: // one waits
		}
		return len(r.log.entries("reloaded")) >= 3
	})
	close(enough)
	sending.Wait()
	ends := r.stop()
	if want := uint64(sent.Load()); ends["received"] != want {
		t.Errorf("%d frames came of %d", ends["received"], want)
	}
	if n := answersIn(t, r.cfg.histograms()); uint64(n) != ends["well_known"] {
		t.Errorf("%d answers are in histograms, %d were well known", n, ends["well_known"])
	}
	if n := rowsIn(t, r.cfg.sessions()); uint64(n) != ends["session"] {
		t.Errorf("%d rows are in session files of %d", n, ends["session"])
	}
}

func TestEveryKeyThatIsReloadedIsInTheView(t *testing.T) {
	var keys []string
	for _, s := range settings {
		if s.reload == "yes" {
			keys = append(keys, s.key)
		}
	}
	want := []string{"cryptopan_key", "cryptopan_key_file", "cryptopan_key_salt", "well_known_domains_file", "ignored_client_ips_file", "ignored_question_names_file", "session_files"}
	if !slices.Equal(keys, want) {
		t.Errorf("got %q", keys)
	}
}

// A certificate of another path is that of the next handshake.
func TestReloadOfACertificate(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	settings := func(name string) string {
		ca.issue(name, ca)
		return fmt.Sprintf("input_tls_cert_file = %q\ninput_tls_key_file = %q", filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	}
	address := freeAddress(t)
	r, path := reloadable(t, fmt.Sprintf("input_tls = %q", address), settings("one"))
	serial := func() string {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(config), "input_tls_cert_file")
	write(t, path, string(config[:i])+settings("two"))
	r.reload()
	if after := serial(); after == before {
		t.Error("the certificate is still the first")
	}
	if told := r.log.entries("these settings have changed and need a restart"); len(told) != 0 {
		t.Errorf("the log says %v", told)
	}
	r.stop()
}
