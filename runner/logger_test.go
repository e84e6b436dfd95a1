package runner

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

func TestLogger(t *testing.T) {
	f := func(debug bool, want ...string) {
		t.Helper()
		var b bytes.Buffer
		log := NewLogger(&b, debug)
		log.Debug("one", zap.Int("n", 1))
		log.Info("two")
		log.Error("three\nlines", zap.String("path", `a"b`))
		var got []string
		for line := range strings.Lines(b.String()) {
			var entry map[string]any
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if ts, err := time.Parse(time.RFC3339, entry["ts"].(string)); err != nil || time.Since(ts).Abs() > time.Minute || ts.Location() != time.UTC {
				t.Errorf("%q: time %v, %v", line, ts, err)
			}
			delete(entry, "ts")
			rest, err := json.Marshal(entry)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(rest))
		}
		if lines(got...) != lines(want...) {
			t.Errorf("debug %v:\ngot  %q\nwant %q", debug, got, want)
		}
	}
	two := `{"level":"info","msg":"two"}`
	three := `{"level":"error","msg":"three\nlines","path":"a\"b"}`
	f(false, two, three)
	f(true, `{"level":"debug","msg":"one","n":1}`, two, three)
}
