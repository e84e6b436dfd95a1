package main

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"edm/traffic"
)

// ages finds out how long frames wait to be counted: when each was sent, and
// how many had been counted at some later time.
type ages struct {
	mu       sync.Mutex
	sent     int    // frames about to be sent or sent, all that came before the load included
	writes   []mark // that held a frame not yet counted at the last look
	greatest time.Duration
}

// mark says that up to a number of frames were written at a time.
type mark struct {
	frames int
	at     time.Time
}

func (a *ages) before(frames int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent += frames
	a.writes = append(a.writes, mark{a.sent, time.Now()})
}

// counted notes that up to now so many frames have been counted. The time of a
// scrape is taken after it, so it counts as age.
func (a *ages) counted(frames int) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.writes) > 0 && a.writes[0].frames <= frames {
		a.writes = a.writes[1:]
	}
	if len(a.writes) > 0 {
		a.greatest = max(a.greatest, now.Sub(a.writes[0].at))
	}
}

// watch looks at the daemon while the load goes on, without making it work: it
// reads /proc, and scrapes the metrics once a second when the load is paced.
type watch struct {
	daemon  *daemon
	ages    *ages
	paced   bool
	endless bool
	memory  []float64 // resident MiB, every tenth of a second
	done    chan struct{}
	ended   chan struct{}
}

func newWatch(d *daemon, before int, o options) *watch {
	return &watch{
		daemon: d, ages: &ages{sent: before}, paced: o.rate > 0, endless: o.duration > 0,
		done: make(chan struct{}), ended: make(chan struct{}),
	}
}

func (w *watch) run() {
	defer close(w.ended)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-w.done:
			return
		case <-tick.C:
		}
		if now, _, err := w.daemon.memory(); err == nil {
			w.memory = append(w.memory, mebibytes(now))
		}
		if w.paced && n%10 == 0 {
			if m, err := w.daemon.metrics(); err == nil {
				w.ages.counted(m.sum("edm_processed_dnstap_total"))
			}
		}
		if w.endless {
			w.collect()
		}
	}
}

// collect takes away the session files that are finished, as whoever uses them
// would, so that a long load does not fill the disk.
func (w *watch) collect() {
	found, err := finished(filepath.Join(w.daemon.data, "parquet", "sessions"))
	if err != nil {
		return // the daemon has not made the folder yet
	}
	for _, path := range found {
		os.Remove(path) // if it cannot, the next round tries again
	}
}

func (w *watch) stop() {
	close(w.done)
	<-w.ended
}

// tenths gives the highest memory in each tenth of the load.
func (w *watch) tenths() (highest [10]float64) {
	for i, mib := range w.memory {
		tenth := i * len(highest) / len(w.memory)
		highest[tenth] = max(highest[tenth], mib)
	}
	return highest
}

// bursts sends bursts of frames into an idle stream and measures how long it
// takes until the last frame of each is counted. A receiver that waits for more
// before it reads must not wait long.
func (l *load) bursts(d *daemon, s *traffic.Sender, r *result) (sent traffic.Counts, err error) {
	counted := l.warm.Len()
	for i := range 20 {
		// Pauses of different lengths meet the receiver in every state.
		time.Sleep(time.Duration(10+7*i) * time.Millisecond)
		n := 1 + 20*i
		start := time.Now()
		burst, err := l.warm.Send([]*traffic.Sender{s}, traffic.Load{Frames: n})
		if err != nil {
			return sent, err
		}
		sent.Add(burst)
		counted += burst.Frames
		err = d.wait(10*time.Second, time.Millisecond, func() bool {
			m, err := d.metrics()
			return err == nil && m.sum("edm_processed_dnstap_total") >= counted
		})
		if err != nil {
			return sent, err
		}
		r.BurstAgeMs = max(r.BurstAgeMs, milliseconds(time.Since(start)))
	}
	return sent, nil
}
