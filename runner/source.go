package runner

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// A source is where a connection's octets come from: a socket itself, or TLS
// on one. Read returns large pieces where it can.
type source interface {
	io.ReadWriter
}

// plainSource reads a socket in large pieces, and not too often.
type plainSource struct {
	net.Conn
	little bool // the last read got little
}

func (s *plainSource) Read(b []byte) (int, error) {
	if s.little {
		time.Sleep(littleWait)
	}
	n, err := s.Conn.Read(b)
	s.little = n < littleRead
	return n, err
}

// tlsSource reads records until the chunk is full or the socket has no more:
// a record can be as small as a frame.
type tlsSource struct {
	*tls.Conn
	socket *bufferedSocket
}

// newTLSSource returns a source of TLS on a socket; its handshake is still to
// be made.
func newTLSSource(conn net.Conn, config *tls.Config) *tlsSource {
	s := &bufferedSocket{Conn: conn, r: bufio.NewReaderSize(&plainSource{Conn: conn}, 64<<10)}
	return &tlsSource{tls.Server(s, config), s}
}

func (s *tlsSource) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.socket.onlyBuffered = true
	for err == nil && n < len(b) {
		var k int
		k, err = s.Conn.Read(b[n:])
		n += k
	}
	s.socket.onlyBuffered = false
	if errors.Is(err, errNoMore) {
		err = nil
	}
	return n, err
}

func (s *tlsSource) handshake() error {
	err := s.Conn.Handshake()
	if h, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if h.RecordHeader[0]|h.RecordHeader[1]|h.RecordHeader[2]|h.RecordHeader[3] == 0 {
			return refuse("plain", "the peer speaks plain Frame Streams, this input TLS: use input_tcp, or TLS in the resolver")
		}
		return wrongProtocol(h.RecordHeader[:])
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
		return refuse("tls_handshake", "TLS handshake: %v", err)
	}
	return err
}

// A bufferedSocket is a socket with a buffer in front. While onlyBuffered is
// set it reads what is in the buffer and then says errNoMore, which TLS takes
// for a time-out: it keeps the part of a record that it has.
type bufferedSocket struct {
	net.Conn
	r            *bufio.Reader
	onlyBuffered bool
}

func (s *bufferedSocket) Read(b []byte) (int, error) {
	if s.onlyBuffered && s.r.Buffered() == 0 {
		return 0, errNoMore
	}
	return s.r.Read(b)
}

var errNoMore net.Error = noMore{}

type noMore struct{}

func (noMore) Error() string   { return "nothing buffered" }
func (noMore) Timeout() bool   { return true }
func (noMore) Temporary() bool { return true }
