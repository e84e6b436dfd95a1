// Command bench measures edm, and shows it at work.
//
//	go run ./bench [-json]      measure (make bench)
//	go run ./bench demo         a minute of traffic, start to end (make demo)
//
// Both build the daemon as it is shipped and run it as its users do: a process
// of its own with a configuration file. What is measured is the whole process,
// from the socket to the last file. Nothing is generated while the clock runs.
//
// In the same run and on the same frames the bench takes the yardstick: the
// CPU time of decoding a frame with the usual libraries and doing nothing with
// it. Machines differ; the ratio of the two numbers hardly does.
//
// A number is worth nothing if frames were lost on the way to it. So every run
// is checked against what was sent, to the last frame, and a difference is a
// failure. The environment sets what is measured:
//
//	RATE=20000      frames a second (unlimited), 30 seconds of them
//	FRAMES=3000000  frames
//	DURATION=10m    instead of a number of frames
//	CONNS=1         connections
//	WORKERS=0       minimiser_workers
//	SESSIONS=1      session files, 0 for none
//	NOVEL=0.1       share of names never seen before, 0 to 1; the rest is split
//	                between well-known names and others that come again, 55 to 35
//	MQTT=1          first without events, then on the same frames with: to a
//	                mosquitto over TLS, and on to a subscriber that counts them
//	SYNC=1          the last of these with pebble_sync, too; and what a sync costs,
//	                and, with strace, how many there are
//	SLOW_SYNC=1ms   each fsync of edm takes that much longer, in all of them: strace
//	                holds it up
//	STALL=15s       after a third of the load, the broker is stopped for that long
//	RUNS=1          runs
//	PROFILE=FILE    write a CPU profile of the last load to a file, and to
//	                FILE.block where goroutines waited
//	EDM=FILE        an edm that is there already, instead of building one
//
// All of them go together. A run with MQTT=1 fails unless there is one event for
// each new name, at most a minute after the last frame; edm's queue keeps its
// default limit. The files are in a folder of their own in TMPDIR, so that says
// which disk is measured.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	jsonToo := flag.Bool("json", false, "print a line of JSON for each run, too")
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case "":
		err = bench(*jsonToo)
	case "demo":
		err = demo("demo", os.Stdout)
	default:
		err = fmt.Errorf("unknown command %q, want none or demo", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options says what is measured.
type options struct {
	rate     float64
	frames   int // 0: as many as there are until duration has passed
	duration time.Duration
	conns    int
	workers  int
	sessions bool
	novel    float64
	mqtt     bool
	sync     bool
	slowSync time.Duration
	stall    time.Duration
	runs     int
	profile  string
	edm      string
}

// optionsFrom reads the options with a function like os.Getenv. All errors are
// given at once.
func optionsFrom(getenv func(string) string) (options, error) {
	var errs []error
	number := func(name string, value, least int) int {
		if s := getenv(name); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < least {
				errs = append(errs, fmt.Errorf("%s=%s: want a whole number from %d", name, s, least))
			}
			return n
		}
		return value
	}
	o := options{
		rate:     float64(number("RATE", 0, 0)),
		conns:    number("CONNS", 1, 1),
		workers:  number("WORKERS", 0, 0),
		sessions: number("SESSIONS", 1, 0) != 0,
		novel:    0.1,
		mqtt:     number("MQTT", 0, 0) != 0,
		sync:     number("SYNC", 0, 0) != 0,
		runs:     number("RUNS", 1, 1),
		profile:  getenv("PROFILE"),
		edm:      getenv("EDM"),
	}
	if s := getenv("NOVEL"); s != "" {
		var err error
		if o.novel, err = strconv.ParseFloat(s, 64); err != nil || !(o.novel >= 0 && o.novel <= 1) {
			errs = append(errs, fmt.Errorf("NOVEL=%s: want a share from 0 to 1", s))
		}
	}
	length := func(name string, d *time.Duration) {
		s := getenv(name)
		if s == "" {
			return
		}
		var err error
		if *d, err = time.ParseDuration(s); err != nil || *d <= 0 {
			errs = append(errs, fmt.Errorf("%s=%s: want a time as 10m, 30s or 1ms", name, s))
		}
	}
	length("DURATION", &o.duration)
	length("SLOW_SYNC", &o.slowSync)
	length("STALL", &o.stall)
	if o.stall > 0 && (!o.mqtt || o.rate == 0) {
		errs = append(errs, errors.New("STALL: want MQTT=1, whose broker stalls, and RATE"))
	}
	switch {
	case getenv("FRAMES") != "":
		o.frames = number("FRAMES", 0, 1)
	case o.duration > 0:
	case o.rate > 0:
		o.frames = int(30 * o.rate)
	case o.profile != "":
		o.duration = 10 * time.Second // long enough to have something in it
	default:
		o.frames = 3_000_000
	}
	return o, errors.Join(errs...)
}

func bench(jsonToo bool) error {
	o, err := optionsFrom(os.Getenv)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "edm-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.edm == "" {
		if o.edm, err = buildEDM(dir, "auto"); err != nil {
			return err
		}
	}
	l, err := newLoad(o)
	if err != nil {
		return err
	}
	if o.mqtt {
		if l.broker, err = startBroker(filepath.Join(dir, "broker")); err != nil {
			return err
		}
		defer l.broker.stop()
	}
	m := &measured{options: o}
	for range o.runs {
		m.runs = append(m.runs, make([]result, len(o.variants())))
	}
	var failed []error
	for i, results := range m.runs {
		for j, v := range o.variants() {
			r := &results[j]
			if *r, err = l.run(filepath.Join(dir, fmt.Sprint(i+1, j)), v); err != nil {
				return fmt.Errorf("run %d, %s: %w", i+1, v, err)
			}
			if age := max(r.PacedAgeMs, r.BurstAgeMs); age > 100 {
				r.Failures = append(r.Failures, fmt.Sprintf("a frame waited %.0f ms to be counted, want at most 100 ms", age))
			}
			for _, f := range r.Failures {
				failed = append(failed, fmt.Errorf("run %d, %s: %s", i+1, v, f))
			}
		}
	}
	if o.sync {
		m.syncs, m.noSyncs = l.countSyncs(filepath.Join(dir, "syncs"))
	}
	m.print(os.Stdout)
	if jsonToo {
		for _, results := range m.runs {
			for _, r := range results {
				if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
					return err
				}
			}
		}
	}
	return errors.Join(failed...)
}

// variant is what differs between the measurements of one run.
type variant struct{ events, sync bool }

func (o options) variants() []variant {
	v := []variant{{}}
	if o.mqtt {
		v = append(v, variant{events: true})
	}
	if o.sync {
		v = append(v, variant{events: o.mqtt, sync: true})
	}
	return v
}

func (v variant) String() string {
	s := "events off"
	if v.events {
		s = "events on"
	}
	if v.sync {
		s += ", pebble_sync on"
	}
	return s
}

// buildEDM builds the static binary, as make build does: with the profile
// default.pgo, unless pgo is "off". That takes half the time.
func buildEDM(dir, pgo string) (string, error) {
	version, err := os.ReadFile("VERSION")
	if err != nil {
		return "", fmt.Errorf("run this where edm's go.mod is: %w", err)
	}
	binary, err := filepath.Abs(filepath.Join(dir, "edm"))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-pgo="+pgo, "-ldflags", "-X main.version="+strings.TrimSpace(string(version)), "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building edm: %w\n%s", err, out.String())
	}
	return binary, nil
}
