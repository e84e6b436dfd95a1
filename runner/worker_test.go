package runner

import (
	"encoding/base64"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	golangdnstap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"edm/dnstap"
	"edm/output"
	"edm/store"
	"edm/traffic"
)

// list writes lines to a file and returns its path.
func list(t testing.TB, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// testView is a view with the given lists; an empty one is none.
func testView(t testing.TB, names, ignoredNames, ignoredClients string) *view {
	t.Helper()
	testSeen() // outside of any bubble of fake time
	cfg := DefaultConfig()
	cfg.CryptopanKey = "secret"
	if names != "" {
		cfg.WellKnownDomainsFile = list(t, names)
	}
	if ignoredNames != "" {
		cfg.IgnoredQuestionNamesFile = list(t, ignoredNames)
	}
	if ignoredClients != "" {
		cfg.IgnoredClientIPsFile = list(t, ignoredClients)
	}
	v, err := loadView(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// testSeen is a store that all tests of workers ask, and that nobody commits to.
var testSeen = sync.OnceValue(func() *store.Seen {
	dir, err := os.MkdirTemp("", "edm-seen-")
	if err != nil {
		panic(err)
	}
	s, err := store.OpenSeen(store.SeenOptions{Dir: dir, Entries: 1000})
	if err != nil {
		panic(err)
	}
	os.RemoveAll(dir) // it stays open until the tests end
	return s
})

// testWorker is a worker on its own, that nothing sends to.
func testWorker(v *view) *worker {
	w := &worker{
		seen: testSeen(), names: make(chan *store.Names, 1000), spare: &namesList{}, fresh: new(store.Names),
		turns: make(chan turn, 1), harvest: make(chan *tally, 1), done: make(chan struct{}),
		blocks: make(chan *output.Block, 100), empty: &blockList{}, pages: &pageList{}, free: newFreeList(1 << 16),
		metrics:  newMetrics("test", zap.NewNop()),
		settings: workerSettings{threshold: 20, cache: 1000},
	}
	w.begin(v)
	w.now = time.Now().UnixMicro()
	return w
}

// response makes a frame, a CLIENT_RESPONSE for name, with changes.
func response(t testing.TB, name string, change func(*golangdnstap.Dnstap, *dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	m.Response = true
	now := time.Now()
	d := &golangdnstap.Dnstap{
		Identity: []byte("resolver"),
		Type:     golangdnstap.Dnstap_MESSAGE.Enum(),
		Message: &golangdnstap.Message{
			Type:           golangdnstap.Message_CLIENT_RESPONSE.Enum(),
			SocketFamily:   golangdnstap.SocketFamily_INET.Enum(),
			SocketProtocol: golangdnstap.SocketProtocol_UDP.Enum(),
			QueryAddress:   []byte{198, 51, 100, 7}, ResponseAddress: []byte{192, 0, 2, 53},
			QueryPort: proto.Uint32(40000), ResponsePort: proto.Uint32(53),
			ResponseTimeSec: proto.Uint64(uint64(now.Unix())), ResponseTimeNsec: proto.Uint32(0),
		},
	}
	if change != nil {
		change(d, m)
	}
	if d.Message != nil && d.Message.ResponseMessage == nil {
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		d.Message.ResponseMessage = b
	}
	b, err := proto.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkSum holds that every frame received has one end.
func checkSum(t *testing.T, ends map[string]uint64) {
	t.Helper()
	var sum uint64
	for name, n := range ends {
		if name != "received" {
			sum += n
		}
	}
	if sum != ends["received"] {
		t.Errorf("%d frames came, %d ended: %v", ends["received"], sum, ends)
	}
}

// end returns how the one frame ended.
func endOf(t *testing.T, v *view, frame []byte) (string, *worker) {
	t.Helper()
	w := testWorker(v)
	w.frame(frame)
	bad := w.counts.bad
	w.metrics.add(&w.counts)
	w.counts.bad = bad // for who asks
	ends := w.metrics.ends()
	checkSum(t, ends)
	for name, n := range ends {
		if name != "received" {
			if n != 1 {
				t.Errorf("%s is %d", name, n)
			}
			return name, w
		}
	}
	t.Fatal("the frame has no end")
	return "", nil
}

func TestWhatBecomesOfAFrame(t *testing.T) {
	v := testView(t, "example.com\n*.wild.example\n", "*.secret.example\nsecret.example\n", "198.51.100.128/25\n2001:db8::/32\n")
	f := func(name, want string, frame []byte) {
		t.Run(name, func(t *testing.T) {
			if got, _ := endOf(t, v, frame); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	type change = func(*golangdnstap.Dnstap, *dns.Msg)
	with := func(name string, c change) []byte { return response(t, name, c) }
	raw := func(msg ...byte) []byte {
		return with("x.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.ResponseMessage = msg })
	}

	f("well known", "well_known", with("example.com.", nil))
	f("in mixed case", "well_known", with("ExAmPlE.COM.", nil))
	f("below a suffix entry", "well_known", with("a.b.wild.example.", nil))
	f("the name of a suffix entry", "session", with("wild.example.", nil))
	f("another", "session", with("example.net.", nil))
	f("the root", "session", with(".", nil))
	f("dot inside a label", "session", with(`a\.wild.example.`, nil))

	f("one byte", "dropped_protobuf", []byte{0x0a})
	f("nothing", "dropped_no_message", nil)
	f("no message", "dropped_no_message", []byte{15 << 3, 1})
	f("no response", "dropped_no_dns_message", protowire.AppendBytes([]byte{15 << 3, 1, 14<<3 | 2}, []byte{8, 6, 4<<3 | 2, 4, 192, 0, 2, 1}))
	f("empty response", "dropped_dns_header", raw([]byte{}...))
	f("eleven bytes", "dropped_dns_header", raw(make([]byte, 11)...))
	f("header with a question that is not there", "dropped_question", raw(0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0))
	f("no question", "dropped_no_question", raw(make([]byte, 12)...))
	f("an update", "dropped_opcode", with("x.", func(_ *golangdnstap.Dnstap, m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }))
	f("pointer loop", "dropped_question", raw(0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1))

	f("ignored client", "ignored_client", with("example.com.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.QueryAddress = []byte{198, 51, 100, 200} }))
	f("ignored client, mapped", "ignored_client", with("example.com.", func(d *golangdnstap.Dnstap, _ *dns.Msg) {
		d.Message.QueryAddress = net.ParseIP("::ffff:198.51.100.200").To16()
	}))
	f("ignored IPv6 client", "ignored_client", with("x.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.QueryAddress = net.ParseIP("2001:db8::1") }))
	f("client unknown", "ignored_client", with("x.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.QueryAddress = nil }))
	f("client of three octets", "ignored_client", with("x.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.QueryAddress = []byte{1, 2, 3} }))
	f("ignored name", "ignored_name", with("a.Secret.example.", nil))
	second := func(name string) change {
		return func(_ *golangdnstap.Dnstap, m *dns.Msg) {
			m.Question = append(m.Question, dns.Question{Name: name, Qtype: 1, Qclass: 1})
		}
	}
	f("ignored second name", "ignored_name", with("example.com.", second("secret.example.")))
	f("two names", "well_known", with("example.com.", second("example.net.")))
	f("second name cut", "ignored_name", with("x.", func(d *golangdnstap.Dnstap, m *dns.Msg) {
		second("y.")(d, m)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		d.Message.ResponseMessage = b[:len(b)-2]
	}))

	f("a query", "skipped_CLIENT_QUERY", with("example.com.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.Type = golangdnstap.Message_CLIENT_QUERY.Enum() }))
	f("a type of later", "skipped_unknown", protowire.AppendBytes([]byte{15 << 3, 1, 14<<3 | 2}, []byte{8, 0xff, 1}))
	f("type 0", "skipped_unknown", protowire.AppendBytes([]byte{15 << 3, 1, 14<<3 | 2}, []byte{8, 0}))
	f("not a message", "skipped_not_message", []byte{15 << 3, 2})
	f("no type, time of 2^64-1", "dropped_no_message", unbase64(t, "KAJyAHICUgByMDAwMDAwMDAwMDAwMUAwMDAwMDAwMDAwMDAwMDAwMGD/////////rjAwMDAwMDAwMDAAcgJyAHIA"))
}

func unbase64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A mapped address is the IPv4 address: in the list, in the sketch, in the row.
func TestMappedClientIsOneClient(t *testing.T) {
	w := testWorker(testView(t, "example.com\n", "", ""))
	for _, address := range [][]byte{{198, 51, 100, 7}, net.ParseIP("198.51.100.7").To16(), net.ParseIP("198.51.100.7").To16()} {
		w.frame(response(t, "example.com.", func(d *golangdnstap.Dnstap, _ *dns.Msg) {
			d.Message.SocketFamily = golangdnstap.SocketFamily_INET6.Enum()
			d.Message.QueryAddress = address
		}))
	}
	h := w.tally.histogram(output.Interval{})
	if row := h.Row(0); h.Rows != 1 || row.V4.Estimate() != 1 || row.V6.Estimate() != 0 || row.Counts.A != 3 {
		t.Errorf("got %d rows, %+v", h.Rows, row)
	}
}

func TestFieldsThatCannotBeUsed(t *testing.T) {
	v := testView(t, "", "", "")
	f := func(name string, bad int, has, hasNot output.Fields, change func(*golangdnstap.Message)) {
		t.Run(name, func(t *testing.T) {
			end, w := endOf(t, v, response(t, "example.com.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { change(d.Message) }))
			var want [numBad]uint64
			if bad >= 0 {
				want[bad] = 1
			}
			if end != "session" || w.counts.bad != want {
				t.Errorf("the frame ended as %s, unusable %v, want %v", end, w.counts.bad, want)
			}
			if w.row.Has&has != has || w.row.Has&hasNot != 0 {
				t.Errorf("the row has %b", w.row.Has)
			}
			if ago := w.now - w.row.ResponseTime; ago < 0 || ago > 60e6 {
				t.Errorf("the time is %v", time.UnixMicro(w.row.ResponseTime))
			}
		})
	}
	const all = output.HasResponseTime | output.HasSourcePort | output.HasDestPort | output.HasProtocol
	f("all fine", -1, all, output.HasQueryTime, func(*golangdnstap.Message) {})
	f("client absent", -1, all, 0, func(m *golangdnstap.Message) { m.QueryAddress = nil })
	f("client of 17 octets", badQueryAddress, all, 0, func(m *golangdnstap.Message) { m.QueryAddress = make([]byte, 17) })
	f("resolver of 3 octets", badResponseAddress, all, 0, func(m *golangdnstap.Message) { m.ResponseAddress = make([]byte, 3) })
	f("port absent", -1, 0, output.HasSourcePort, func(m *golangdnstap.Message) { m.QueryPort = nil })
	f("port 0", -1, output.HasSourcePort, 0, func(m *golangdnstap.Message) { m.QueryPort = proto.Uint32(0) })
	f("port 65536", badQueryPort, 0, output.HasSourcePort, func(m *golangdnstap.Message) { m.QueryPort = proto.Uint32(65536) })
	f("other port 65536", badResponsePort, 0, output.HasDestPort, func(m *golangdnstap.Message) { m.ResponsePort = proto.Uint32(65536) })
	protocol := func(n int32) func(*golangdnstap.Message) {
		return func(m *golangdnstap.Message) {
			p := golangdnstap.SocketProtocol(n)
			m.SocketProtocol = &p
		}
	}
	f("protocol 8", -1, output.HasProtocol, 0, protocol(8))
	f("protocol 99", -1, output.HasProtocol, 0, protocol(99))
	f("protocol 256", badProtocol, 0, output.HasProtocol, protocol(256))
	f("protocol -1", badProtocol, 0, output.HasProtocol, protocol(-1))
	f("protocol absent", -1, 0, output.HasProtocol, func(m *golangdnstap.Message) { m.SocketProtocol = nil })
	f("no time", -1, all, 0, func(m *golangdnstap.Message) { m.ResponseTimeSec, m.ResponseTimeNsec = nil, nil })
	f("nanoseconds too large", badTime, all, 0, func(m *golangdnstap.Message) { m.ResponseTimeNsec = proto.Uint32(1e9) })
	f("seconds 2^62", badTime, all, 0, func(m *golangdnstap.Message) { m.ResponseTimeSec = proto.Uint64(1 << 62) })
	f("seconds 2^64-1", badTime, all, 0, func(m *golangdnstap.Message) { m.ResponseTimeSec = proto.Uint64(1<<64 - 1) })
	f("1999", badTime, all, 0, func(m *golangdnstap.Message) { m.ResponseTimeSec = proto.Uint64(year2000 - 1) })
	f("the day after tomorrow", badTime, all, 0, func(m *golangdnstap.Message) { m.ResponseTimeSec = proto.Uint64(uint64(time.Now().Unix()) + 2*day) })
	f("query time of an hour ago", -1, all|output.HasQueryTime, 0, func(m *golangdnstap.Message) { m.QueryTimeSec = proto.Uint64(uint64(time.Now().Unix()) - 3600) })
	f("query time impossible", badTime, all, output.HasQueryTime, func(m *golangdnstap.Message) { m.QueryTimeSec = proto.Uint64(1 << 63) })
	f("query time alone", -1, all|output.HasQueryTime, 0, func(m *golangdnstap.Message) {
		m.QueryTimeSec, m.ResponseTimeSec, m.ResponseTimeNsec = m.ResponseTimeSec, nil, nil
	})
	f("message that cannot be walked", badMessage, all, 0, func(m *golangdnstap.Message) {
		m.ResponseMessage = []byte{0, 1, 0x80, 0, 0, 1, 0, 9, 0, 0, 0, 0, 1, 'x', 0, 0, 1, 0, 1}
	})
}

func TestCountsByTypeClassAndCode(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	f := func(name string, want output.Counts, change func(*dns.Msg)) {
		t.Run(name, func(t *testing.T) {
			_, w := endOf(t, v, response(t, "example.com.", func(_ *golangdnstap.Dnstap, m *dns.Msg) { change(m) }))
			if got := w.tally.counts(w.tally.at(0)); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	qtype := func(n uint16) func(*dns.Msg) { return func(m *dns.Msg) { m.Question[0].Qtype = n } }
	f("A", output.Counts{A: 1, OK: 1}, qtype(dns.TypeA))
	f("AAAA", output.Counts{AAAA: 1, OK: 1}, qtype(dns.TypeAAAA))
	f("MX", output.Counts{MX: 1, OK: 1}, qtype(dns.TypeMX))
	f("NS", output.Counts{NS: 1, OK: 1}, qtype(dns.TypeNS))
	f("HTTPS", output.Counts{OtherType: 1, OK: 1}, qtype(dns.TypeHTTPS))
	f("class CH", output.Counts{NonIN: 1, OK: 1}, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
	f("NXDOMAIN", output.Counts{A: 1, NX: 1}, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError })
	f("SERVFAIL", output.Counts{A: 1, Fail: 1}, func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure })
	f("REFUSED", output.Counts{A: 1, OtherRcode: 1}, func(m *dns.Msg) { m.Rcode = dns.RcodeRefused })
	f("BADVERS", output.Counts{A: 1, OtherRcode: 1}, func(m *dns.Msg) { m.SetEdns0(1232, false); m.Rcode = dns.RcodeBadVers })
}

// R13 of the field: what is wrong behind the question does not matter.
func TestBrokenRecordsDoNotMatter(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	question := []byte("\x00\x01\x81\x80\x00\x01\x00\x01\x00\x00\x00\x01\x07example\x03com\x00\x00\x01\x00\x01")
	for name, rest := range map[string]string{
		"rdata too long":  "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\xff\xff\x01\x02\x03\x04",
		"bad SVCB":        "\xc0\x0c\x00\x40\x00\x01\x00\x00\x00\x3c\x00\x05\x00\x01\x00\xff\xff",
		"answer cut":      "\xc0\x0c\x00\x01\x00",
		"pointer forward": "\xff\xff\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x01\x02\x03\x04",
		"nothing":         "",
	} {
		end, w := endOf(t, v, response(t, "x.", func(d *golangdnstap.Dnstap, _ *dns.Msg) {
			d.Message.ResponseMessage = append(append([]byte(nil), question...), rest...)
		}))
		if end != "well_known" || w.tally.counts(w.tally.at(0)) != (output.Counts{A: 1, OK: 1}) {
			t.Errorf("%s: the frame ended as %s", name, end)
		}
	}
}

// What a client sketch is made of is the hash of the pseudonym, or of the
// address if the operator wants that.
func TestHash(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	sketch := func(hash HistogramHash) string {
		w := testWorker(v)
		w.settings.hash = hash
		for i := range 30 {
			w.frame(response(t, "example.com.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.QueryAddress = []byte{198, 51, 100, byte(i)} }))
		}
		return string(w.tally.at(0).v4.AppendBytes(nil))
	}
	if sketch(HashPseudonym) == sketch(HashAddress) {
		t.Error("both hashes make the same sketch")
	}
}

func TestSessionRow(t *testing.T) {
	v := testView(t, "", "", "")
	_, w := endOf(t, v, response(t, "New.Example.COM.", nil))
	r := w.row
	want := v.cipher.Pseudonym(netip.AddrFrom4([4]byte{198, 51, 100, 7}))
	if r.Source != want || !r.Dest.Is4() {
		t.Errorf("the client's pseudonym is %v, want %v", r.Source.Addr(), want.Addr())
	}
	if string(r.Name) != "\x03new\x07example\x03com\x00" || string(r.ServerID) != "resolver" || r.SourcePort != 40000 || r.DestPort != 53 || r.Protocol != 1 {
		t.Errorf("got %+v", r)
	}
	if w.block.Len() != 1 {
		t.Errorf("the block has %d rows", w.block.Len())
	}
}

func TestWorkerDoesNotAllocate(t *testing.T) {
	names := traffic.List(1, 1000)
	cfg := traffic.Default()
	cfg.Frames, cfg.WellKnown, cfg.SeenNames, cfg.Clients = 5000, names, 1000, 1000
	pool, err := traffic.Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var lines []byte
	for _, n := range names {
		lines = append(append(lines, n...), '\n')
	}
	w := testWorker(testView(t, string(lines), "ignored.example\n", "203.0.113.0/24\n"))
	c := &dnstap.Chunk{Buf: append([]byte(nil), pool.Framed(0, pool.Len())...)}
	keep := w.free
	fresh := make(chan *store.Names, 1)
	w.names = fresh
	pass := func() {
		c.N = copy(c.Buf, pool.Framed(0, pool.Len()))
		w.chunk(c)
		keep.free = keep.free[:0]
		w.block.Reset()
		w.spare.give(<-fresh)
	}
	for range 3 {
		pass() // until every sketch and the block have their size
	}
	if n := testing.AllocsPerRun(5, pass); n > 0 {
		t.Errorf("%v allocations for %d frames", n, pool.Len())
	}
}
