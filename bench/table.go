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

// printResults writes what was measured, a column for each run.
func printResults(w io.Writer, o options, results []result) {
	fmt.Fprintf(w, "%s\n\n", o)
	rows := [][]string{{""}}
	for i := range results {
		rows[0] = append(rows[0], fmt.Sprintf("run %d", i+1))
	}
	if len(results) > 1 {
		rows[0] = append(rows[0], "median")
	}
	line := func(name, format string, value func(result) float64) {
		row := []string{name}
		values := make([]float64, len(results))
		for i, r := range results {
			values[i] = value(r)
			row = append(row, fmt.Sprintf(format, values[i]))
		}
		if slices.Sort(values); len(values) > 1 {
			row = append(row, fmt.Sprintf(format, values[len(values)/2]))
		}
		rows = append(rows, row)
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
	table(w, "l"+strings.Repeat("r", len(rows[0])-1), rows)
	for i, r := range results {
		printChecks(w, fmt.Sprintf("run %d: ", i+1), r)
		if o.duration > 0 {
			fmt.Fprintf(w, "  memory in each tenth of it, MiB: %.0f\n", r.MemoryMiB)
		}
	}
}

func printChecks(w io.Writer, prefix string, r result) {
	fmt.Fprintf(w, "\n%s%s frames for well-known names, %s for others (warm-up included)", prefix, grouped(r.WellKnown), grouped(r.Session))
	for _, kind := range []string{"dns_histogram", "dns_session_block"} {
		fmt.Fprintf(w, "; %s: %d files, %.1f MiB", kind, r.Files[kind].Files, mebibytes(r.Files[kind].Bytes))
	}
	fmt.Fprintln(w)
	if len(r.Failures) == 0 {
		fmt.Fprintln(w, "  every frame that was sent is in exactly one counter, the right one")
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
	return fmt.Sprintf("%s, %s, connections: %d, %s, %s; CPUs: %d, %s",
		what, pace, o.conns, workers, sessions, runtime.NumCPU(), runtime.Version())
}
