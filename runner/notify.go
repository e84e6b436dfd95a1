package runner

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What the service manager is told, see sd_notify(3).
const (
	stateReady    = "READY=1" // also ends a reload
	stateStopping = "STOPPING=1"
)

// stateReloading says that a reload begins now. The time lets the service
// manager tell this reload from an earlier one.
func stateReloading() (string, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "", fmt.Errorf("read the monotonic clock: %w", err)
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000), nil
}

// notifySystemd sends a state to the service manager that started the process,
// in one datagram. Without one it does nothing.
func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") {
		return fmt.Errorf("notify the service manager: NOTIFY_SOCKET is %q, neither a path nor an abstract name", path)
	}
	// The net package takes a leading @ for an abstract name, as systemd does.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close()
	// A manager that does not read must not hold up a start or a stop.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
