package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"edm/cryptopan"
	"edm/output"
)

// TestReadWhatEDMWrites reads files of package output.
func TestReadWhatEDMWrites(t *testing.T) {
	start := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	meta := output.Meta{Version: "1", Node: "n"}

	rows := []output.HistogramRow{
		{Name: wireName(t, "example.com."), Counts: output.Counts{A: 3, AAAA: 2, OK: 4, NX: 1}, V4: &output.Sketch{}, V6: &output.Sketch{}},
		{Name: wireName(t, "wild.example."), Suffix: true, Counts: output.Counts{MX: 1, OK: 1}, V4: &output.Sketch{}, V6: &output.Sketch{}},
	}
	rows[0].V6.Add(1<<40, 20)
	if _, err := output.WriteHistogram(dir, meta, output.Histogram{
		Interval: output.Interval{Start: start, Stop: start.Add(time.Minute)},
		Rows:     len(rows),
		Row:      func(i int) output.HistogramRow { return rows[i] },
	}); err != nil {
		t.Fatal(err)
	}
	histogram, _, err := readFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(histogram) != 2 {
		t.Fatalf("%d rows", len(histogram))
	}
	if r := histogram[0]; r.name() != "example.com" || r.number("a_count") != 3 || r.number("nx_count") != 1 || r.questions() != 5 || r.number("v4client_count") != 0 || r.number("v6client_count") != 1 {
		t.Errorf("%s %+v", r.name(), r.values)
	}
	if r := histogram[1]; r.name() != "*.wild.example" || r.questions() != 1 {
		t.Errorf("%s %+v", r.name(), r.values)
	}

	cipher, err := cryptopan.New([]byte("key"), []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	file, err := output.CreateSession(dir, start)
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := cipher.Pseudonym(netip.MustParseAddr("192.0.2.1")), cipher.Pseudonym(netip.MustParseAddr("2001:db8::1"))
	var b output.Block
	b.Append(&output.Row{
		Has: output.HasResponseTime | output.HasProtocol, Protocol: 2, ResponseTime: start.UnixMicro() + 7,
		Source: v4, Name: wireName(t, "www.example.org."), Response: []byte("message"),
	})
	b.Append(&output.Row{Source: v6, Name: []byte{0}})
	if err := file.Write(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Commit(meta, start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	session, _, err := readFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(session) != 2 {
		t.Fatalf("%d rows", len(session))
	}
	if r := session[0]; r.name() != "www.example.org" || r.client() != v4.Addr().String() || string(r.value("response_message").ByteArray()) != "message" || r.protocol() != "TCP" {
		t.Errorf("%s %+v", r.name(), r.values)
	}
	if at := session[0].responseTime(); !at.Equal(start.Add(7 * time.Microsecond)) {
		t.Errorf("response time %v", at)
	}
	if r := session[1]; r.name() != "." || r.client() != v6.Addr().String() || !r.responseTime().IsZero() || r.protocol() != "-" || !r.value("response_message").IsNull() {
		t.Errorf("%s %+v", r.name(), r.values)
	}
}

func wireName(t *testing.T, name string) []byte {
	t.Helper()
	b := make([]byte, 256)
	n, err := dns.PackDomainName(name, b, 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}
