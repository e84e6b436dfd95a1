package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Real resolvers send their dnstap to a real edm, and every row of its files
// is compared with what was asked.

func TestUnbound(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"bidirectional", "unidirectional"} {
		t.Run(kind, func(t *testing.T) {
			need(t, "unbound", "unbound")
			d := startResolverEDM(t)
			r := startUnbound(t, fmt.Sprintf("dnstap-socket-path: %q", d.socket),
				"dnstap-bidirectional: "+map[string]string{"bidirectional": "yes", "unidirectional": "no"}[kind])
			compare(t, d, r, 0)
		})
	}
}

func TestUnboundTCP(t *testing.T) {
	t.Parallel()
	need(t, "unbound", "unbound")
	d := startResolverEDM(t)
	r := startUnbound(t, "dnstap-ip: "+strings.Replace(d.tcp, ":", "@", 1), "dnstap-tls: no")
	compare(t, d, r, 0)
}

func TestBIND(t *testing.T) {
	t.Parallel()
	need(t, "named", "bind9")
	d := startResolverEDM(t)
	compare(t, d, startBIND(t, d.socket), 0)
}

func TestKnotResolver(t *testing.T) {
	t.Parallel()
	need(t, "kresd", "knot-resolver")
	d := startResolverEDM(t)
	// Its queries are sent too, and only counted.
	compare(t, d, startKnot(t, d.socket), 1)
}

func TestDNSDist(t *testing.T) {
	t.Parallel()
	need(t, "dnsdist", "dnsdist")
	d := startResolverEDM(t)
	compare(t, d, startDNSDist(t, d.tcp), 0)
}

// startResolverEDM starts edm with a Unix socket, a TCP port and the
// well-known names of the questions.
func startResolverEDM(t *testing.T) *daemon {
	t.Helper()
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", wellKnownFile(t)))
	d.set(t, fmt.Sprintf("input_unix = %q", d.socket), fmt.Sprintf("input_tcp = %q", d.tcp))
	d.start(t)
	return d
}

// wellKnownFile writes testWellKnown to a file.
func wellKnownFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "well-known.txt")
	write(t, path, testWellKnown)
	return path
}

// compare asks the resolver, ends it and then edm, and compares what edm
// wrote with what was asked. queries is how many frames of type CLIENT_QUERY
// the resolver sends with each response.
func compare(t *testing.T, d *daemon, r *resolver, queries int) {
	t.Helper()
	d.awaitStreams(t, 1)
	told := func(asked []exchange) []exchange {
		return slices.DeleteFunc(slices.Clone(asked), func(x exchange) bool { return r.silent != nil && r.silent(x) })
	}
	frames := 0.0
	arrived := func(asked []exchange) {
		frames = float64(len(told(asked)) * (1 + queries))
		d.await(t, frames, "edm_processed_dnstap_total")
	}
	began := time.Now()
	done := askAll(t, r, arrived)
	ended := time.Now()
	checkVariety(t, done, r.codes...)
	arrived(done)
	done = told(done)
	r.terminate(t, patience)
	// What it had not sent is sent now: nothing more may come.
	until(t, func() bool { return sum(d.scrape(t), "edm_connections") == 0 }, func() string { return "the resolver's connection stays open" })
	m := d.scrape(t)
	if got := checkConservation(t, m); got != frames {
		t.Errorf("%v frames arrived, want %v", got, frames)
	}
	if got := sum(m, "edm_messages_skipped_total", `type="CLIENT_QUERY"`); got != float64(queries*len(done)) {
		t.Errorf("%v queries counted, want %d", got, queries*len(done))
	}
	d.stop(t)

	histogram, sessions := readAll(t, d.histogramFiles(t)), readAll(t, d.sessionFiles(t))
	checkTimes(t, histogram, sessions, began, ended)
	// The questions may fall into two minutes, which then have a file each.
	if len(d.histogramFiles(t)) == 1 {
		compareRows(t, "histogram", named(histogram), expectHistogram(done))
	} else {
		compareCounts(t, named(histogram), expectHistogram(done))
	}
	compareRows(t, "sessions", sessions, expectSessions(t, done, r.identity))
	checkNoSecrets(t, sessions)
	want := float64(len(sessions))
	if got := sum(m, "edm_frames_total", `result="session"`); got != want {
		t.Errorf("%v frames counted as session, %v rows", got, want)
	}
}

// named replaces the labels of histogram rows by a name.
func named(rows []row) []row {
	for _, r := range rows {
		r["name"] = r.name()
		for i := range 10 {
			delete(r, fmt.Sprint("label", i))
		}
	}
	return rows
}

// compareCounts compares the counts alone, added up over several files.
func compareCounts(t *testing.T, got, want []row) {
	t.Helper()
	total := func(rows []row) []row {
		byName := make(map[string]row)
		for _, r := range rows {
			name := r["name"].(string)
			if byName[name] == nil {
				byName[name] = row{"name": name}
			}
			for _, c := range countColumns {
				byName[name][c] = byName[name].u(c) + r.u(c)
			}
		}
		var all []row
		for _, r := range byName {
			all = append(all, r)
		}
		return all
	}
	compareRows(t, "histograms", total(got), total(want))
}

// checkTimes checks that the times are those of the questions, and removes
// them from the rows. A resolver looks at the clock now and then only, so its
// time may be a little before the question.
func checkTimes(t *testing.T, histogram, sessions []row, began, ended time.Time) {
	t.Helper()
	within := func(what string, v any, from, to time.Time) {
		t.Helper()
		us, ok := v.(int64)
		if at := time.UnixMicro(us); !ok || at.Before(from) || at.After(to) {
			t.Errorf("%s %v is not between %v and %v", what, v, from, to)
		}
	}
	read := time.Now() // a resolver may send what it has only when it stops
	ended = ended.Add(time.Second)
	for _, r := range histogram {
		within("start_time", r["start_time"], began.Add(-time.Minute), read)
		if us, _ := r["start_time"].(int64); us%1e6 != 0 {
			t.Errorf("start_time %d is not a whole second", us)
		}
		delete(r, "start_time")
	}
	for _, r := range sessions {
		within("response_time", r["response_time"], began.Add(-time.Second), ended)
		if r["query_time"] != nil { // dnsdist says when the question came
			within("query_time", r["query_time"], began.Add(-time.Second), ended)
		}
		delete(r, "response_time")
		delete(r, "query_time")
	}
}

// checkVariety makes sure that the questions were worth asking.
func checkVariety(t *testing.T, done []exchange, codes ...int) {
	t.Helper()
	if len(done) < 200 {
		t.Errorf("only %d questions", len(done))
	}
	seen := make(map[int]int)
	for _, x := range done {
		seen[x.answer.Rcode]++
	}
	for _, code := range append(codes, dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeRefused) {
		if seen[code] == 0 {
			t.Errorf("no answer with %s: %v", dns.RcodeToString[code], seen)
		}
	}
}

func checkNoSecrets(t *testing.T, sessions []row) {
	t.Helper()
	for _, r := range sessions {
		message, _ := r["response_message"].([]byte)
		for _, s := range secrets {
			if bytes.Contains(message, s) {
				t.Errorf("a stored message holds %q: %x", s, message)
			}
		}
	}
}

// A recursor that sends what it asks others has nothing for edm: everything is
// counted by type, and the log says why once for each type.
func TestPowerDNSRecursor(t *testing.T) {
	t.Parallel()
	need(t, "pdns_recursor", "pdns-recursor")
	d := startResolverEDM(t)
	r, asked := startRecursor(t, d.socket)
	d.awaitStreams(t, 3) // its threads have one each
	for i := range 20 {
		ask(t, r, fmt.Sprint("127.0.0.", 2+i), "udp", question(fmt.Sprintf("n%d.example.net.", i), dns.TypeA))
	}
	d.await(t, float64(2*asked()), "edm_processed_dnstap_total")
	r.terminate(t, patience)
	until(t, func() bool { return sum(d.scrape(t), "edm_connections") == 0 }, func() string { return "the recursor's connection stays open" })
	m := d.scrape(t)
	checkConservation(t, m)
	for _, kind := range []string{"RESOLVER_QUERY", "RESOLVER_RESPONSE"} {
		if got := sum(m, "edm_messages_skipped_total", fmt.Sprintf("type=%q", kind)); got != float64(asked()) {
			t.Errorf("%v of type %s counted, want %d", got, kind, asked())
		}
	}
	d.stop(t)
	checkWarnings(t, d, "RESOLVER_QUERY", "RESOLVER_RESPONSE")
	if files := append(d.histogramFiles(t), d.sessionFiles(t)...); len(files) > 0 {
		t.Errorf("files of nothing: %v", files)
	}
}

// checkWarnings checks that the log warns of each message type once.
func checkWarnings(t *testing.T, d *daemon, kinds ...string) {
	t.Helper()
	for _, kind := range kinds {
		n := 0
		for _, e := range d.entries("warn") {
			if strings.Contains(fmt.Sprint(e), kind) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d warnings about %s, want 1\n%s", n, kind, d.log())
		}
	}
}

// A resolver keeps running while edm is restarted under it three times, once
// after a crash that left the socket behind.
func TestRestart(t *testing.T) {
	t.Parallel()
	need(t, "unbound", "unbound")
	d := plan(t)
	d.set(t, fmt.Sprintf("input_unix = %q", d.socket), `input_unix_mode = "0606"`)
	d.start(t)
	r := startUnbound(t, fmt.Sprintf("dnstap-socket-path: %q", d.socket))
	var done []exchange
	for i := range 4 {
		if i > 0 {
			d.stop(t)
		}
		if i == 2 {
			d.start(t)
			d.kill()
		}
		if i > 0 {
			if took := d.start(t); took > time.Second {
				t.Errorf("edm listens again after %v", took)
			}
		}
		if got := mode(t, d.socket); got != os.ModeSocket|0o606 {
			t.Errorf("the socket's mode is %v", got)
		}
		d.awaitStreams(t, 1)
		for range 25 {
			done = append(done, ask(t, r, "127.0.0.9", "udp", question("other.example.net.", dns.TypeA)))
		}
		m := d.await(t, 25, "edm_processed_dnstap_total")
		if got := checkConservation(t, m); got != 25 {
			t.Errorf("after restart %d: %v frames, want 25", i, got)
		}
	}
	d.stop(t)
	sessions := readAll(t, d.sessionFiles(t))
	for _, s := range sessions {
		delete(s, "response_time")
	}
	compareRows(t, "sessions", sessions, expectSessions(t, done, r.identity))
}
