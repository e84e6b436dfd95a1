package runner

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
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
	open  map[string]int           // how many of them came by each input; guarded by mu
}

// run serves until stop is closed, then ends the streams and closes the
// channel of chunks.
func (l *listening) run(stop <-chan struct{}) {
	l.conns, l.open = make(map[*connection]struct{}), make(map[string]int)
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
	room := l.roomLocked(in.name)
	if room {
		l.conns[c] = struct{}{}
		l.open[in.name]++
	}
	l.mu.Unlock()
	if !room {
		l.shared.metrics.refusal("too_many_connections").Inc()
		conn.Close()
		return
	}
	l.shared.metrics.connected(in.name)
	l.streams.Go(func() {
		c.serve()
		l.mu.Lock()
		delete(l.conns, c)
		l.open[in.name]--
		l.mu.Unlock()
		l.shared.metrics.disconnected(in.name) // now there is room
	})
}

// reservedShare is the part of max_connections that is kept for each input: one
// in so many.
const reservedShare = 8

// roomLocked says whether one more connection may come by an input. What is
// kept for another input and not in use there counts as taken, so that whoever
// reaches one of them cannot shut out those who use another.
func (l *listening) roomLocked(input string) bool {
	reserve := min(max(1, l.limit/reservedShare), l.limit/len(l.inputs))
	taken := len(l.conns)
	for _, other := range l.inputs {
		if other.name != input {
			taken += max(0, reserve-l.open[other.name])
		}
	}
	return taken < l.limit
}

// otherFiles is what is open besides connections, at most: the store of seen
// names keeps 512 files open, and there are files that are written, sockets, the
// broker, the receiver and those who ask for metrics.
const otherFiles = 512 + 88

// warnOfFiles says so if the process may not open as many files as it may need.
// The limit is the one in force: Go raises it to the hard one at the start.
func warnOfFiles(log *zap.Logger, maxConnections int) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	if need := uint64(maxConnections + otherFiles); limit.Cur < need {
		log.Warn("the limit of open files (ulimit -n, LimitNOFILE) is too low for max_connections: raise the one or lower the other",
			zap.Uint64("limit", limit.Cur), zap.Uint64("needed", need))
	}
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
