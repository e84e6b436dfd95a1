package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"edm/output"
	"edm/store"
)

func TestLossReason(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got := lossReason(fmt.Errorf("writing: %w", &fs.PathError{Op: "write", Path: "x", Err: err})); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	f(unix.ENOSPC, "no_space")
	f(unix.EDQUOT, "no_space")
	f(unix.EIO, "io")
	f(unix.EROFS, "io")
	f(unix.ENOENT, "io")
}

func TestMakeFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	if err := makeFolders(dir); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, sessionsDir, ".dns_session_block-2026-11-30T10-00-00Z.parquet")
	for _, name := range []string{
		left, filepath.Join(dir, outboxDir, ".dns_histogram-2026-11-30T10-00-00Z_2.parquet"),
		filepath.Join(dir, sessionsDir, ".mine"),
		filepath.Join(dir, sessionsDir, "dns_session_block-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet"),
	} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeFolders(dir); err != nil {
		t.Fatal(err)
	}
	checkFolder(t, filepath.Join(dir, sessionsDir), ".mine", "dns_session_block-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet")
	checkFolder(t, filepath.Join(dir, outboxDir))
	if files, octets := folderSize(filepath.Join(dir, sessionsDir)); files != 1 || octets != 1 {
		t.Errorf("%d files of %d octets", files, octets)
	}
	if files, octets := folderSize(filepath.Join(dir, "absent")); files != 0 || octets != 0 {
		t.Errorf("%d files of %d octets in a folder that is not there", files, octets)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := makeFolders(filepath.Join(dir, "file")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("got %v", err)
	}
}

// A writerTest is the two writers of files on their own.
type writerTest struct {
	t        *testing.T
	log      *logBook
	metrics  *metrics
	health   *health
	blocks   chan *output.Block
	ends     chan output.Interval
	minutes  chan minute
	stopping chan struct{}
	sessions sessionWriter
	history  histogramWriter
}

var fileStart = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func newWriterTest(t *testing.T, dir string) *writerTest {
	w := &writerTest{
		t: t, log: &logBook{}, health: &health{}, blocks: make(chan *output.Block, 1), ends: make(chan output.Interval),
		minutes: make(chan minute, 1), stopping: make(chan struct{}),
	}
	log := NewLogger(w.log, false)
	w.metrics = newMetrics("test", log)
	meta := output.Meta{Version: "test", Node: "node"}
	w.sessions = sessionWriter{dir: dir, meta: meta, blocks: w.blocks, ends: w.ends, empty: &blockList{}, metrics: w.metrics, health: w.health, log: log, start: fileStart}
	w.history = histogramWriter{dir: dir, meta: meta, minutes: w.minutes, stopping: w.stopping, metrics: w.metrics, health: w.health, log: log}
	return w
}

// block sends a block of rows.
func (w *writerTest) block(rows int) {
	b := w.sessions.empty.take()
	for i := range rows {
		b.Append(&output.Row{Name: []byte("\x01a\x00"), SourcePort: uint16(i), Has: output.HasSourcePort})
	}
	w.blocks <- b
}

func (w *writerTest) end(minute int) {
	w.ends <- output.Interval{Stop: fileStart.Add(time.Duration(minute) * time.Minute)}
	synctest.Wait() // a block that is sent at this moment may be of either interval
}

func (w *writerTest) lost(kind, reason string) float64 {
	return counted(w.t, w.metrics.rowsLost.WithLabelValues(kind, reason))
}

func (w *writerTest) check(c prometheus.Counter, want float64, what string) {
	w.t.Helper()
	if got := counted(w.t, c); got != want {
		w.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Session rows go to the file of their interval, an interval without rows has
// none, and the end of everything loses nothing.
func TestSessionWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w := newWriterTest(t, dir)
		go w.sessions.run()
		w.block(3)
		w.block(4)
		w.end(1)
		w.end(2)
		w.end(3)
		w.block(5)
		close(w.blocks)
		w.end(4)
		close(w.ends)
		synctest.Wait()
		checkFolder(t, dir, "dns_session_block-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet", "dns_session_block-2026-11-30T10-03-00Z_2026-11-30T10-04-00Z.parquet")
		if n := rowsIn(t, dir); n != 12 {
			t.Errorf("%d rows of 12", n)
		}
		w.check(w.metrics.sessionRows, 12, "rows")
		w.check(w.metrics.filesWritten.WithLabelValues(kindSession), 2, "files")
		if n := len(w.log.entries("session file written")); n != 2 || len(w.log.entries("")) != 2 {
			t.Errorf("logged %s", w.log)
		}
		if n := len(w.sessions.empty.free); n == 0 || n > 3 {
			t.Errorf("%d blocks were made for one worker", n)
		}
	})
}

// Rows that cannot be written are counted, said once, and do not stop what
// comes behind them.
func TestSessionWriterWithoutFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := blockedFolder(t)
		w := newWriterTest(t, dir)
		go w.sessions.run()
		for range 3 {
			w.block(10)
		}
		w.end(1)
		synctest.Wait()
		if got := w.health.list(); len(got) != 1 || !strings.HasPrefix(got[0], "session: session rows are lost: ") {
			t.Errorf("health is %q", got)
		}
		unblock(t, dir)
		w.block(7)
		synctest.Wait()
		if got := w.health.list(); got != nil {
			t.Errorf("health is %q", got)
		}
		if err := os.RemoveAll(dir); err != nil { // with the file that was begun
			t.Fatal(err)
		}
		w.end(2)
		w.block(8) // makes it again
		close(w.blocks)
		w.end(3)
		close(w.ends)
		synctest.Wait()
		if n := w.lost(kindSession, "io"); n != 37 {
			t.Errorf("%v rows lost, want 37", n)
		}
		w.check(w.metrics.sessionRows, 8, "rows")
		if n := rowsIn(t, dir); n != 8 {
			t.Errorf("%d rows in files", n)
		}
		if d, r := len(w.log.entries("degraded")), len(w.log.entries("recovered")); d != 2 || r != 2 {
			t.Errorf("logged %s", w.log)
		}
		if got := w.health.list(); got != nil {
			t.Errorf("health is %q", got)
		}
	})
}

// A write that fails half-way takes all rows of the file with it, and all are
// counted.
func TestSessionWriterFailsHalfWay(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w := newWriterTest(t, dir)
		go w.sessions.run()
		noise := mathrand.NewChaCha8([32]byte{})
		large := func() {
			b := w.sessions.empty.take()
			message := make([]byte, 20_000) // so that it fills a row group
			for range 500 {
				noise.Read(message)
				b.Append(&output.Row{Name: []byte("\x01a\x00"), Response: message})
			}
			w.blocks <- b
			synctest.Wait()
		}
		w.block(10)
		large()
		small := limit
		small.Cur = 5_000_000
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
		large()
		if n := w.lost(kindSession, "io"); n != 1010 {
			t.Errorf("%v rows lost, want 1010", n)
		}
		checkFolder(t, dir)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
		large()
		close(w.blocks)
		w.end(1)
		close(w.ends)
		synctest.Wait()
		if n := rowsIn(t, dir); n != 500 || w.lost(kindSession, "io") != 1010 {
			t.Errorf("%d rows in files, want 500", n)
		}
	})
}

// blockedFolder returns the path of a folder that cannot be made: a file is
// there. unblock removes it.
func blockedFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), output.OutboxFolder)
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func unblock(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
}

// tallyOf is a tally with so many answers about one name.
func tallyOf(t *testing.T, v *view, answers int) *tally {
	tl := newTally(v.names, 20, &pageList{})
	id, match := v.names.Lookup([]byte("\x07example\x03com\x00"))
	if match != store.Exact {
		t.Fatal("the name is not on the list")
	}
	for range answers {
		tl.add(id, match, answer{qtype: typeA, qclass: classIN})
	}
	return tl
}

// A histogram that cannot be written waits, and those behind it, until it can
// be.
func TestHistogramWriterWaits(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	synctest.Test(t, func(t *testing.T) {
		dir := blockedFolder(t)
		w := newWriterTest(t, dir)
		go w.history.run()
		interval := func(n int) output.Interval {
			return output.Interval{Start: fileStart.Add(time.Duration(n) * time.Minute), Stop: fileStart.Add(time.Duration(n+1) * time.Minute)}
		}
		began := time.Now()
		w.minutes <- minute{interval(0), tallyOf(t, v, 3)}
		w.minutes <- minute{interval(1), tallyOf(t, v, 4)}
		time.Sleep(time.Hour)
		if got := w.health.list(); len(got) != 1 || !strings.HasPrefix(got[0], "histogram: histograms wait to be written: ") {
			t.Errorf("health is %q", got)
		}
		if n := len(w.log.entries("")); n != 1 {
			t.Errorf("logged %s", w.log)
		}
		unblock(t, dir)
		time.Sleep(retryWrite)
		synctest.Wait()
		if took := time.Since(began); len(w.minutes) != 0 || rowsIn(t, dir) != 2 {
			t.Errorf("%d rows after %v", rowsIn(t, dir), took)
		}
		if got := w.health.list(); got != nil {
			t.Errorf("health is %q", got)
		}
		w.minutes <- minute{interval(2), tallyOf(t, v, 5)}
		close(w.minutes)
		synctest.Wait()
		if n := answersIn(t, dir); n != 12 {
			t.Errorf("%d answers of 12", n)
		}
		checkFolder(t, dir, "dns_histogram-2026-11-30T10-00-00Z_2026-11-30T10-01-00Z.parquet",
			"dns_histogram-2026-11-30T10-01-00Z_2026-11-30T10-02-00Z.parquet", "dns_histogram-2026-11-30T10-02-00Z_2026-11-30T10-03-00Z.parquet")
		w.check(w.metrics.histogramRows, 3, "rows")
		w.check(w.metrics.filesWritten.WithLabelValues(kindHistogram), 3, "files")
		if n := w.lost(kindHistogram, "io"); n != 0 {
			t.Errorf("%v rows lost", n)
		}
	})
}

// At the stop there is one last try, for each that waits.
func TestHistogramWriterAtTheStop(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	f := func(name string, before, after int, rows int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := blockedFolder(t)
				w := newWriterTest(t, dir)
				done := make(chan struct{})
				go func() { w.history.run(); close(done) }()
				send := func(n int) {
					for range n {
						w.minutes <- minute{output.Interval{Start: fileStart, Stop: fileStart.Add(time.Minute)}, tallyOf(t, v, 1)}
					}
				}
				send(before)
				time.Sleep(time.Second)
				if rows > 0 {
					unblock(t, dir)
				}
				began := time.Now()
				close(w.stopping)
				send(after)
				close(w.minutes)
				<-done
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %v", took)
				}
				lost := before + after - rows
				if n := w.lost(kindHistogram, "io"); n != float64(lost) {
					t.Errorf("%v rows lost, want %d", n, lost)
				}
				if n := len(w.log.entries("a histogram is lost at the stop")); n != lost {
					t.Errorf("logged %s", w.log)
				}
				if rows > 0 && rowsIn(t, dir) != rows {
					t.Errorf("%d rows, want %d", rowsIn(t, dir), rows)
				}
			})
		})
	}
	f("nothing can be written", 2, 3, 0)
	f("there is room again", 2, 2, 4)
}

// fillDisk takes all room there is where dir is, and returns what gives it back.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// watchFiles opens every file of some folders as soon as it can be seen, until
// stop is called: each must be whole.
func watchFiles(t *testing.T, dirs ...string) (stop func()) {
	done := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		seen := map[string]bool{}
		for {
			for _, dir := range dirs {
				paths, _ := filepath.Glob(filepath.Join(dir, "dns_*.parquet"))
				for _, path := range paths {
					if seen[path] {
						continue
					}
					seen[path] = true
					b, err := os.ReadFile(path)
					if err == nil {
						_, err = parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
					}
					if err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s could be seen before it was whole: %v", path, err)
					}
				}
			}
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() { close(done); watcher.Wait() }
}

// A diskTest is a daemon, a stream to it, and what was sent by it.
type diskTest struct {
	*running
	p      *peer
	frames []byte
	n      int // frames in frames
	sent   int
}

func newDiskTest(t *testing.T, dataDir string) *diskTest {
	pool, names := bulk(t)
	cfg := testConfig(t)
	cfg.DataDir, cfg.WellKnownDomainsFile, cfg.MetricsListen = dataDir, names, freeAddress(t)
	d := &diskTest{running: runDaemon(t, cfg), frames: pool.Framed(0, pool.Len()), n: pool.Len()}
	d.p = d.connect()
	return d
}

// send sends frames, and ends the interval when all have been worked on.
func (d *diskTest) send() {
	d.t.Helper()
	d.p.send(d.frames)
	d.sent += d.n
	until(d.t, "every frame to be counted", func() bool { return int(d.metric("edm_processed_dnstap_total")) == d.sent })
	d.signals <- syscall.SIGUSR1
}

// settled waits until every session row is in a file, or counted as lost.
func (d *diskTest) settled() (written, lost int) {
	d.t.Helper()
	until(d.t, "every row to be written or lost", func() bool {
		written, lost = int(d.metric("edm_session_rows_total")), int(d.metric(`edm_rows_lost_total{kind="session"`))
		return written+lost == int(d.metric(`edm_frames_total{result="session"}`))
	})
	return written, lost
}

// unhealthy waits until parts, and no others that write files, have a problem.
func (d *diskTest) unhealthy(parts ...string) {
	d.t.Helper()
	until(d.t, fmt.Sprintf("problems of %q", parts), func() bool {
		status, body := d.get("/healthz")
		for _, part := range []string{kindHistogram, kindSession} {
			if strings.Contains("\n"+body, "\n"+part+": ") != slices.Contains(parts, part) {
				return false
			}
		}
		return (status == http.StatusServiceUnavailable) == (len(parts) > 0)
	})
}

// checkLog holds how often a part of the daemon went wrong and right.
func (d *diskTest) checkLog(part string, degraded, recovered int) {
	d.t.Helper()
	n := func(msg string) (n int) {
		for _, e := range d.log.entries(msg) {
			if e["part"] == part {
				n++
			}
		}
		return n
	}
	if n("degraded") != degraded || n("recovered") != recovered {
		d.t.Errorf("%s: want %d and %d lines\n%s", part, degraded, recovered, d.log)
	}
}

// On a full disk input goes on, session rows are dropped and counted, and
// histograms wait. When there is room again, all is as before.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits until a histogram is tried again")
	}
	disk := mountSmall(t, "32m")
	d := newDiskTest(t, filepath.Join(disk, "data"))
	stopWatching := watchFiles(t, d.cfg.histograms(), d.cfg.sessions())
	d.send()
	if _, lost := d.settled(); lost != 0 {
		t.Errorf("%d rows lost", lost)
	}
	until(t, "the first histogram", func() bool { return len(parquetFiles(t, d.cfg.histograms())) == 1 })

	free := fillDisk(t, disk)
	for range 3 {
		d.send()
	}
	d.unhealthy(kindHistogram, kindSession)
	_, lost := d.settled()
	if n := d.metric(`edm_rows_lost_total{kind="session",reason="no_space"}`); lost == 0 || int(n) != lost {
		t.Errorf("%d rows lost, %v of them because there is no space", lost, n)
	}
	free()
	d.send()
	d.unhealthy()
	d.send()
	written, lostAfter := d.settled()
	if lostAfter > lost {
		t.Errorf("%d rows were lost, then %d", lost, lostAfter)
	}
	d.checkLog(kindSession, 1, 1)
	d.checkLog(kindHistogram, 1, 1)
	d.p.finish()
	ends := d.stop()
	stopWatching()
	if n := answersIn(t, d.cfg.histograms()); n != int(ends["well_known"]) {
		t.Errorf("%d answers in files of %d", n, ends["well_known"])
	}
	if n := rowsIn(t, d.cfg.sessions()); n != written || n+lost != int(ends["session"]) {
		t.Errorf("%d rows in files, %d lost, of %d", n, lost, ends["session"])
	}
}

// A full disk does not hold up the stop, and what is lost by it is said.
func TestFullDiskAtTheStop(t *testing.T) {
	t.Parallel()
	disk := mountSmall(t, "32m")
	d := newDiskTest(t, filepath.Join(disk, "data"))
	stopWatching := watchFiles(t, d.cfg.histograms(), d.cfg.sessions())
	fillDisk(t, disk)
	for range 2 {
		d.send()
	}
	d.unhealthy(kindHistogram, kindSession)
	d.p.send(d.frames)
	d.p.finish()
	began := time.Now()
	ends := d.stop()
	stopWatching()
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("it took %v to end", took)
	}
	if ends["received"] != uint64(d.sent+d.n) {
		t.Errorf("frames: %v", ends)
	}
	if n := len(d.log.entries("a histogram is lost at the stop")); n == 0 {
		t.Errorf("nothing is said of the histograms that are lost\n%s", d.log)
	}
	for _, dir := range []string{d.cfg.histograms(), d.cfg.sessions()} {
		checkFolder(t, dir)
		if n := openFiles(t, dir); n != 0 {
			t.Errorf("%d files are left open in %s", n, dir)
		}
	}
}

// The folders become read-only, or others stand in their place, while it runs.
func TestFoldersCannotBeWrittenTo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits until a histogram is tried again")
	}
	f := func(name string, damage func(t *testing.T, dirs ...string) (mend func())) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDiskTest(t, filepath.Join(socketDir(t), "data"))
			d.send()
			d.settled()
			until(t, "the first histogram", func() bool { return len(parquetFiles(t, d.cfg.histograms())) == 1 })
			mend := damage(t, d.cfg.histograms(), d.cfg.sessions())
			d.send()
			d.unhealthy(kindHistogram, kindSession)
			d.send()
			mend()
			d.send()
			d.unhealthy()
			written, lost := d.settled()
			d.checkLog(kindSession, 1, 1)
			d.checkLog(kindHistogram, 1, 1)
			d.p.finish()
			ends := d.stop()
			if lost == 0 || written+lost != int(ends["session"]) {
				t.Errorf("%d rows written, %d lost, of %d", written, lost, ends["session"])
			}
			if n := answersIn(t, d.cfg.histograms()); n != int(ends["well_known"]) {
				t.Errorf("%d answers in files of %d", n, ends["well_known"])
			}
			if n := rowsIn(t, d.cfg.sessions()); n != written {
				t.Errorf("%d rows in files of %d", n, written)
			}
		})
	}
	f("read-only", func(t *testing.T, dirs ...string) func() {
		for _, dir := range dirs {
			if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
				t.Skipf("a read-only folder needs root: %v", err)
			}
			if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}
		mend := func() {
			for _, dir := range dirs {
				until(t, "the folder to be writable", func() bool { return syscall.Unmount(dir, 0) == nil })
			}
		}
		t.Cleanup(func() {
			for _, dir := range dirs {
				syscall.Unmount(dir, syscall.MNT_DETACH)
			}
		})
		return mend
	})
	f("files", func(t *testing.T, dirs ...string) func() {
		for _, dir := range dirs {
			if err := os.Rename(dir, dir+"-away"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return func() {
			for _, dir := range dirs {
				// At once: a folder that is not there would be made.
				if err := unix.Renameat2(unix.AT_FDCWD, dir+"-away", unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// All folders are removed while it runs. They are made again, and what comes
// from then on is in them.
func TestFoldersAreRemoved(t *testing.T) {
	t.Parallel()
	d := newDiskTest(t, filepath.Join(socketDir(t), "data"))
	d.send()
	d.settled()
	until(t, "the first histogram", func() bool { return len(parquetFiles(t, d.cfg.histograms())) == 1 })
	answers := int(d.metric(`edm_frames_total{result="well_known"`))
	if err := os.RemoveAll(filepath.Join(d.cfg.DataDir, "parquet")); err != nil {
		t.Fatal(err)
	}
	d.send()
	if _, lost := d.settled(); lost != 0 {
		t.Errorf("%d rows lost", lost)
	}
	d.unhealthy()
	d.p.finish()
	ends := d.stop()
	if n := answersIn(t, d.cfg.histograms()); n != int(ends["well_known"])-answers || n == 0 {
		t.Errorf("%d answers in files of %d", n, int(ends["well_known"])-answers)
	}
	if n := rowsIn(t, d.cfg.sessions()); n != int(ends["session"])/2 {
		t.Errorf("%d rows in files of %d", n, ends["session"]/2)
	}
	for _, name := range []string{sessionsDir, outboxDir, histogramsDir + "/" + output.SentFolder, histogramsDir + "/" + output.RefusedFolder} {
		if info, err := os.Stat(filepath.Join(d.cfg.DataDir, name)); err != nil {
			t.Error(err)
		} else if info.Mode().Perm()&^folderMode != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}
