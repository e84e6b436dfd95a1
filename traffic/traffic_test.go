package traffic

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	framestream "github.com/farsightsec/golang-framestream"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
)

func config() Config {
	cfg := Default()
	cfg.Frames, cfg.SeenNames, cfg.Clients = 20000, 2000, 1000
	cfg.WellKnown = List(1, 3000)
	cfg.Start = time.Unix(1782907200, 0)
	return cfg
}

func build(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// question decodes a frame with the libraries.
func question(payload []byte) (*dnstap.Message, *dns.Msg, error) {
	var d dnstap.Dnstap
	if err := proto.Unmarshal(payload, &d); err != nil {
		return nil, nil, err
	}
	wire := d.Message.ResponseMessage
	if d.Message.GetType() == dnstap.Message_CLIENT_QUERY {
		wire = d.Message.QueryMessage
	}
	var m dns.Msg
	if err := m.Unpack(wire); err != nil {
		return nil, nil, err
	}
	if len(m.Question) != 1 || m.Opcode != dns.OpcodeQuery {
		return nil, nil, errors.New("no question")
	}
	return d.Message, &m, nil
}

func TestSameConfigSameBytes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	a := build(t, config())
	runtime.GOMAXPROCS(1)
	b := build(t, config())
	if !bytes.Equal(a.buf, b.buf) {
		t.Fatal("two builds of one configuration differ")
	}
	other := config()
	other.Seed = 2
	if c := build(t, other); bytes.Equal(a.buf, c.buf) {
		t.Fatal("another seed gave the same bytes")
	}
}

// TestFramesAreWhatThePoolSays reads every frame with golang-dnstap and
// miekg/dns and counts for itself.
func TestFramesAreWhatThePoolSays(t *testing.T) {
	cfg := config()
	p := build(t, cfg)
	var got Counts
	novel, entries, seen, clients := map[string]bool{}, map[uint32]bool{}, map[string]bool{}, map[string]bool{}
	listed := newIndex(cfg.WellKnown)
	for i := range p.Len() {
		f, payload := p.Frame(i)
		d, m, err := question(payload)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if d.GetType() != dnstap.Message_CLIENT_RESPONSE || !m.Response {
			t.Fatalf("frame %d is not a client response", i)
		}
		if n := len(d.ResponseMessage); n < 26 || n > maxMessage {
			t.Fatalf("frame %d has a message of %d bytes", i, n)
		}
		name := dns.CanonicalName(m.Question[0].Name)
		entry, known := listed.covering(name)
		if known != (f.Kind == WellKnown) || known && entry != f.Name {
			t.Fatalf("frame %d is said to be of kind %d, entry %d, but %s is covered by %d %v", i, f.Kind, f.Name, name, entry, known)
		}
		switch f.Kind {
		case WellKnown:
			entries[entry] = true
		case Seen:
			seen[name] = true
		case Novel:
			if novel[name] {
				t.Fatalf("novel name %s comes twice", name)
			}
			novel[name] = true
		}
		got.Frames++
		got.Kinds[f.Kind]++
		if len(d.QueryAddress) == 16 {
			got.V6++
		} else {
			got.V4++
		}
		clients[string(d.QueryAddress)] = true
		if f.V6 != (d.GetSocketFamily() == dnstap.SocketFamily_INET6) {
			t.Fatalf("frame %d: wrong family", i)
		}
	}
	if want := p.Counts(); got != want {
		t.Errorf("the pool says %+v, its frames %+v", want, got)
	}
	for name := range seen {
		if novel[name] {
			t.Errorf("%s is both seen and novel", name)
		}
	}
	e, s, c := p.Distinct()
	if e != len(entries) || s != len(seen) || c != len(clients) {
		t.Errorf("the pool says %d entries, %d seen names, %d clients; its frames %d, %d, %d", e, s, c, len(entries), len(seen), len(clients))
	}

	share := func(what string, n int, want float64) {
		t.Helper()
		if got := float64(n) / float64(p.Len()); math.Abs(got-want) > 0.015 {
			t.Errorf("%s: %.3f of the frames, want %.3f", what, got, want)
		}
	}
	share("well-known", got.Kinds[WellKnown], 0.55)
	share("seen", got.Kinds[Seen], 0.35)
	share("novel", got.Kinds[Novel], 0.10)
	share("IPv6", got.V6, 0.20)
}

func TestNovelNamesStayNovel(t *testing.T) {
	p := build(t, config())
	have := map[string]bool{}
	for pass := range 3 {
		p.Freshen(0, p.Len(), pass)
		for i := range p.Len() {
			f, payload := p.Frame(i)
			if f.Kind != Novel {
				continue
			}
			_, m, err := question(payload)
			if err != nil {
				t.Fatal(err)
			}
			name := m.Question[0].Name
			if have[name] {
				t.Fatalf("%s comes again in pass %d", name, pass)
			}
			have[name] = true
			label, _, _ := strings.Cut(name, ".")
			if frame, in, ok := p.NovelFrame(label); !ok || frame != i || in != pass {
				t.Fatalf("%s of frame %d in pass %d: found %d, %d, %v", name, i, pass, frame, in, ok)
			}
		}
	}
	if want := 3 * p.Counts().Kinds[Novel]; len(have) != want {
		t.Errorf("%d novel names, want %d", len(have), want)
	}
}

func TestSeenOnceHasEachNameOnce(t *testing.T) {
	cfg := config()
	cfg.SeenOnce = true
	p := build(t, cfg)
	if c := p.Counts(); c.Frames != cfg.SeenNames || c.Kinds[Seen] != cfg.SeenNames {
		t.Errorf("%+v", c)
	}
	if _, seen, _ := p.Distinct(); seen != cfg.SeenNames {
		t.Errorf("%d distinct names, want %d", seen, cfg.SeenNames)
	}
}

func TestOddFrames(t *testing.T) {
	cfg := config()
	cfg.QueryShare, cfg.ResolverShare, cfg.MalformedShare = 0.05, 0.04, 0.03
	p := build(t, cfg)
	var got Counts
	for i := range p.Len() {
		f, payload := p.Frame(i)
		d, _, err := question(payload)
		kind := f.Kind
		switch {
		case err != nil:
			kind = Malformed
		case d.GetType() == dnstap.Message_CLIENT_QUERY:
			kind = Query
		case d.GetType() == dnstap.Message_RESOLVER_RESPONSE:
			kind = Resolver
		}
		if kind != f.Kind {
			t.Fatalf("frame %d is said to be of kind %d and is of kind %d", i, f.Kind, kind)
		}
		got.Kinds[kind]++
	}
	if got.Kinds != p.Counts().Kinds || got.Kinds[Query] < 900 || got.Kinds[Resolver] < 700 || got.Kinds[Malformed] < 500 {
		t.Errorf("%v, the pool says %v", got.Kinds, p.Counts().Kinds)
	}
}

// TestFileIsReadByFramestream reads a written file back with golang-framestream.
func TestFileIsReadByFramestream(t *testing.T) {
	p := build(t, config())
	path := filepath.Join(t.TempDir(), "pool.fstrm")
	if err := p.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := framestream.NewReader(f, &framestream.ReaderOptions{ContentTypes: contentTypes})
	if err != nil {
		t.Fatal(err)
	}
	if n := readAll(t, r, p, 0); n != p.Len() {
		t.Errorf("%d frames, want %d", n, p.Len())
	}
}

// readAll reads frames to the end of a stream and compares those from number
// first with the pool's.
func readAll(t *testing.T, r *framestream.Reader, p *Pool, first int) (n int) {
	buf := make([]byte, 64<<10)
	for ; ; n++ {
		size, err := r.ReadFrame(buf)
		if err == io.EOF || errors.Is(err, framestream.EOF) {
			return n
		}
		if err != nil {
			t.Errorf("frame %d: %v", n, err)
			return n
		}
		if _, want := p.Frame((first + n) % p.Len()); !bytes.Equal(buf[:size], want) {
			t.Errorf("frame %d is not the pool's", n)
			return n
		}
	}
}

// receivers opens n streams over unix sockets, each read by golang-framestream
// to its end; done gives how many frames came in all.
func receivers(t *testing.T, n int, handle func(i int, r *framestream.Reader) int) (senders []*Sender, done func() int) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	counts := make(chan int, n)
	for i := range n {
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer peer.Close()
			r, err := framestream.NewReader(peer, &framestream.ReaderOptions{ContentTypes: contentTypes, Bidirectional: true})
			if err != nil {
				t.Errorf("reading stream %d: %v", i, err)
				counts <- 0
				return
			}
			counts <- handle(i, r)
		}()
		s, err := Open(conn)
		if err != nil {
			t.Fatal(err)
		}
		senders = append(senders, s)
	}
	return senders, func() (sum int) {
		for range n {
			sum += <-counts
		}
		return sum
	}
}

func TestSend(t *testing.T) {
	p := build(t, config())
	f := func(senders int, load Load, wantFrames int) {
		t.Helper()
		s, done := receivers(t, senders, func(_ int, r *framestream.Reader) (n int) {
			buf := make([]byte, 64<<10)
			for {
				size, err := r.ReadFrame(buf)
				if errors.Is(err, framestream.EOF) {
					return n
				}
				if err != nil {
					t.Error(err)
					return n
				}
				if _, _, err := question(buf[:size]); err != nil {
					t.Error(err)
				}
				n++
			}
		})
		counts, err := p.Send(s, load)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range s {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		received := done()
		sum := 0
		for _, n := range counts.Kinds {
			sum += n
		}
		if received != counts.Frames || sum != counts.Frames || counts.V4+counts.V6 != counts.Frames {
			t.Errorf("%d received, sent %+v", received, counts)
		}
		if wantFrames > 0 && received != wantFrames {
			t.Errorf("%d frames, want %d", received, wantFrames)
		}
	}
	f(1, Load{Frames: 1}, 1)
	f(1, Load{Frames: p.Len()}, p.Len())
	f(1, Load{Frames: 2*p.Len() + 777}, 2*p.Len()+777)
	f(3, Load{Frames: 2*p.Len() + 777}, 2*p.Len()+777)
	f(3, Load{Frames: 2}, 2)
	f(2, Load{Frames: 3000, Rate: 20000}, 3000)
	f(2, Load{For: 100 * time.Millisecond, Rate: 20000}, 0)
	f(2, Load{For: 100 * time.Millisecond}, 0)

	// What one sender sends is the pool, byte for byte.
	fresh := build(t, config())
	s, done := receivers(t, 1, func(_ int, r *framestream.Reader) int { return readAll(t, r, fresh, 0) })
	if _, err := p.Send(s, Load{Frames: p.Len()}); err != nil {
		t.Fatal(err)
	}
	if err := s[0].Close(); err != nil {
		t.Fatal(err)
	}
	if n := done(); n != p.Len() {
		t.Errorf("%d frames as in the pool, want %d", n, p.Len())
	}
}

func TestPacedSendKeepsTheRate(t *testing.T) {
	p := build(t, config())
	s, done := receivers(t, 1, func(_ int, r *framestream.Reader) int { return readAll(t, r, p, 0) })
	start := time.Now()
	if _, err := p.Send(s, Load{Frames: 2000, Rate: 10000}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 195*time.Millisecond {
		t.Errorf("2000 frames at 10000 a second took %v", d)
	}
	if err := s[0].Close(); err != nil {
		t.Fatal(err)
	}
	done()
}

func TestListIsSortedAndDistinct(t *testing.T) {
	list := List(1, 5000)
	suffixes := 0
	for i, name := range list {
		if i > 0 && list[i-1] >= name {
			t.Fatalf("%q stands before %q", list[i-1], name)
		}
		if name[0] == '.' {
			suffixes++
		}
	}
	if len(list) != 5000 || suffixes < 1300 || suffixes > 1700 {
		t.Errorf("%d entries, %d suffix entries", len(list), suffixes)
	}
}

func BenchmarkBuild(b *testing.B) {
	cfg := config()
	cfg.Frames = b.N
	if _, err := Build(cfg); err != nil {
		b.Fatal(err)
	}
}
