package output

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

func TestTopicRefused(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var allowed atomic.Bool
		r := newRig(t, settings{qos: 1, events: 1000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte {
				if n <= 200 || allowed.Load() {
					return 0
				}
				return packets.PubackNotAuthorized
			})
		})
		time.Sleep(10 * time.Minute)
		r.locked(func() {
			if !strings.Contains(r.state, "refuses events for topic events/up/node.example/new_qname") {
				t.Errorf("state %q", r.state)
			}
			if len(r.states) != 1 {
				t.Errorf("each refusal is a state of its own: %q", r.states)
			}
			if r.sent[201] > 12 {
				t.Errorf("an event was sent %d times in ten minutes", r.sent[201])
			}
			if r.answered[135] == 0 {
				t.Error("135 is not counted")
			}
		})
		allowed.Store(true)
		r.awaitTaken()
		r.drain()
		if len(r.states) != 2 || r.state != "" {
			t.Errorf("states %q", r.states)
		}
		if len(r.dials) != 1 {
			t.Errorf("%d connections", len(r.dials))
		}
	})
}

// A new connection is a new chance: the wait after a refusal ends.
func TestTopicRefusedReconnect(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		restarted := time.Now().Add(20 * time.Minute)
		r := newRig(t, settings{qos: 1, events: 10}, func(b *broker) {
			time.AfterFunc(time.Until(restarted), func() { b.Close() })
			b.accept(0, nil)
			b.serve(func(int) byte { return packets.PubackNotAuthorized })
		}, good)
		r.awaitTaken()
		if late := time.Since(restarted); late > 2*time.Second {
			t.Errorf("events are taken %v after the broker is back", late)
		}
		r.drain()
	})
}

// An event that is refused again and again while others are taken is dropped.
func TestPoison(t *testing.T) {
	f := func(name string, first int, every time.Duration, poison ...int) {
		bubble(t, name, func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: first}, func(b *broker) {
				b.accept(0, nil)
				b.serve(func(n int) byte {
					if slices.Contains(poison, n) {
						return packets.PubackImplementationSpecificError
					}
					return 0
				})
			})
			for range 100 {
				time.Sleep(every)
				r.add(1)
			}
			r.await("all are done with", func() bool { return len(r.taken)+r.outcomes[Poisoned] == r.total })
			r.await("all is well", func() bool { return r.state == "" })
			r.drain(poison...)
			if r.outcomes[Poisoned] != len(poison) {
				t.Errorf("outcomes %v", r.outcomes)
			}
			for n, times := range r.sent {
				if slices.Contains(poison, n) != (times > 1) || times > 30 {
					t.Errorf("event %d was sent %d times", n, times)
				}
			}
			if n := len(r.states); n > 4*tooManyFaults {
				t.Errorf("%d changes of state", n)
			}
		})
	}
	f("the first of many", 2000, time.Second, 1)
	f("the last of many", 2000, time.Second, 2000)
	f("some of many", 2000, time.Second, 1, 2, 3, 500, 501, 1999)
	f("the first, then one each second", 1, time.Second, 1)
	f("one each second", 1, time.Second, 5)
	f("one each minute", 1, time.Minute, 5)
	f("two a second", 1, time.Second/2, 5, 6, 70)
}

// An event alone is never poison: nobody knows that it is not the broker.
func TestRefusedAlone(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 3}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(int) byte { return packets.PubackUnspecifiedError })
		})
		time.Sleep(24 * time.Hour)
		r.locked(func() {
			if r.outcomes != [NumOutcomes]int{} || len(r.removed) > 0 {
				t.Errorf("outcomes %v", r.outcomes)
			}
		})
		r.abort()
	})
}

// A broker that takes some a second and refuses the others gets all in the end.
func TestQuota(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var left atomic.Int64
		r := newRig(t, settings{qos: 1, events: few(1000)}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte {
				if left.Add(-1) < 0 {
					return packets.PubackQuotaExceeded
				}
				return 0
			})
		})
		done := make(chan bool)
		go func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Second):
					left.Store(50)
				}
			}
		}()
		began := time.Now()
		r.awaitTaken()
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("a thousand events at 50 a second take %v", took)
		}
		done <- true
		r.drain()
		if n := len(r.states); n > 400 {
			t.Errorf("%d changes of state", n)
		}
	})
}

func TestMaximumPacketSize(t *testing.T) {
	names := func(n int) string {
		if n == 500 {
			return "e500." + strings.Repeat("a", 63) + "."
		}
		return fmt.Sprintf("e%d.", n)
	}
	size := func(n int) uint32 {
		e := Event{Name: wire(t, names(n)), Flags: 0x8180, Type: 1, Class: 1, Minute: 1e6}
		return uint32(len(appendPublish(nil, newSigner(testKey), &e, publishHeader{testKey.Topic(), 1, 1})))
	}
	f := func(name string, limit uint32, dropped ...int) {
		bubble(t, name, func(t *testing.T) {
			r := newRig(t, settings{qos: 1, events: 1000, names: names}, func(b *broker) {
				b.accept(0, &packets.Properties{MaximumPacketSize: &limit})
				b.serve(func(int) byte { return 0 })
			})
			r.await("all are done with", func() bool { return len(r.removed) == r.total })
			r.drain(dropped...)
			r.once()
			if r.outcomes[TooLarge] != len(dropped) || len(r.sent) != r.total-len(dropped) {
				t.Errorf("outcomes %v, %d sent", r.outcomes, len(r.sent))
			}
		})
	}
	var all []int
	for n := range 1000 {
		all = append(all, n+1)
	}
	f("too small for all", size(1)-1, all...)
	f("too small for one", size(500)-1, 500)
	f("just enough", size(500))
	f("1", 1, all...)

	// mosquitto has a limit that it does not tell of.
	bubble(t, "PUBACK 149", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 1000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte {
				if n%100 == 0 {
					return 149
				}
				return 0
			})
		})
		r.await("all are done with", func() bool { return len(r.removed) == r.total })
		r.drain(100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
		r.once()
		if r.outcomes[TooLarge] != 10 || len(r.states) > 0 {
			t.Errorf("outcomes %v, states %q", r.outcomes, r.states)
		}
	})
}

func TestNobodySubscribes(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newRig(t, settings{qos: 1, events: 1000}, func(b *broker) {
			b.accept(0, nil)
			b.serve(func(n int) byte { return byte(n % 2 * 16) })
		})
		r.awaitTaken()
		r.drain()
		r.once()
		if r.answered[16] != 500 || r.answered[0] != 500 || len(r.states) > 0 {
			t.Errorf("answers %v, states %q", r.answered, r.states)
		}
	})
}
