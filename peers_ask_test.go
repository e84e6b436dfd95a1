package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The names that are well known in these tests: two exact, one suffix and the
// rest for the rarer answers.
const testWellKnown = `www.example.com
mail.example.com
*.wild.example.org
refused.example
servfail.example
version.bind
`

// entry returns the entry of testWellKnown that a lower-case name falls
// under, as its row's name, or "".
func entry(name string) string {
	if strings.HasSuffix(name, ".wild.example.org.") {
		return ".wild.example.org."
	}
	for line := range strings.Lines(testWellKnown) {
		if name == strings.TrimSpace(line)+"." {
			return name
		}
	}
	return ""
}

// An exchange is a question that was asked and the answer that came: what a
// resolver must tell in dnstap.
type exchange struct {
	client, server netip.AddrPort
	network        string // udp or tcp
	question       dns.Question
	raw            []byte // the answer as it came
	answer         *dns.Msg
}

// ask sends one question from a loopback address and waits for the answer.
func ask(t testing.TB, r *resolver, source, network string, q *dns.Msg) exchange {
	t.Helper()
	from := netip.MustParseAddr(source)
	to := r.address(from)
	dialer := net.Dialer{Timeout: patience}
	if network == "udp" {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	} else {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	c, err := dialer.Dial(network, to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	conn := &dns.Conn{Conn: c, UDPSize: 4096}
	if err := conn.WriteMsg(q); err != nil {
		t.Fatal(err)
	}
	raw, err := conn.ReadMsgHeader(nil)
	if err != nil {
		t.Fatalf("%s asks %v over %s: %v\n%s", source, q.Question, network, err, r.log())
	}
	answer := new(dns.Msg)
	if err := answer.Unpack(raw); err != nil || answer.Id != q.Id {
		t.Fatalf("answer to %v: %v", q.Question, err)
	}
	return exchange{client: netip.MustParseAddrPort(c.LocalAddr().String()), server: to, network: network, question: q.Question[0], raw: raw, answer: answer}
}

func question(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// askAll asks a few hundred questions: well-known and other names, many
// types, both transports, from 30 IPv4 addresses and ::1. In the middle it
// calls arrived with what it has asked: a resolver drops what does not fit its
// queue to the dnstap socket, 512 frames with libfstrm.
func askAll(t testing.TB, r *resolver, arrived func([]exchange)) []exchange {
	t.Helper()
	var done []exchange
	add := func(source, network string, q *dns.Msg) {
		t.Helper()
		done = append(done, ask(t, r, source, network, q))
	}
	for i := range 30 { // more than an explicit sketch holds
		add(fmt.Sprint("127.0.0.", 2+i), "udp", question("www.example.com.", dns.TypeA))
	}
	few := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.1.2.3", "127.255.0.1"}
	if haveIPv6() {
		few = append(few, "::1")
	}
	for i, source := range few {
		if i == len(few)/2 {
			arrived(done)
		}
		for _, network := range []string{"udp", "tcp"} {
			add(source, network, question("www.example.com.", dns.TypeAAAA))
			add(source, network, question("www.example.com.", dns.TypeMX))
			add(source, network, question("wWw.ExAmPlE.cOm.", dns.TypeNS))
			add(source, network, question("mail.example.com.", dns.TypeTXT))
			add(source, network, question("a.wild.example.org.", dns.TypeA))
			add(source, network, question("deep.b.wild.example.org.", dns.TypeA))
			add(source, network, question("nowhere.wild.example.org.", dns.TypeHTTPS))
			add(source, network, question("wild.example.org.", dns.TypeA)) // not under the suffix entry
			add(source, network, question("other.example.net.", dns.TypeA))
			add(source, network, question("OTHER.example.net.", dns.TypeAAAA))
			add(source, network, question("other.example.net.", dns.TypeTXT))
			add(source, network, question("other.example.net.", 65280))
			add(source, network, question("nowhere.example.net.", dns.TypeA))
			add(source, network, question("a\\.dot.and\\009tab.example.net.", dns.TypeA))
			add(source, network, question(refusedName, dns.TypeA))
			add(source, network, question("servfail.example.", dns.TypeAAAA))
			chaos := question("version.bind.", dns.TypeTXT)
			chaos.Question[0].Qclass = dns.ClassCHAOS
			add(source, network, chaos)
			add(source, network, withOptions(question("other.example.net.", dns.TypeA)))
			future := question("www.example.com.", dns.TypeA).SetEdns0(1232, false)
			future.IsEdns0().SetVersion(1) // BADVERS, whose upper bits are in the OPT record
			add(source, network, future)
		}
	}
	return done
}

// secrets are what a client says of itself in withOptions; no file may hold
// them.
var secrets = [][]byte{[]byte("cookie!!"), {203, 0, 113, 77}, []byte("device-0042")}

// withOptions adds what identifies a client to a question, between options
// that do not.
func withOptions(q *dns.Msg) *dns.Msg {
	q.SetEdns0(1232, false)
	q.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_NSID{Code: dns.EDNS0NSID},
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: fmt.Sprintf("%x", secrets[0])},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 32, Address: net.IP(secrets[1])},
		&dns.EDNS0_LOCAL{Code: 65073, Data: secrets[2]},
	}
	return q
}

// expectHistogram returns the rows that the exchanges make, without the
// start time.
func expectHistogram(done []exchange) []row {
	rows := make(map[string]row)
	clients := make(map[string][2][]netip.Addr)
	for _, x := range done {
		name := entry(strings.ToLower(x.question.Name))
		if name == "" {
			continue
		}
		r := rows[name]
		if r == nil {
			r = row{"name": name, "edm_status_bits": uint64(1)}
			if name[0] == '.' {
				r["edm_status_bits"] = uint64(2)
			}
			for _, c := range countColumns {
				r[c] = uint64(0)
			}
			rows[name] = r
		}
		for _, c := range countedAs(x) {
			r[c] = r.u(c) + 1
		}
		both := clients[name]
		family := 0
		if x.client.Addr().Is6() {
			family = 1
		}
		both[family] = append(both[family], x.client.Addr())
		clients[name] = both
	}
	var all []row
	for name, r := range rows {
		for family, prefix := range []string{"v4", "v6"} {
			bytes, count := sketch(clients[name][family])
			r[prefix+"client_count"] = count
			if bytes != nil {
				r[prefix+"client_count_hll"] = bytes
			}
		}
		all = append(all, r)
	}
	return all
}

var countColumns = []string{
	"a_count", "aaaa_count", "mx_count", "ns_count", "other_type_count", "non_in_count",
	"ok_count", "nx_count", "fail_count", "other_rcode_count",
}

// countedAs names the two columns that an exchange counts in.
func countedAs(x exchange) []string {
	kind, ok := map[uint16]string{dns.TypeA: "a_count", dns.TypeAAAA: "aaaa_count", dns.TypeMX: "mx_count", dns.TypeNS: "ns_count"}[x.question.Qtype]
	if !ok {
		kind = "other_type_count"
	}
	if x.question.Qclass != dns.ClassINET {
		kind = "non_in_count"
	}
	// miekg/dns has put the OPT record's upper bits into Rcode.
	code, ok := map[int]string{0: "ok_count", 2: "fail_count", 3: "nx_count"}[x.answer.Rcode]
	if !ok {
		code = "other_rcode_count"
	}
	return []string{kind, code}
}

// expectSessions returns the rows that the exchanges make, without times.
func expectSessions(t testing.TB, done []exchange, identity string) []row {
	t.Helper()
	var rows []row
	for _, x := range done {
		name := strings.ToLower(x.question.Name)
		if entry(name) != "" {
			continue
		}
		r := row{
			"server_id":        []byte(identity),
			"source_port":      uint64(x.client.Port()),
			"dest_port":        uint64(x.server.Port()),
			"dns_protocol":     uint64(1),
			"response_message": withoutOptions(t, x.raw),
		}
		if x.network == "tcp" {
			r["dns_protocol"] = uint64(2)
		}
		labels := dns.SplitDomainName(name)
		for i, l := range labels {
			r[fmt.Sprint("label", len(labels)-1-i)] = l
		}
		r.setAddress("source", x.client.Addr())
		r.setAddress("dest", x.server.Addr())
		rows = append(rows, r)
	}
	return rows
}

// withoutOptions returns a message as edm stores it: the data of every option
// of its OPT record zero, except NSID, EDE and padding. The OPT record is the
// last in all these answers.
func withoutOptions(t testing.TB, raw []byte) []byte {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(raw); err != nil {
		t.Fatal(err)
	}
	opt := m.IsEdns0()
	if opt == nil {
		return raw
	}
	packed := make([]byte, 4096)
	n, err := dns.PackRR(opt, packed, 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(raw, packed[:n]) {
		t.Fatalf("the answer does not end in its OPT record: %x, %x", raw, packed[:n])
	}
	stored := bytes.Clone(raw)
	options := stored[len(stored)-int(opt.Hdr.Rdlength):]
	for len(options) > 0 {
		code, size := uint16(options[0])<<8|uint16(options[1]), int(options[2])<<8|int(options[3])
		if code != dns.EDNS0NSID && code != dns.EDNS0EDE && code != dns.EDNS0PADDING {
			clear(options[4 : 4+size])
		}
		options = options[4+size:]
	}
	return stored
}
