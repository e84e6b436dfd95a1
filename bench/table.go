package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table writes rows in aligned columns. Layout has a letter for each column: l
// for text, r for numbers. A row with one cell stands by itself.
func table(w io.Writer, layout string, rows [][]string) {
	widths := make([]int, len(layout))
	for _, row := range rows {
		for i, cell := range row {
			if len(row) > 1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, row := range rows {
		line := " "
		for i, cell := range row {
			pad := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
			if layout[i] == 'r' {
				line += " " + pad + cell + " "
			} else {
				line += " " + cell + pad + " "
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// grouped writes a whole number with its digits in threes.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// measured is all that came out of one invocation.
type measured struct {
	options options
	runs    [][]result // each with a result for each variant
	syncs   syncs
	noSyncs error // why syncs were not counted
}

// figures is a table with a column for each run and one for the median.
type figures struct {
	rows [][]string
	runs int
}

func newFigures(title string, runs int) *figures {
	head := []string{title}
	for i := range runs {
		head = append(head, fmt.Sprintf("run %d", i+1))
	}
	if runs > 1 {
		head = append(head, "median")
	}
	return &figures{rows: [][]string{head}, runs: runs}
}

// line adds a row of what value gives for each run.
func (f *figures) line(name, format string, value func(run int) float64) {
	row := []string{name}
	values := make([]float64, f.runs)
	for i := range values {
		values[i] = value(i)
		row = append(row, fmt.Sprintf(format, values[i]))
	}
	if slices.Sort(values); len(values) > 1 {
		row = append(row, fmt.Sprintf(format, values[len(values)/2]))
	}
	f.rows = append(f.rows, row)
}

func (f *figures) print(w io.Writer) {
	table(w, "l"+strings.Repeat("r", len(f.rows[0])-1), f.rows)
}

// print writes what was measured, and compares the variants.
func (m *measured) print(w io.Writer) {
	o := m.options
	fmt.Fprintln(w, o)
	for j, v := range o.variants() {
		m.printVariant(w, v, j)
	}
	if last := len(o.variants()) - 1; o.mqtt {
		m.printEvents(w)
		if o.sync {
			m.printSync(w, last-1, last)
		}
	} else if o.sync {
		m.printSync(w, 0, last)
	}
}

// printVariant writes the results of variant j.
func (m *measured) printVariant(w io.Writer, v variant, j int) {
	o := m.options
	fmt.Fprintln(w)
	title := ""
	if len(o.variants()) > 1 {
		title = strings.ToUpper(v.String())
	}
	t := newFigures(title, len(m.runs))
	line := func(name, format string, value func(result) float64) {
		t.line(name, format, func(run int) float64 { return value(m.runs[run][j]) })
	}
	line("frames a second", "%.0f", func(r result) float64 { return r.FramesPerS })
	line("CPU seconds per million frames", "%.3f", func(r result) float64 { return r.CPU })
	line("  user", "%.3f", func(r result) float64 { return r.User })
	line("  system", "%.3f", func(r result) float64 { return r.Sys })
	line("yardstick: decoding with the libraries", "%.3f", func(r result) float64 { return r.Yardstick })
	line("CPU / yardstick", "%.3f", func(r result) float64 { return r.Ratio })
	line("peak memory, MiB", "%.0f", func(r result) float64 { return r.PeakMiB })
	line("seconds from SIGTERM to the end", "%.2f", func(r result) float64 { return r.StopS })
	if o.rate > 0 {
		line("greatest age of an uncounted frame, ms", "%.1f", func(r result) float64 { return r.PacedAgeMs })
		line("  of bursts into an idle stream, ms", "%.1f", func(r result) float64 { return r.BurstAgeMs })
	}
	if v.events {
		line("events a second, until the last has come", "%.0f", func(r result) float64 { return r.EventsPerS })
		line("  which is so many seconds after the last frame", "%.2f", func(r result) float64 { return r.EventsLateS })
		if o.stall > 0 {
			m.stallLines(line)
		} else if o.rate > 0 && o.conns == 1 {
			line("from the frame to the event at the subscriber, half of them, ms", "%.1f", func(r result) float64 { return r.LatencyP50Ms })
			line("  99 %", "%.1f", func(r result) float64 { return r.LatencyP99Ms })
			line("  all", "%.1f", func(r result) float64 { return r.LatencyMaxMs })
		}
	}
	t.print(w)
	for i, r := range m.runs {
		printChecks(w, fmt.Sprintf("run %d: ", i+1), r[j])
		if o.duration > 0 {
			fmt.Fprintf(w, "  memory in each tenth of it, MiB: %.0f\n", r[j].MemoryMiB)
		}
	}
}

// printEvents compares the first two variants, without events and with.
func (m *measured) printEvents(w io.Writer) {
	t := newFigures("WHAT AN EVENT COSTS", len(m.runs))
	signature := func(i int) float64 { return m.runs[i][1].SignatureUs }
	cost := func(i int) float64 { return eventCost(m.runs[i][0], m.runs[i][1]) }
	t.line("CPU of edm for a new name more than without events, µs", "%.1f", cost)
	t.line("one Ed25519 signature, µs", "%.1f", signature)
	t.line("ratio", "%.2f", func(i int) float64 { return cost(i) / signature(i) })
	fmt.Fprintln(w)
	t.print(w)
}

// eventCost gives the CPU time in µs that a new name costs more with events on.
func eventCost(off, on result) float64 {
	return (on.CPU - off.CPU) * float64(on.Frames) / float64(on.Novel)
}

// printSync compares variant on, with pebble_sync, with variant off.
func (m *measured) printSync(w io.Writer, off, on int) {
	t := newFigures("WHAT PEBBLE_SYNC COSTS", len(m.runs))
	ratio := func(name string, value func(result) float64) {
		t.line(name, "%.3f", func(i int) float64 { return value(m.runs[i][on]) / value(m.runs[i][off]) })
	}
	ratio("frames a second, on / off", func(r result) float64 { return r.FramesPerS })
	if m.options.mqtt {
		ratio("events a second, on / off", func(r result) float64 { return r.EventsPerS })
	}
	ratio("CPU, on / off", func(r result) float64 { return r.CPU })
	t.line("an append with fsync beside data_dir, median of 200, ms", "%.2f", func(i int) float64 { return m.runs[i][on].SyncMs })
	if m.options.slowSync > 0 {
		t.line("  and each of edm's is held up by, ms", "%.2f", func(int) float64 { return milliseconds(m.options.slowSync) })
	}
	fmt.Fprintln(w)
	t.print(w)
	if m.noSyncs != nil {
		fmt.Fprintln(w, "  syncs of the log were not counted:", m.noSyncs)
		return
	}
	fmt.Fprintf(w, "  syncs of the log, in a run of its own under strace: %.0f a second, at most %d in one second\n", m.syncs.PerS, m.syncs.Most)
}

func printChecks(w io.Writer, prefix string, r result) {
	fmt.Fprintf(w, "\n%s%s frames for well-known names, %s for others (warm-up included)", prefix, grouped(r.WellKnown), grouped(r.Session))
	for _, kind := range []string{"dns_histogram", "dns_session_block"} {
		fmt.Fprintf(w, "; %s: %d files, %.1f MiB", kind, r.Files[kind].Files, mebibytes(r.Files[kind].Bytes))
	}
	fmt.Fprintln(w)
	if len(r.Failures) == 0 {
		fmt.Fprintln(w, "  every frame that was sent is in exactly one counter, the right one")
		if r.variant.events {
			fmt.Fprintf(w, "  each of %s new names has one event, and so has each of the warm-up\n", grouped(r.Novel))
		}
	}
	for _, f := range r.Failures {
		fmt.Fprintln(w, "  WRONG:", f)
	}
}

// String says what is measured.
func (o options) String() string {
	what := grouped(o.frames) + " frames"
	if o.duration > 0 {
		what = o.duration.String() + " of frames"
	}
	pace := "as fast as they are taken"
	if o.rate > 0 {
		pace = grouped(int(o.rate)) + " a second"
	}
	workers := "a worker for each CPU"
	if o.workers > 0 {
		workers = fmt.Sprintf("workers: %d", o.workers)
	}
	sessions := "session files on"
	if !o.sessions {
		sessions = "session files off"
	}
	return fmt.Sprintf("%s, share of new names: %.3g, %s, connections: %d, %s, %s; CPUs: %d, %s",
		what, o.novel, pace, o.conns, workers, sessions, runtime.NumCPU(), runtime.Version())
}
