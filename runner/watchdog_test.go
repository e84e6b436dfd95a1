package runner

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"edm/output"
)

// While any one stage is held the service manager hears nothing, and health
// names that stage. When it goes on, the manager hears of it.
func TestWatchdogWithAStageHeld(t *testing.T) {
	// Each is started on a goroutine of its own, but for the one that is held.
	starts := map[string]func(*daemon) func(){
		"worker 1":                    func(d *daemon) func() { return d.workers[0].run },
		"worker 2":                    func(d *daemon) func() { return d.workers[1].run },
		"the minute loop":             func(d *daemon) func() { return d.minute.run },
		"the writer of session files": func(d *daemon) func() { return d.sessions.run },
		"the writer of histograms":    func(d *daemon) func() { return d.minutes.run },
		"the store of seen names":     func(d *daemon) func() { return d.events.run },
	}
	f := func(held string) {
		t.Helper()
		stop := make(chan struct{})
		d, err := newDaemon(testConfig(t), zap.NewNop(), "test", stop)
		if err != nil {
			t.Fatal(err)
		}
		const period = 400 * time.Millisecond
		silent, told := make(chan string, 1000), make(chan string, 1000)
		w := &watchdog{period: period, stages: d.stages(period), tell: func(s string) { told <- s }, report: func(err error) {
			if err != nil {
				silent <- err.Error()
			}
		}}
		if len(w.stages) != len(starts) {
			t.Fatalf("%d stages are asked, %d can be held", len(w.stages), len(starts))
		}
		var running sync.WaitGroup
		d.served = true
		for name, start := range starts {
			if name != held {
				running.Go(start(d))
			}
		}
		d.watching.Go(func() { w.run(stop) })
		wait := func(what string, from <-chan string, want string) {
			t.Helper()
			for deadline := time.After(patience); ; {
				select {
				case got := <-from:
					if got == want {
						return
					}
				case <-deadline:
					t.Fatalf("%s held: waited %v for %s", held, patience, what)
				}
			}
		}
		wait("its name", silent, held+" does not go on")
		if len(told) > 0 {
			t.Errorf("%s held: the manager heard %q", held, <-told)
		}
		running.Go(starts[held](d))
		wait("the manager to hear", told, stateWatchdog)
		wait("the manager to hear again", told, stateWatchdog)

		// The end, as serve has it.
		close(stop)
		d.watching.Wait()
		close(d.reading.chunks)
		for _, w := range d.workers {
			<-w.done
		}
		close(d.blocks)
		close(d.events.names)
		close(d.ended)
		running.Wait()
		d.close()
	}
	for name := range starts {
		f(name)
	}
}

// A stage that waits for the next one is not the one that is stuck.
func TestWatchdogAsksWhoWaits(t *testing.T) {
	// The worker has a block that nobody takes.
	w := &worker{blocks: make(chan *output.Block), block: new(output.Block), pulse: make(pulse)}
	go w.sendBlock()
	// The writer tries again and again to write where it cannot.
	h := &histogramWriter{pulse: make(pulse), stopping: make(chan struct{})}
	go h.wait()
	// The minute loop waits for a worker that does not hand over, and for a
	// writer that takes nothing.
	turning := &minuteLoop{workers: []*worker{{turns: make(chan turn, 1), harvest: make(chan *tally), done: make(chan struct{})}}, pulse: make(pulse)}
	go turning.turn()
	ending := &minuteLoop{sessions: make(chan output.Interval), pulse: make(pulse)}
	go ending.end(time.Now())

	for _, p := range []pulse{w.pulse, h.pulse, turning.pulse, ending.pulse} {
		for range 3 {
			late := make(chan struct{})
			timer := time.AfterFunc(patience, func() { close(late) })
			if !p.ask(late) {
				t.Fatal("no answer")
			}
			timer.Stop()
		}
	}
}

// The process tells the manager while it idles and while it works. When its
// workers are stuck it does not, and when they go on it does.
func TestWatchdogOfTheProcess(t *testing.T) {
	cfg := testConfig(t)
	dir := socketDir(t)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	var beats atomic.Int64
	go func() {
		for b := make([]byte, 1000); ; {
			n, err := manager.Read(b)
			if err != nil {
				return
			}
			if string(b[:n]) == stateWatchdog {
				beats.Add(1)
			}
		}
	}()
	more := func(what string) {
		t.Helper()
		from := beats.Load()
		until(t, what, func() bool { return beats.Load() >= from+3 })
	}

	// Frames are dumped to a pipe, which holds up the workers when it is full.
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	c := startChild(t, childSettings(cfg)+fmt.Sprintf("debug_dnstap_filename = %q\n", pipe),
		"NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=1000000")
	c.ready()
	more("heartbeats of an idle process")

	conn := dial(t, "unix", cfg.InputUnix)
	p := newPeer(t, conn)
	p.open()
	frame := framed(response(t, "example.com.", nil))
	chunk := []byte(strings.Repeat(string(frame), 2000))
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(chunk)
		sent <- err
	}()
	isSilent := func() bool {
		for _, e := range c.log.entries("degraded") {
			if e["part"] == "watchdog" && strings.Contains(e["problem"].(string), "worker") {
				return true
			}
		}
		return false
	}
	until(t, "a worker to be stuck", isSilent)
	stuck := beats.Load()
	until(t, "a second without a heartbeat", func() bool {
		since := c.log.entries("degraded")[0]["ts"].(string)
		at, err := time.Parse(time.RFC3339Nano, since)
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(at) > time.Second
	})
	if n := beats.Load(); n != stuck {
		t.Errorf("%d heartbeats while the workers were stuck", n-stuck)
	}

	go func() {
		for b := make([]byte, 64<<10); ; {
			if _, err := reader.Read(b); err != nil {
				return
			}
		}
	}()
	more("heartbeats of a process that goes on")
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	p.finish()
	c.Process.Signal(syscall.SIGTERM)
	if code := c.exited(); code != 0 {
		t.Errorf("exit code %d\n%s", code, c.log)
	}
}

func TestWatchdogPeriod(t *testing.T) {
	f := func(usec, pid string, want time.Duration, wantErr bool) {
		t.Helper()
		t.Setenv("WATCHDOG_USEC", usec)
		t.Setenv("WATCHDOG_PID", pid)
		if got, err := watchdogPeriod(); got != want || (err != nil) != wantErr {
			t.Errorf("%q %q: %v, %v", usec, pid, got, err)
		}
	}
	f("", "", 0, false)
	f("120000000", "", 2*time.Minute, false)
	f("1000", fmt.Sprint(os.Getpid()), time.Millisecond, false)
	f("1000", "1", 0, false)
	for _, bad := range []string{"0", "-1", "x", "9223372036854775807", "99999999999999999999"} {
		f(bad, "", 0, true)
	}
}

// The store gives back the batch that asks it, also when one before is lost.
func TestWatchdogAsksTheStoreAgain(t *testing.T) {
	cfg := testConfig(t)
	stop := make(chan struct{})
	d, err := newDaemon(cfg, zap.NewNop(), "test", stop)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	d.stages(time.Hour)
	answered := make(chan bool)
	go func() { answered <- d.events.ask(time.Millisecond, stop) }()
	<-d.events.names // is lost
	go func() {
		for {
			select {
			case n := <-d.events.names:
				d.events.giveBack(n)
			case <-stop:
				return
			}
		}
	}()
	select {
	case ok := <-answered:
		if !ok {
			t.Error("not answered")
		}
	case <-time.After(patience):
		t.Error("waited for an answer")
	}
	close(stop)
}
