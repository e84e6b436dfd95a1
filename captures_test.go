package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

var update = flag.Bool("update", false, "write the golden files of the captures anew")

// Some names of the captures are well known in these tests, so that both kinds
// of row are seen.
const captureWellKnown = "cdn.gitbook.com\n*.cdngc.net\ndns.google.com\nwww.rb.cz\n"

// A captureResult is what edm makes of a capture: what became of its frames and
// the rows of its files, or why it was refused.
type captureResult struct {
	Refused   string             `json:"refused,omitempty"`
	Frames    map[string]float64 `json:"frames,omitempty"`
	Histogram []row              `json:"histogram,omitempty"`
	Session   []row              `json:"session,omitempty"`
}

// Every capture of testdata/captures has a golden result: as it is, and with
// all its messages turned into client responses, so that the DNS messages in it
// are looked at whatever type they had.
func TestCaptures(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "well-known.txt")
	write(t, list, captureWellKnown)
	f := func(path, result string) {
		t.Helper()
		got := replayCapture(t, list, path)
		b, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, result+".json", append(b, '\n'))
	}
	for _, c := range manifest(t) {
		path := filepath.Join("testdata", "captures", c.file)
		if c.container == "raw-protobuf" {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			path = filepath.Join(t.TempDir(), c.file)
			writeFrames(t, path, [][]byte{b})
		}
		f(path, c.file)
		if c.file == "fstrm-test.fstrm" {
			continue // no dnstap, and refused
		}
		frames := readFrames(t, path)
		if len(frames) != c.frames {
			t.Errorf("%s: %d frames, the manifest says %d", c.file, len(frames), c.frames)
		}
		for i := range frames {
			frames[i] = asClientResponse(t, frames[i])
		}
		path = filepath.Join(t.TempDir(), c.file)
		writeFrames(t, path, frames)
		f(path, c.file+".as-client-response")
	}
}

// A captureEntry is a line of MANIFEST.tsv.
type captureEntry struct {
	file, container string
	frames          int
}

// manifest reads MANIFEST.tsv and checks that it names the files that are
// there.
func manifest(t *testing.T) []captureEntry {
	t.Helper()
	f, err := os.Open("testdata/captures/MANIFEST.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var entries []captureEntry
	named := []string{"testdata/captures/MANIFEST.tsv"}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		cells := strings.Split(lines.Text(), "\t")
		if cells[0] == "file" {
			continue
		}
		n, err := strconv.Atoi(cells[3])
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, captureEntry{cells[0], cells[2], n})
		named = append(named, "testdata/captures/"+cells[0])
	}
	there, err := filepath.Glob("testdata/captures/*")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(named)
	if !slices.Equal(named, there) {
		t.Errorf("MANIFEST.tsv names\n%v\nthere are\n%v", named, there)
	}
	return entries
}

// replayCapture puts a capture through edm -replay.
func replayCapture(t *testing.T, list, path string) captureResult {
	t.Helper()
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", list), "minimiser_workers = 1")
	began := time.Now()
	out, err := d.replay(t, path)
	if err != nil {
		message, _ := logEntry(t, out, "error")["error"].(string)
		return captureResult{Refused: strings.ReplaceAll(message, path, filepath.Base(path))}
	}
	result := captureResult{Frames: replayedFrames(t, out)}
	var ends float64
	for end, n := range result.Frames {
		if end != "received" {
			ends += n
		}
	}
	if ends != result.Frames["received"] {
		t.Errorf("%s: frames received and what became of them: %v", path, result.Frames)
	}
	for _, r := range readAll(t, d.histogramFiles(t)) {
		delete(r, "start_time")
		result.Histogram = append(result.Histogram, r.shown(began))
	}
	for _, r := range readAll(t, d.sessionFiles(t)) {
		result.Session = append(result.Session, r.shown(began))
	}
	return result
}

// shown returns a row as a golden file has it: without NULLs, bytes in
// hexadecimal, and a time that is none of the capture's as "arrival".
func (r row) shown(began time.Time) row {
	s := make(row)
	for column, v := range r {
		switch v := v.(type) {
		case nil:
		case []byte:
			s[column] = fmt.Sprintf("%x", v)
		case int64:
			at := time.UnixMicro(v).UTC()
			s[column] = at.Format(time.RFC3339Nano)
			if !at.Before(began.Truncate(time.Microsecond)) && !at.After(time.Now()) {
				s[column] = "arrival"
			}
		default:
			s[column] = v
		}
	}
	return s
}

// replayedFrames returns what edm -replay says became of the frames.
func replayedFrames(t *testing.T, out string) map[string]float64 {
	t.Helper()
	for line := range strings.Lines(out) {
		var e struct{ Frames map[string]float64 }
		if json.Unmarshal([]byte(line), &e) == nil && e.Frames != nil {
			return e.Frames
		}
	}
	t.Fatalf("the log does not say what became of the frames:\n%s", out)
	return nil
}

// logEntry returns the first entry of a log that has the level.
func logEntry(t *testing.T, out, level string) map[string]any {
	t.Helper()
	for line := range strings.Lines(out) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil && e["level"] == level {
			return e
		}
	}
	t.Fatalf("no entry of level %s:\n%s", level, out)
	return nil
}

// checkGolden compares with a file of testdata/golden, or writes it.
func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, string(got))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// The fields of a Dnstap and of its Message that asClientResponse looks at, and
// the type that it writes.
const (
	fieldMessage         = 14 // of Dnstap
	fieldType            = 1  // of Message, as the next ones
	fieldQueryMessage    = 10
	fieldResponseMessage = 14
	typeClientResponse   = 6
)

// asClientResponse returns a frame whose message has the type CLIENT_RESPONSE.
// Where the message has a query only, that stands as the response. It works on
// the bytes, so that what the libraries do not know stays.
func asClientResponse(t *testing.T, frame []byte) []byte {
	t.Helper()
	return rewriteFields(t, frame, func(number protowire.Number, message []byte) (protowire.Number, []byte) {
		if number != fieldMessage {
			return number, message
		}
		answered := false
		rewriteFields(t, message, func(n protowire.Number, v []byte) (protowire.Number, []byte) {
			answered = answered || n == fieldResponseMessage
			return n, v
		})
		return number, rewriteFields(t, message, func(n protowire.Number, v []byte) (protowire.Number, []byte) {
			switch {
			case n == fieldType:
				return n, protowire.AppendVarint(nil, typeClientResponse)
			case n == fieldQueryMessage && !answered:
				return fieldResponseMessage, v
			}
			return n, v
		})
	})
}

// rewriteFields passes every field of a protobuf message through f. A value is
// without its length.
func rewriteFields(t *testing.T, message []byte, f func(protowire.Number, []byte) (protowire.Number, []byte)) []byte {
	t.Helper()
	var out []byte
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		message = message[n:]
		n = protowire.ConsumeFieldValue(number, kind, message)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		value := message[:n]
		message = message[n:]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		number, value = f(number, value)
		out = protowire.AppendTag(out, number, kind)
		if kind == protowire.BytesType {
			value = protowire.AppendBytes(nil, value)
		}
		out = append(out, value...)
	}
	return out
}
