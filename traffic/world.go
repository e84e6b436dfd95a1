package traffic

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	"google.golang.org/protobuf/proto"
)

// world is everybody and everything that frames are about. It is made once for
// a pool and then only read.
type world struct {
	cfg           Config
	index         index
	wellKnown     []string // the list in the order of popularity
	wellKnownZipf zipf
	seen          []string
	seenZipf      zipf
	parents       []string // domains under which novel names turn up
	parentZipf    zipf
	clients       []netip.Addr
}

func newWorld(cfg Config) *world {
	w := &world{cfg: cfg, index: newIndex(cfg.WellKnown)}
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(cfg.Seed, stream)) }

	w.wellKnown = slices.Clone(cfg.WellKnown)
	random(1).Shuffle(len(w.wellKnown), func(i, j int) {
		w.wellKnown[i], w.wellKnown[j] = w.wellKnown[j], w.wellKnown[i]
	})
	w.wellKnownZipf = newZipf(len(w.wellKnown), 1.0)

	r := random(2)
	have := make(map[string]bool, cfg.SeenNames)
	for len(w.seen) < cfg.SeenNames {
		name := hostname(r)
		if _, listed := w.index.covering(name); listed || have[name] {
			continue
		}
		have[name] = true
		w.seen = append(w.seen, name)
	}
	w.seenZipf = newZipf(len(w.seen), 0.9)

	r = random(3)
	for len(w.parents) < max(cfg.SeenNames/4, 1) {
		parent := parentDomain(r)
		if _, listed := w.index.covering("x." + parent); !listed {
			w.parents = append(w.parents, parent)
		}
	}
	w.parentZipf = newZipf(len(w.parents), 0.8)

	w.clients = drawClients(random(4), cfg)
	return w
}

func parentDomain(r *rand.Rand) string {
	switch x := r.IntN(100); {
	case x < 15: // a domain that is itself new
		return pick(r, suffixes) + "."
	case x < 65:
		return domain(r)
	case x < 90:
		return host(r) + "." + domain(r)
	default:
		return host(r) + "." + word(r) + "." + domain(r)
	}
}

// drawClients puts the clients into a few networks, as those of one operator
// are: IPv4 into /20s, IPv6 into /48s of the documentation prefix.
func drawClients(r *rand.Rand, cfg Config) []netip.Addr {
	var nets4, nets6 [48]uint32
	for i := range nets4 {
		nets4[i] = uint32(1+r.IntN(222))<<24 | uint32(r.IntN(1<<12))<<12
		nets6[i] = r.Uint32() &^ 0xffff
	}
	v6 := int(math.Round(float64(cfg.Clients) * cfg.V6Share))
	have := make(map[netip.Addr]bool, cfg.Clients)
	clients := make([]netip.Addr, 0, cfg.Clients)
	for len(clients) < cfg.Clients {
		var a netip.Addr
		if len(clients) < v6 {
			var b [16]byte
			binary.BigEndian.PutUint32(b[:], 0x20010db8)
			binary.BigEndian.PutUint32(b[4:], pick(r, nets6[:])|r.Uint32()&0xffff)
			binary.BigEndian.PutUint64(b[8:], r.Uint64())
			a = netip.AddrFrom16(b)
		} else {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], pick(r, nets4[:])|r.Uint32()&0xfff)
			a = netip.AddrFrom4(b)
		}
		if !have[a] {
			have[a] = true
			clients = append(clients, a)
		}
	}
	r.Shuffle(len(clients), func(i, j int) { clients[i], clients[j] = clients[j], clients[i] })
	return clients
}

// wrap puts a DNS message into a dnstap frame with all that goes with it.
func (w *world) wrap(r *rand.Rand, f Frame, wire []byte, at time.Time) *dnstap.Dnstap {
	client := w.clients[f.Client]
	family := dnstap.SocketFamily_INET
	server := netip.AddrFrom4([4]byte{192, 0, 2, 53 + byte(f.Client%4)})
	if f.V6 {
		family = dnstap.SocketFamily_INET6
		server = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0x53, 15: 53 + byte(f.Client%4)})
	}
	protocol, port := dnstap.SocketProtocol_UDP, uint32(53)
	switch x := r.IntN(100); {
	case x < 4:
		protocol = dnstap.SocketProtocol_TCP
	case x < 6:
		protocol, port = dnstap.SocketProtocol_DOT, 853
	case x < 8:
		protocol, port = dnstap.SocketProtocol_DOH, 443
	}
	asked := at.Add(-time.Duration(r.ExpFloat64() * float64(8*time.Millisecond)))
	m := &dnstap.Message{
		Type:            dnstap.Message_CLIENT_RESPONSE.Enum(),
		SocketFamily:    &family,
		SocketProtocol:  &protocol,
		QueryAddress:    client.AsSlice(),
		ResponseAddress: server.AsSlice(),
		QueryPort:       proto.Uint32(1024 + uint32(r.IntN(64512))),
		ResponsePort:    &port,
		QueryTimeSec:    proto.Uint64(uint64(asked.Unix())),
		QueryTimeNsec:   proto.Uint32(uint32(asked.Nanosecond())),
	}
	if f.Kind == Query {
		m.Type = dnstap.Message_CLIENT_QUERY.Enum()
		m.QueryMessage = wire
	} else {
		m.ResponseTimeSec = proto.Uint64(uint64(at.Unix()))
		m.ResponseTimeNsec = proto.Uint32(uint32(at.Nanosecond()))
		m.ResponseMessage = wire
	}
	if f.Kind == Resolver {
		m.Type = dnstap.Message_RESOLVER_RESPONSE.Enum()
	}
	return &dnstap.Dnstap{
		Type:     dnstap.Dnstap_MESSAGE.Enum(),
		Identity: []byte("resolver-01"),
		Version:  []byte("unbound 1.19.2"),
		Message:  m,
	}
}

// What can be wrong with a malformed frame.
const (
	cutFrame    = iota // protobuf that ends too early
	cutHeader          // a DNS message shorter than its header
	cutQuestion        // one that ends in its question
	noQuestion         // one without a question
	nameLoop           // a question name that points to itself
	otherOpcode        // a NOTIFY
	damages            // their number
)

func damageMessage(wire []byte, damage int) []byte {
	const headerLen = 12
	switch damage {
	case cutHeader:
		return wire[:headerLen-1]
	case cutQuestion:
		return wire[:headerLen+2]
	case noQuestion:
		binary.BigEndian.PutUint16(wire[4:], 0)
	case nameLoop:
		binary.BigEndian.PutUint16(wire[headerLen:], 0xc000|headerLen)
	case otherOpcode:
		wire[2] |= 4 << 3
	}
	return wire
}
