package runner

import (
	"time"

	"edm/output"
)

// shortest is how long an interval lasts at least, so that no two files have
// the same times in their names.
const shortest = time.Second

// A minute is an interval and what was counted in it.
type minute struct {
	interval output.Interval
	tally    *tally
}

// A minuteLoop ends the interval on the minute, or when it is asked to: it
// lets every worker hand over, between two chunks, and sends on what they
// counted. It waits for whoever writes the files.
//
// It closes the channels it writes when the workers have ended and what they
// had is sent.
type minuteLoop struct {
	workers  []*worker
	ended    <-chan struct{}        // closed when all workers have ended
	rotate   <-chan *view           // end the interval soon, and go by this view unless it is nil
	viewed   func()                 // called when a new view is in use
	sessions chan<- output.Interval // sent after all blocks of the interval
	minutes  chan<- minute
	pulse    pulse

	view   *view // that the next interval goes by
	start  time.Time
	tally  *tally // of the interval, while it is put together
	wanted bool   // rotate was asked for
	fresh  bool   // view is not in use yet
}

func (l *minuteLoop) run() {
	defer close(l.minutes)
	defer close(l.sessions)
	for {
		timer := time.NewTimer(time.Until(l.due(time.Now())))
		select {
		case <-timer.C:
			if now := time.Now(); !now.Before(l.due(now)) {
				l.turn()
				l.end(time.Now())
				if l.fresh {
					l.fresh = false
					l.viewed()
				}
			}
		case v := <-l.rotate:
			l.wanted = true
			if v != nil {
				l.view, l.fresh = v, true
			}
		case <-l.pulse:
		case <-l.ended:
			timer.Stop()
			l.turn()
			l.end(time.Now())
			return
		}
		timer.Stop()
	}
}

// due returns when the interval is to end: on the minute, or when it has lasted
// long enough if that is wanted. A clock that was set back does not make a
// minute last hours.
func (l *minuteLoop) due(now time.Time) time.Time {
	if l.wanted {
		return l.start.Add(shortest)
	}
	due := l.start.Truncate(time.Minute).Add(time.Minute)
	if latest := now.Add(time.Minute); due.After(latest) {
		due = latest.Truncate(time.Minute)
	}
	return due
}

// turn lets every worker hand over what it counted, and go on with the view.
func (l *minuteLoop) turn() {
	for _, w := range l.workers {
		select {
		case <-w.done:
		default:
			w.turns <- turn{l.view} // has room: the last one was answered
		}
	}
	for _, w := range l.workers {
		for answered := false; !answered; {
			answered = true
			select {
			case t := <-w.harvest:
				l.collect(t)
			case <-w.done:
				l.collectLast(w)
			case <-l.pulse:
				answered = false
			}
		}
	}
}

// collectLast takes the tally of a worker that has ended: the one that it
// handed over before, if nobody took it yet. In that case its last tally, which
// may be of another view, is for the next interval.
func (l *minuteLoop) collectLast(w *worker) {
	select {
	case t := <-w.harvest:
		l.collect(t)
	default:
		if w.tally != nil {
			l.collect(w.tally)
			w.tally = nil
		}
	}
}

func (l *minuteLoop) collect(t *tally) {
	if l.tally == nil {
		l.tally = t
		return
	}
	l.tally.merge(t)
}

// end sends the interval on and begins the next.
func (l *minuteLoop) end(now time.Time) {
	stop := now.Truncate(time.Second)
	if earliest := l.start.Add(shortest); stop.Before(earliest) {
		stop = earliest
	}
	interval := output.Interval{Start: l.start, Stop: stop}
	send(l.sessions, interval, l.pulse)
	if l.tally != nil && l.tally.n > 0 {
		send(l.minutes, minute{interval, l.tally}, l.pulse)
	}
	l.tally, l.wanted, l.start = nil, false, stop
}
