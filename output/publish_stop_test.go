package output

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// What is queued when the publisher is told to close is still sent.
func TestClosing(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: few(20000)}, good)
		r.drain()
		r.once()
	})
	bubble(t, "nothing", func(t *testing.T) {
		r := newRig(t, settings{qos: 1}, good)
		r.drain()
	})
}

// A broker that reads nothing.
func TestNotReading(t *testing.T) {
	for qos := range byte(2) {
		bubble(t, fmt.Sprint("QoS ", qos), func(t *testing.T) {
			var gone time.Duration
			r := newRig(t, settings{qos: qos, events: 5000, buffer: 10000}, func(b *broker) {
				b.accept(0, nil)
				began := time.Now()
				for !b.Conn.(*memoryConn).in.isEnded() {
					time.Sleep(100 * time.Millisecond)
				}
				gone = time.Since(began)
			}, good)
			r.await("another connection", func() bool { return len(r.dials) > 1 })
			if gone > packetTimeout+2*time.Second {
				t.Errorf("the connection is kept for %v", gone)
			}
			if qos == 1 {
				r.awaitTaken()
				r.drain()
				return
			}
			// Of the first connection, no more is lost than it held.
			r.await("the rest", func() bool { return len(r.removed) == r.total })
			r.locked(func() {
				if n := len(r.taken); n < 5000-10000/300 {
					t.Errorf("%d events came", n)
				}
			})
			r.stop()
			<-r.ended
		})
	}
}

func TestSlowBroker(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: few(10000), buffer: 20000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(int) byte { time.Sleep(10 * time.Millisecond); return 0 })
		})
		r.awaitTaken()
		r.drain()
		r.once()
		checkOrder(t, r.order, maxInFlight)
		if len(r.dials) != 1 || len(r.states) > 0 {
			t.Errorf("%d connections, states %q", len(r.dials), r.states)
		}
	})
}

// Whatever the broker does, the publisher ends soon after its context.
func TestAbort(t *testing.T) {
	forever := func(b *broker) {
		for !b.Conn.(*memoryConn).in.isEnded() {
			time.Sleep(100 * time.Millisecond)
		}
	}
	f := func(name string, buffer int, script script) {
		for qos := range byte(2) {
			for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Second} {
				bubble(t, fmt.Sprint(name, " QoS ", qos, " after ", after), func(t *testing.T) {
					r := newRig(t, settings{qos: qos, events: few(5000), buffer: buffer}, script)
					time.Sleep(after)
					r.abort()
				})
			}
		}
	}
	f("good", 0, good)
	f("closes at once", 0, func(*broker) {})
	f("no CONNACK", 0, forever)
	f("not reading", 10000, func(b *broker) { b.accept(0, nil); forever(b) })
	f("never acknowledges", 0, func(b *broker) {
		b.accept(0, nil)
		for ok := true; ok; {
			_, _, ok = b.next()
		}
	})
	f("refuses", 0, func(b *broker) {
		b.accept(0, nil)
		b.serve(func(int) byte { return 135 })
	})
	f("refuses connections", 0, func(b *broker) { b.accept(135, nil) })
	// It was told to close, and has waited long enough.
	bubble(t, "closing", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 20000, buffer: 10000}, func(b *broker) { b.accept(0, nil); forever(b) })
		close(r.closing)
		time.Sleep(5 * time.Second)
		r.abort()
	})
}

// A real socket that is not read, or reset, in a real time.
func TestSockets(t *testing.T) {
	listen := func(t *testing.T, s script) (string, *rig) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		server := "tcp://" + l.Addr().String()
		r := newRig(t, settings{qos: 1, events: few(8000), server: server})
		go func() {
			for nth := 0; ; nth++ {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					s(&broker{Conn: c, rig: r, nth: nth})
				}()
			}
		}()
		return server, r
	}
	t.Run("not read", func(t *testing.T) {
		held := make(chan bool)
		defer close(held)
		_, r := listen(t, func(b *broker) {
			b.Conn.(*net.TCPConn).SetReadBuffer(4096)
			b.accept(0, nil)
			<-held
		})
		r.await("a connection", func() bool { return r.up })
		time.Sleep(200 * time.Millisecond) // the window fills; nothing depends on whether it has
		r.abort()
	})
	t.Run("reset", func(t *testing.T) {
		_, r := listen(t, func(b *broker) {
			b.Conn.(*net.TCPConn).SetLinger(0)
			b.accept(0, nil)
			for range few(3000) {
				pub, n, ok := b.next()
				if !ok {
					return
				}
				b.answer(pub, n, 0)
			}
			b.Read(make([]byte, 100))
		})
		r.awaitTaken()
		r.drain()
	})
}
