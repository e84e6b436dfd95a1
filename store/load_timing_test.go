package store

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	library "github.com/smhanov/dawg"
)

// loadVariable names a list in the environment of a test process that is there
// only to load it, so that the peak of its memory is that of loading.
const loadVariable = "EDM_TEST_LOAD"

// What a Dictionary keeps is its names and 20 to 32 bytes an entry, and loading
// one takes little more, from text and from a DAWG. The figures for ten million
// names are those of BenchmarkLoad.
func TestLoadMemory(t *testing.T) {
	const count = 40_000
	list := makeList(9, count)
	slices.Sort(list)
	f := func(contents string) {
		t.Helper()
		d := loadString(t, contents)
		if d.Len() != count {
			t.Fatalf("%d entries, want %d", d.Len(), count)
		}
		names := 0
		for id := range d.Len() {
			name, _ := d.Entry(uint32(id))
			names += len(name)
		}
		keeps := 8*cap(d.slots) + cap(d.arena) + 4*cap(d.offsets) + 8*cap(d.filter)
		if most := names*11/10 + 35*count; keeps > most {
			t.Errorf("%d bytes for %d bytes of names, more than %d", keeps, names, most)
		}
	}
	f(strings.Join(list, "\n"))
	f(string(makeDAWG(list...)))
}

// BenchmarkLoad loads lists in a process of its own and reports the time, and
// the peak of its resident memory. Making ten million names takes a while; a DAWG
// of as many different ones takes more memory to build than most machines have.
func BenchmarkLoad(b *testing.B) {
	f := func(name string, write func(path string) int) {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "list")
			count := write(path)
			var seconds, peak float64
			for b.Loop() {
				var n int
				seconds, peak, n = loadElsewhere(b, path)
				if n != count {
					b.Fatalf("%d entries, want %d", n, count)
				}
			}
			info, err := os.Stat(path)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(seconds, "s")
			b.ReportMetric(peak, "peak-MiB")
			b.ReportMetric(float64(info.Size())/(1<<20), "file-MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
	f("plain/10M", func(path string) int { return writeLines(b, path, 10_000_000) })
	f("dawg/1M", func(path string) int { return writeDAWG(b, path, makeList(10, 1_000_000)) })
	f("dawg-numbers/10M", func(path string) int {
		list := make([]string, 10_000_000)
		for i := range list {
			list[i] = fmt.Sprintf("host-%07d.dynamic.example.com.", i)
		}
		return writeDAWG(b, path, list)
	})
}

func writeLines(b *testing.B, path string, count int) int {
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	w := bufio.NewWriter(file)
	for _, name := range makeList(10, count) {
		fmt.Fprintln(w, name)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	return count
}

func writeDAWG(b *testing.B, path string, list []string) int {
	slices.Sort(list)
	builder := library.New()
	for _, word := range list {
		builder.Add(word)
	}
	if _, err := builder.Finish().Save(path); err != nil {
		b.Fatal(err)
	}
	return len(list)
}

// loadElsewhere has a new process load a list, and its peak of resident memory.
func loadElsewhere(b *testing.B, path string) (seconds, peak float64, count int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), loadVariable+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	if _, err := fmt.Sscan(string(out), &count, &seconds, &peak); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return seconds, peak, count
}

func TestMain(m *testing.M) {
	if path := os.Getenv(loadVariable); path != "" {
		if err := loadHere(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// loadHere is the other process of BenchmarkLoad. It prints the number of
// entries, seconds and MiB.
func loadHere(path string) error {
	start := time.Now()
	d, err := LoadDictionary(path)
	if err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		return errors.New("no VmHWM in /proc/self/status")
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return err
	}
	_, err = fmt.Println(d.Len(), seconds, float64(kib)/1024)
	return err
}
