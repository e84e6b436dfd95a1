package traffic

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"

	"github.com/miekg/dns"
)

// maxMessage bounds a DNS message in bytes. A response that would be longer
// loses answers, as one does on its way through a small UDP buffer.
const maxMessage = 400

// response makes the DNS message for one name. A query is the same without what
// a server adds.
func response(r *rand.Rand, name string, kind Kind) ([]byte, error) {
	m := &dns.Msg{Compress: true}
	m.Id = uint16(r.Uint32())
	m.RecursionDesired = true
	m.CheckingDisabled = r.IntN(100) < 2
	qtype := drawType(r, name)
	m.Question = []dns.Question{{Name: name, Qtype: qtype, Qclass: dns.ClassINET}}
	edns, signed := r.IntN(100) < 95, r.IntN(100) < 30
	if kind != Query {
		m.Response = true
		m.RecursionAvailable = true
		m.AuthenticatedData = r.IntN(100) < 12
		m.Rcode = drawRcode(r, kind)
		if m.Rcode == dns.RcodeSuccess {
			m.Answer = answers(r, name, qtype)
		}
		if m.Rcode == dns.RcodeNameError || m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 {
			m.Ns = []dns.RR{soa(r, name)}
		}
		if edns && signed && len(m.Answer) > 0 && r.IntN(100) < 35 {
			m.Answer = append(m.Answer, signature(r, m.Answer[len(m.Answer)-1]))
		}
	}
	if edns {
		m.Extra = []dns.RR{opt(r, signed)}
	}
	for {
		wire, err := m.Pack()
		if err != nil || len(wire) <= maxMessage {
			return wire, err
		}
		if len(m.Answer) == 0 {
			return nil, fmt.Errorf("%d bytes without an answer", len(wire))
		}
		m.Answer = m.Answer[:len(m.Answer)-1]
	}
}

func drawType(r *rand.Rand, name string) uint16 {
	switch {
	case strings.HasSuffix(name, ".arpa."):
		return dns.TypePTR
	case strings.HasPrefix(name, "_dmarc"):
		return dns.TypeTXT
	case name[0] == '_':
		return dns.TypeSRV
	}
	switch x := r.IntN(1000); {
	case x < 580:
		return dns.TypeA
	case x < 810:
		return dns.TypeAAAA
	case x < 910:
		return dns.TypeHTTPS
	case x < 940:
		return dns.TypeTXT
	case x < 965:
		return dns.TypeMX
	case x < 980:
		return dns.TypeNS
	case x < 988:
		return dns.TypeCNAME
	case x < 994:
		return dns.TypeSOA
	}
	return dns.TypeDS
}

// drawRcode lets names fail the more, the less known they are. The numbers are
// per thousand: NXDOMAIN, SERVFAIL, REFUSED.
func drawRcode(r *rand.Rand, kind Kind) int {
	rates := [3]int{350, 40, 5}
	switch kind {
	case WellKnown:
		rates = [3]int{20, 8, 2}
	case Seen:
		rates = [3]int{120, 25, 5}
	}
	x := r.IntN(1000)
	for i, rcode := range []int{dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeRefused} {
		if x -= rates[i]; x < 0 {
			return rcode
		}
	}
	return dns.RcodeSuccess
}

func header(r *rand.Rand, owner string, rrtype uint16) dns.RR_Header {
	longest := pick(r, []int{20, 60, 60, 300, 300, 600, 3600, 86400})
	return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: uint32(1 + r.IntN(longest))}
}

// parent drops the first label.
func parent(name string) string {
	if _, rest, _ := strings.Cut(name, "."); rest != "" {
		return rest
	}
	return "."
}

var cdns = []string{"edge.cdn-one.net.", "g2.shared-edge.net.", "lb.cloudfabric.io.", "pop7.fastdelivery.com.", "anycast.sitefront.net."}

func cdnName(r *rand.Rand) string {
	return fmt.Sprintf("%s-%d.%s", word(r), r.IntN(10000), pick(r, cdns))
}

// answers draws up to four answers, among them up to two CNAME links. None
// means that the name has nothing of this type.
func answers(r *rand.Rand, name string, qtype uint16) (rrs []dns.RR) {
	owner := name
	if qtype == dns.TypeA || qtype == dns.TypeAAAA || qtype == dns.TypeHTTPS {
		for x := r.IntN(100); x < 45 && len(rrs) < 2; x += 30 {
			target := cdnName(r)
			rrs = append(rrs, &dns.CNAME{Hdr: header(r, owner, dns.TypeCNAME), Target: target})
			owner = target
		}
	}
	count := 1 + r.IntN(4-len(rrs))
	switch {
	case qtype == dns.TypeDS,
		qtype == dns.TypeAAAA && len(rrs) == 0 && r.IntN(100) < 30,
		qtype == dns.TypeHTTPS && r.IntN(100) < 50:
		return rrs
	case qtype == dns.TypeTXT:
		count = min(count, 2)
	case qtype != dns.TypeA && qtype != dns.TypeAAAA && qtype != dns.TypeMX && qtype != dns.TypeNS && qtype != dns.TypeSRV:
		count = 1
	}
	for i := range count {
		rrs = append(rrs, answer(r, header(r, owner, qtype), i))
	}
	return rrs
}

// answer draws the record number i of a set.
func answer(r *rand.Rand, h dns.RR_Header, i int) dns.RR {
	zone := parent(h.Name)
	switch h.Rrtype {
	case dns.TypeA:
		return &dns.A{Hdr: h, A: binary.BigEndian.AppendUint32(nil, 0x01000000+r.Uint32N(0xde000000))}
	case dns.TypeAAAA:
		ip := binary.BigEndian.AppendUint32(nil, 0x2a000000|r.Uint32N(1<<24))
		return &dns.AAAA{Hdr: h, AAAA: binary.BigEndian.AppendUint64(append(ip, 0, 0, 0, 0), r.Uint64())}
	case dns.TypeMX:
		return &dns.MX{Hdr: h, Preference: uint16(10 * (i + 1)), Mx: fmt.Sprintf("mx%d.%s", i+1, zone)}
	case dns.TypeNS:
		return &dns.NS{Hdr: h, Ns: fmt.Sprintf("ns%d.%s", i+1, zone)}
	case dns.TypeTXT:
		return &dns.TXT{Hdr: h, Txt: []string{fmt.Sprintf("v=spf1 ip4:%d.%d.%d.0/24 include:_spf.%s -all",
			1+r.IntN(223), r.IntN(256), r.IntN(256), domain(r))}}
	case dns.TypeCNAME:
		return &dns.CNAME{Hdr: h, Target: cdnName(r)}
	case dns.TypePTR:
		return &dns.PTR{Hdr: h, Ptr: host(r) + "." + domain(r)}
	case dns.TypeSRV:
		return &dns.SRV{Hdr: h, Priority: uint16(i), Weight: 100, Port: 389, Target: fmt.Sprintf("dc%d.%s", i+1, parent(zone))}
	case dns.TypeHTTPS:
		rr := &dns.HTTPS{SVCB: dns.SVCB{Hdr: h, Priority: 1, Target: "."}}
		rr.Value = append(rr.Value, &dns.SVCBAlpn{Alpn: []string{"h3", "h2"}})
		if r.IntN(2) == 0 {
			hint := []net.IP{{104, 16, byte(r.IntN(256)), 1}, {104, 17, byte(r.IntN(256)), 1}}
			rr.Value = append(rr.Value, &dns.SVCBIPv4Hint{Hint: hint})
		}
		return rr
	case dns.TypeSOA:
		return soa(r, h.Name)
	}
	panic(fmt.Sprintf("BUG: no answer of type %d", h.Rrtype))
}

func soa(r *rand.Rand, name string) dns.RR {
	zone := parent(name)
	return &dns.SOA{
		Hdr:    header(r, zone, dns.TypeSOA),
		Ns:     "ns1." + zone,
		Mbox:   "hostmaster." + zone,
		Serial: 2024000000 + r.Uint32N(1e7), Refresh: 7200, Retry: 3600, Expire: 1209600, Minttl: 300 + r.Uint32N(3300),
	}
}

// signature draws one as ECDSA P-256 makes them.
func signature(r *rand.Rand, over dns.RR) dns.RR {
	h := over.Header()
	var sig []byte
	for range 8 {
		sig = binary.LittleEndian.AppendUint64(sig, r.Uint64())
	}
	return &dns.RRSIG{
		Hdr:         dns.RR_Header{Name: h.Name, Rrtype: dns.TypeRRSIG, Class: dns.ClassINET, Ttl: h.Ttl},
		TypeCovered: h.Rrtype, Algorithm: dns.ECDSAP256SHA256, Labels: uint8(dns.CountLabel(h.Name)), OrigTtl: h.Ttl,
		Expiration: 1790000000, Inception: 1780000000, KeyTag: uint16(r.Uint32()),
		SignerName: parent(h.Name), Signature: base64.StdEncoding.EncodeToString(sig),
	}
}

// opt draws the EDNS record; a quarter of the clients send a cookie.
func opt(r *rand.Rand, do bool) dns.RR {
	o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	o.SetUDPSize(pick(r, []uint16{1232, 1232, 1232, 1232, 4096, 512, 1400}))
	o.SetDo(do)
	if r.IntN(100) < 25 {
		cookie := fmt.Sprintf("%016x%032x", r.Uint64(), r.Uint64())
		o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: cookie})
	}
	return o
}
