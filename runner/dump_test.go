package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	golangdnstap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/encoding/protowire"
)

// dumped opens a dump, lets f use it and returns its lines.
func dumped(t *testing.T, f func(*dump)) []map[string]any {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dump.json")
	var book logBook
	d, err := openDump(path, NewLogger(&book, false))
	if err != nil {
		t.Fatal(err)
	}
	f(d)
	if err := d.file.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(book.entries("")); n != 1 || book.entries("")[0]["level"] != "warn" {
		t.Errorf("logged %s", &book)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	for line := range strings.Lines(string(b)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got = append(got, m)
	}
	return got
}

func TestDump(t *testing.T) {
	got := dumped(t, func(d *dump) {
		d.frame(response(t, "example.com.", nil))
		d.frame(response(t, "example.net.", func(d *golangdnstap.Dnstap, _ *dns.Msg) { d.Message.Type = golangdnstap.Message_TOOL_RESPONSE.Enum() }))
	})
	if len(got) != 2 {
		t.Fatalf("%d lines", len(got))
	}
	message := got[0]["message"].(map[string]any)
	if got[0]["identity"] != "resolver" || message["type"] != "CLIENT_RESPONSE" || message["query_address"] != "198.51.100.7" ||
		!strings.Contains(message["response_message"].(string), "example.com.") {
		t.Errorf("got %v", got[0])
	}
	if got[1]["message"].(map[string]any)["type"] != "TOOL_RESPONSE" {
		t.Errorf("got %v", got[1])
	}
}

// A frame that is odd but dnstap has its line. Nothing that comes from outside
// ends the process.
func TestDumpOfOddFrames(t *testing.T) {
	message := func(content ...byte) []byte { return protowire.AppendBytes([]byte{15 << 3, 1, 14<<3 | 2}, content) }
	f := func(name string, lines int, frame []byte) {
		t.Run(name, func(t *testing.T) {
			if got := dumped(t, func(d *dump) { d.frame(frame) }); len(got) != lines {
				t.Errorf("%d lines, want %d: %v", len(got), lines, got)
			}
		})
	}
	f("nothing", 1, nil)
	f("one octet", 0, []byte{0x0a})
	f("text", 0, []byte("GET / HTTP/1.1"))
	f("no message", 1, []byte{15 << 3, 1})
	f("not a message", 1, []byte{15 << 3, 2})
	f("message without type", 1, message(3<<3, 1))
	f("unknown type", 1, message(1<<3, 99))
	f("no type", 1, message(1<<3, 6)[2:])
	f("address of three octets", 1, message(1<<3, 6, 4<<3|2, 3, 1, 2, 3, 5<<3|2, 1, 9))
	f("seconds without nanoseconds", 1, message(1<<3, 6, 8<<3, 1))
	f("seconds 2^64-1", 1, message(1<<3, 6, 12<<3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 13<<3|5, 0xff, 0xff, 0xff, 0xff))
	f("a broken DNS message", 1, message(1<<3, 6, 14<<3|2, 2, 1, 2))
	f("a zone of no octets", 1, message(1<<3, 6, 11<<3|2, 0))
	f("an identity that is no text", 1, append([]byte{1<<3 | 2, 2, 0xff, 0x0a}, message(1<<3, 6)...))
}

func TestDumpMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(path, []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := openDump(path, NewLogger(&logBook{}, false))
	if err != nil {
		t.Fatal(err)
	}
	d.frame(response(t, "example.com.", nil))
	d.file.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), "{}\n{\"") {
		t.Errorf("what was there is not in front any more: %.20q, %v", b, err)
	}
	if d, err := openDump(filepath.Join(t.TempDir(), "absent", "d"), NewLogger(&logBook{}, false)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, %v", d, err)
	}
}

// Lines of several workers are not mixed.
func TestDumpOfManyWorkers(t *testing.T) {
	got := dumped(t, func(d *dump) {
		var workers sync.WaitGroup
		for i := range 4 {
			frame := response(t, fmt.Sprintf("%s.example.", strings.Repeat("x", 10*(i+1))), nil)
			workers.Go(func() {
				for range 100 {
					d.frame(frame)
				}
			})
		}
		workers.Wait()
	})
	if len(got) != 400 {
		t.Errorf("%d lines", len(got))
	}
}

// A disk that is full is said once.
func TestDumpOnFullDisk(t *testing.T) {
	var book logBook
	d, err := openDump("/dev/full", NewLogger(&book, false))
	if err != nil {
		t.Skipf("/dev/full: %v", err)
	}
	defer d.file.Close()
	for range 10 {
		d.frame(response(t, "example.com.", nil))
	}
	if n := len(book.entries("writing debug_dnstap_filename failed")); n != 1 {
		t.Errorf("%d lines: %s", n, &book)
	}
}

// FuzzDump gives any octets to the dump, which must not fall over them.
func FuzzDump(f *testing.F) {
	f.Add(response(f, "example.com.", nil))
	f.Add([]byte{15 << 3, 1})
	random := rand.NewChaCha8([32]byte{})
	b := make([]byte, 100)
	random.Read(b)
	f.Add(b)
	d := &dump{}
	var err error
	if d.file, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.file.Close() })
	f.Fuzz(func(_ *testing.T, frame []byte) { d.frame(frame) })
}
