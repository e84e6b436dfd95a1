package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"edm/dnstap"
	"edm/output"
)

// A daemon is the stages and the channels between them, for one Run or Replay.
//
//	listening ─chunks▶ workers ─blocks▶ sessionWriter
//	                      ├─tallies▶ minuteLoop ─minutes▶ histogramWriter ─outbox▶ uploads
//	                      └─names▶ events: store ─▶ publisher
type daemon struct {
	cfg     *Config
	log     *zap.Logger
	metrics *metrics
	health  *health
	dataDir *os.File // locked
	dump    *dump    // nil unless it is set
	files   *tlsFiles
	events  *events
	reloads reloads
	served  bool // serve was called, and has closed the store

	watching sync.WaitGroup // the watchdog, which sends on channels that serve closes

	reading  reading // with the channel of chunks
	workers  []*worker
	minute   minuteLoop
	sessions sessionWriter
	minutes  histogramWriter
	uploads  *uploads

	blocks chan *output.Block // closed when the workers have ended
	ended  chan struct{}      // then, too
}

// newDaemon opens and reads everything that can fail but the inputs, and starts
// nothing. stop is closed when the daemon is to end.
func newDaemon(cfg *Config, log *zap.Logger, version string, stop <-chan struct{}) (*daemon, error) {
	view, err := loadView(cfg)
	if err != nil {
		return nil, err
	}
	files, err := loadTLS(cfg, log)
	if err != nil {
		return nil, err
	}
	d := &daemon{cfg: cfg, log: log, metrics: newMetrics(version, log), health: &health{}, files: files}
	whole := false
	defer func() {
		if !whole {
			d.close()
		}
	}()
	if d.dataDir, err = openDataDir(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	if cfg.DebugDnstapFilename != "" {
		if d.dump, err = openDump(cfg.DebugDnstapFilename, log); err != nil {
			return nil, fmt.Errorf("debug_dnstap_filename: %w", err)
		}
	}
	if cfg.HistogramHash == HashAddress {
		log.Warn("client sketches are made of real addresses: whoever holds one can test whether an address is in it (histogram_hash)")
	}
	node, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if key := cmp.Or(files.key, files.httpKey); key != nil {
		node = key.ID
	}
	if d.events, err = openEvents(cfg, files, d.metrics, d.health); err != nil {
		return nil, fmt.Errorf("the store of seen names: %w", err)
	}
	d.connect(view, output.Meta{Version: version, Node: node}, stop)
	gauged := make(map[string]bool)
	for _, cert := range files.certificates {
		file := cert.files[0]
		if gauged[file] {
			continue // it is used for the broker and for the receiver
		}
		gauged[file] = true
		d.metrics.gauge("certificate_not_after_seconds", "When a certificate ends, in seconds since 1970.", prometheus.Labels{"file": file}, func() float64 { return notAfter(cert) })
	}
	d.metrics.watchFolders(cfg.DataDir, d.minutes.dir)
	whole = true
	return d, nil
}

// connect makes the channels and the stages between them.
func (d *daemon) connect(v *view, meta output.Meta, stop <-chan struct{}) {
	n := d.cfg.MinimiserWorkers
	if n == 0 {
		n = runtime.GOMAXPROCS(0)
	}
	chunks := make(chan *dnstap.Chunk, 2*n)
	d.blocks = make(chan *output.Block, 4)
	d.ended = make(chan struct{})
	ends := make(chan output.Interval)
	minutes := make(chan minute, 1)
	start := time.Now().Truncate(time.Second)

	d.reading = reading{limit: d.cfg.MaxFrameSize, free: newFreeList(d.cfg.MaxFrameSize), chunks: chunks, metrics: d.metrics, log: d.log}
	empty, pages := &blockList{}, &pageList{}
	for range n {
		w := &worker{
			in: chunks, turns: make(chan turn, 1), harvest: make(chan *tally, 1), done: make(chan struct{}),
			blocks: d.blocks, empty: empty, pages: pages, free: d.reading.free, metrics: d.metrics, dump: d.dump,
			seen: d.events.seen, names: d.events.names, spare: d.events.spare, fresh: d.events.spare.take(),
			settings: workerSettings{
				hash:      d.cfg.HistogramHash,
				threshold: d.cfg.HistogramHLLExplicitThreshold,
				cache:     (d.cfg.CryptopanAddressEntries + n - 1) / n,
			},
		}
		w.begin(v)
		d.workers = append(d.workers, w)
	}
	d.minute = minuteLoop{workers: d.workers, ended: d.ended, sessions: ends, minutes: minutes, view: v, start: start}
	d.sessions = sessionWriter{
		dir: filepath.Join(d.cfg.DataDir, sessionsDir), meta: meta, blocks: d.blocks, ends: ends,
		empty: empty, metrics: d.metrics, health: d.health, log: d.log, start: start,
	}
	d.uploads = newUploads(d.cfg, d.files, d.metrics, d.health)
	d.minutes = histogramWriter{
		dir: filepath.Join(d.cfg.DataDir, outboxDir), meta: meta, minutes: minutes,
		stopping: stop, uploads: d.uploads, metrics: d.metrics, health: d.health, log: d.log,
	}
}

// serve runs every stage behind the first, and read, which is the first, on
// the caller's goroutine. It returns when all have ended.
//
// read ends when it is told to, or has read all there is, and closes the
// channel of chunks. Every later stage ends because the stage before it closed
// the channel it writes, so what was read is in a file when serve returns. No
// stage stops receiving early: that would stop every stage before it.
func (d *daemon) serve(read func() error) error {
	var workers, stages sync.WaitGroup
	for _, w := range d.workers {
		workers.Go(w.run)
	}
	stages.Go(func() {
		workers.Wait()
		d.watching.Wait()
		close(d.blocks)
		close(d.events.names)
		close(d.ended)
	})
	stages.Go(d.events.run)
	stages.Go(d.minute.run)
	stages.Go(d.sessions.run)
	stages.Go(func() {
		d.minutes.run()
		close(d.uploads.closing)
	})
	stages.Go(d.uploads.run)
	d.served = true
	err := read()
	stages.Wait()
	d.log.Info("stopped", zap.Any("frames", d.metrics.ends()))
	return err
}

// close gives back what newDaemon opened and serve has not closed.
func (d *daemon) close() error {
	var err error
	if !d.served && d.events != nil {
		err = d.events.seen.Close()
	}
	err = errors.Join(err, d.dataDir.Close())
	if d.dump != nil {
		err = errors.Join(err, d.dump.file.Close())
	}
	return err
}

// openDataDir makes data_dir and the folders below it, and locks it: two
// daemons would take each other's unfinished files for left-overs.
func openDataDir(path string) (*os.File, error) {
	// The lock is on a folder in it: input_unix may be in data_dir, and the
	// folder of a socket is locked while it is made.
	locked := filepath.Join(path, "parquet")
	if err := os.MkdirAll(locked, 0o750); err != nil {
		return nil, err
	}
	dir, err := os.Open(locked)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("%s is in use, perhaps by another edm: %w", path, err)
	} else {
		err = makeFolders(path)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// Run serves until ctx ends, then drains, and returns when all that was read is
// written. Of signals, SIGUSR1 ends the interval and SIGHUP reloads. An error means that the daemon
// could not start.
func Run(ctx context.Context, cfg *Config, log *zap.Logger, signals <-chan os.Signal, version string) error {
	if err := socketFree(cfg); err != nil {
		return err
	}
	d, err := newDaemon(cfg, log, version, ctx.Done())
	if err != nil {
		return err
	}
	defer d.close()
	warnOfFiles(log, cfg.MaxConnections)
	if cfg.MetricsListen != "" {
		web, err := openWeb(cfg, d.metrics, d.health)
		if err != nil {
			return err
		}
		go web.run()
		defer web.close()
	}
	inputs, err := openInputs(cfg)
	if err != nil {
		return err
	}
	rotate := make(chan *view)
	d.minute.rotate = rotate
	d.minute.viewed = d.reloaded
	d.reloads.register(d.metrics)
	go d.obey(ctx, signals, rotate)

	l := &listening{inputs: inputs, limit: cfg.MaxConnections, shared: &d.reading, tls: d.files.inputTLS}
	for _, in := range inputs {
		log.Info("listening", zap.String("input", in.name), zap.Stringer("address", in.Addr()))
	}
	log.Info("started", zap.String("version", version), zap.Int("workers", len(d.workers)), zap.Int("well_known_names", d.minute.view.names.Len()))
	d.watch(ctx.Done())
	d.notify(stateReady)
	var told sync.WaitGroup
	told.Go(func() { <-ctx.Done(); d.notify(stateStopping) })
	defer told.Wait()
	return d.serve(func() error { l.run(ctx.Done()); return nil })
}

// Replay puts capture files through the same stages, writes everything out and
// returns. It opens no input. What cannot be written is lost, and an error.
func Replay(ctx context.Context, cfg *Config, log *zap.Logger, files []string, version string) error {
	stop := make(chan struct{})
	close(stop) // nobody waits until a write is tried again
	d, err := newDaemon(cfg, log, version, stop)
	if err != nil {
		return err
	}
	defer d.close()
	err = d.serve(func() error { return replay(files, &d.reading, ctx.Done()) })
	return errors.Join(err, d.sessions.loss.err(kindSession), d.minutes.loss.err(kindHistogram))
}

// notify tells the service manager, if there is one. It is no reason to stop
// if it cannot be told.
func (d *daemon) notify(state string) {
	if err := notifySystemd(state); err != nil {
		d.log.Warn("the service manager was not told", zap.Error(err))
	}
}
