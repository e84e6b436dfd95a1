package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// syncCost gives the median time of an append to a file in a folder with its
// fsync.
func syncCost(dir string) (median time.Duration, err error) {
	f, err := os.Create(filepath.Join(dir, "append"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	took := make([]time.Duration, 200)
	block := make([]byte, 4096)
	for i := range took {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// slowSyncs gives the command under which each fsync takes longer.
func (o options) slowSyncs() ([]string, error) {
	strace, err := findStrace()
	if err != nil {
		return nil, err
	}
	// -D: edm stays our child. The filter spares all other system calls.
	return []string{strace, "-D", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o", os.DevNull,
		"-e", fmt.Sprintf("inject=fsync,fdatasync:delay_enter=%d", o.slowSync.Microseconds())}, nil
}

func findStrace() (string, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return "", errors.New("this needs the program strace: install Debian's package strace")
	}
	return path, nil
}

// syncs is how often the log of the store of seen names was synced.
type syncs struct {
	PerS float64 `json:"per_s"`      // on average
	Most int     `json:"most_in_1s"` // in the worst second
}

// countSyncs does one more run with pebble_sync, of ten seconds or a million
// frames at most, in which strace counts. Its other figures are worth nothing,
// so it is a run of its own.
func (l *load) countSyncs(dir string) (syncs, error) {
	strace, err := findStrace()
	if err != nil {
		return syncs{}, err
	}
	c := *l
	c.profile, c.duration = "", 0
	if c.frames == 0 {
		c.frames = poolFrames
	}
	if c.frames = min(c.frames, poolFrames); c.rate > 0 {
		c.frames = min(c.frames, int(10*c.rate))
	}
	trace := dir + ".strace"
	defer os.Remove(trace)
	// -D: edm stays our child. The filter spares all other system calls.
	c.under = []string{strace, "-D", "-f", "--seccomp-bpf", "-y", "-ttt", "-e", "trace=fsync,fdatasync", "-o", trace}
	if l.slowSync > 0 {
		c.under = append(c.under, "-e", fmt.Sprintf("inject=fsync,fdatasync:delay_enter=%d", l.slowSync.Microseconds()))
	}
	r, err := c.run(dir, variant{events: l.mqtt, sync: true})
	if err != nil {
		return syncs{}, fmt.Errorf("under strace: %w", err)
	}
	f, err := os.Open(trace)
	if err != nil {
		return syncs{}, err
	}
	defer f.Close()
	return parseSyncs(f, r.began, r.ended)
}

// parseSyncs counts the syncs of a Pebble log in strace's output, from one time
// to another.
func parseSyncs(r io.Reader, from, to time.Time) (s syncs, err error) {
	var at []float64
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// PID TIME fdatasync(7</path/seen/000004.log>) = 0
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.Contains(fields[2], "sync(") || !strings.Contains(lines.Text(), ".log>") {
			continue
		}
		t, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return s, fmt.Errorf("strace: %q: %w", lines.Text(), err)
		}
		if t >= seconds(from) && t <= seconds(to) {
			at = append(at, t)
		}
	}
	slices.Sort(at)
	first := 0
	for i, t := range at {
		for at[first] <= t-1 {
			first++
		}
		s.Most = max(s.Most, i-first+1)
	}
	s.PerS = float64(len(at)) / to.Sub(from).Seconds()
	return s, lines.Err()
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
