package traffic

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	framestream "github.com/farsightsec/golang-framestream"
)

var contentTypes = [][]byte{[]byte("protobuf:dnstap.Dnstap")}

// WriteFile writes the pool as a Frame Streams file: START, the frames, STOP.
func (p *Pool) WriteFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := framestream.NewWriter(f, &framestream.WriterOptions{ContentTypes: contentTypes})
	if err != nil {
		return err
	}
	if _, err := f.Write(p.buf); err != nil {
		return err
	}
	return w.Close()
}

// A Sender is the resolver's end of a bidirectional stream.
type Sender struct {
	conn    net.Conn
	control *framestream.Writer // control frames only: the rest goes by it in large writes
}

// Open shakes hands over a connection, which the sender then owns.
func Open(conn net.Conn) (*Sender, error) {
	control, err := framestream.NewWriter(conn, &framestream.WriterOptions{
		ContentTypes:  contentTypes,
		Bidirectional: true,
		Timeout:       30 * time.Second, // for ACCEPT and for FINISH
	})
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, fmt.Errorf("opening a stream: %w", errors.Join(err, conn.Close()))
	}
	return &Sender{conn, control}, nil
}

// Write sends frames, each behind its four bytes of length.
func (s *Sender) Write(framed []byte) (int, error) { return s.conn.Write(framed) }

// Close says STOP, waits for FINISH and closes the connection.
func (s *Sender) Close() error {
	err := s.control.Close()
	if err != nil {
		err = fmt.Errorf("finishing a stream: %w", err)
	}
	return errors.Join(err, s.conn.Close())
}

// Load says how a pool is sent. Frames or For must be given.
type Load struct {
	Frames int           // in all, over as many passes as that takes; 0 is no limit
	For    time.Duration // stop after this; 0 is no limit
	Rate   float64       // frames a second over all senders; 0 is as fast as they are taken
	Pass   int           // number of the first pass: novel names of different passes differ

	// Before, if set, is called with the number of frames of each write that is
	// about to happen, by several senders at once.
	Before func(frames int)
}

const (
	framesPerWrite  = 512 // at full speed: about 128 KiB
	writesPerSecond = 400 // of one sender, when paced
)

// Send sends the pool through some senders, pass after pass with fresh novel
// names, and counts what it sent. The senders stay open.
func (p *Pool) Send(senders []*Sender, load Load) (Counts, error) {
	if load.Frames == 0 && load.For == 0 {
		panic("BUG: a load without an end")
	}
	n := len(senders)
	load.Rate /= float64(n)
	counts, errs := make([]Counts, n), make([]error, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i, s := range senders {
		// Each sender has a part of the pool for itself, so that no two of
		// them touch the same bytes.
		part := part{pool: p, sender: s, load: load, first: i * p.Len() / n, last: (i + 1) * p.Len() / n}
		part.load.Frames = (i+1)*load.Frames/n - i*load.Frames/n
		if part.first == part.last || load.Frames > 0 && part.load.Frames == 0 {
			continue
		}
		wg.Go(func() { counts[i], errs[i] = part.send(start) })
	}
	wg.Wait()
	var sum Counts
	for _, c := range counts {
		sum.Add(c)
	}
	return sum, errors.Join(errs...)
}

// part is what one sender sends.
type part struct {
	pool        *Pool
	sender      *Sender
	load        Load
	first, last int
}

func (t part) send(start time.Time) (sent Counts, err error) {
	step := framesPerWrite
	if t.load.Rate > 0 {
		step = min(step, max(1, int(t.load.Rate)/writesPerSecond))
	}
	pass, at := t.load.Pass, t.first
	for {
		last := min(at+step, t.last)
		if t.load.Frames > 0 {
			last = min(last, at+t.load.Frames-sent.Frames)
		}
		if t.load.Rate > 0 {
			due := time.Duration(float64(sent.Frames) / t.load.Rate * float64(time.Second))
			time.Sleep(time.Until(start.Add(due)))
		}
		if at == last || t.load.For > 0 && time.Since(start) >= t.load.For {
			return sent, nil
		}
		t.pool.Freshen(at, last, pass)
		if t.load.Before != nil {
			t.load.Before(last - at)
		}
		if _, err := t.sender.Write(t.pool.Framed(at, last)); err != nil {
			return sent, fmt.Errorf("sending after %d frames: %w", sent.Frames, err)
		}
		sent.add(t.pool.frames[at:last])
		if at = last; at == t.last {
			at = t.first
			pass++
		}
	}
}

// Freshen gives the novel names of frames first up to last the labels of one
// pass. No two novel names of any two passes are the same.
func (p *Pool) Freshen(first, last, pass int) {
	n := sort.Search(len(p.novel), func(i int) bool { return p.novel[i].frame >= first })
	for ; n < len(p.novel) && p.novel[n].frame < last; n++ {
		p.putLabel(n, pass)
	}
}

// putLabel writes the label of a novel name. Each step of the mixing can be
// turned back, so different numbers give different labels.
func (p *Pool) putLabel(n, pass int) {
	x := uint64(pass)*uint64(len(p.novel)) + uint64(n)
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	dst := p.buf[p.novel[n].at:][:labelLen]
	for i := range dst {
		dst[i] = base32[x&31]
		x >>= 5
	}
}

// NovelFrame finds the frame whose novel name has a label, and the pass that it
// has it in.
func (p *Pool) NovelFrame(label string) (frame, pass int, ok bool) {
	if len(label) != labelLen || len(p.novel) == 0 {
		return 0, 0, false
	}
	var x uint64
	for i := labelLen - 1; i >= 0; i-- {
		digit := strings.IndexByte(base32, label[i])
		if digit < 0 {
			return 0, 0, false
		}
		x = x<<5 | uint64(digit)
	}
	// putLabel, backwards: multiplied by the inverses of its factors.
	x ^= x>>31 ^ x>>62
	x *= 0x319642b2d24d8ec3
	x ^= x>>27 ^ x>>54
	x *= 0x96de1b173f119089
	x ^= x>>30 ^ x>>60
	n, in := x%uint64(len(p.novel)), x/uint64(len(p.novel))
	return p.novel[n].frame, int(in), in < 1<<31 // no more passes than that
}
