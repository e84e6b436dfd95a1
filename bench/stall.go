package main

import (
	"fmt"
	"syscall"
	"time"
)

// stall is what came of a pause of the broker: how many events waited, and how
// long it took until the queue was empty again.
type stall struct {
	BeforePerS float64 `json:"before_per_s"` // events a second before it
	Waiting    int     `json:"waiting"`      // in the queue at its end
	DrainS     float64 `json:"drain_s"`      // until fewer wait than come in a quarter of a second
	DrainPerS  float64 `json:"drain_per_s"`  // events a second meanwhile
	Again      int     `json:"again"`        // events that came twice
}

// stallBroker stops the broker after a third of the load, lets it go on when
// the time is over, and waits until edm has caught up.
func (l *load) stallBroker(d *daemon, r *result) error {
	if l.stall == 0 || !r.variant.events {
		return nil
	}
	var s stall
	count := l.broker.events.count.Load
	start, first := time.Now(), count()
	time.Sleep(l.length() / 3)
	s.BeforePerS = float64(count()-first) / time.Since(start).Seconds()

	if err := l.broker.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(l.stall)
	if err := l.broker.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	on, from := time.Now(), count()
	waiting := func() (int, error) {
		m, err := d.metrics()
		return m.sum("edm_new_qname_backlog"), err
	}
	var err error
	if s.Waiting, err = waiting(); err != nil {
		return err
	}
	// Those that come meanwhile are in the queue for a moment.
	few := max(100, int(s.BeforePerS/4))
	err = d.wait(2*time.Minute, 10*time.Millisecond, func() bool {
		n, err := waiting()
		return err == nil && n <= few
	})
	if err != nil {
		return fmt.Errorf("edm does not catch up after the stall: %w", err)
	}
	s.DrainS = time.Since(on).Seconds()
	s.DrainPerS = float64(count()-from) / s.DrainS
	r.Stall = &s
	return nil
}

// stallLines adds what came of the stall to a table.
func (m *measured) stallLines(line func(name, format string, value func(result) float64)) {
	line("events a second before the stall", "%.0f", func(r result) float64 { return r.Stall.BeforePerS })
	line("events that waited at its end", "%.0f", func(r result) float64 { return float64(r.Stall.Waiting) })
	line("  until they were delivered, seconds", "%.2f", func(r result) float64 { return r.Stall.DrainS })
	line("  events a second meanwhile", "%.0f", func(r result) float64 { return r.Stall.DrainPerS })
	line("  events that came twice", "%.0f", func(r result) float64 { return float64(r.Stall.Again) })
}
