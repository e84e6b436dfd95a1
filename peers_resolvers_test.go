package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// A resolver is a running DNS server whose dnstap goes to edm.
type resolver struct {
	*process
	port     int
	identity string
	codes    []int               // response codes that it has besides the common ones
	silent   func(exchange) bool // answers that it does not tell of; nil: none
}

func isBadVersion(x exchange) bool { return x.answer.Rcode == dns.RcodeBadVers }

// What every resolver answers. Whatever is not here does not exist.
const testZone = `
www.example.com. 300 A 192.0.2.1
www.example.com. 300 AAAA 2001:db8::1
www.example.com. 300 MX 10 mail.example.com.
mail.example.com. 300 A 192.0.2.2
a.wild.example.org. 300 A 192.0.2.3
deep.b.wild.example.org. 300 A 192.0.2.4
other.example.net. 300 A 192.0.2.5
other.example.net. 300 AAAA 2001:db8::5
other.example.net. 300 TXT "some text"
`

// refusedName is answered REFUSED by every resolver.
const refusedName = "refused.example."

// launch starts a resolver and waits until it listens on the port and has
// printed ready. It asks nothing, so it makes no dnstap.
func launch(t testing.TB, r resolver, ready string, cmd *exec.Cmd) *resolver {
	t.Helper()
	r.process = run(t, cmd)
	until(t, func() bool {
		select {
		case <-r.exited:
			t.Fatalf("%s ended:\n%s", cmd.Path, r.log())
		default:
		}
		c, err := net.Dial("tcp", local(r.port))
		if err != nil {
			return false
		}
		c.Close()
		return strings.Contains(r.log(), ready)
	}, func() string { return fmt.Sprintf("%s does not listen:\n%s", cmd.Path, r.log()) })
	return &r
}

// startUnbound starts unbound. tap is the content of its dnstap section that
// says where to send.
func startUnbound(t testing.TB, tap ...string) *resolver {
	t.Helper()
	path := need(t, "unbound", "unbound")
	dir, port := t.TempDir(), freePort(t)
	var conf strings.Builder
	fmt.Fprintf(&conf, `server:
	directory: %q
	chroot: ""
	username: ""
	pidfile: ""
	use-syslog: no
	interface: 127.0.0.1@%d
	access-control: 127.0.0.0/8 allow
	access-control: ::1/128 allow
	num-threads: 1
	module-config: "iterator"
	do-not-query-localhost: yes
	local-zone: "." static
	local-zone: %q refuse
`, dir, port, refusedName)
	if haveIPv6() {
		fmt.Fprintf(&conf, "\tinterface: ::1@%d\n", port)
	}
	for line := range strings.Lines(strings.TrimSpace(testZone)) {
		fmt.Fprintf(&conf, "\tlocal-data: '%s'\n", strings.TrimSpace(line))
	}
	fmt.Fprintf(&conf, `remote-control:
	control-enable: no
dnstap:
	dnstap-enable: yes
	dnstap-send-identity: yes
	dnstap-identity: "unbound-test"
	dnstap-send-version: yes
	dnstap-log-client-response-messages: yes
	%s
`, strings.Join(tap, "\n\t"))
	file := filepath.Join(dir, "unbound.conf")
	write(t, file, conf.String())
	return launch(t, resolver{port: port, identity: "unbound-test", codes: []int{dns.RcodeBadVers}}, "start of service", exec.Command(path, "-d", "-p", "-c", file))
}

// startBIND starts named as an authoritative server for the root.
func startBIND(t testing.TB, socket string) *resolver {
	t.Helper()
	path := need(t, "named", "bind9")
	dir, port := t.TempDir(), freePort(t)
	v6 := "none"
	if haveIPv6() {
		v6 = "::1"
	}
	soa := "@ 300 SOA ns.example. admin.example. 1 3600 600 86400 300\n@ 300 NS ns.example.\n"
	write(t, filepath.Join(dir, "root.zone"), soa+"ns.example. 300 A 192.0.2.53\n"+testZone)
	write(t, filepath.Join(dir, "refused.zone"), soa)
	file := filepath.Join(dir, "named.conf")
	write(t, file, fmt.Sprintf(`options {
	directory %q;
	managed-keys-directory %[1]q;
	pid-file none;
	session-keyfile none;
	listen-on port %d { 127.0.0.1; };
	listen-on-v6 port %[2]d { %s; };
	recursion no;
	dnssec-validation no;
	notify no;
	dnstap { client response; };
	dnstap-output unix %q;
	dnstap-identity "named-test";
	fstrm-set-flush-timeout 1;
};
controls { };
zone "." { type primary; file "root.zone"; };
zone %q { type primary; file "refused.zone"; allow-query { none; }; };
`, dir, port, v6, socket, refusedName))
	return launch(t, resolver{port: port, identity: "named-test", silent: isBadVersion}, "all zones loaded", exec.Command(path, "-g", "-c", file))
}

// startKnot starts Knot Resolver. It sends queries as well as responses.
func startKnot(t testing.TB, socket string) *resolver {
	t.Helper()
	path := need(t, "kresd", "knot-resolver")
	dir, port := t.TempDir(), freePort(t)
	var conf strings.Builder
	fmt.Fprintf(&conf, "net.listen('127.0.0.1', %d, { kind = 'dns' })\n", port)
	if haveIPv6() {
		fmt.Fprintf(&conf, "net.listen('::1', %d, { kind = 'dns' })\n", port)
	}
	// Everything that would ask other servers is off.
	fmt.Fprintf(&conf, `
for _, m in ipairs({ 'ta_update', 'ta_signal_query', 'priming', 'detect_time_skew' }) do modules.unload(m) end
trust_anchors.remove('.')
cache.size = 10*MB
modules = { dnstap = { socket_path = '%s', identity = 'kresd-test',
	client = { log_queries = true, log_responses = true } } }
policy.add(policy.suffix(policy.REFUSE, { todname('%s') }))
`, socket, refusedName)
	byName := make(map[string][]string)
	z := dns.NewZoneParser(strings.NewReader(testZone), ".", "")
	for rr, ok := z.Next(); ok; rr, ok = z.Next() {
		wire := make([]byte, 512)
		n, err := dns.PackRR(rr, wire, 0, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		h := rr.Header()
		data := ""
		for _, b := range wire[n-int(h.Rdlength) : n] {
			data += fmt.Sprintf(`\%03d`, b)
		}
		byName[h.Name] = append(byName[h.Name], fmt.Sprintf("[kres.type.%s] = { ttl = 300, rdata = '%s' }", dns.TypeToString[h.Rrtype], data))
	}
	for name, answers := range byName {
		// The last argument: other types get NODATA.
		fmt.Fprintf(&conf, "policy.add(policy.domains(policy.ANSWER({ %s }, true), { todname('%s') }))\n", strings.Join(answers, ", "), name)
	}
	conf.WriteString("policy.add(policy.all(policy.DENY))\n")
	file := filepath.Join(dir, "kresd.conf")
	write(t, file, conf.String())
	cmd := exec.Command(path, "-n", "-c", file, dir)
	return launch(t, resolver{port: port, identity: "kresd-test"}, "", cmd)
}

// startDNSDist starts dnsdist in front of a name server of ours, its dnstap
// over TCP.
func startDNSDist(t testing.TB, tcp string) *resolver {
	t.Helper()
	path := need(t, "dnsdist", "dnsdist")
	backend, _ := startBackend(t)
	dir, port := t.TempDir(), freePort(t)
	v6 := ""
	if haveIPv6() {
		v6 = fmt.Sprintf("addLocal('[::1]:%d')", port)
	}
	file := filepath.Join(dir, "dnsdist.conf")
	write(t, file, fmt.Sprintf(`setLocal('127.0.0.1:%d')
%s
setACL({ '127.0.0.0/8', '::1/128' })
setSecurityPollSuffix('')
newServer({ address = '%s', healthCheckMode = 'up' })
addResponseAction(AllRule(), DnstapLogResponseAction('dnsdist-test', newFrameStreamTcpLogger('%s')))
`, port, v6, backend, tcp))
	return launch(t, resolver{port: port, identity: "dnsdist-test", codes: []int{dns.RcodeBadVers, dns.RcodeServerFailure}}, "Marking downstream", exec.Command(path, "--supervised", "--disable-syslog", "-C", file))
}

// startRecursor starts the PowerDNS recursor, which sends what it asks of
// others. It returns the function that tells how many questions its forwarder
// has answered, without those for the root, which it asks before it has dnstap.
func startRecursor(t testing.TB, socket string) (*resolver, func() int) {
	t.Helper()
	path := need(t, "pdns_recursor", "pdns-recursor")
	backend, asked := startBackend(t)
	dir, port := t.TempDir(), freePort(t)
	write(t, filepath.Join(dir, "recursor.lua"),
		fmt.Sprintf("dnstapFrameStreamServer({ '%s' }, { logQueries = true, logResponses = true })\n", socket))
	write(t, filepath.Join(dir, "recursor.conf"), fmt.Sprintf(`local-address=127.0.0.1
local-port=%d
socket-dir=%s
lua-config-file=%[2]s/recursor.lua
forward-zones=.=%s
dont-query=
dnssec=off
security-poll-suffix=
hint-file=no
daemon=no
write-pid=no
threads=1
`, port, dir, backend))
	return launch(t, resolver{port: port}, "", exec.Command(path, "--config-dir="+dir)), asked
}

// startBackend starts a name server inside the test, on UDP and TCP. Unlike
// the real ones it answers SERVFAIL to some and sends back the EDNS options
// that it got, as a resolver that knows client subnets does.
func startBackend(t testing.TB) (address string, asked func() int) {
	t.Helper()
	zone := make(map[string][]dns.RR)
	z := dns.NewZoneParser(strings.NewReader(testZone), ".", "")
	for rr, ok := z.Next(); ok; rr, ok = z.Next() {
		zone[rr.Header().Name] = append(zone[rr.Header().Name], rr)
	}
	count := make(chan int, 1)
	count <- 0
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if n := <-count; q.Question[0].Name == "." {
			count <- n
		} else {
			count <- n + 1
		}
		w.WriteMsg(backendAnswer(zone, q))
	})
	address = local(freePort(t))
	for _, network := range []string{"udp", "tcp"} {
		listening := make(chan struct{})
		s := &dns.Server{Addr: address, Net: network, Handler: handler, NotifyStartedFunc: func() { close(listening) }}
		go s.ListenAndServe()
		<-listening
		t.Cleanup(func() { s.Shutdown() })
	}
	return address, func() int { n := <-count; count <- n; return n }
}

func backendAnswer(zone map[string][]dns.RR, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	name := strings.ToLower(q.Question[0].Name)
	rrs, known := zone[name]
	switch {
	case name == refusedName:
		m.Rcode = dns.RcodeRefused
	case name == "servfail.example.":
		m.Rcode = dns.RcodeServerFailure
	case !known:
		m.Rcode = dns.RcodeNameError
	}
	for _, rr := range rrs {
		if rr.Header().Rrtype == q.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(1232, opt.Do())
		m.IsEdns0().Option = opt.Option
		if opt.Version() != 0 {
			m.Rcode = dns.RcodeBadVers
			m.Answer = nil
		}
	}
	return m
}

// address returns where the resolver answers: over IPv6 if the asker does.
func (r *resolver) address(source netip.Addr) netip.AddrPort {
	a := "127.0.0.1"
	if source.Is6() {
		a = "::1"
	}
	return netip.MustParseAddrPort(net.JoinHostPort(a, strconv.Itoa(r.port)))
}

// mode returns the permissions of a socket.
func mode(t testing.TB, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}
