package runner

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// A web serves metrics, health and a status page on metrics_listen.
type web struct {
	listener net.Listener
	server   *http.Server
	log      *zap.Logger
}

// openWeb opens the listener of metrics_listen; run answers.
func openWeb(cfg *Config, m *metrics, h *health) (*web, error) {
	l, err := net.Listen("tcp", cfg.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("metrics_listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		problems := h.list()
		for i, p := range problems {
			problems[i] = strings.ReplaceAll(p, "\n", "; ") // a line for each
		}
		if len(problems) == 0 {
			fmt.Fprintln(w, "ok")
			return
		}
		http.Error(w, strings.Join(problems, "\n"), http.StatusServiceUnavailable)
	})
	started := time.Now()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		writeStatus(w, m, h, started)
	})
	if cfg.Debug {
		runtime.SetBlockProfileRate(int(10 * time.Microsecond)) // for /debug/pprof/block
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		// Not the command line: a key may be in it.
		mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          zap.NewStdLog(zap.NewNop()), // a client that goes away is not worth a line
	}
	return &web{l, server, m.log}, nil
}

// run answers until close.
func (w *web) run() {
	if err := w.server.Serve(w.listener); !errors.Is(err, http.ErrServerClosed) {
		w.log.Error("metrics are no longer served", zap.Error(err))
	}
}

func (w *web) close() error { return w.server.Close() }

// writeStatus tells a person in a few lines what the daemon does.
func writeStatus(w io.Writer, m *metrics, h *health, started time.Time) {
	fmt.Fprintf(w, "edm %s, up %s\n\n", m.version, time.Since(started).Round(time.Second))
	problems := h.list()
	if len(problems) == 0 {
		fmt.Fprintln(w, "health: ok")
	}
	for _, p := range problems {
		fmt.Fprintln(w, "health:", p)
	}
	fmt.Fprintln(w, "\nframes")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	ends := m.ends()
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		fmt.Fprintf(t, "  %s\t%d\t\n", name, ends[name])
	}
	t.Flush()
	fmt.Fprintln(w, "\n/metrics for Prometheus, /healthz for a probe")
}
