package runner

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNotifySystemd(t *testing.T) {
	f := func(name string) {
		t.Helper()
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		manager.SetReadDeadline(time.Now().Add(10 * time.Second))
		t.Setenv("NOTIFY_SOCKET", name)
		for _, state := range []string{stateReady, stateStopping} {
			if err := notifySystemd(state); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			n, err := manager.Read(buf)
			if err != nil || string(buf[:n]) != state {
				t.Errorf("%s: got %q, %v, want %q", name, buf[:n], err, state)
			}
		}
	}
	f(filepath.Join(t.TempDir(), "notify"))
	f(fmt.Sprintf("@edm-test-%d", os.Getpid()))
}

func TestNotifySystemdWithoutManager(t *testing.T) {
	f := func(socket, want string) {
		t.Helper()
		t.Setenv("NOTIFY_SOCKET", socket)
		err := notifySystemd(stateReady)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", socket, err, want)
		}
	}
	f("", "")
	f("vsock:2:1234", "neither a path nor an abstract name")
	f(filepath.Join(t.TempDir(), "gone"), "no such file")
}

func TestStateReloading(t *testing.T) {
	now := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano() / 1000
	}
	before := now()
	state, err := stateReloading()
	if err != nil {
		t.Fatal(err)
	}
	var got int64
	if _, err := fmt.Sscanf(state, "RELOADING=1\nMONOTONIC_USEC=%d", &got); err != nil {
		t.Fatalf("%q: %v", state, err)
	}
	if got < before || got > now() {
		t.Errorf("%d is not between %d and %d", got, before, now())
	}
}
