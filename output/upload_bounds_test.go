package output

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A file that was delivered and cannot be moved is not sent again. It is moved
// when it can be.
func TestUploadCannotMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(3, 10)
		sent := filepath.Join(p.dir, SentFolder)
		if err := os.Remove(sent); err != nil {
			t.Fatal(err)
		}
		write(t, sent, "in the way")
		p.start()
		for range 10 {
			time.Sleep(10 * time.Second)
			select {
			case p.wake <- struct{}{}:
			default:
			}
		}
		synctest.Wait()
		p.checkCodes(map[string]int{"201": 3})
		p.noted(func() {
			wrong := slices.IndexFunc(p.folders, func(s string) bool { return strings.Contains(s, "cannot be moved") })
			if wrong < 0 || slices.Contains(p.folders[wrong:], "") {
				t.Errorf("the state of the folders is lost, or changes again and again: %q", p.folders)
			}
		})
		if err := os.Remove(sent); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lookEvery)
		synctest.Wait()
		p.checkWhole(0, 3, 0)
		p.checkCodes(map[string]int{"201": 3})
		if last := p.folders[len(p.folders)-1]; last != "" {
			t.Errorf("folders: %q", last)
		}
	})
}

// A file that cannot be read holds up no other, and is told of.
func TestUploadCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(3, 10)
		p.start()
		synctest.Wait()
		path := filepath.Join(p.dir, OutboxFolder, minuteName(9))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		p.checkWhole(0, 3, 0)
		// It becomes a folder after it was seen as a file.
		u := NewUploader(p.o)
		if a := u.try(t.Context(), finished{name: minuteName(9)}); a.verdict != unread || a.err == nil {
			t.Errorf("a folder: %+v", a)
		}
		if a := u.try(t.Context(), finished{name: minuteName(8)}); a.verdict != unread || !os.IsNotExist(a.err) {
			t.Errorf("a file that is gone: %+v", a)
		}
	})
}

// The oldest files go first when the outbox is full, but not the one under way,
// and it is told once.
func TestOutboxFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		check := foreign(t, filepath.Join(p.dir, OutboxFolder))
		p.o.OutboxMaxBytes = 5000
		p.serve = func(w http.ResponseWriter, req *http.Request) { // takes all the time it gets
			io.Copy(io.Discard, req.Body)
			<-req.Context().Done()
			panic(http.ErrAbortHandler)
		}
		put := func(n int) { p.put(minuteName(n), strings.Repeat(fmt.Sprint(n), 1000)) }
		put(0)
		p.start()
		synctest.Wait()
		left := func(want ...int) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			var names []string
			for _, n := range want {
				names = append(names, minuteName(n))
			}
			files, err := listFinished(filepath.Join(p.dir, OutboxFolder), histogramPrefix)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range files {
				got = append(got, f.name)
			}
			if !slices.Equal(got, names) {
				t.Errorf("in the outbox: %q, want %q", got, names)
			}
		}
		wake := func(n int) { put(n); p.wake <- struct{}{} }
		for n := 1; n <= 4; n++ {
			wake(n)
		}
		left(0, 1, 2, 3, 4)
		p.noted(func() {
			if n := p.deleted[OutboxFull]; n != 0 {
				t.Errorf("%d deleted", n)
			}
		})
		wake(5)
		left(0, 2, 3, 4, 5)
		wake(6)
		left(0, 3, 4, 5, 6)
		if p.deleted[OutboxFull] != 2 {
			t.Errorf("%d deleted, want 2", p.deleted[OutboxFull])
		}
		if changes := slices.Compact(slices.Clone(p.folders)); len(changes) != 2 || !strings.Contains(changes[1], "full") {
			t.Errorf("folders: %q", changes)
		}
		check()
	})
}

// Without a receiver the bounds hold all the same.
func TestBoundsWithoutURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.noURL = true
		p.o.OutboxMaxBytes, p.o.SentRetention, p.o.SessionRetention = 2500, 24*time.Hour, 48*time.Hour
		var checks []func()
		for _, dir := range []string{OutboxFolder, SentFolder, RefusedFolder, "sessions"} {
			checks = append(checks, foreign(t, filepath.Join(p.dir, dir)))
		}
		for n := range 4 {
			p.put(minuteName(n), strings.Repeat("x", 1000))
		}
		age := func(dir, name string, age time.Duration) (path string) {
			t.Helper()
			path = filepath.Join(p.dir, dir, name)
			write(t, path, "x")
			then := time.Now().Add(-age)
			if err := os.Chtimes(path, then, then); err != nil {
				t.Fatal(err)
			}
			return path
		}
		session := strings.Replace(minuteName(0), histogramPrefix, sessionPrefix, 1)
		kept := []string{
			age(SentFolder, minuteName(10), 23*time.Hour),
			age(RefusedFolder, minuteName(11), 10000*time.Hour),
			age("sessions", strings.Replace(session, "10-01", "10-02", 1), 47*time.Hour),
			age("sessions", minuteName(12), 10000*time.Hour), // no session file
			age(SentFolder, session, 10000*time.Hour),        // no histogram
		}
		gone := []string{
			age(SentFolder, minuteName(13), 25*time.Hour),
			age("sessions", session, 49*time.Hour),
		}
		p.start()
		time.Sleep(lookEvery / 2)
		synctest.Wait()
		there := func(paths []string, want bool) {
			t.Helper()
			for _, path := range paths {
				if _, err := os.Lstat(path); (err == nil) != want {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
		there(kept, true)
		there(gone, false)
		delete(p.contents, minuteName(0))
		delete(p.contents, minuteName(1))
		p.checkWhole(2, 0, 0)
		p.noted(func() {
			if p.deleted != [3]int{OutboxFull: 2, SentExpired: 1, SessionExpired: 1} {
				t.Errorf("deleted %v", p.deleted)
			}
		})
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		there(kept[:1], false)
		there(kept[1:2], true)
		there(kept[2:3], false)
		there(kept[3:], true)
		if len(p.states) != 0 || len(p.codes) != 0 {
			t.Errorf("there is no receiver, and it is %q, %v", p.states, p.codes)
		}
		for _, check := range checks {
			check()
		}
	})
}
