package runner

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

// stopGrace is how long streams are read on after the listeners closed, so that
// what has reached the kernel by then is taken in.
const stopGrace = 100 * time.Millisecond

// An input is a listening socket and the setting that it comes from.
type input struct {
	net.Listener
	name string
	tls  bool
}

// A listening is the first stage: it accepts connections and reads them. It
// writes the channel of chunks, and closes it when the last stream has ended.
type listening struct {
	inputs []input
	limit  int // max_connections
	shared *reading
	tls    *tls.Config // of input_tls

	streams sync.WaitGroup

	mu    sync.Mutex
	conns map[*connection]struct{} // guarded by mu
}

// run serves until stop is closed, then ends the streams and closes the
// channel of chunks.
func (l *listening) run(stop <-chan struct{}) {
	l.conns = make(map[*connection]struct{})
	var accepting sync.WaitGroup
	for _, in := range l.inputs {
		accepting.Go(func() { l.accept(in, stop) })
	}
	<-stop
	for _, in := range l.inputs {
		if err := in.Close(); err != nil {
			l.shared.log.Warn("an input did not close", zap.String("input", in.name), zap.Error(err))
		}
	}
	accepting.Wait()
	l.endStreams()
	l.streams.Wait()
	close(l.shared.chunks)
}

// accept takes connections from one input until it is closed.
func (l *listening) accept(in input, stop <-chan struct{}) {
	for {
		conn, err := in.Accept()
		if err == nil {
			l.start(in, conn)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Out of file descriptors, most likely: others may be given back.
		l.shared.log.Warn("a connection could not be accepted", zap.String("input", in.name), zap.Error(err))
		select {
		case <-stop:
			return
		case <-time.After(time.Second):
		}
	}
}

// start serves a connection on a goroutine of its own, if there is room.
func (l *listening) start(in input, conn net.Conn) {
	c := &connection{input: in.name, conn: conn, source: &plainSource{Conn: conn}, shared: l.shared}
	if in.tls {
		c.source = newTLSSource(conn, l.tls)
	}
	l.mu.Lock()
	full := len(l.conns) >= l.limit
	if !full {
		l.conns[c] = struct{}{}
	}
	l.mu.Unlock()
	if full {
		l.shared.metrics.refusal("too_many_connections").Inc()
		conn.Close()
		return
	}
	l.shared.metrics.connected(in.name)
	l.streams.Go(func() {
		c.serve()
		l.shared.metrics.disconnected(in.name)
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	})
}

// endStreams lets every stream end soon.
func (l *listening) endStreams() {
	until := time.Now().Add(stopGrace)
	l.shared.until.Store(&until)
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if err := c.conn.SetReadDeadline(until); err != nil {
			c.conn.Close()
		}
	}
}
