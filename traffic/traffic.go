// Package traffic makes up what a resolver with many clients tells over
// dnstap, so that edm can be tried, tested and measured anywhere.
//
// A [Pool] is built from a [Config] and nothing else: the same configuration
// gives the same bytes on every machine, whatever its number of cores. The
// frames stand in memory as they go over a socket, so that sending them costs
// next to nothing and what is measured is the receiver.
//
// The mix is one of names: names on a list of well-known ones, names that
// come again and again but are on no list, and names that nobody has asked for
// before. The first two are drawn with Zipf's law, so a few names make most of
// the traffic. A novel name has one label of its own; a pool that is sent again
// gets fresh ones ([Pool.Freshen]), so that novel stays novel. Clients are drawn
// evenly. Responses have answers, CNAME chains, signatures, SOA records and
// EDNS options at the rates a resolver sees.
//
// The pool knows what it holds ([Pool.Counts], [Pool.Frame]): whatever counts
// its frames can be checked to the last one.
package traffic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

// Config says what a pool is made of. Build takes a zero field as the value
// given here, except for the shares, where zero is none.
type Config struct {
	Seed   uint64
	Frames int // 1 000 000

	WellKnown []string // the list; a leading dot marks a suffix entry
	SeenNames int      // names that come again and are on no list: 200 000
	Clients   int      // 100 000
	V6Share   float64  // of the clients
	SeenOnce  bool     // one frame for each seen name, in order, and nothing else

	Start      time.Time     // of the first frame: now, which makes each build another one
	FrameEvery time.Duration // from one frame to the next: 30 µs

	// Shares of the frames. What is left of one is novel names.
	WellKnownShare, SeenShare float64

	// Frames that are not client responses with a question, taken off the
	// whole before the shares above: other message types, and damaged frames.
	QueryShare, ResolverShare, MalformedShare float64
}

// Default is the mix that edm is measured with.
func Default() Config {
	return Config{
		Seed:           1,
		V6Share:        0.20,
		WellKnownShare: 0.55,
		SeenShare:      0.35,
	}
}

// fill puts the defaults in the place of zeros.
func (c *Config) fill() {
	setDefault(&c.Frames, 1_000_000)
	setDefault(&c.SeenNames, 200_000)
	setDefault(&c.Clients, 100_000)
	setDefault(&c.FrameEvery, 30*time.Microsecond)
	if c.Start.IsZero() {
		c.Start = time.Now()
	}
	if c.SeenOnce {
		c.Frames = c.SeenNames
		c.QueryShare, c.ResolverShare, c.MalformedShare = 0, 0, 0
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Kind is what a frame is about.
type Kind uint8

const (
	WellKnown Kind = iota // a client response for a name on the list
	Seen                  // a client response for a name that comes again
	Novel                 // a client response for a name never used before
	Query                 // a CLIENT_QUERY
	Resolver              // a RESOLVER_RESPONSE
	Malformed             // no frame that a question can be read from
)

// Frame describes one frame of a pool.
type Frame struct {
	Kind   Kind
	V6     bool
	Name   uint32 // the entry in the well-known list that covers the name, or the number of the seen name
	Client uint32 // number of the client, below Config.Clients
}

// Counts says how many frames there are.
type Counts struct {
	Frames int
	Kinds  [Malformed + 1]int
	V4, V6 int // client responses with a question, by the client's family
}

func (c *Counts) add(frames []Frame) {
	for _, f := range frames {
		c.Frames++
		c.Kinds[f.Kind]++
		switch {
		case f.Kind > Novel:
		case f.V6:
			c.V6++
		default:
			c.V4++
		}
	}
}

// Add adds another count.
func (c *Counts) Add(o Counts) {
	c.Frames += o.Frames
	c.V4 += o.V4
	c.V6 += o.V6
	for k, n := range o.Kinds {
		c.Kinds[k] += n
	}
}

// A Pool is traffic ready to be sent. Only Freshen and Send change it, and only
// the labels of novel names.
type Pool struct {
	buf     []byte  // frames one after the other, each behind its length
	offsets []int   // of each frame in buf, and the end of the last
	frames  []Frame // what each frame is
	novel   []label // in the order of the frames
}

// label is where the unique label of a novel name stands.
type label struct{ frame, at int }

// Len is the number of frames.
func (p *Pool) Len() int { return len(p.frames) }

// Frame describes frame i and gives its payload, without the length in front.
func (p *Pool) Frame(i int) (Frame, []byte) {
	return p.frames[i], p.buf[p.offsets[i]+4 : p.offsets[i+1]]
}

// Framed gives frames first up to last, each behind its four bytes of length.
func (p *Pool) Framed(first, last int) []byte {
	return p.buf[p.offsets[first]:p.offsets[last]]
}

// Counts counts the frames of one pass.
func (p *Pool) Counts() (c Counts) {
	c.add(p.frames)
	return c
}

// Distinct counts the entries of the well-known list, the seen names and the
// clients that client responses of one pass are about.
func (p *Pool) Distinct() (entries, seenNames, clients int) {
	var names [2]map[uint32]bool
	names[WellKnown], names[Seen] = map[uint32]bool{}, map[uint32]bool{}
	by := map[uint32]bool{}
	for _, f := range p.frames {
		if f.Kind <= Seen {
			names[f.Kind][f.Name] = true
		}
		if f.Kind <= Novel {
			by[f.Client] = true
		}
	}
	return len(names[WellKnown]), len(names[Seen]), len(by)
}

const (
	labelLen    = 13 // base32 digits, which carry 64 bits
	placeholder = "qqqqqqqqqqqqq"
	base32      = "abcdefghijklmnopqrstuvwxyz234567"
)

// shardFrames frames are drawn from one random sequence. It is a constant, not
// a share of the cores, so that the bytes do not depend on the machine.
const shardFrames = 8192

// Build makes a pool.
func Build(cfg Config) (*Pool, error) {
	cfg.fill()
	if cfg.WellKnownShare > 0 && len(cfg.WellKnown) == 0 && !cfg.SeenOnce {
		return nil, fmt.Errorf("a share of well-known names of %v needs a list of them", cfg.WellKnownShare)
	}
	w := newWorld(cfg)
	shards := make([]Pool, (cfg.Frames+shardFrames-1)/shardFrames)
	errs := make([]error, len(shards))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				errs[i] = w.build(&shards[i], i*shardFrames)
			}
		})
	}
	for i := range shards {
		next <- i
	}
	close(next)
	wg.Wait()

	size := 0
	for i := range shards {
		if errs[i] != nil {
			return nil, errs[i]
		}
		size += len(shards[i].buf)
	}
	p := &Pool{buf: make([]byte, 0, size)}
	for i := range shards {
		p.take(&shards[i])
	}
	p.offsets = append(p.offsets, len(p.buf))
	p.Freshen(0, p.Len(), 0)
	return p, nil
}

// take moves the frames of a shard to the end of the pool.
func (p *Pool) take(shard *Pool) {
	for _, at := range shard.offsets {
		p.offsets = append(p.offsets, len(p.buf)+at)
	}
	for _, l := range shard.novel {
		p.novel = append(p.novel, label{len(p.frames) + l.frame, len(p.buf) + l.at})
	}
	p.buf = append(p.buf, shard.buf...)
	p.frames = append(p.frames, shard.frames...)
	*shard = Pool{}
}

// build fills a shard with frames, of which the first is number first.
func (w *world) build(p *Pool, first int) error {
	r := rand.New(rand.NewPCG(w.cfg.Seed, 1000+uint64(first)))
	last := min(first+shardFrames, w.cfg.Frames)
	for n := first; n < last; n++ {
		f, name := w.draw(r, n)
		wire, err := response(r, name, f.Kind)
		if err != nil {
			return fmt.Errorf("packing a response for %q: %w", name, err)
		}
		damage := r.IntN(damages)
		if f.Kind == Malformed {
			wire = damageMessage(wire, damage)
		}
		start := len(p.buf)
		p.buf = append(p.buf, 0, 0, 0, 0)
		at := w.cfg.Start.Add(time.Duration(n) * w.cfg.FrameEvery)
		if p.buf, err = (proto.MarshalOptions{}).MarshalAppend(p.buf, w.wrap(r, f, wire, at)); err != nil {
			return fmt.Errorf("encoding the frame of %q: %w", name, err)
		}
		if f.Kind == Malformed && damage == cutFrame {
			p.buf = p.buf[:start+(len(p.buf)-start)/2]
		}
		binary.BigEndian.PutUint32(p.buf[start:], uint32(len(p.buf)-start-4))
		if f.Kind == Novel {
			i := bytes.Index(p.buf[start:], []byte(placeholder))
			if i < 0 || bytes.Contains(p.buf[start+i+labelLen:], []byte(placeholder)) {
				panic("BUG: the label of a novel name is not in its frame exactly once")
			}
			p.novel = append(p.novel, label{n - first, start + i})
		}
		p.offsets = append(p.offsets, start)
		p.frames = append(p.frames, f)
	}
	return nil
}

// draw decides what frame number n is about.
func (w *world) draw(r *rand.Rand, n int) (f Frame, name string) {
	f.Client = uint32(r.IntN(len(w.clients)))
	f.V6 = w.clients[f.Client].Is6()
	if w.cfg.SeenOnce {
		f.Kind, f.Name = Seen, uint32(n)
		return f, w.seen[n]
	}
	odd := r.Float64()
	x := r.Float64()
	switch {
	case x < w.cfg.WellKnownShare:
		name = w.wellKnown[w.wellKnownZipf.draw(r)]
		if name[0] == '.' {
			name = host(r) + name
		}
		f.Kind = WellKnown
		f.Name, _ = w.index.covering(name)
	case x < w.cfg.WellKnownShare+w.cfg.SeenShare:
		f.Kind = Seen
		f.Name = uint32(w.seenZipf.draw(r))
		name = w.seen[f.Name]
	default:
		f.Kind = Novel
		name = placeholder + "." + w.parents[w.parentZipf.draw(r)]
	}
	switch cfg := &w.cfg; {
	case odd < cfg.QueryShare:
		f.Kind = Query
	case odd < cfg.QueryShare+cfg.ResolverShare:
		f.Kind = Resolver
	case odd < cfg.QueryShare+cfg.ResolverShare+cfg.MalformedShare:
		f.Kind = Malformed
	}
	if f.Kind != Novel && r.IntN(50) == 0 { // resolvers that mix the case
		name = mixCase(r, name)
	}
	return f, name
}

func mixCase(r *rand.Rand, s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' && r.IntN(2) == 0 {
			return c - 'a' + 'A'
		}
		return c
	}, s)
}
