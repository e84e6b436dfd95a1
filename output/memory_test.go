package output

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A memoryConn is one end of a connection in memory whose both directions hold
// a limited number of octets. Unlike with net.Pipe, a writer that waits holds no
// mutex, so that synctest's time goes on.
type memoryConn struct {
	in, out *stream
	written *atomic.Int64 // nil: nobody counts
}

func memoryPipe(limit int) (ours, theirs net.Conn) {
	if limit == 0 {
		limit = 1 << 20
	}
	up, down := newStream(limit), newStream(limit)
	return &memoryConn{in: down, out: up}, &memoryConn{in: up, out: down}
}

type stream struct {
	limit int

	mu      sync.Mutex
	changed sync.Cond
	octets  bytes.Buffer // guarded by mu, like all that follows
	writing bool         // somebody is in the middle of a write
	ended   bool         // there will be no more
	broken  bool         // nobody reads
}

func newStream(limit int) *stream {
	s := &stream{limit: limit}
	s.changed.L = &s.mu
	return s
}

func (s *stream) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.octets.Len()
}

func (s *stream) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.broken
}

func (c *memoryConn) Read(p []byte) (int, error) {
	s := c.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.octets.Len() == 0 && !s.ended && !s.broken {
		s.changed.Wait()
	}
	if s.broken {
		return 0, net.ErrClosed
	}
	if s.octets.Len() == 0 {
		return 0, io.EOF
	}
	n, _ := s.octets.Read(p)
	s.changed.Broadcast()
	return n, nil
}

func (c *memoryConn) Write(p []byte) (n int, err error) {
	if c.written != nil {
		c.written.Add(int64(len(p)))
	}
	s := c.out
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writing {
		s.changed.Wait()
	}
	s.writing = true
	defer func() { s.writing = false; s.changed.Broadcast() }()
	for n < len(p) {
		for s.octets.Len() >= s.limit && !s.ended && !s.broken {
			s.changed.Wait()
		}
		if s.ended || s.broken {
			return n, errors.New("broken pipe")
		}
		m := min(len(p)-n, s.limit-s.octets.Len())
		s.octets.Write(p[n : n+m])
		n += m
		s.changed.Broadcast()
	}
	return n, nil
}

// Close lets the other end read what was written.
func (c *memoryConn) Close() error {
	for s, flag := range map[*stream]*bool{c.in: &c.in.broken, c.out: &c.out.ended} {
		s.mu.Lock()
		*flag = true
		s.changed.Broadcast()
		s.mu.Unlock()
	}
	return nil
}

func (c *memoryConn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "memory", Net: "unix"} }
func (c *memoryConn) RemoteAddr() net.Addr             { return c.LocalAddr() }
func (c *memoryConn) SetDeadline(time.Time) error      { return nil }
func (c *memoryConn) SetReadDeadline(time.Time) error  { return nil }
func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }
