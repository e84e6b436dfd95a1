package main

import (
	"path/filepath"
	"strings"
	"testing"

	"edm/traffic"
)

// TestDemo runs the demonstration, twice in the same folder.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the daemon")
	}
	t.Chdir("..")
	dir := filepath.Join(t.TempDir(), "demo")
	for range 2 {
		var out strings.Builder
		if err := demo(dir, &out); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		// The traffic is the same on every machine, and so is what comes of it.
		for _, want := range []string{
			"\n  in all                                                      300 000\n",
			"\n  skipped_CLIENT_QUERY       not an answer to a client: counted, nothing else             2 974\n",
			"\n  in all                                                                                300 000\n",
			"\n  tellink.net         13 632 ",
			"\n  12:00:12.025200 ",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no line %q in\n%s", want, out.String())
			}
		}
	}
}

// TestRun measures edm, at full speed and paced, with few frames: every one
// must be in the right counter.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the daemon")
	}
	t.Chdir("..")
	edm, err := buildEDM(t.TempDir(), "off")
	if err != nil {
		t.Fatal(err)
	}
	f := func(o options, v variant, wantSessionFiles int) {
		t.Helper()
		o.edm, o.runs = edm, 1
		l, err := newLoad(o)
		if err != nil {
			t.Fatal(err)
		}
		if o.mqtt {
			if _, err := findMosquitto(); err != nil {
				t.Skip(err)
			}
			if l.broker, err = startBroker(filepath.Join(t.TempDir(), "broker")); err != nil {
				t.Fatal(err)
			}
			defer l.broker.stop()
		}
		r, err := l.run(filepath.Join(t.TempDir(), "run"), v)
		if err != nil {
			t.Fatalf("%s: %v", o, err)
		}
		for _, failure := range r.Failures {
			t.Errorf("%s: %s", o, failure)
		}
		bursts := 0
		if o.rate > 0 {
			bursts = 20*1 + 20*(19*20/2)
		}
		if v.events && (r.Events != o.frames || r.EventsPerS <= 0 || r.SignatureUs <= 0) {
			t.Errorf("%s: %d events: %+v", o, r.Events, r)
		}
		if r.Frames != o.frames || r.WellKnown+r.Session != o.frames+l.warm.Len()+bursts {
			t.Errorf("%s: %d frames, %d well-known, %d others", o, r.Frames, r.WellKnown, r.Session)
		}
		if r.CPU <= 0 || r.Yardstick <= 0 || r.PeakMiB < 5 || r.MemoryMiB == [10]float64{} && o.rate > 0 {
			t.Errorf("%s: not measured: %+v", o, r)
		}
		if n := r.Files["dns_session_block"].Files; n < wantSessionFiles || wantSessionFiles == 0 && n > 0 {
			t.Errorf("%s: %d session files", o, n)
		}
	}
	f(options{frames: 30_000, conns: 2, sessions: true, novel: 0.1}, variant{}, 1)
	f(options{frames: 10_000, conns: 1, rate: 20_000, workers: 1, novel: 0.5}, variant{}, 0)
	f(options{frames: 5_000, conns: 1, novel: 1, mqtt: true}, variant{events: true, sync: true}, 0)
}

// TestCheckFindsALostFrame makes sure that a run that lost a frame fails.
func TestCheckFindsALostFrame(t *testing.T) {
	m := metrics{
		"edm_processed_dnstap_total":                     10,
		`edm_frames_total{result="well_known"}`:          5,
		`edm_frames_total{result="session"}`:             5,
		`edm_frames_dropped_total{reason="no_question"}`: 0,
	}
	sent := traffic.Counts{Frames: 10}
	sent.Kinds[traffic.WellKnown], sent.Kinds[traffic.Seen], sent.Kinds[traffic.Novel] = 5, 4, 1
	var good result
	good.compare(m, sent)
	if len(good.Failures) != 0 {
		t.Errorf("%q", good.Failures)
	}
	f := func(series string, value float64, want ...string) {
		t.Helper()
		old := m[series]
		defer func() { m[series] = old }()
		m[series] = value
		var r result
		r.compare(m, sent)
		if got := strings.Join(r.Failures, "; "); got != strings.Join(want, "; ") {
			t.Errorf("%s %v: %s", series, value, got)
		}
	}
	f("edm_processed_dnstap_total", 11, "frames received: 11, want 10", "frames that ended in a counter: 10, want 11")
	f(`edm_frames_total{result="well_known"}`, 4, "frames that ended in a counter: 9, want 10", "well-known names: 4, want 5")
	f(`edm_frames_dropped_total{reason="no_question"}`, 1, "frames that ended in a counter: 11, want 10")
	f(`edm_frames_total{result="session"}`, 6, "frames that ended in a counter: 11, want 10", "every other name: 6, want 5")
}
