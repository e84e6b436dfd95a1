package runner

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	f := func(text string, want time.Duration, ok bool) {
		t.Helper()
		var d Duration
		if err := d.UnmarshalText([]byte(text)); time.Duration(d) != want || (err == nil) != ok {
			t.Errorf("%q: got %v, %v", text, d, err)
		}
	}
	f("0s", 0, true)
	f("2160h", 2160*time.Hour, true)
	f("1m30s", 90*time.Second, true)
	f("-1s", 0, false)
	f("30", 0, false)
	f("", 0, false)
	f("a day", 0, false)
}
