package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A unixSocket is a listening socket with a path, which Close removes if it is
// still ours.
type unixSocket struct {
	net.Listener
	path string
	info fs.FileInfo // of the socket as we made it
}

// listenUnix makes a listening socket at path, with its mode and group. These
// are the steps, in this order:
//
//  1. lock the folder, so that of two that start at once one is first
//  2. see what is at path: nothing, or a socket that nobody listens on; if
//     somebody does, or if it is another kind of file, give up
//  3. bind a socket of mode 0 to a name of its own in the folder
//  4. set its group, then its mode
//  5. listen; only now can anyone connect
//  6. rename it to path, in place of a dead one
//
// group is a name or number, "" for that of the process.
func listenUnix(path string, mode fs.FileMode, group string) (*unixSocket, error) {
	gid, err := lookupGroup(group)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := lockFolder(dir); err != nil {
		return nil, err
	}
	if err := replaceable(path); err != nil {
		return nil, err
	}

	temp := filepath.Join(dir.Name(), ".edm"+strconv.Itoa(os.Getpid()))
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	bound := temp
	if len(bound) > unixPathLimit { // it may be longer than path
		bound = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(temp))
	}
	// The mode of the socket is that of the file that bind makes. Without it, a
	// connect that is let in between bind and chmod could wait for listen.
	if err := unix.Fchmod(fd, 0); err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: bound}); err != nil {
		return nil, fmt.Errorf("bind %s: %w", temp, err)
	}
	defer os.Remove(temp) // gone already if all goes well
	if gid >= 0 {
		if err := os.Lchown(temp, -1, gid); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(temp, mode); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(temp, path); err != nil {
		l.Close()
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &unixSocket{Listener: l, path: path, info: info}, nil
}

// lockWait is how long another one that makes a socket in the same folder is
// waited for.
const lockWait = 5 * time.Second

func lockFolder(dir *os.File) error {
	deadline := time.Now().Add(lockWait)
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EINTR && (err != unix.EWOULDBLOCK || time.Now().After(deadline)) {
			return fmt.Errorf("lock %s: %w", dir.Name(), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// socketFree returns nil unless input_unix is sure to be in the way: another edm
// serves there, or it is no socket. To ask first leaves no trace of a start that
// cannot go on. listenUnix asks again, under its lock.
func socketFree(cfg *Config) error {
	if cfg.InputUnix == "" || os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) { // perhaps the service manager's
		return nil
	}
	if err := replaceable(cfg.InputUnix); err != nil {
		return fmt.Errorf("input_unix: %w", err)
	}
	return nil
}

// replaceable returns nil if a socket may be put at path.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket: move it away or choose another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s is in use: something listens on it, perhaps another edm", path)
	}
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("%s exists, and it cannot be told whether something listens on it: %w", path, err)
}

func lookupGroup(group string) (gid int, err error) {
	if group == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(group, 10, 64); err == nil {
		if n >= math.MaxUint32 { // which means "as it is"
			return 0, fmt.Errorf("%s is no number of a group", quote(group))
		}
		return int(n), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("there is no group %s", quote(group))
	}
	return strconv.Atoi(g.Gid)
}

// Addr is where clients connect; the listener itself knows the name it was
// bound to first.
func (s *unixSocket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close stops listening, and removes the path unless another socket has taken
// its place.
func (s *unixSocket) Close() error {
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
		if err := os.Remove(s.path); err != nil {
			s.Listener.Close()
			return err
		}
	}
	return s.Listener.Close()
}
