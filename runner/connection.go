package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	framestream "github.com/farsightsec/golang-framestream"
	"go.uber.org/zap"

	"edm/dnstap"
)

const (
	handshakeTimeout = 5 * time.Second
	finishTimeout    = 100 * time.Millisecond // for a peer that does not read

	// A read of fewer than littleRead octets means a slow stream. Waiting
	// before the next one lets frames gather, so that there is one wake-up for
	// many of them.
	//
	// It must be less than any socket holds: the kernel counts some 800 octets
	// for a write of a few, so a sender that makes two writes of each frame, as
	// unbound does, has filled a unix socket with 130 small frames, and would be
	// held up.
	littleRead = 8 << 10
	littleWait = 5 * time.Millisecond
)

// A connection reads one Frame Streams stream, and hands its frames on in
// chunks. Its goroutine owns all of it.
type connection struct {
	input  string // the setting that it came in by
	conn   net.Conn
	source source
	shared *reading

	chunk *dnstap.Chunk // being filled
	have  int           // octets in it
	whole int           // of these, whole frames at its start, to be handed on

	// The chunk before waits for room in the queue until this is closed; nil if
	// there is none.
	inLine chan struct{}

	bidirectional bool
	skip          int // octets still to come of a frame that is skipped
}

// reading is what all connections share.
type reading struct {
	limit   int // max_frame_size
	free    *freeList
	chunks  chan<- *dnstap.Chunk
	metrics *metrics
	log     *zap.Logger
	until   atomic.Pointer[time.Time] // when all streams end; nil while the listeners are open

	refusals limiter // of their log lines
}

// A refusal is why a stream was closed before its first frame. reason is its
// name in metrics, the rest a sentence for the operator.
type refusal struct{ reason, text string }

func (r *refusal) Error() string { return r.text }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// serve reads the stream to its end and closes it. When shared.until has come,
// and the connection's read deadline with it, what has arrived by then is handed
// on and the stream ends.
func (c *connection) serve() {
	defer c.conn.Close()
	c.chunk = c.shared.free.take()
	defer func() { c.shared.free.give(c.chunk) }()

	if err := c.handshake(); err != nil {
		c.refused(err)
		return
	}
	c.shared.log.Info("resolver connected", c.fields(zap.Bool("bidirectional", c.bidirectional))...)
	reason, err := c.stream()
	c.shared.metrics.streamEnds[reason].Add(1)
	fields := c.fields(zap.String("reason", endNames[reason]))
	if err != nil {
		fields = append(fields, zap.Error(err))
	}
	switch reason {
	case endLost, endControl:
		c.shared.log.Warn("stream closed: it is no longer Frame Streams", fields...)
	default:
		c.shared.log.Info("resolver gone", fields...)
	}
}

func (c *connection) fields(more ...zap.Field) []zap.Field {
	fields := []zap.Field{zap.String("input", c.input)}
	if _, unix := c.conn.(*net.UnixConn); !unix {
		fields = append(fields, zap.Stringer("peer", c.conn.RemoteAddr()))
	}
	return append(fields, more...)
}

func (c *connection) refused(err error) {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{"error", err.Error()}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			r = &refusal{"timeout", "the peer did not say START within " + handshakeTimeout.String()}
		case errors.Is(err, io.EOF):
			r = &refusal{"closed", "the peer closed before it said START"}
		}
	}
	c.shared.metrics.refusal(r.reason).Inc()
	if c.shared.refusals.allow(time.Now()) {
		c.shared.log.Warn("connection refused", c.fields(zap.String("reason", r.reason), zap.String("cause", r.text))...)
	}
}

// refusalLines is how many refusals a second are logged; all are counted.
const refusalLines = 10

// A limiter keeps whoever can connect from filling the log.
type limiter struct {
	mu     sync.Mutex
	second int64 // guarded by mu
	n      int   // in this second; guarded by mu
}

func (l *limiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := now.Unix(); s != l.second {
		l.second, l.n = s, 0
	}
	l.n++
	return l.n <= refusalLines
}

// handshake brings the stream to where data frames begin: READY, ACCEPT, START
// of a bidirectional one, START alone of a unidirectional one.
func (c *connection) handshake() error {
	if err := c.conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if t, ok := c.source.(*tlsSource); ok {
		if err := t.handshake(); err != nil {
			return err
		}
	}
	first, err := c.control()
	if err != nil {
		return err
	}
	if first.ControlType == framestream.CONTROL_READY {
		c.bidirectional = true
		if err := c.reply(framestream.CONTROL_ACCEPT); err != nil {
			return err
		}
		if first, err = c.control(); err != nil {
			return err
		}
	}
	if first.ControlType != framestream.CONTROL_START {
		return refuse("control", "a control frame of type %d where START was due", first.ControlType)
	}
	if err := c.conn.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	return c.resetReadDeadline()
}

// resetReadDeadline lets reads take as long as the stream may last.
func (c *connection) resetReadDeadline() error {
	for {
		until := c.shared.until.Load()
		var deadline time.Time // none
		if until != nil {
			deadline = *until
		}
		if err := c.conn.SetReadDeadline(deadline); err != nil {
			return err
		}
		if c.shared.until.Load() == until {
			return nil
		}
		// It was set meanwhile, and the deadline with it, which is now undone.
	}
}

// control reads a control frame of the handshake.
func (c *connection) control() (f framestream.ControlFrame, err error) {
	for {
		n, stop := dnstap.Scan(c.chunk.Buf[:c.have], c.shared.limit)
		if c.have >= 4 && (n > 0 || stop != dnstap.Control && stop != dnstap.Partial || c.chunk.Buf[0]|c.chunk.Buf[1]|c.chunk.Buf[2]|c.chunk.Buf[3] != 0) {
			return f, wrongProtocol(c.chunk.Buf[:c.have])
		}
		if stop == dnstap.Control {
			break
		}
		n, err := c.source.Read(c.chunk.Buf[c.have:])
		if err != nil && n == 0 {
			return f, err
		}
		c.have += n
		c.shared.metrics.bytesRead.Add(uint64(n))
	}
	f, n, err := dnstap.DecodeControl(c.chunk.Buf[:c.have])
	if err != nil {
		return f, refuse("control", "%v", err)
	}
	for i, t := range f.ContentTypes {
		f.ContentTypes[i] = append([]byte(nil), t...) // out of the chunk
	}
	if !f.MatchContentType([]byte(dnstap.ContentType)) {
		return f, refuse("content_type", "the stream is of type %q, edm takes %q", f.ContentTypes, dnstap.ContentType)
	}
	c.have = copy(c.chunk.Buf, c.chunk.Buf[n:c.have])
	return f, nil
}

// reply sends a control frame.
func (c *connection) reply(kind uint32) error {
	f := framestream.ControlFrame{ControlType: kind}
	if kind == framestream.CONTROL_ACCEPT {
		f.SetContentType([]byte(dnstap.ContentType))
	}
	return f.EncodeFlush(bufio.NewWriterSize(c.source, dnstap.MaxControl))
}

// stream hands on frames until the stream ends, and says how it did.
func (c *connection) stream() (reason end, err error) {
	defer c.flush()
	for {
		for again := true; again; {
			if again, reason = c.cut(); reason != endNot {
				return reason, nil
			}
		}
		c.handOn()
		n, err := c.source.Read(c.chunk.Buf[c.have:])
		c.have += n
		c.shared.metrics.bytesRead.Add(uint64(n))
		if n == 0 && err != nil && !c.woken(err) {
			return c.broken(err)
		}
	}
}

// cut finds the whole frames in the chunk and deals with what stands behind
// them. again says that there may be more.
func (c *connection) cut() (again bool, _ end) {
	if c.skip > 0 {
		n := min(c.skip, c.have-c.whole)
		c.skip -= n
		c.remove(n)
	}
	n, stop := dnstap.Scan(c.chunk.Buf[c.whole:c.have], c.shared.limit)
	c.whole += n
	switch stop {
	case dnstap.Control:
		return false, c.finish()
	case dnstap.Lost:
		return false, endLost
	case dnstap.Oversize:
		c.skip = dnstap.FrameLen(c.chunk.Buf[c.whole:])
		c.remove(4)
		c.shared.metrics.readerDropped(dropOversize)
		return true, endNot
	}
	return false, endNot
}

// remove takes n octets out of the chunk, from behind the whole frames.
func (c *connection) remove(n int) {
	c.have = c.whole + copy(c.chunk.Buf[c.whole:], c.chunk.Buf[c.whole+n:c.have])
}

// finish ends the stream at the control frame behind the whole frames. FINISH
// goes out before they are handed on: the queue may be full, and a resolver that
// stops waits for it.
func (c *connection) finish() end {
	f, _, err := dnstap.DecodeControl(c.chunk.Buf[c.whole:c.have])
	if err != nil || f.ControlType != framestream.CONTROL_STOP {
		return endControl
	}
	if c.bidirectional && c.conn.SetWriteDeadline(time.Now().Add(finishTimeout)) == nil {
		// A peer that is gone already has no use for it.
		if t, ok := c.source.(*tlsSource); c.reply(framestream.CONTROL_FINISH) == nil && ok {
			_ = t.CloseWrite() // some take an end without it for an attack
		}
	}
	return endStop
}

// handOn gives the whole frames to the workers, and moves what is behind them
// to a chunk of its own.
//
// If the queue is full, the frames wait in line on a goroutine of their own, and
// the next chunk is filled meanwhile: a STOP in it must not wait for the
// workers. When that one is full too, the peer has to wait.
func (c *connection) handOn() {
	if c.whole == 0 {
		return
	}
	if c.inLine != nil {
		select {
		case <-c.inLine:
		default:
			if c.have < len(c.chunk.Buf) {
				return
			}
			<-c.inLine
		}
		c.inLine = nil
	}
	full := c.chunk
	c.chunk = c.shared.free.take()
	c.have = copy(c.chunk.Buf, full.Buf[c.whole:c.have])
	full.N, c.whole = c.whole, 0
	select {
	case c.shared.chunks <- full:
		return
	default:
	}
	inLine := make(chan struct{})
	c.inLine = inLine
	go func() {
		c.shared.chunks <- full
		close(inLine)
		if c.conn != nil { // of a replay, a read does not wait
			_ = c.conn.SetReadDeadline(time.Now()) // the frames behind can go now
		}
	}()
}

// woken reports whether a read ended only so that handOn is tried again.
func (c *connection) woken(err error) bool {
	if c.conn == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	until := c.shared.until.Load()
	return (until == nil || time.Now().Before(*until)) && c.resetReadDeadline() == nil
}

// flush hands on what is left and returns when it has found room.
func (c *connection) flush() {
	for c.inLine != nil || c.whole > 0 {
		if c.inLine != nil {
			<-c.inLine
			c.inLine = nil
		}
		c.handOn()
	}
}

// broken says how a stream ended that ended without STOP.
func (c *connection) broken(err error) (end, error) {
	cut := c.have > c.whole
	if cut {
		c.shared.metrics.readerDropped(dropCut)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return endShutdown, nil
	case cut || c.skip > 0:
		return endCut, nil
	case errors.Is(err, io.EOF):
		return endEOF, nil
	}
	return endError, err
}
