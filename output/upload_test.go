package output

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edm/receiver"
)

// minutes puts histograms of n minutes into the outbox, each of some size.
func (p *post) minutes(n, size int) {
	for i := range n {
		p.put(minuteName(i), fmt.Sprintf("PAR1 %d %s", i, strings.Repeat("x", size)))
	}
}

func TestUpload(t *testing.T) {
	f := func(proto string, sizes ...int) {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t)
				p.onlyHTTP1 = proto == "HTTP/1.1"
				check := foreign(t, filepath.Join(p.dir, OutboxFolder))
				for i, size := range sizes {
					p.put(minuteName(i), strings.Repeat("x", size))
				}
				p.runToEnd()
				p.checkWhole(0, len(sizes), 0)
				check()
				taken := p.receiver.Taken()
				for i, got := range taken {
					n := len(taken) - 1 - i // the newest comes first
					sum := sha256.Sum256([]byte(p.contents[minuteName(n)]))
					want := receiver.Taken{
						KeyID: testKey.ID, Label: "sig1", Covered: []string{"content-type", "content-length", "content-digest", "aggregate-interval"},
						Created: time.Now(), Interval: at.Add(time.Duration(n)*time.Minute).Format(time.RFC3339) + "/PT1M",
						Digest: "sha-256=" + byteSequence(sum[:]), UserAgent: "edm/1.2.3", Proto: proto, Body: []byte(p.contents[minuteName(n)]),
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("upload %d is\n%.300v\nwant\n%.300v", i, got, want)
					}
				}
				p.checkCodes(map[string]int{"201": len(sizes)})
				if len(p.settled) != len(sizes) || slices.ContainsFunc(p.states, func(s string) bool { return s != "" }) || slices.ContainsFunc(p.folders, func(s string) bool { return s != "" }) {
					t.Errorf("settled %v, states %q, folders %q", p.settled, p.states, p.folders)
				}
			})
		})
	}
	f("HTTP/1.1", 5, 1, 100_000, 3_000_000, 70)
	f("HTTP/2.0", 5, 1, 100_000, 3_000_000, 70)
}

func TestUploadURL(t *testing.T) {
	f := func(base, want string) {
		t.Helper()
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		if got := NewUploader(UploaderOptions{URL: u}).target; got.String() != want || got.Path[0] != '/' {
			t.Errorf("%s: %s, want %s", base, got, want)
		}
	}
	f("https://host", "https://host/api/v1/aggregate/histogram")
	f("https://host/", "https://host/api/v1/aggregate/histogram")
	f("https://host:8443/core", "https://host:8443/core/api/v1/aggregate/histogram")
	f("https://host:8443/core/", "https://host:8443/core/api/v1/aggregate/histogram")
}

// The receiver fails for ten minutes while histograms are written. It is asked
// again after 1 s, then twice as long each time up to five minutes, give or
// take; then all are delivered, the newest first.
func TestUploadBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(1, 10)
		down := time.Now().Add(10 * time.Minute)
		p.serve = func(w http.ResponseWriter, req *http.Request) {
			if time.Now().Before(down) {
				http.Error(w, "broken", http.StatusInternalServerError)
				return
			}
			p.receiver.ServeHTTP(w, req)
		}
		p.start()
		for i := range 20 {
			time.Sleep(time.Minute)
			p.put(minuteName(1+i), fmt.Sprint("PAR1 ", i))
			p.wake <- struct{}{}
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		p.checkWhole(0, 21, 0)
		failures := p.codes["500"]
		for i, d := 1, time.Second; i <= failures; i++ {
			gap := p.tries[i].Sub(p.tries[i-1])
			if gap < d*3/4 || gap > min(d*5/4, longestBackoff) {
				t.Errorf("%v before try %d, want about %v", gap, i, d)
			}
			d = min(2*d, longestBackoff)
		}
		if failures < 9 || failures > 13 {
			t.Errorf("%d tries in ten minutes", failures)
		}
		taken := p.receiver.Taken()
		up := slices.IndexFunc(taken, func(u receiver.Taken) bool { return u.Interval == at.Format(time.RFC3339)+"/PT1M" })
		for i := 1; i <= up; i++ {
			if taken[i].Interval >= taken[i-1].Interval {
				t.Errorf("%s came before %s", taken[i-1].Interval, taken[i].Interval)
			}
		}
		if up < 10 {
			t.Errorf("the oldest file came after %d others", up)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	f := func(field func() string, least, most time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			p := newPost(t)
			p.minutes(1, 10)
			p.serve = func(w http.ResponseWriter, req *http.Request) {
				if len(p.tries) == 1 {
					w.Header().Set("Retry-After", field())
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				p.receiver.ServeHTTP(w, req)
			}
			p.start()
			time.Sleep(time.Hour)
			synctest.Wait()
			p.checkWhole(0, 1, 0)
			if gap := p.tries[1].Sub(p.tries[0]); gap < least || gap > most {
				t.Errorf("%q: tried again after %v, want %v to %v", field(), gap, least, most)
			}
		})
	}
	constant := func(s string) func() string { return func() string { return s } }
	second := time.Second
	f(constant("120"), 120*second, 120*second)
	f(constant("86400"), longestBackoff, longestBackoff)
	f(constant("4294967295"), longestBackoff, longestBackoff)
	f(constant("99999999999999999999"), second/2, 2*second)
	f(constant("-1"), second/2, 2*second)
	f(constant("soon"), second/2, 2*second)
	f(constant("0"), second/2, 2*second)
	f(func() string { return time.Now().Add(90 * second).UTC().Format(http.TimeFormat) }, 89*second, 90*second)
	f(func() string { return time.Now().Add(-90 * second).UTC().Format(http.TimeFormat) }, second/2, 2*second)
}

// A file that is refused for good goes to its folder, with the reason told, and
// the others go on at once.
func TestUploadRefused(t *testing.T) {
	for _, status := range []int{400, 404, 405, 413, 422} {
		synctest.Test(t, func(t *testing.T) {
			p := newPost(t)
			p.minutes(3, 10)
			p.serve = func(w http.ResponseWriter, req *http.Request) {
				if req.Header.Get("Aggregate-Interval") == "2026-11-30T10:01:00Z/PT1M" {
					http.Error(w, "not like this", status)
					return
				}
				p.receiver.ServeHTTP(w, req)
			}
			p.start()
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			p.checkWhole(0, 2, 1)
			p.checkCodes(map[string]int{"201": 2, fmt.Sprint(status): 1})
			refusal := p.settled[filepath.Join(p.dir, RefusedFolder, minuteName(1))]
			if want := fmt.Sprintf(`"%d %s": "not like this"`, status, http.StatusText(status)); text(refusal) != want {
				t.Errorf("refused because %v, want %s", refusal, want)
			}
			if len(p.states) != 3 || !strings.Contains(p.states[1], minuteName(1)) || p.states[2] != "" {
				t.Errorf("states %q", p.states)
			}
		})
	}
}

// A large body that is refused before it is read.
func TestUploadRefusedEarly(t *testing.T) {
	for _, http1 := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPost(t)
			p.minutes(1, 200_000)
			p.onlyHTTP1 = http1
			p.serve = func(w http.ResponseWriter, req *http.Request) { http.Error(w, "", http.StatusRequestEntityTooLarge) }
			p.start()
			time.Sleep(time.Minute)
			synctest.Wait()
			p.checkWhole(0, 0, 1)
		})
	}
}

// A clock that is wrong, ours or the receiver's, is told once, and the file is
// kept until it is right.
func TestUploadWrongClock(t *testing.T) {
	f := func(receiverAhead, told time.Duration, code string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			p := newPost(t)
			p.minutes(2, 10)
			right := time.Now().Add(10 * time.Minute)
			p.receiver.Now = func() time.Time {
				if now := time.Now(); now.After(right) {
					return now
				}
				return time.Now().Add(receiverAhead)
			}
			p.start()
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if code == "401" {
				p.checkWhole(2, 0, 0)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			p.checkWhole(0, 2, 0)
			if told == 0 {
				if p.clocks != nil {
					t.Errorf("the receiver ahead by %v: told %v", receiverAhead, p.clocks)
				}
				return
			}
			if len(p.clocks) != 1 || (p.clocks[0]-told).Abs() > time.Second {
				t.Errorf("the receiver ahead by %v: told %v, want %v", receiverAhead, p.clocks, told)
			}
			if !strings.Contains(p.states[0], "apart") || !strings.Contains(p.states[0], "401") {
				t.Errorf("state %q", p.states[0])
			}
		})
	}
	f(-time.Hour, time.Hour, "401")
	f(25*time.Hour, -25*time.Hour, "401")
	f(-7*time.Second, 7*time.Second, "401")
	f(-4*time.Second, 0, "201")
	f(23*time.Hour, 0, "201")
}

func TestClockAhead(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 5e8, time.UTC)
	f := func(date string, want time.Duration) {
		t.Helper()
		if got := clockAhead(date, now); got != want {
			t.Errorf("%q: %v, want %v", date, got, want)
		}
	}
	f("", 0)
	f("yesterday", 0)
	f("Mon, 30 Nov 2026 10:00:00 GMT", 0)
	f("Mon, 30 Nov 2026 09:59:55 GMT", 0) // its clock may be at 55.999
	f("Mon, 30 Nov 2026 09:59:54 GMT", 5500*time.Millisecond)
	f("Mon, 30 Nov 2026 10:00:05 GMT", 0)
	f("Mon, 30 Nov 2026 10:00:06 GMT", -5500*time.Millisecond)
	f("Tue, 01 Dec 2026 10:00:00 GMT", -24*time.Hour+500*time.Millisecond)
}

// A file that fails whenever it is tried comes after all others.
func TestUploadPoisoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(10, 10)
		p.serve = func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Aggregate-Interval") == "2026-11-30T10:05:00Z/PT1M" {
				http.Error(w, "", http.StatusInternalServerError)
				return
			}
			p.receiver.ServeHTTP(w, req)
		}
		p.start()
		for i := range 30 {
			time.Sleep(time.Minute)
			p.put(minuteName(10+i), fmt.Sprint("PAR1 ", i))
			p.wake <- struct{}{}
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		p.checkWhole(1, 39, 0)
	})
}

// A key of the moment signs, so a new one is used at the next try.
func TestUploadNewKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(2, 10)
		other, err := parseSigningKey([]byte(jwkText("kid", "node.other")))
		if err != nil {
			t.Fatal(err)
		}
		p.receiver.Keys[other.ID] = p.receiver.Keys[testKey.ID]
		keys := []*SigningKey{testKey, other}
		p.o.Key = func() *SigningKey { k := keys[0]; keys = keys[1:]; return k }
		p.runToEnd()
		p.checkWhole(0, 2, 0)
		if taken := p.receiver.Taken(); taken[0].KeyID != testKey.ID || taken[1].KeyID != other.ID {
			t.Errorf("signed by %s and %s", taken[0].KeyID, taken[1].KeyID)
		}
	})
}

// A receiver that hangs holds the stop up for no longer than Grace, and the file
// stays. One that takes files gets them until then.
func TestUploadStops(t *testing.T) {
	f := func(name string, serve http.HandlerFunc, least, most time.Duration, left int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t)
				p.minutes(10, 100_000)
				p.serve = func(w http.ResponseWriter, req *http.Request) {
					serve(w, req)
					switch {
					case req.Context().Err() != nil:
						panic(http.ErrAbortHandler)
					case left < 10:
						p.receiver.ServeHTTP(w, req)
					}
				}
				began := time.Now()
				p.runToEnd()
				if took := time.Since(began); took < least || took > most {
					t.Errorf("it took %v", took)
				}
				outbox, sent, _ := p.whole()
				if outbox != left || sent != 10-left {
					t.Errorf("%d left and %d sent", outbox, sent)
				}
			})
		})
	}
	f("hangs", func(w http.ResponseWriter, req *http.Request) { io.Copy(io.Discard, req.Body); <-req.Context().Done() }, 3*time.Second, 3*time.Second, 10)
	f("does not read", func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, 3*time.Second, 3*time.Second, 10)
	f("fails", func(w http.ResponseWriter, req *http.Request) { w.WriteHeader(500) }, 0, 0, 10)
	f("is slow", func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-time.After(900 * time.Millisecond):
		case <-req.Context().Done():
		}
	}, 3*time.Second, 3*time.Second, 7)
	f("is fast", func(w http.ResponseWriter, req *http.Request) {}, 0, time.Second, 0)
}

// What was answered with 201 and not moved, because edm was killed, is sent
// again as it was, and the receiver can tell.
func TestUploadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(2, 10)
		p.runToEnd()
		p.checkWhole(0, 2, 0)
		again := &post{}
		*again = post{t: t, o: p.o, receiver: p.receiver, dir: p.dir, contents: p.contents, codes: map[string]int{}, settled: map[string]error{},
			wake: p.wake, closing: make(chan struct{}), ended: make(chan struct{}), conns: make(chan net.Conn)}
		again.dial = again.pipe
		for n := range 2 {
			if err := os.Rename(filepath.Join(p.dir, SentFolder, minuteName(n)), filepath.Join(p.dir, OutboxFolder, minuteName(n))); err != nil {
				t.Fatal(err)
			}
		}
		again.runToEnd()
		again.checkWhole(0, 2, 0)
		again.checkCodes(map[string]int{"201": 2})
		for _, taken := range p.receiver.Taken() {
			if n := p.receiver.Times(taken.Digest); n != 2 {
				t.Errorf("%s was taken %d times", taken.Digest, n)
			}
		}
		if n := len(p.receiver.Taken()); n != 2 {
			t.Errorf("the receiver has %d files", n)
		}
	})
}
