package runner

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"

	"edm/store"
)

// stateWatchdog says that the process does what it should.
const stateWatchdog = "WATCHDOG=1"

// A watchdog tells the service manager now and then that every stage goes on.
// If it does not say so for the period, the manager ends the process and starts
// it again; what all goroutines were at is then in the log.
//
// It asks one stage after the other. A stage answers where it waits for work,
// which costs nothing while nobody asks, and also where it waits for the next
// stage: that one is asked itself. So only a stage that is stuck in its own
// work is silent, and holds up the round. Neither an idle stage nor a busy one
// is, and a full disk is not either.
//
// Inputs are not asked: what a stream brings is up to the resolver.
type watchdog struct {
	stages []stage
	period time.Duration
	tell   func(state string)
	report func(error) // which stage is silent, half a period before the end
}

// A stage is something that can be asked. ask returns true when it has
// answered, and false when stop was closed before.
type stage struct {
	name string
	ask  func(stop <-chan struct{}) bool
}

// A pulse is an unbuffered channel. A stage receives from it wherever it waits.
// It is nil if there is no watchdog.
type pulse chan struct{}

func (p pulse) ask(stop <-chan struct{}) bool {
	select {
	case p <- struct{}{}:
		return true
	case <-stop:
		return false
	}
}

// send sends v when the next stage takes it, and answers meanwhile.
func send[T any](to chan<- T, v T, p pulse) {
	for {
		select {
		case to <- v:
			return
		case <-p:
		}
	}
}

// run asks until stop is closed.
func (w *watchdog) run(stop <-chan struct{}) {
	for w.round(stop) {
		w.tell(stateWatchdog)
		select {
		case <-stop:
			return
		case <-time.After(w.period / 4):
		}
	}
}

// round asks every stage, and returns false if stop was closed.
func (w *watchdog) round(stop <-chan struct{}) bool {
	for _, s := range w.stages {
		silent := time.AfterFunc(w.period/2, func() { w.report(fmt.Errorf("%s does not go on", s.name)) })
		answered := s.ask(stop)
		silent.Stop()
		if !answered {
			return false
		}
	}
	w.report(nil)
	return true
}

// watchdogPeriod returns how often the service manager wants to hear of this
// process, see sd_watchdog_enabled(3); 0 if it does not.
func watchdogPeriod() (time.Duration, error) {
	usec := os.Getenv("WATCHDOG_USEC")
	if pid := os.Getenv("WATCHDOG_PID"); usec == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(1<<63-1)/1000 {
		return 0, fmt.Errorf("WATCHDOG_USEC is %q, not a number of microseconds", usec)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// watch starts the watchdog, if the service manager wants one. It ends when
// stop is closed; serve, which must be called later, waits for it.
func (d *daemon) watch(stop <-chan struct{}) {
	period, err := watchdogPeriod()
	if err != nil {
		d.log.Warn("the service manager's watchdog is not served", zap.Error(err))
	}
	if period == 0 {
		return
	}
	w := &watchdog{period: period, tell: d.notify, report: d.health.reporter(d.log, "watchdog"), stages: d.stages(period)}
	d.watching.Go(func() { w.run(stop) })
}

// stages gives every stage its pulse and returns them, so that nothing is asked
// before what waits for it.
func (d *daemon) stages(period time.Duration) (all []stage) {
	add := func(name string, p *pulse) {
		*p = make(pulse)
		all = append(all, stage{name, p.ask})
	}
	for i, w := range d.workers {
		add(fmt.Sprint("worker ", i+1), &w.pulse)
	}
	add("the minute loop", &d.minute.pulse)
	add("the writer of session files", &d.sessions.pulse)
	add("the writer of histograms", &d.minutes.pulse)
	d.events.answered = make(chan struct{}, 1)
	committer := func(stop <-chan struct{}) bool { return d.events.ask(period/4, stop) }
	return append(all, stage{"the store of seen names", committer})
}

// ask sends an empty batch through the store, which has no select to answer in.
// If it does not come back for so long another one is sent: a store that is
// lost keeps what it was at, and gives back what comes later.
func (e *events) ask(again time.Duration, stop <-chan struct{}) bool {
	for {
		probe := new(store.Names)
		e.probe.Store(probe)
		select {
		case e.names <- probe:
		case <-stop:
			return false
		}
		select {
		case <-e.answered:
			return true
		case <-time.After(again):
		case <-stop:
			return false
		}
	}
}

// giveBack takes the batches that the store has done with.
func (e *events) giveBack(n *store.Names) {
	if n != e.probe.Load() {
		e.spare.give(n)
		return
	}
	select {
	case e.answered <- struct{}{}:
	default:
	}
}
