package output

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// BenchmarkPublish measures an event's way from the queue to its removal, over
// a socket and with a broker that does no more than answer. CPU is that of the
// whole process, the broker's included.
func BenchmarkPublish(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if err := acknowledge(c); !errors.Is(err, io.EOF) {
			b.Error(err)
		}
	}()
	server, err := url.Parse("mqtt://" + l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	const names = 1000
	var queue [names]Event
	for i := range queue {
		queue[i] = Event{Name: wire(b, fmt.Sprintf("host-%d.new.example.com.", i)), Flags: 33152, Type: 1, Class: 1, Minute: testMinute}
	}
	read, closing := 0, make(chan struct{})
	var removed atomic.Int64
	p := NewPublisher(PublisherOptions{
		Server: server, Key: func() *SigningKey { return testKey }, QoS: 1, KeepAlive: keepAlive,
		Read: func(f func(Event) bool) error {
			for ; read < b.N; read++ {
				e := queue[read%names]
				e.Number = uint64(read)
				if !f(e) {
					break
				}
			}
			return nil
		},
		Remove:    func(numbers []uint64) error { removed.Add(int64(len(numbers))); return nil },
		State:     func(error) {},
		Connected: func(bool) {},
		Counted:   func(Outcome, int) {},
		Answered:  func(byte) {},
	})
	close(closing)
	b.ReportAllocs()
	before := cpu(b)
	b.ResetTimer()
	if err := p.Run(context.Background(), closing); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
	if got := removed.Load(); got != int64(b.N) {
		b.Errorf("%d of %d events were removed", got, b.N)
	}
}

// acknowledge is a broker that answers each PUBLISH, as many as there are at a
// time.
func acknowledge(c net.Conn) error {
	r, w := bufio.NewReaderSize(c, 1<<16), bufio.NewWriterSize(c, 1<<16)
	if _, err := packets.ReadPacket(r); err != nil {
		return err
	}
	ack := packets.Connack{Properties: &packets.Properties{}}
	if _, err := ack.WriteTo(c); err != nil {
		return err
	}
	for {
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		kind, err := r.ReadByte()
		if err != nil {
			return err
		}
		length, err := binary.ReadUvarint(r) // as MQTT's
		if err != nil {
			return err
		}
		body, err := r.Peek(int(length))
		if err != nil {
			return err
		}
		switch kind >> 4 {
		case packets.PUBLISH:
			id := body[2+binary.BigEndian.Uint16(body):]
			w.Write([]byte{packets.PUBACK << 4, 2, id[0], id[1]})
		case packets.PINGREQ:
			w.Write([]byte{packets.PINGRESP << 4, 0})
		}
		if _, err := r.Discard(int(length)); err != nil {
			return err
		}
	}
}

// cpu returns the processor time that the process has taken.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
