package store

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A child process is this test binary, told by environment what to do.
const (
	killDir  = "EDM_TEST_KILL_DIR"
	killSync = "EDM_TEST_KILL_SYNC"
	killLoad = 1 << 22 // names, at most
)

// A process is killed under load and the same names are seen again: every one
// of them has its event, before or after; and twice only if it was delivered in
// the last moments.
func TestKill(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		runUntilKilled(t, SeenOptions{Dir: dir, Backlog: killLoad, Sync: os.Getenv(killSync) == "true"})
		return
	}
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprint("sync ", sync), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			sent, delivered := killUnderLoad(t, dir, sync)
			again := seeAgain(t, dir, sent)
			late, twice := 0, 0
			for n := range sent {
				at, before := delivered[n]
				if !before && !again[n] {
					t.Fatalf("of %d names, number %d has no event", sent, n)
				}
				if before && again[n] {
					twice++
					if at > 2500*time.Millisecond {
						late++
					}
				}
			}
			if late > 0 {
				t.Errorf("of %d events delivered, %d came twice, %d of them although they were delivered seconds before", len(delivered), twice, late)
			}
			if sent < 10_000 || len(delivered) < 1000 {
				t.Errorf("%d names were seen, %d delivered: that is no load", sent, len(delivered))
			}
			t.Logf("%d names, %d delivered before the kill, %d after, %d twice", sent, len(delivered), len(again), twice)
		})
	}
}

// runUntilKilled sees one name after the other, and tells of what it delivers.
func runUntilKilled(t *testing.T, o SeenOptions) {
	s := openSeen(t, o)
	var lines sync.Mutex // whole ones
	go func() {
		var out []byte
		for range s.Wake() {
			out = out[:0]
			var numbers []uint64
			err := s.Read(func(e Event) bool {
				out = fmt.Appendf(out, "event %s\n", e.Name[1:17])
				numbers = append(numbers, e.Number)
				return true
			})
			lines.Lock()
			_, failed := os.Stdout.Write(out)
			lines.Unlock()
			if err != nil || failed != nil || s.Remove(numbers) != nil {
				os.Exit(3)
			}
		}
	}()
	for n := uint64(0); n < killLoad; n += 1000 {
		lines.Lock()
		fmt.Printf("sent %d\n", n+1000)
		lines.Unlock()
		s.seeMany(n, 1000)
	}
	t.Fatal("was not killed")
}

// killUnderLoad returns how many names the child may have seen, and how long
// before its end it delivered which.
func killUnderLoad(t *testing.T, dir string, sync bool) (sent uint64, delivered map[uint64]time.Duration) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestKill$")
	child.Env = append(os.Environ(), killDir+"="+dir, fmt.Sprintf("%s=%t", killSync, sync))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(4*time.Second, func() { _ = child.Process.Kill() })
	defer kill.Stop()
	at := make(map[uint64]time.Time)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if number, ok := strings.CutPrefix(lines.Text(), "sent "); ok {
			if n, err := strconv.ParseUint(number, 10, 64); err == nil {
				sent = n
			}
		} else if number, ok := strings.CutPrefix(lines.Text(), "event "); ok && len(number) == 16 {
			if n, err := strconv.ParseUint(number, 16, 64); err == nil {
				at[n] = time.Now()
			}
		}
	}
	end := time.Now()
	if err := child.Wait(); child.ProcessState.ExitCode() != -1 {
		t.Fatalf("the child ended by itself: %v", err)
	}
	delivered = make(map[uint64]time.Duration)
	for n, when := range at {
		delivered[n] = end.Sub(when)
	}
	return sent, delivered
}

// seeAgain opens the store that a kill left and sees the same names. It returns
// the numbers of those that have events.
func seeAgain(t *testing.T, dir string, sent uint64) map[uint64]bool {
	t.Helper()
	s := openSeen(t, SeenOptions{Dir: dir, Backlog: killLoad})
	if n := s.Stats().Replaced; n != 0 {
		t.Error("the kill was taken for damage")
	}
	s.seeMany(0, int(sent))
	again := make(map[uint64]bool)
	if err := s.Read(func(e Event) bool {
		n, err := strconv.ParseUint(string(e.Name[1:17]), 16, 64)
		if err != nil || again[n] {
			t.Errorf("event of %q: %v, twice: %t", e.Name, err, again[n])
		}
		again[n] = true
		return true
	}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	return again
}
