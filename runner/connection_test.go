package runner

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	framestream "github.com/farsightsec/golang-framestream"

	"edm/dnstap"
)

// The streams of this file come through a pipe in memory, in a bubble of fake
// time: what takes 5 s takes none, and what takes 100 ms is measured exactly.
// listen_test.go does the same over real sockets.

// field returns a field of a control frame.
func field(kind uint32, content string) []byte {
	b := binary.BigEndian.AppendUint32(nil, kind)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(content))), content...)
}

// controlOf returns a control frame of any fields.
func controlOf(kind uint32, fields ...[]byte) []byte {
	body := append(binary.BigEndian.AppendUint32(nil, kind), bytes.Join(fields, nil)...)
	b := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(len(body)))
	return append(b, body...)
}

func TestHandshakes(t *testing.T) {
	ours, other := dnstap.ContentType, "test:hello"
	const ready, start = framestream.CONTROL_READY, framestream.CONTROL_START
	frame := []byte("a frame")
	good := func(name string, bidirectional bool, first []byte) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, 0)
				r.take()
				p, done := r.pipe(t)
				p.send(first)
				if bidirectional {
					p.expect(framestream.CONTROL_ACCEPT)
					p.send(startFrame)
				}
				p.send(framed(frame), stopFrame)
				if bidirectional {
					p.expect(framestream.CONTROL_FINISH)
				}
				p.closed()
				<-done
				close(r.out)
				synctest.Wait()
				if got := r.taken(); len(got) != 1 || !bytes.Equal(got[0], frame) {
					t.Errorf("got %q", got)
				}
				if got := r.ended(); !reflect.DeepEqual(got, map[string]uint64{"stop": 1}) {
					t.Errorf("streams ended: %v", got)
				}
			})
		})
	}
	good("READY", true, control(ready, ours))
	good("READY with two types", true, control(ready, other, ours))
	good("READY with two types, ours first", true, control(ready, ours, other))
	good("READY without a type", true, control(ready))
	good("READY with an unknown field", true, controlOf(ready, field(77, "later"), field(1, ours)))
	good("READY with nothing but an unknown field", true, controlOf(ready, field(77, "")))
	good("READY with an empty type and ours", true, controlOf(ready, field(1, ""), field(1, ours)))
	good("READY as long as it may be", true, controlOf(ready, field(1, ours), field(77, string(make([]byte, 512-4-8-22-8)))))
	good("START alone", false, control(start, ours))
	good("START without a type", false, control(start))
	good("START with an unknown field", false, controlOf(start, field(1, ours), field(9, "x")))

	bad := func(name, reason string, first ...[]byte) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, 0)
				p, done := r.pipe(t)
				began := time.Now()
				p.send(first[0])
				if len(first) > 1 {
					p.expect(framestream.CONTROL_ACCEPT)
					p.send(first[1])
				}
				p.closed()
				<-done
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("closed after %v", took)
				}
				r.checkRefused(t, reason)
			})
		})
	}
	bad("READY of another type", "content_type", control(ready, other))
	bad("START of another type", "content_type", control(start, other))
	bad("START of another type after READY", "content_type", control(ready), control(start, other))
	bad("STOP", "control", control(framestream.CONTROL_STOP))
	bad("ACCEPT", "control", control(framestream.CONTROL_ACCEPT))
	bad("an unknown type", "control", controlOf(77))
	bad("READY twice", "control", control(ready), control(ready))
	bad("STOP after READY", "control", control(ready), control(framestream.CONTROL_STOP))
	bad("a field that does not fit", "control", controlOf(ready, field(1, ours)[:20]))
	bad("half a field", "control", controlOf(ready, []byte{0, 0, 0}))
	bad("data frame after READY", "no_start", control(ready), framed(frame))
	bad("control frame of three octets", "unknown", []byte{0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3})
	bad("control frame too long", "unknown", controlOf(ready, field(77, string(make([]byte, 512)))))
	bad("control frame without end", "unknown", []byte{0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff})
}

// checkRefused holds that one connection was refused, for one reason, in one
// line of the log, and that nothing else was said or counted.
func (r *reception) checkRefused(t *testing.T, reason string) {
	t.Helper()
	entries := r.log.entries("")
	if len(entries) != 1 || entries[0]["msg"] != "connection refused" || entries[0]["reason"] != reason || entries[0]["cause"] == "" {
		t.Errorf("want one line with reason %s, got %s", reason, r.log)
	}
	if n := counted(t, r.metrics.refusal(reason)); n != 1 {
		t.Errorf("%v counted for %s", n, reason)
	}
	if got := r.ended(); len(got) != 0 {
		t.Errorf("streams ended: %v", got)
	}
	if got := r.metrics.ends(); len(got) != 1 || got["received"] != 0 {
		t.Errorf("frames: %v", got)
	}
}

// sampleStream is a stream with every kind of frame, for a limit of 600, and
// the frames that are to come of it.
func sampleStream() (stream []byte, frames [][]byte) {
	sized := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * n)
		}
		return b
	}
	for _, n := range []int{1, 3, 4, 77, 256, 600, 2} {
		frames = append(frames, sized(n))
	}
	stream = slices.Concat(
		startFrame,
		framed(frames[:4]...),
		framed(sized(601), sized(900)), // too large, both
		framed(frames[4]),
		framed(sized(601)),
		framed(frames[5:]...),
		stopFrame)
	return stream, frames
}

// However a stream comes in pieces, the same frames come of it.
func TestEverySplitOfAStream(t *testing.T) {
	stream, frames := sampleStream()
	f := func(t *testing.T, ends ...int) {
		t.Helper()
		r := newReception(600, 1)
		r.take()
		p, done := r.pipe(t)
		from := 0
		for _, end := range append(ends, len(stream)) {
			p.send(stream[from:end])
			from = end
		}
		<-done
		close(r.out)
		synctest.Wait()
		if got := r.taken(); !slices.EqualFunc(got, frames, bytes.Equal) {
			t.Fatalf("split at %v: got %d frames %.20q, want %d", ends, len(got), got, len(frames))
		}
		got := r.metrics.ends()
		if want := map[string]uint64{"received": 3, "dropped_oversize": 3}; !reflect.DeepEqual(got, want) {
			t.Fatalf("split at %v: %v", ends, got)
		}
		if got := r.ended(); got["stop"] != 1 || len(got) != 1 {
			t.Fatalf("split at %v: streams ended %v", ends, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		f(t)
		every := make([]int, len(stream)-1)
		for i := range every {
			every[i] = i + 1
		}
		f(t, every...) // an octet at a time
		step := 1
		if testing.Short() || raceEnabled {
			step = 7 // prime to every length in the stream
		}
		for i := 1; i < len(stream); i += step {
			f(t, i)
		}
		random := rand.New(rand.NewPCG(1, 2))
		for range 100 {
			var ends []int
			for range 1 + random.IntN(20) {
				ends = append(ends, 1+random.IntN(len(stream)-1))
			}
			slices.Sort(ends)
			f(t, slices.Compact(ends)...)
		}
	})
}

// A resolver that stops gets FINISH at once, also while nobody takes what it
// sent before; and what it sent before is not lost.
func TestFinishWhileNobodyTakes(t *testing.T) {
	f := func(name string, frames int, pause time.Duration, room int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, room)
				p, done := r.pipe(t)
				p.open()
				var sent [][]byte
				for i := range frames {
					sent = append(sent, fmt.Appendf(nil, "frame %d", i))
				}
				if pause == 0 {
					p.send(framed(sent...), stopFrame)
				} else {
					for _, frame := range sent {
						p.send(framed(frame))
						time.Sleep(pause)
					}
					p.send(stopFrame)
				}
				stopped := time.Now()
				if took := p.expect(framestream.CONTROL_FINISH).Sub(stopped); took > 100*time.Millisecond {
					t.Errorf("FINISH after %v", took)
				}
				time.Sleep(time.Minute)
				r.take()
				<-done
				p.closed()
				close(r.out)
				synctest.Wait()
				if got := r.taken(); !slices.EqualFunc(got, sent, bytes.Equal) {
					t.Errorf("got %q, want %q", got, sent)
				}
			})
		})
	}
	f("nothing but STOP", 0, 0, 0)
	f("a frame and STOP at once", 1, 0, 0)
	f("a frame, then STOP", 1, time.Second, 0)
	f("a frame, then STOP soon", 1, time.Microsecond, 0)
	f("ten frames, then STOP", 10, 50*time.Millisecond, 0)
	f("ten frames into a queue of three", 10, 50*time.Millisecond, 3)
	f("thousands of frames", 3000, time.Microsecond, 1)
}

// A queue that is full delays no handshake.
func TestAcceptWhileNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReception(600, 1)
		var peers []*peer
		var done []chan struct{}
		for range 5 {
			p, d := r.pipe(t)
			done = append(done, d)
			began := time.Now()
			p.send(readyFrame)
			if took := p.expect(framestream.CONTROL_ACCEPT).Sub(began); took > 100*time.Millisecond {
				t.Errorf("ACCEPT after %v", took)
			}
			p.send(startFrame, framed([]byte("x")), framed([]byte("y")))
			peers = append(peers, p)
		}
		time.Sleep(time.Second)
		for i, p := range peers {
			p.Close()
			if i == 2 {
				r.take()
			}
			time.Sleep(time.Second)
		}
		for _, d := range done {
			<-d
		}
		close(r.out)
		synctest.Wait()
		if n := len(r.taken()); n != 10 {
			t.Errorf("%d frames of 10", n)
		}
	})
}

// More than a chunk holds comes while nobody takes: the sender waits, and
// nothing is lost or out of order.
func TestSenderWaitsForTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReception(600, 2)
		p, done := r.pipe(t)
		p.open()
		const n = 2000 // of 504 octets: 15 chunks
		sent := make(chan time.Time)
		go func() {
			for i := range n {
				frame := make([]byte, 500)
				binary.BigEndian.PutUint32(frame, uint32(i))
				p.send(framed(frame))
			}
			sent <- time.Now()
		}()
		began := time.Now()
		time.Sleep(time.Minute)
		r.take()
		if took := (<-sent).Sub(began); took < time.Minute {
			t.Errorf("everything was taken in after %v", took)
		}
		p.finish()
		<-done
		close(r.out)
		synctest.Wait()
		got := r.taken()
		if len(got) != n {
			t.Fatalf("%d frames of %d", len(got), n)
		}
		for i := range got {
			if k := int(binary.BigEndian.Uint32(got[i])); k != i {
				t.Fatalf("frame %d is number %d", i, k)
			}
		}
	})
}

// When there is room in the queue again, the frames that waited for it go on,
// though nothing more comes from the peer.
func TestWaitingFramesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReception(600, 0)
		p, done := r.pipe(t)
		p.open()
		for range 4 {
			p.send(framed([]byte("x")))
			time.Sleep(time.Second)
		}
		began := time.Now()
		r.take()
		time.Sleep(100 * time.Millisecond)
		if n := len(r.taken()); n != 4 {
			t.Errorf("%d frames of 4 after %v", n, time.Since(began))
		}
		time.Sleep(time.Hour) // the stream is still one that may be idle
		p.send(framed([]byte("y")))
		time.Sleep(100 * time.Millisecond)
		if n := len(r.taken()); n != 5 {
			t.Errorf("%d frames of 5", n)
		}
		p.finish()
		<-done
		close(r.out)
	})
}

func TestOversizedFrames(t *testing.T) {
	f := func(name string, limit, size int, want map[string]uint64) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(limit, 0)
				r.take()
				p, done := r.pipe(t)
				p.open()
				p.send(framed([]byte("before"), make([]byte, size), []byte("after")))
				p.finish()
				<-done
				close(r.out)
				synctest.Wait()
				got := r.taken()
				if len(got) < 2 || string(got[0]) != "before" || string(got[len(got)-1]) != "after" || len(got) == 3 && len(got[1]) != size {
					t.Errorf("got %.20q", got)
				}
				if got := r.metrics.ends(); !reflect.DeepEqual(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		})
	}
	kept := map[string]uint64{"received": 0}
	skipped := map[string]uint64{"received": 1, "dropped_oversize": 1}
	f("300 kB, as large zone transfers are", 262144, 300_000, skipped)
	f("as large as may be", 262144, 262144, kept)
	f("an octet more", 262144, 262145, skipped)
	f("16 MiB", 262144, 16<<20, skipped)
	f("16 MiB, which may be", 16<<20, 16<<20, kept)
	f("small limit", 512, 513, skipped)
}

// A length above 16 MiB cannot be a frame's: what follows is not waited for.
func TestLostStream(t *testing.T) {
	f := func(name string, want string, tail []byte) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, 0)
				r.take()
				p, done := r.pipe(t)
				p.open()
				p.send(framed([]byte("before")))
				time.Sleep(time.Second)
				began := time.Now()
				p.send(framed([]byte("too")), tail)
				p.closed() // though nothing was closed at the other end
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("closed after %v", took)
				}
				<-done
				close(r.out)
				synctest.Wait()
				if got := r.taken(); len(got) != 2 || string(got[1]) != "too" {
					t.Errorf("got %q", got)
				}
				if got := r.ended(); !reflect.DeepEqual(got, map[string]uint64{want: 1}) {
					t.Errorf("streams ended: %v", got)
				}
				if n := len(r.log.entries("stream closed: it is no longer Frame Streams")); n != 1 {
					t.Errorf("%d lines in the log: %s", n, r.log)
				}
			})
		})
	}
	f("two writers", "lost", []byte("\x7f\xff\xff\xff0123456789"))
	f("just above", "lost", []byte{1, 0, 0, 1})
	f("control frame too long", "lost", []byte{0, 0, 0, 0, 0, 0, 2, 1, 0})
	f("control frame too short", "lost", []byte{0, 0, 0, 0, 0, 0, 0, 2, 0, 3})
	f("another control frame", "control", startFrame)
	f("FINISH", "control", control(framestream.CONTROL_FINISH))
	f("STOP with a field that does not fit", "control", controlOf(framestream.CONTROL_STOP, []byte{1}))
}

// What came whole is used when a stream is cut, and the cut is counted.
func TestCutStream(t *testing.T) {
	f := func(name, want string, cut uint64, tail []byte) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, 0)
				r.take()
				p, done := r.pipe(t)
				p.open()
				p.send(framed([]byte("one"), []byte("two")), tail)
				p.Close()
				<-done
				close(r.out)
				synctest.Wait()
				if got := r.taken(); len(got) != 2 || string(got[1]) != "two" {
					t.Errorf("got %q", got)
				}
				if got := r.ended(); !reflect.DeepEqual(got, map[string]uint64{want: 1}) {
					t.Errorf("streams ended: %v", got)
				}
				if got := r.metrics.ends(); got["received"] != got["dropped_cut"]+got["dropped_oversize"] || got["dropped_cut"] != cut {
					t.Errorf("frames: %v", got)
				}
			})
		})
	}
	f("nowhere", "eof", 0, nil)
	f("inside a length", "cut", 1, []byte{0, 0})
	f("behind a length", "cut", 1, []byte{0, 0, 0, 5})
	f("inside a frame", "cut", 1, framed([]byte("three"))[:6])
	f("before the last octet", "cut", 1, framed([]byte("three"))[:8])
	f("inside a control frame", "cut", 1, stopFrame[:7])
	f("inside a frame too large", "cut", 0, framed(make([]byte, 601))[:300])
	f("behind the length of a frame too large", "cut", 0, framed(make([]byte, 601))[:4])
	f("behind a frame too large", "eof", 0, framed(make([]byte, 601)))
}

func TestHandshakeTakesTooLong(t *testing.T) {
	f := func(name string, speak func(p *peer)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, 0)
				began := time.Now()
				p, done := r.pipe(t)
				go speak(p)
				<-done
				if took := time.Since(began); took < handshakeTimeout || took > handshakeTimeout+littleWait {
					t.Errorf("closed after %v", took)
				}
				r.checkRefused(t, "timeout")
				time.Sleep(time.Minute) // for speak to end
			})
		})
	}
	f("silence", func(*peer) {})
	f("half a READY", func(p *peer) { p.send(readyFrame[:10]) })
	f("a READY that never ends", func(p *peer) {
		for _, b := range readyFrame {
			if _, err := p.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	})
	f("no START", func(p *peer) { p.send(readyFrame) })
	f("a START that never ends", func(p *peer) { p.send(readyFrame, startFrame[:30]) })
}

// A peer that reads nothing does not hold the handshake for longer, nor the
// stop.
func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReception(600, 0)
		r.take()
		ours, theirs := net.Pipe()
		began := time.Now()
		done := r.serveConn(ours)
		theirs.Write(readyFrame)
		<-done
		if took := time.Since(began); took != handshakeTimeout {
			t.Errorf("closed after %v", took)
		}

		ours, theirs = net.Pipe()
		done = r.serveConn(ours)
		theirs.Write(readyFrame)
		if _, err := theirs.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		theirs.Write(startFrame)
		theirs.Write(slices.Concat(framed([]byte("x")), stopFrame))
		began = time.Now()
		<-done
		if took := time.Since(began); took > finishTimeout {
			t.Errorf("closed after %v", took)
		}
		close(r.out)
		synctest.Wait()
		if n := len(r.taken()); n != 1 {
			t.Errorf("%d frames of 1", n)
		}
	})
}

// A stream on which nothing happens stays open.
func TestIdleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReception(600, 0)
		r.take()
		p, done := r.pipe(t)
		p.open()
		for range 3 {
			time.Sleep(24 * time.Hour)
			p.send(framed([]byte("x")))
		}
		p.finish()
		<-done
		close(r.out)
		synctest.Wait()
		if n := len(r.taken()); n != 3 {
			t.Errorf("%d frames of 3", n)
		}
	})
}

// On a slow stream frames gather, but none waits for long.
func TestSlowStream(t *testing.T) {
	f := func(every time.Duration, most float64) {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReception(600, 100)
				r.take()
				p, done := r.pipe(t)
				p.open()
				n := int(2 * time.Second / every)
				sent := make([]time.Time, n)
				for i := range n {
					sent[i] = time.Now()
					// A pipe has no buffer, so write as a socket would.
					go p.send(framed([]byte("a frame")))
					time.Sleep(every)
				}
				time.Sleep(time.Second)
				p.finish()
				<-done
				close(r.out)
				synctest.Wait()
				if len(r.at) != n {
					t.Fatalf("%d frames of %d", len(r.at), n)
				}
				for i := range sent {
					if age := r.at[i].Sub(sent[i]); age > 100*time.Millisecond {
						t.Fatalf("frame %d was taken when %v old", i, age)
					}
				}
				if per := float64(r.chunks) / float64(n); per > most {
					t.Errorf("%d chunks for %d frames", r.chunks, n)
				}
			})
		})
	}
	f(time.Second/5, 1)
	f(time.Second/100, 1)
}

// FuzzStream sends any octets, in any pieces: the same comes of them as of the
// whole, and what a reader of another make finds is found.
func FuzzStream(f *testing.F) {
	stream, _ := sampleStream()
	f.Add(stream, uint64(1))
	f.Add(slices.Concat(readyFrame, startFrame, framed([]byte("x"))), uint64(2))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"), uint64(3))
	f.Add(slices.Concat(startFrame, []byte{0x7f, 0xff, 0xff, 0xff, 1}), uint64(4))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		type result struct {
			frames, log string
			ends        map[string]uint64
			ended       map[string]uint64
		}
		var whole result
		for pass := range 2 {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				r := newReception(600, random.IntN(2))
				r.take()
				p, done := r.pipe(t)
				for rest := stream; len(rest) > 0; {
					n := len(rest)
					if pass > 0 {
						n = 1 + random.IntN(n)
					}
					if _, err := p.Write(rest[:n]); err != nil {
						break
					}
					rest = rest[n:]
				}
				synctest.Wait() // for what it answers
				p.Close()
				<-done
				close(r.out)
				synctest.Wait()
				got := result{fmt.Sprintf("%q", r.taken()), "", r.metrics.ends(), r.ended()}
				if pass == 0 {
					whole = got
					checkOracle(t, stream, r.taken())
				} else if !reflect.DeepEqual(got, whole) && len(got.ended) > 0 {
					t.Errorf("in pieces: %v\nas a whole: %v", got, whole)
				}
			})
		}
	})
}

// checkOracle compares with golang-framestream, which reads a unidirectional
// stream up to the first thing it does not understand.
func checkOracle(t *testing.T, stream []byte, got [][]byte) {
	t.Helper()
	ct := []byte(dnstap.ContentType)
	r, err := framestream.NewReader(bytes.NewReader(stream), &framestream.ReaderOptions{ContentTypes: [][]byte{ct}})
	if err != nil {
		return
	}
	buf := make([]byte, 600)
	for {
		n, err := r.ReadFrame(buf)
		if err == framestream.ErrDataFrameTooLarge {
			continue
		}
		if err != nil {
			return
		}
		if len(got) == 0 || !bytes.Equal(got[0], buf[:n]) {
			t.Fatalf("golang-framestream finds %q, we %.20q", buf[:n], got)
		}
		got = got[1:]
	}
}
