package runner

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The names of the metrics and the values of their labels are what dashboards
// and alarms are made with: they are a contract. This is what a daemon shows
// from its start on, and what comes when things happen.
func TestMetricNames(t *testing.T) {
	cfg := testConfig(t)
	cfg.MetricsListen, cfg.InputTCP = freeAddress(t), freeAddress(t)
	r := runDaemon(t, cfg)
	series := func() (found []string) {
		status, body := r.get("/metrics")
		if status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		for line := range strings.Lines(body) {
			name, _, _ := strings.Cut(line, " ")
			switch {
			case strings.HasPrefix(line, "# HELP edm_"):
				if strings.Count(line, " ") < 4 || !strings.HasSuffix(line, ".\n") {
					t.Errorf("no sentence: %s", line)
				}
			case strings.HasPrefix(line, "edm_"):
				found = append(found, regexp.MustCompile(`goversion="[^"]*"`).ReplaceAllString(name, `goversion="…"`))
			}
		}
		for _, collector := range []string{"go_goroutines ", "process_cpu_seconds_total ", "process_resident_memory_bytes "} {
			if !strings.Contains(body, "\n"+collector) {
				t.Errorf("there is no %s", collector)
			}
		}
		slices.Sort(found)
		return found
	}
	first := series()
	golden(t, "metrics.golden", strings.Join(first, "\n")+"\n")

	p := r.connect()
	p.send(framed(response(t, "example.com.", nil)))
	p.finish()
	conn := dial(t, "tcp", cfg.InputTCP)
	conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	newPeer(t, conn).closed()
	var later []string
	for _, s := range series() {
		if !slices.Contains(first, s) {
			later = append(later, s)
		}
	}
	want := []string{`edm_connections_total{input="input_tcp"}`, `edm_connections_total{input="input_unix"}`,
		`edm_connections{input="input_tcp"}`, `edm_connections{input="input_unix"}`, `edm_handshake_failures_total{reason="http"}`}
	if !slices.Equal(later, want) {
		t.Errorf("came later:\n%s\nwant:\n%s", strings.Join(later, "\n"), strings.Join(want, "\n"))
	}
	for name, want := range map[string]float64{
		"edm_processed_dnstap_total": 1, `edm_frames_total{result="session"}`: 1,
		`edm_connections{input="input_unix"}`: 0, `edm_connections{input="input_tcp"}`: 0, `edm_connections_total{input="input_unix"}`: 1,
		`edm_streams_ended_total{reason="stop"}`: 1, `edm_handshake_failures_total{reason="http"}`: 1, "edm_build_info": 1,
	} {
		until(t, name, func() bool { return r.metric(name) == want })
	}
	if n, sent := r.metric("edm_bytes_read_total"), len(readyFrame)+len(startFrame)+4+len(response(t, "example.com.", nil))+len(stopFrame)+18; n != float64(sent) {
		t.Errorf("%v octets read, %d were sent", n, sent)
	}
	if n := r.metric("edm_data_dir_free_bytes"); n < 1<<20 {
		t.Errorf("%v octets free", n)
	}
	if ends := r.stop(); ends["session"] != 1 {
		t.Errorf("frames: %v", ends)
	}
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; see what go test -update changes\n got:\n%s\nwant:\n%s", path, got, want)
	}
}

func TestHTTP(t *testing.T) {
	f := func(name string, debug bool, want map[string]int) {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.MetricsListen, cfg.Debug = freeAddress(t), debug
			r := runDaemon(t, cfg)
			for path, status := range want {
				if got, body := r.get(path); got != status {
					t.Errorf("%s: status %d, want %d: %.100s", path, got, status, body)
				}
			}
			if status, body := r.get("/healthz"); status != http.StatusOK || body != "ok\n" {
				t.Errorf("/healthz: %d %q", status, body)
			}
			_, body := r.get("/")
			for _, want := range []string{"edm test, up ", "health: ok\n", "received"} {
				if !strings.Contains(body, want) {
					t.Errorf("/ has no %q:\n%s", want, body)
				}
			}
			resp, err := http.Post("http://"+cfg.MetricsListen+"/metrics", "text/plain", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("POST: status %d", resp.StatusCode)
			}
			http.DefaultClient.CloseIdleConnections()
			r.stop()
			// What it listened on is free again.
			if w, err := openWeb(cfg, newMetrics("test", NewLogger(&logBook{}, false)), &health{}); err != nil {
				t.Error(err)
			} else {
				w.listener.Close()
			}
		})
	}
	const ok, absent = http.StatusOK, http.StatusNotFound
	f("usual", false, map[string]int{
		"/metrics": ok, "/healthz": ok, "/": ok, "/absent": absent, "/metrics/": absent,
		"/debug/pprof/": absent, "/debug/pprof/heap": absent, "/debug/pprof/cmdline": absent, "/debug/pprof/profile?seconds=1": absent,
	})
	f("debug", true, map[string]int{"/debug/pprof/": ok, "/debug/pprof/heap": ok, "/debug/pprof/cmdline": absent, "/debug/pprof/symbol": ok})
}

// Every problem is a line, and the status says that something is wrong.
func TestHTTPHealth(t *testing.T) {
	var h health
	log := NewLogger(&logBook{}, false)
	cfg := &Config{MetricsListen: "127.0.0.1:0"}
	m := newMetrics("1.2.3", log)
	w, err := openWeb(cfg, m, &h)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { w.run(); close(done) }()
	defer func() { w.close(); <-done }()
	f := func(status int, want string) {
		t.Helper()
		if got, body := httpGet(t, "http://"+w.listener.Addr().String()+"/healthz"); got != status || body != want {
			t.Errorf("got %d %q, want %d %q", got, body, status, want)
		}
	}
	f(http.StatusOK, "ok\n")
	h.set(log, "session", "no space")
	f(http.StatusServiceUnavailable, "session: no space\n")
	h.set(log, "histogram", "no space either")
	f(http.StatusServiceUnavailable, "histogram: no space either\nsession: no space\n")
	if _, body := httpGet(t, "http://"+w.listener.Addr().String()+"/"); !strings.Contains(body, "health: session: no space\n") || !strings.Contains(body, "edm 1.2.3") {
		t.Errorf("/ says %s", body)
	}
	h.clear(log, "session")
	h.clear(log, "histogram")
	f(http.StatusOK, "ok\n")
}

// A client that sends nothing does not hold up the stop.
func TestHTTPSilentClient(t *testing.T) {
	cfg := testConfig(t)
	cfg.MetricsListen = freeAddress(t)
	r := runDaemon(t, cfg)
	dial(t, "tcp", cfg.MetricsListen)
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v to end", took)
	}
}
