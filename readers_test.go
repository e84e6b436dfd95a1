package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gotap "github.com/dnstap/golang-dnstap"
	framestream "github.com/farsightsec/golang-framestream"
	"github.com/miekg/dns"
	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/proto"
)

// The files that edm writes are read by programs that share no code with it:
// DuckDB reads the parquet, PostgreSQL the sketches inside.

// readerSizes are numbers of clients around the sizes at which a sketch
// changes its form: explicit up to 20, sparse up to 256 registers, then full.
var readerSizes = []int{1, 2, 19, 20, 21, 22, 40, 100, 200, 250, 255, 256, 257, 270, 290, 300, 320, 400, 1000, 4000}

// sizedName is the well-known name that size clients ask for.
func sizedName(size int) string { return fmt.Sprintf("n%d.example.com.", size) }

// readerClient is client number i of run number n: runs share half of them.
func readerClient(family, n, i int) netip.Addr {
	v := uint32(n)<<24 + uint32(i)
	if i%2 == 0 {
		v = uint32(i)
	}
	v = (v + 1) * 2654435761 // spread over the address space, no two the same
	if family == 4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, v)))
	}
	b := [16]byte{0x20, 1, 0xd, 0xb8}
	binary.BigEndian.PutUint32(b[12:], v)
	return netip.AddrFrom16(b)
}

// deepName has fourteen labels: the last column holds five of them.
const deepName = "a.b.c.d.e.f.g.h.i.j.k.l.deep.example."

// readerFrames are the dnstap messages of run number n.
func readerFrames(t testing.TB, n int) [][]byte {
	t.Helper()
	var frames [][]byte
	add := func(m tapMessage) { frames = append(frames, m.marshal(t)) }
	for _, size := range readerSizes {
		for i := range size {
			add(tapMessage{client: readerClient(4, n, i), name: sizedName(size), qtype: dns.TypeA})
			add(tapMessage{client: readerClient(6, n, i), name: sizedName(size), qtype: dns.TypeAAAA, rcode: i % 5})
		}
	}
	for i := range 3 {
		c := readerClient(4, n, i)
		add(tapMessage{client: c, name: "x.wild.example.", qtype: dns.TypeMX})
		add(tapMessage{client: c, name: deepName, qtype: dns.TypeNS, rcode: 3})
		// And these are not well known.
		add(tapMessage{client: c, name: "other." + deepName, qtype: dns.TypeTXT})
		add(tapMessage{client: readerClient(6, n, i), name: ".", qtype: dns.TypeNS, protocol: gotap.SocketProtocol_DOT})
		add(tapMessage{client: c, name: "a\\.b\\000\\255\\\"c.example.", qtype: dns.TypeA, protocol: gotap.SocketProtocol_TCP})
		add(tapMessage{name: "nobody.example.", qtype: dns.TypeA}) // no addresses at all
	}
	return frames
}

// A tapMessage is a client response of a resolver at 192.0.2.53 or
// 2001:db8::53.
type tapMessage struct {
	client   netip.Addr
	name     string
	qtype    uint16
	rcode    int
	protocol gotap.SocketProtocol // 0 is UDP
}

func (m tapMessage) marshal(t testing.TB) []byte {
	t.Helper()
	reply := question(m.name, m.qtype)
	reply.Response, reply.Rcode = true, m.rcode
	wire, err := reply.Pack()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	d := &gotap.Dnstap{
		Type:     gotap.Dnstap_MESSAGE.Enum(),
		Identity: []byte("reader-test"),
		Message: &gotap.Message{
			Type:             gotap.Message_CLIENT_RESPONSE.Enum(),
			SocketProtocol:   gotap.SocketProtocol_UDP.Enum(),
			QueryTimeSec:     proto.Uint64(uint64(now.Unix())),
			QueryTimeNsec:    proto.Uint32(uint32(now.Nanosecond())),
			ResponseTimeSec:  proto.Uint64(uint64(now.Unix())),
			ResponseTimeNsec: proto.Uint32(uint32(now.Nanosecond())),
			ResponseMessage:  wire,
		},
	}
	if m.protocol != 0 {
		d.Message.SocketProtocol = m.protocol.Enum()
	}
	if m.client.IsValid() {
		server := netip.MustParseAddr("192.0.2.53")
		d.Message.SocketFamily = gotap.SocketFamily_INET.Enum()
		if m.client.Is6() {
			server = netip.MustParseAddr("2001:db8::53")
			d.Message.SocketFamily = gotap.SocketFamily_INET6.Enum()
		}
		d.Message.QueryAddress, d.Message.QueryPort = m.client.AsSlice(), proto.Uint32(40000)
		d.Message.ResponseAddress, d.Message.ResponsePort = server.AsSlice(), proto.Uint32(53)
	}
	b, err := proto.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// writeFrames writes a Frame Streams file.
func writeFrames(t testing.TB, path string, frames [][]byte) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := framestream.NewWriter(f, &framestream.WriterOptions{ContentTypes: [][]byte{[]byte(contentType)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, frame := range frames {
		if _, err := w.WriteFrame(frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// replay puts Frame Streams files through edm -replay and returns what it
// printed, and an error if it did not exit with 0.
func (d *daemon) replay(t testing.TB, files ...string) (string, error) {
	t.Helper()
	path, err := edmBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, append([]string{"-config", d.config, "-replay"}, files...)...).CombinedOutput()
	return string(out), err
}

// replayedRuns puts two runs of readerFrames through edm, each into a folder of its
// own, once for all tests. The folders are in scratch.
var replayedRuns = func() func(t testing.TB) [2]*daemon {
	var once sync.Once
	var runs [2]*daemon
	return func(t testing.TB) [2]*daemon {
		t.Helper()
		once.Do(func() {
			list := filepath.Join(scratch, "readers.txt")
			names := "*.wild.example\n" + deepName + "\n"
			for _, size := range readerSizes {
				names += sizedName(size) + "\n"
			}
			write(t, list, names)
			for n := range runs {
				file := filepath.Join(scratch, fmt.Sprintf("readers%d.fstrm", n))
				writeFrames(t, file, readerFrames(t, n))
				dir := filepath.Join(scratch, fmt.Sprintf("readers%d", n))
				d := plan(t, fmt.Sprintf("well_known_domains_file = %q", list), fmt.Sprintf("data_dir = %q", dir))
				d.dir = dir
				if out, err := d.replay(t, file); err != nil {
					t.Fatalf("replay: %v\n%s", err, out)
				}
				runs[n] = d
			}
		})
		if runs[1] == nil {
			t.Fatal("the replay failed in another test")
		}
		return runs
	}
}()

// What DuckDB must say of the columns: name, physical type, repetition,
// logical type.
func labelColumns() []string {
	var columns []string
	for i := range 10 {
		columns = append(columns, fmt.Sprintf("label%d BYTE_ARRAY OPTIONAL StringType()", i))
	}
	return columns
}

const (
	duckTimestamp = "TimestampType(isAdjustedToUTC=1, unit=TimeUnit(MILLIS=<null>, MICROS=MicroSeconds(), NANOS=<null>))"
	duckUnsigned  = "IntType(bitWidth=%c, isSigned=0)" // DuckDB prints the width as a character
)

func histogramSchema() []string {
	columns := append([]string{"start_time INT64 REQUIRED " + duckTimestamp}, labelColumns()...)
	for _, c := range append(slices.Clone(countColumns), "edm_status_bits", "v4client_count", "v6client_count") {
		columns = append(columns, c+" INT64 REQUIRED "+fmt.Sprintf(duckUnsigned, 64))
	}
	return append(columns, "v4client_count_hll BYTE_ARRAY OPTIONAL", "v6client_count_hll BYTE_ARRAY OPTIONAL")
}

func sessionSchema() []string {
	columns := append(labelColumns(), "server_id BYTE_ARRAY OPTIONAL")
	add := func(suffix string, names ...string) {
		for _, n := range names {
			columns = append(columns, n+" "+suffix)
		}
	}
	add("INT64 OPTIONAL "+duckTimestamp, "query_time", "response_time")
	add("INT32 OPTIONAL "+fmt.Sprintf(duckUnsigned, 32), "source_ipv4", "dest_ipv4")
	add("INT64 OPTIONAL "+fmt.Sprintf(duckUnsigned, 64), "source_ipv6_network", "source_ipv6_host", "dest_ipv6_network", "dest_ipv6_host")
	add("INT32 OPTIONAL "+fmt.Sprintf(duckUnsigned, 16), "source_port", "dest_port")
	add("INT32 OPTIONAL "+fmt.Sprintf(duckUnsigned, 8), "dns_protocol")
	add("BYTE_ARRAY OPTIONAL", "query_message", "response_message")
	return columns
}

func TestDuckDBReadsTheFiles(t *testing.T) {
	read := duckDB(t)
	d := replayedRuns(t)[0]
	f := func(files []string, root string, schema []string, keys ...string) {
		t.Helper()
		if len(files) == 0 {
			t.Fatalf("no file of %s", root)
		}
		for _, file := range files {
			got := read(file)
			if s := got.columns(); got.Schema[0]["name"] != root || !slices.Equal(s, schema) {
				t.Errorf("%s: root %v, columns\n%s\nwant root %s, columns\n%s", file, got.Schema[0]["name"], strings.Join(s, "\n"), root, strings.Join(schema, "\n"))
			}
			if len(got.Compression) != 1 || got.Compression[0]["compression"] != "SNAPPY" {
				t.Errorf("%s: compression %v", file, got.Compression)
			}
			metadata := make(map[string]string)
			for _, m := range got.Metadata {
				metadata[m["key"].(string)] = m["value"].(string)
			}
			for _, k := range keys {
				if metadata[k] == "" {
					t.Errorf("%s: metadata %q is missing: %v", file, k, metadata)
				}
			}
			if want := goMetadata(t, file); !maps.Equal(metadata, want) {
				t.Errorf("%s: metadata %v, parquet-go reads %v", file, metadata, want)
			}
			var rows []row
			for _, r := range readParquet(t, file) {
				rows = append(rows, r.texts())
			}
			if len(rows) != len(got.Rows) {
				t.Fatalf("%s: DuckDB reads %d rows, parquet-go %d", file, len(got.Rows), len(rows))
			}
			for i, r := range rows { // in the file's order
				if !maps.Equal(r, got.Rows[i]) {
					t.Fatalf("%s: row %d: DuckDB reads\n%v\nparquet-go\n%v", file, i, got.Rows[i], r)
				}
			}
		}
	}
	f(d.histogramFiles(t), "histogramData", histogramSchema(), "edm.version", "edm.node", "edm.interval", "edm.file_id")
	f(d.sessionFiles(t), "sessionData", sessionSchema())
}

// texts returns a row as read.mjs prints it.
func (r row) texts() row {
	texts := make(row)
	for column, v := range r {
		switch v := v.(type) {
		case nil:
			texts[column] = nil
		case []byte:
			texts[column] = fmt.Sprintf("%x", v)
		default:
			texts[column] = fmt.Sprint(v)
		}
	}
	return texts
}

func goMetadata(t testing.TB, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, _ := f.Stat()
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for _, kv := range file.Metadata().KeyValueMetadata {
		m[kv.Key] = kv.Value
	}
	return m
}

// duckFile is what testdata/duckdb/read.mjs prints.
type duckFile struct {
	Schema, Columns, Metadata, Compression, Rows []row
}

// columns returns the schema without its root, one line a column.
func (d duckFile) columns() []string {
	var lines []string
	for _, c := range d.Schema[1:] {
		line := fmt.Sprintf("%v %v %v", c["name"], c["type"], c["repetition_type"])
		if l, ok := c["logical_type"].(string); ok {
			line += " " + l
		}
		lines = append(lines, line)
	}
	return lines
}

// duckDB installs DuckDB's npm package into build/duckdb, if it is not there,
// and returns a function that reads a file with it.
func duckDB(t *testing.T) func(file string) duckFile {
	t.Helper()
	node, npm := need(t, "node", "nodejs"), need(t, "npm", "npm")
	dir := filepath.Join("build", "duckdb")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	changed := false
	for _, name := range []string{"package.json", "package-lock.json", "read.mjs"} {
		want, err := os.ReadFile(filepath.Join("testdata", "duckdb", name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			changed = true
			write(t, filepath.Join(dir, name), string(want))
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@duckdb", "node-api")); err != nil || changed {
		cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "npm_config_update_notifier=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			missing(t, "the npm package @duckdb/node-api cannot be installed: %v\n%s", err, out)
		}
	}
	return func(file string) duckFile {
		t.Helper()
		var d duckFile
		out, err := exec.Command(node, filepath.Join(dir, "read.mjs"), file).Output()
		if err != nil {
			t.Fatalf("DuckDB reads %s: %v: %s", file, err, stderrOf(err))
		}
		if err := json.Unmarshal(out, &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func stderrOf(err error) []byte {
	if e, ok := err.(*exec.ExitError); ok {
		return e.Stderr
	}
	return nil
}
