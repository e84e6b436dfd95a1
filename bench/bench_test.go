package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

func TestOptionsFrom(t *testing.T) {
	env := func(pairs string) func(string) string {
		return func(name string) string {
			for pair := range strings.FieldsSeq(pairs) {
				if v, ok := strings.CutPrefix(pair, name+"="); ok {
					return v
				}
			}
			return ""
		}
	}
	f := func(pairs string, want options) {
		t.Helper()
		got, err := optionsFrom(env(pairs))
		if err != nil || got != want {
			t.Errorf("%s:\n got %+v %v\nwant %+v", pairs, got, err, want)
		}
	}
	f("", options{frames: 3_000_000, conns: 1, sessions: true, runs: 1, novel: 0.1})
	f("RATE=20000", options{rate: 20000, frames: 600_000, conns: 1, sessions: true, runs: 1, novel: 0.1})
	f("RATE=20000 FRAMES=7", options{rate: 20000, frames: 7, conns: 1, sessions: true, runs: 1, novel: 0.1})
	f("RATE=20000 DURATION=10m", options{rate: 20000, duration: 10 * time.Minute, conns: 1, sessions: true, runs: 1, novel: 0.1})
	f("PROFILE=p", options{profile: "p", duration: 10 * time.Second, conns: 1, sessions: true, runs: 1, novel: 0.1})
	f("SESSIONS=0 WORKERS=2 CONNS=3 RUNS=5 EDM=e", options{frames: 3_000_000, conns: 3, workers: 2, runs: 5, edm: "e", novel: 0.1})
	f("NOVEL=1.0 MQTT=1 SYNC=1", options{frames: 3_000_000, conns: 1, sessions: true, runs: 1, novel: 1, mqtt: true, sync: true})

	f("MQTT=1 RATE=10 SLOW_SYNC=1ms STALL=15s", options{rate: 10, frames: 300, conns: 1, sessions: true, runs: 1, novel: 0.1, mqtt: true, slowSync: time.Millisecond, stall: 15 * time.Second})

	wrong := func(pairs, want string) {
		t.Helper()
		if _, err := optionsFrom(env(pairs)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", pairs, err, want)
		}
	}
	wrong("FRAMES=0", "FRAMES=0: want a whole number from 1")
	wrong("RATE=fast CONNS=-1", "RATE=fast: want a whole number from 0\nCONNS=-1: want a whole number from 1")
	wrong("NOVEL=2", "NOVEL=2: want a share from 0 to 1")
	wrong("DURATION=10", "DURATION=10: want a time as 10m, 30s or 1ms")
	wrong("STALL=15s MQTT=1", "STALL: want MQTT=1, whose broker stalls, and RATE")
}

func TestParseMetrics(t *testing.T) {
	m, err := parseMetrics(strings.NewReader(`# HELP edm_frames_total Frames.
# TYPE edm_frames_total counter
edm_frames_total{result="well_known"} 1.5e+06
edm_frames_total{result="session"} 2
edm_frames_total_more 4
edm_processed_dnstap_total 8
`))
	if err != nil {
		t.Fatal(err)
	}
	if n := m.sum("edm_frames_total"); n != 1_500_002 {
		t.Errorf("sum %d", n)
	}
	if n := m.sum("edm_processed_dnstap_total"); n != 8 {
		t.Errorf("without labels: %d", n)
	}
	if n := m.result("session"); n != 2 {
		t.Errorf("one result: %d", n)
	}
	if _, err := parseMetrics(strings.NewReader("a b\n")); err == nil {
		t.Error("a value that is no number was taken")
	}
}

func TestLastFrames(t *testing.T) {
	ends, err := lastFrames(strings.NewReader(`{"msg":"started","files":["a"]}
{"level":"info","msg":"stopped","frames":{"received":3,"well_known":2,"dropped_no_question":1}}
`))
	if err != nil || len(ends) != 3 || ends["well_known"] != 2 {
		t.Errorf("%v %v", ends, err)
	}
	if _, err := lastFrames(strings.NewReader("{\"msg\":\"started\"}\n")); err == nil {
		t.Error("a log without an end was taken")
	}
	if _, err := lastFrames(strings.NewReader("panic\n")); err == nil {
		t.Error("a line that is no JSON was taken")
	}
}

func TestTable(t *testing.T) {
	f := func(layout string, rows [][]string, want ...string) {
		t.Helper()
		var b strings.Builder
		table(&b, layout, rows)
		if got := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n"); !slices.Equal(got, want) {
			t.Errorf("\n%s\nwant\n%s", b.String(), strings.Join(want, "\n"))
		}
	}
	f("lr", [][]string{{"NAME", "n"}, {"a", "1 000"}, {"é", "7"}},
		"  NAME      n",
		"  a     1 000",
		"  é         7")
	f("rl", [][]string{{"1", "x"}, {"22", ""}},
		"   1  x",
		"  22")
}

func TestGrouped(t *testing.T) {
	f := func(n int, want string) {
		t.Helper()
		if got := grouped(n); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(0, "0")
	f(999, "999")
	f(1000, "1 000")
	f(3000000, "3 000 000")
}

func TestNameOfARow(t *testing.T) {
	f := func(want string, in ...string) {
		t.Helper()
		r := row{columns: map[string]int{}}
		for i := range 10 {
			r.columns[fmt.Sprint("label", i)] = i
			v := parquet.NullValue()
			if i < len(in) {
				v = parquet.ValueOf(in[i])
			}
			r.values = append(r.values, v)
		}
		if got := r.name(); got != want {
			t.Errorf("%v: %q, want %q", in, got, want)
		}
	}
	f(".")
	f("com", "com")
	f("www.example.com", "com", "example", "www")
	f("*.wild.example", "example", "wild", "")
	f("a.b.c.d.e.f.g.h.i.j.k.l.deep.example", "example", "deep", "l", "k", "j", "i", "h", "g", "f", "e.d.c.b.a")
	f("*.b.c.d.e.f.g.h.i.j", "j", "i", "h", "g", "f", "e", "d", "c", "b", "")
}

func TestAges(t *testing.T) {
	a := ages{sent: 100}
	a.before(10)
	a.counted(110)
	if a.greatest != 0 || len(a.writes) != 0 {
		t.Fatalf("all is counted, yet the greatest age is %v", a.greatest)
	}
	a.before(10)
	a.writes[0].at = a.writes[0].at.Add(-time.Second)
	a.before(10)
	a.counted(120) // the old write is whole, the young one is not
	if a.greatest >= time.Second || len(a.writes) != 1 {
		t.Fatalf("a counted frame has an age: %v", a.greatest)
	}
	a.writes[0].at = a.writes[0].at.Add(-time.Minute)
	a.counted(129)
	if a.greatest < time.Minute || a.greatest > 2*time.Minute {
		t.Fatalf("greatest age %v, want a minute", a.greatest)
	}
}

func TestParseSyncs(t *testing.T) {
	got, err := parseSyncs(strings.NewReader(`7 99.9 fdatasync(7</d/seen/000002.log>) = 0
7 100.1 fdatasync(7</d/seen/000002.log>) = 0
8 101.0 fdatasync(7</d/seen/000002.log> <unfinished ...>
7 101.2 fsync(9</d/parquet/x>) = 0
8 101.3 <... fdatasync resumed>) = 0
8 101.2 fsync(7</d/seen/000004.log>) = 0
8 104.1 fdatasync(7</d/seen/000004.log>) = 0
8 104.2 +++ exited with 0 +++
`), time.Unix(100, 0), time.Unix(104, 0))
	if want := (syncs{PerS: 0.75, Most: 2}); err != nil || got != want {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
}

func TestEventCost(t *testing.T) {
	// 2 µs a frame without events, 4 with, a tenth of the frames new.
	if got := eventCost(result{CPU: 2}, result{CPU: 4, Frames: 1000, Novel: 100}); got != 20 {
		t.Errorf("%v µs, want 20", got)
	}
}

func TestEventsThatDiffer(t *testing.T) {
	b := new(broker)
	b.events.reset(nil)
	for _, message := range []string{"a", "b", "a"} {
		b.events.add([]byte(message))
	}
	var r result
	r.compareEvents(b, metrics{"edm_new_qname_queued_total": 3, "edm_new_qname_discarded_total": 0}, 3)
	want := []string{"events that came: 2, want 3", "events that came twice: 1, want 0"}
	if !slices.Equal(r.Failures, want) {
		t.Errorf("%q, want %q", r.Failures, want)
	}
}
