package runner

import (
	"testing"
	"testing/synctest"
	"time"

	"edm/dnstap"
	"edm/output"
	"edm/store"
)

func TestWhenAnIntervalEnds(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse("15:04:05.999", s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	f := func(start, now, want string, wanted bool) {
		t.Helper()
		l := minuteLoop{start: at(start), wanted: wanted}
		if got := l.due(at(now)); !got.Equal(at(want)) {
			t.Errorf("from %s, at %s: it ends at %s, want %s", start, now, got.Format("15:04:05.999"), want)
		}
	}
	f("10:00:00", "10:00:30", "10:01:00", false)
	f("10:00:37", "10:00:37.5", "10:01:00", false)
	f("10:00:59", "10:00:59.9", "10:01:00", false)
	f("10:00:00", "10:07:30", "10:01:00", false) // late
	f("10:00:00", "10:00:30", "10:00:01", true)
	f("11:30:00", "10:00:30", "10:01:00", false) // the clock was set back
}

// A minuteTest is a minute loop and the workers it asks, in a bubble of fake
// time that begins on the minute.
type minuteTest struct {
	loop     minuteLoop
	rotate   chan *view
	sessions chan output.Interval
	minutes  chan minute
	chunks   chan *dnstap.Chunk
}

// newMinuteTest starts workers and loop.
func newMinuteTest(v *view, workers int) *minuteTest {
	m := &minuteTest{
		rotate: make(chan *view), sessions: make(chan output.Interval, 100),
		minutes: make(chan minute, 100), chunks: make(chan *dnstap.Chunk),
	}
	ended := make(chan struct{})
	m.loop = minuteLoop{ended: ended, rotate: m.rotate, sessions: m.sessions, minutes: m.minutes, view: v, viewed: func() {}, start: time.Now()}
	for range workers {
		w := testWorker(v)
		w.in = m.chunks
		m.loop.workers = append(m.loop.workers, w)
		go w.run()
	}
	go func() {
		for _, w := range m.loop.workers {
			<-w.done
		}
		close(ended)
	}()
	go m.loop.run()
	return m
}

func (m *minuteTest) send(t *testing.T, name string) {
	frame := response(t, name, nil)
	m.chunks <- &dnstap.Chunk{Buf: append([]byte{0, 0, byte(len(frame) >> 8), byte(len(frame))}, frame...), N: 4 + len(frame)}
}

// counted returns the intervals sent so far, and how many answers each has.
func (m *minuteTest) counted() (intervals []string, answers []uint64) {
	for len(m.minutes) > 0 {
		got := <-m.minutes
		var n uint64
		for i := range got.tally.n {
			n += got.tally.counts(got.tally.at(i)).A
		}
		intervals, answers = append(intervals, got.interval.String()), append(answers, n)
	}
	return intervals, answers
}

func TestIntervalsAreWholeMinutes(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	synctest.Test(t, func(t *testing.T) {
		m := newMinuteTest(v, 3)
		for range 10 {
			m.send(t, "example.com.")
		}
		time.Sleep(time.Minute + time.Millisecond)
		m.send(t, "example.com.")
		time.Sleep(3 * time.Minute) // nothing comes in two of these
		close(m.chunks)
		synctest.Wait()
		intervals, answers := m.counted()
		if len(intervals) != 2 || intervals[0] != "2000-01-01T00:00:00Z/PT1M" || intervals[1] != "2000-01-01T00:01:00Z/PT1M" || answers[0] != 10 || answers[1] != 1 {
			t.Errorf("got %v, %v", intervals, answers)
		}
		if n := len(m.sessions); n != 5 {
			t.Errorf("session files were ended %d times", n)
		}
	})
}

// Five requests within a second make one file a second at most, and nothing is
// lost.
func TestRotationsAreASecondApart(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	synctest.Test(t, func(t *testing.T) {
		m := newMinuteTest(v, 2)
		for range 5 {
			m.send(t, "example.com.")
			synctest.Wait()
			m.rotate <- nil
			time.Sleep(150 * time.Millisecond)
		}
		time.Sleep(time.Second)
		m.send(t, "example.com.")
		synctest.Wait()
		m.rotate <- nil
		time.Sleep(time.Second)
		close(m.chunks)
		synctest.Wait()
		intervals, answers := m.counted()
		var sum uint64
		for i, n := range answers {
			sum += n
			if i > 0 && intervals[i] == intervals[i-1] {
				t.Errorf("two files are of %s", intervals[i])
			}
		}
		if sum != 6 || len(answers) < 2 {
			t.Errorf("got %v, %v", intervals, answers)
		}
	})
}

// A new list takes effect with the turn, and the counts of the old one go with
// the old one, also those of a worker that has just ended.
func TestATurnChangesTheList(t *testing.T) {
	one, two := testView(t, "example.com\n", "", ""), testView(t, "example.net\nexample.org\n", "", "")
	synctest.Test(t, func(t *testing.T) {
		m := newMinuteTest(one, 4)
		for range 8 {
			m.send(t, "example.com.")
		}
		synctest.Wait()
		m.rotate <- two
		time.Sleep(2 * time.Second)
		for range 8 {
			m.send(t, "example.com.")
			m.send(t, "example.org.")
		}
		close(m.chunks)
		synctest.Wait()
		for i, want := range []*store.Dictionary{one.names, two.names} {
			got := <-m.minutes
			if got.tally.names != want || got.tally.n != 1 || got.tally.at(0).counts[countA] != 8 {
				t.Errorf("interval %d has %+v", i, got.tally)
			}
		}
	})
}

// A worker that has ended while a turn was on its way is not asked again, and
// what it counted is not lost, whichever way the minute loop learns of it.
func TestAnEndedWorkerIsHarvestedOnce(t *testing.T) {
	v := testView(t, "example.com\n", "", "")
	f := func(name string, prepare func(w *worker)) {
		t.Run(name, func(t *testing.T) {
			w := testWorker(v)
			w.frame(response(t, "example.com.", nil))
			prepare(w)
			close(w.done)
			minutes := make(chan minute, 10)
			l := minuteLoop{workers: []*worker{w}, sessions: make(chan output.Interval, 10), minutes: minutes, view: v, start: time.Now()}
			for range 3 {
				l.turn()
				l.end(time.Now())
			}
			var sum uint32
			for len(minutes) > 0 {
				m := <-minutes
				sum += m.tally.at(0).counts[countA]
			}
			if sum != 1 {
				t.Errorf("%d answers of 1", sum)
			}
		})
	}
	f("before the turn", func(*worker) {})
	f("after its answer", func(w *worker) {
		w.harvest <- w.tally
		w.begin(v)
	})
}
