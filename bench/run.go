package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"edm/traffic"
)

// load is what every run sends. It is made once.
type load struct {
	options
	list []string      // the well-known names
	warm *traffic.Pool // one frame for each seen name
	pool *traffic.Pool

	broker *broker  // nil without MQTT
	under  []string // command that edm is run under, if any
}

const poolFrames = 1_000_000

func newLoad(o options) (*load, error) {
	cfg := traffic.Default()
	l := &load{options: o, list: traffic.List(cfg.Seed, 100_000)}
	cfg.WellKnown = l.list
	rest := (1 - o.novel) / (cfg.WellKnownShare + cfg.SeenShare)
	cfg.WellKnownShare *= rest
	cfg.SeenShare *= rest
	var err error
	cfg.SeenOnce = true
	if l.warm, err = traffic.Build(cfg); err != nil {
		return nil, err
	}
	cfg.SeenOnce = false
	cfg.Frames = poolFrames
	if o.frames > 0 {
		cfg.Frames = min(poolFrames, o.frames)
	}
	l.pool, err = traffic.Build(cfg)
	return l, err
}

// result is what came out of a run. CPU time is that of the whole process from
// the first frame of the load to the end of the process.
type result struct {
	Variant    string  `json:"variant"`
	Frames     int     `json:"frames"`
	FramesPerS float64 `json:"frames_per_s"`
	User       float64 `json:"cpu_user_s_per_million"`
	Sys        float64 `json:"cpu_sys_s_per_million"`
	CPU        float64 `json:"cpu_s_per_million"`
	Yardstick  float64 `json:"yardstick_s_per_million"`
	Ratio      float64 `json:"ratio"`
	PeakMiB    float64 `json:"peak_mib"`
	StopS      float64 `json:"stop_s"`

	// Greatest age of a frame that was not yet counted: in the paced load, and
	// of bursts into an idle stream before it. Only of paced runs.
	PacedAgeMs float64 `json:"paced_age_ms,omitempty"`
	BurstAgeMs float64 `json:"burst_age_ms,omitempty"`

	// Only with events: how many came for the load, until the last of them,
	// and what a signature costs.
	Events      int     `json:"events,omitempty"`
	EventsPerS  float64 `json:"events_per_s,omitempty"`
	EventsLateS float64 `json:"events_late_s,omitempty"` // the last event after the last frame
	SignatureUs float64 `json:"signature_us,omitempty"`

	// From a frame's write to its event at the subscriber. Only of paced runs
	// with events and one connection.
	LatencyP50Ms float64 `json:"latency_p50_ms,omitempty"`
	LatencyP99Ms float64 `json:"latency_p99_ms,omitempty"`
	LatencyMaxMs float64 `json:"latency_max_ms,omitempty"`

	// Only with STALL: what came of the broker's pause.
	Stall *stall `json:"stall,omitempty"`

	// Only with SYNC.
	SyncMs float64 `json:"sync_ms,omitempty"`

	// Resident memory in tenths of the load, the highest of each.
	MemoryMiB [10]float64 `json:"memory_mib"`

	WellKnown int              `json:"well_known"`
	Session   int              `json:"session"`
	Novel     int              `json:"novel"` // of the load
	Files     map[string]files `json:"files"`
	Failures  []string         `json:"failures,omitempty"`

	variant      variant
	began, ended time.Time // of the load, its last event included
}

// run starts edm, warms it up, sends the load, stops it, and checks what it
// counted.
func (l *load) run(dir string, v variant) (r result, err error) {
	r.variant, r.Variant = v, v.String()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	listFile := filepath.Join(dir, "well-known.txt")
	if err := traffic.WriteList(listFile, l.list); err != nil {
		return r, err
	}
	settings := []string{
		fmt.Sprintf("well_known_domains_file = %q", listFile),
		fmt.Sprintf("minimiser_workers = %d", l.workers),
		fmt.Sprintf("session_files = %t", l.sessions),
		fmt.Sprintf("debug = %t", l.profile != ""),
		fmt.Sprintf("pebble_sync = %t", v.sync),
	}
	var late *latencies
	if v.events {
		settings = append(settings, l.broker.settings...)
		if l.rate > 0 && l.conns == 1 && l.stall == 0 {
			late = &latencies{pool: l.pool}
		}
		l.broker.events.reset(late)
	}
	if l.sync {
		cost, err := syncCost(dir)
		if err != nil {
			return r, err
		}
		r.SyncMs = milliseconds(cost)
	}
	under := l.under
	if under == nil && l.slowSync > 0 {
		if under, err = l.slowSyncs(); err != nil {
			return r, err
		}
	}
	d, err := startDaemon(append(slices.Clone(under), l.edm), dir, settings...)
	if err != nil {
		return r, err
	}
	defer d.kill()

	senders := make([]*traffic.Sender, l.conns)
	for i := range senders {
		conn, err := net.Dial("unix", d.socket)
		if err != nil {
			return r, err
		}
		if senders[i], err = traffic.Open(conn); err != nil {
			return r, err
		}
	}
	sent, err := l.warm.Send(senders[:1], traffic.Load{Frames: l.warm.Len()})
	if err != nil {
		return r, err
	}
	if err := d.waitFor(sent.Frames); err != nil {
		return r, err
	}
	if v.events { // each seen name was new once
		if err := l.broker.await(d, l.warm.Len()); err != nil {
			return r, err
		}
	}
	if l.rate > 0 {
		bursts, err := l.bursts(d, senders[0], &r)
		if err != nil {
			return r, err
		}
		sent.Add(bursts)
	}

	loaded, base, err := l.measure(d, senders, sent.Frames, late, &r)
	if err != nil {
		return r, err
	}
	sent.Add(loaded)
	m, err := d.metrics()
	if err != nil {
		return r, err
	}
	r.compare(m, sent)
	if v.events {
		r.compareEvents(l.broker, m, l.warm.Len()+r.Novel)
		cost, err := signature()
		if err != nil {
			return r, err
		}
		r.SignatureUs = float64(cost) / float64(time.Microsecond)
	}
	if late != nil {
		if late.odd != nil {
			r.Failures = append(r.Failures, late.odd.Error())
		}
		r.LatencyP50Ms, r.LatencyP99Ms, r.LatencyMaxMs = milliseconds(late.share(0.5)), milliseconds(late.share(0.99)), milliseconds(late.share(1))
	}
	if err := r.end(d, base); err != nil {
		return r, err
	}
	if r.Files, err = countFiles(filepath.Join(d.data, "parquet")); err != nil {
		return r, err
	}
	y, err := yardstick(l.pool, 300_000)
	r.Yardstick = y.Seconds() * 1e6
	r.Ratio = r.CPU / r.Yardstick
	return r, err
}

// cpuTime is the CPU time of a process in user and system mode.
type cpuTime struct{ user, sys time.Duration }

// measure sends the load. It gives what was sent and the CPU time that the
// daemon had used before.
func (l *load) measure(d *daemon, senders []*traffic.Sender, before int, late *latencies, r *result) (sent traffic.Counts, base cpuTime, err error) {
	if base.user, base.sys, err = d.cpu(); err != nil {
		return sent, base, err
	}
	watch := newWatch(d, before, l.options)
	send := traffic.Load{Frames: l.frames, For: l.duration, Rate: l.rate, Pass: 1}
	if l.rate > 0 {
		send.Before = watch.ages.before
	}
	if late != nil {
		send.Before = func(frames int) {
			watch.ages.before(frames)
			late.before(frames)
		}
	}
	profiled := make(chan error, 1)
	go func() { profiled <- l.saveProfile(d) }()
	stalled := make(chan error, 1)
	go func() { stalled <- l.stallBroker(d, r) }()

	start := time.Now()
	go watch.run()
	sent, err = l.pool.Send(senders, send)
	if err == nil {
		err = d.waitFor(before + sent.Frames)
	}
	took := time.Since(start)
	r.Novel = sent.Kinds[traffic.Novel]
	r.began, r.ended = start, start.Add(took)
	if err == nil && r.variant.events {
		// If some do not come, compareEvents says how many.
		_ = l.broker.await(d, l.warm.Len()+r.Novel)
		r.ended = time.Now()
		r.Events = int(l.broker.events.count.Load()) - l.warm.Len()
		r.EventsPerS = float64(r.Events) / r.ended.Sub(start).Seconds()
		r.EventsLateS = r.ended.Sub(start).Seconds() - took.Seconds()
	}
	watch.stop()
	for _, s := range senders {
		err = errors.Join(err, s.Close())
	}
	if err := errors.Join(err, <-profiled, <-stalled); err != nil {
		return sent, base, err
	}
	r.Frames = sent.Frames
	r.FramesPerS = float64(sent.Frames) / took.Seconds()
	r.MemoryMiB = watch.tenths()
	r.PacedAgeMs = milliseconds(watch.ages.greatest)
	return sent, base, nil
}

// compare notes where what the daemon has counted is not what was sent to it.
func (r *result) compare(m metrics, sent traffic.Counts) {
	equal := func(what string, got, want int) {
		if got != want {
			r.Failures = append(r.Failures, fmt.Sprintf("%s: %d, want %d", what, got, want))
		}
	}
	r.WellKnown, r.Session = m.result("well_known"), m.result("session")
	received := m.sum("edm_processed_dnstap_total")
	ends := m.sum("edm_frames_total") + m.sum("edm_frames_dropped_total") + m.sum("edm_messages_skipped_total")
	equal("frames received", received, sent.Frames)
	equal("frames that ended in a counter", ends, received)
	equal("well-known names", r.WellKnown, sent.Kinds[traffic.WellKnown])
	equal("every other name", r.Session, sent.Kinds[traffic.Seen]+sent.Kinds[traffic.Novel])
}

// end stops the daemon and takes its CPU time and peak memory, those of its
// last files included.
func (r *result) end(d *daemon, base cpuTime) error {
	_, highest, err := d.memory()
	if err != nil {
		return err
	}
	peak := make(chan int)
	go func() {
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-d.exited:
				tick.Stop()
				peak <- highest
				return
			case <-tick.C:
			}
			if _, p, err := d.memory(); err == nil { // else it has just ended
				highest = max(highest, p)
			}
		}
	}()
	took, err := d.stop()
	if err != nil {
		d.kill()
	}
	r.PeakMiB = mebibytes(<-peak)
	if err != nil {
		return err
	}
	if r.StopS = took.Seconds(); took > 10*time.Second {
		r.Failures = append(r.Failures, fmt.Sprintf("edm took %v to stop, want at most 10 s", took))
	}
	ru := d.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	perMillion := func(t syscall.Timeval, base time.Duration) float64 {
		return (time.Duration(t.Nano()) - base).Seconds() / float64(r.Frames) * 1e6
	}
	r.User, r.Sys = perMillion(ru.Utime, base.user), perMillion(ru.Stime, base.sys)
	r.CPU = r.User + r.Sys
	return nil
}

// saveProfile has the daemon profile itself during the load.
func (l *load) saveProfile(d *daemon) error {
	if l.profile == "" {
		return nil
	}
	seconds := max(1, int(l.length().Seconds()))
	err := d.save(fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds), l.profile)
	return errors.Join(err, d.save("/debug/pprof/block", l.profile+".block"))
}

// length is how long the load takes, 0 if that is not known.
func (o options) length() time.Duration {
	if o.duration == 0 && o.rate > 0 {
		return time.Duration(float64(o.frames) / o.rate * float64(time.Second))
	}
	return o.duration
}

// save writes what the daemon's HTTP server has at a path to a file.
func (d *daemon) save(path, file string) error {
	resp, err := http.Get(d.url + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}

// files is how many files there are, and their bytes.
type files struct {
	Files int `json:"files"`
	Bytes int `json:"bytes"`
}

// countFiles counts the finished parquet files below a folder by kind.
func countFiles(dir string) (map[string]files, error) {
	found, err := finished(dir)
	if err != nil {
		return nil, err
	}
	sums := map[string]files{}
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		kind, _, _ := strings.Cut(filepath.Base(path), "-")
		sum := sums[kind]
		sums[kind] = files{sum.Files + 1, sum.Bytes + int(info.Size())}
	}
	return sums, nil
}

// finished lists the finished parquet files below a folder.
func finished(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.HasPrefix(e.Name(), "dns_") {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

func mebibytes(bytes int) float64 { return float64(bytes) / (1 << 20) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
