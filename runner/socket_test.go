package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// needRoot skips what only root can do.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("to become another user needs root")
	}
}

// as calls f as another user, of one group.
func as(uid, gid int, f func() error) error {
	result := make(chan error)
	go func() {
		// The ids are of this thread, which ends with the goroutine; but the
		// process's first one never does.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			result <- as(uid, gid, f) // on another thread
			runtime.UnlockOSThread()
			return
		}
		result <- func() error {
			groups := [1]uint32{uint32(gid)}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
				return fmt.Errorf("setgroups: %w", errno)
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
				return fmt.Errorf("setresgid: %w", errno)
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				return fmt.Errorf("setresuid: %w", errno)
			}
			return f()
		}()
	}()
	return <-result
}

func connect(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

// connectAs connects to a socket as another user, of one group.
func connectAs(path string, uid, gid int) error {
	return as(uid, gid, func() error { return connect(path) })
}

func mustListenUnix(t testing.TB, path string, mode fs.FileMode, group string) *unixSocket {
	t.Helper()
	s, err := listenUnix(path, mode, group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func groupOf(t testing.TB, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Gid)
}

// checkFolder holds what is in a folder.
func checkFolder(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("in the folder: %q, want %q", got, want)
	}
}

// Mode and group are those of the settings, whatever the umask.
func TestSocketModeAndGroup(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	const other, group = 65533, 65532
	f := func(mode fs.FileMode, group string, gid int, may, mayNot [][2]int) {
		t.Run(fmt.Sprintf("%o %s", mode, group), func(t *testing.T) {
			path := filepath.Join(socketDir(t), "s")
			s := mustListenUnix(t, path, mode, group)
			go func() {
				for {
					conn, err := s.Accept()
					if err != nil {
						return
					}
					conn.Close()
				}
			}()
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != fs.ModeSocket|mode {
				t.Errorf("mode %v, %v; want %o", info.Mode(), err, mode)
			}
			if got := groupOf(t, path); got != gid {
				t.Errorf("group %d, want %d", got, gid)
			}
			if s.Addr().String() != path {
				t.Errorf("its address is %s, want %s", s.Addr(), path)
			}
			if os.Getuid() == 0 {
				for _, id := range may {
					if err := connectAs(path, id[0], id[1]); err != nil {
						t.Errorf("user %d of group %d: %v", id[0], id[1], err)
					}
				}
				for _, id := range mayNot {
					if err := connectAs(path, id[0], id[1]); !errors.Is(err, unix.EACCES) {
						t.Errorf("user %d of group %d: %v, want it refused", id[0], id[1], err)
					}
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			checkFolder(t, filepath.Dir(path))
		})
	}
	f(0o600, "", os.Getgid(), nil, [][2]int{{other, other}})
	f(0o666, "", os.Getgid(), [][2]int{{other, other}}, nil)
	f(0o660, fmt.Sprint(os.Getgid()), os.Getgid(), [][2]int{{other, os.Getgid()}}, [][2]int{{other, other}})
	mine, err := user.LookupGroupId(fmt.Sprint(os.Getgid()))
	if err != nil {
		t.Fatal(err)
	}
	f(0o640, mine.Name, os.Getgid(), nil, [][2]int{{other, os.Getgid()}}) // to connect one has to write
	if os.Getuid() == 0 {
		f(0o660, fmt.Sprint(group), group, [][2]int{{other, group}}, [][2]int{{other, other}})
	}
	if s, err := listenUnix(filepath.Join(t.TempDir(), "s"), 0o660, "no such group"); err == nil || !strings.Contains(err.Error(), `"no such group"`) {
		t.Errorf("got %v, %v", s, err)
	}
}

// At no moment can somebody connect to a socket that has not its mode and group
// yet, by whatever name it has.
func TestSocketIsNeverReachableTooEarly(t *testing.T) {
	needRoot(t)
	defer syscall.Umask(syscall.Umask(0))
	dir := socketDir(t)
	path := filepath.Join(dir, "s")
	var stop atomic.Bool
	var watchers sync.WaitGroup
	watchers.Go(func() {
		names := []string{path, filepath.Join(dir, fmt.Sprintf(".edm%d", os.Getpid()))}
		err := as(65533, 65533, func() error {
			for !stop.Load() {
				for _, name := range names {
					if connect(name) == nil {
						return fmt.Errorf("somebody else could connect to %s", name)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
		s, err := listenUnix(path, 0o620, "65532")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	stop.Store(true)
	watchers.Wait()
}

// deadSocket leaves a socket that nobody listens on at path, as a crash does.
func deadSocket(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Fatalf("%v, %v", info, err)
	}
}

// What is at the path decides whether a socket may be put there.
func TestSocketPathTaken(t *testing.T) {
	f := func(name, want string, prepare func(path string)) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "s")
			prepare(path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			s, err := listenUnix(path, 0o660, "")
			if want == "" {
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				dial(t, "unix", path)
				if info, err := os.Lstat(path); err != nil || os.SameFile(before, info) {
					t.Errorf("it was not replaced: %v", err)
				}
				return
			}
			if err == nil {
				s.Close()
				t.Fatal("it listens")
			}
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %s", err, want)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() || before.Size() != after.Size() {
				t.Errorf("what was there is not any more: %v, %v", after, err)
			}
		})
	}
	write := func(path string) {
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f("a dead socket", "", func(path string) { deadSocket(t, path) })
	f("a regular file", "is not a socket", write)
	f("an empty file", "is not a socket", func(path string) { os.WriteFile(path, nil, 0o600) })
	f("a folder", "is not a socket", func(path string) { os.Mkdir(path, 0o755) })
	f("a pipe", "is not a socket", func(path string) { unix.Mkfifo(path, 0o600) })
	f("a link to a file", "is not a socket", func(path string) { write(path + "2"); os.Symlink(path+"2", path) })
	f("a link to nothing", "is not a socket", func(path string) { os.Symlink(path+"2", path) })
	f("a link to a dead socket", "is not a socket", func(path string) { deadSocket(t, path+"2"); os.Symlink(path+"2", path) })
	f("a live socket", "is in use", func(path string) {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	})
	f("a live socket of another type", "cannot be told", func(path string) {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	})
	f("a live socket that accepts nobody", "", func(path string) { deadSocket(t, path) })
	f("a live socket with a full queue", "cannot be told", func(path string) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
			t.Fatal(err)
		}
		dial(t, "unix", path)
	})
}

// A live socket is never taken away from who has it.
func TestSocketIsNotStolen(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	first := mustListenUnix(t, path, 0o660, "")
	if s, err := listenUnix(path, 0o660, ""); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("got %v, %v", s, err)
	}
	accepted := make(chan error, 10)
	go func() {
		for {
			conn, err := first.Accept()
			accepted <- err
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	dial(t, "unix", path)
	for range 2 { // the question whether it is in use, and ours
		if err := <-accepted; err != nil {
			t.Error(err)
		}
	}
	checkFolder(t, filepath.Dir(path), "s")
}

// Of many that start at once exactly one gets the socket, and it works.
func TestSocketStartersAtOnce(t *testing.T) {
	for range 50 {
		path := filepath.Join(socketDir(t), "s")
		deadSocket(t, path)
		var starters sync.WaitGroup
		begin := make(chan struct{})
		got := make(chan *unixSocket, 8)
		for range 8 {
			starters.Go(func() {
				<-begin
				s, err := listenUnix(path, 0o660, "")
				if err == nil {
					got <- s
				} else if !strings.Contains(err.Error(), "in use") {
					t.Error(err)
				}
			})
		}
		close(begin)
		starters.Wait()
		close(got)
		if n := len(got); n != 1 {
			t.Errorf("%d listen", n)
		}
		for s := range got {
			dial(t, "unix", path)
			s.Close()
		}
	}
}

// On close the path is removed, unless it is another's by now.
func TestSocketClose(t *testing.T) {
	f := func(name string, meanwhile func(path string), want ...string) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "s")
			s := mustListenUnix(t, path, 0o660, "")
			meanwhile(path)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			checkFolder(t, filepath.Dir(path), want...)
			if _, err := s.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v", err)
			}
		})
	}
	remove := func(path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	f("ours", func(string) {})
	f("gone", remove)
	f("another socket", func(path string) { remove(path); deadSocket(t, path) }, "s")
	f("a file", func(path string) { remove(path); os.WriteFile(path, []byte("x"), 0o600) }, "s")
	f("moved away", func(path string) { os.Rename(path, path+"2") }, "s2")
}

// A path has at most 107 octets, as LoadConfig sees to. One of 107 works.
func TestSocketPathLength(t *testing.T) {
	dir := socketDir(t)
	const length = 107
	f := func(base int) {
		t.Run(fmt.Sprintf("the last %d", base), func(t *testing.T) {
			parent := dir
			for rest := length - base - 1 - len(dir); rest > 0; {
				n := min(rest-1, 50)
				if rest-1-n == 1 {
					n--
				}
				parent += "/" + strings.Repeat("d", n)
				rest -= 1 + n
			}
			if err := os.MkdirAll(parent, 0o755); err != nil {
				t.Fatal(err)
			}
			path := parent + "/" + strings.Repeat("s", base)
			if len(path) != length {
				t.Fatalf("BUG: the path has %d octets", len(path))
			}
			s := mustListenUnix(t, path, 0o660, "")
			dial(t, "unix", path)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			checkFolder(t, parent)
		})
	}
	f(30)
	f(12)
	f(1)
}

// The name may be relative to the working folder.
func TestSocketRelativePath(t *testing.T) {
	t.Chdir(socketDir(t))
	s := mustListenUnix(t, "s", 0o600, "")
	dial(t, "unix", "s")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	checkFolder(t, ".")
}

func TestSocketFolderAbsent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent", "s")
	if s, err := listenUnix(path, 0o660, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, %v", s, err)
	}
}

// A folder that somebody has locked for good is an error, not a start that
// hangs.
func TestSocketFolderLocked(t *testing.T) {
	dir, err := os.Open(socketDir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir.Name(), "s")
	synctest.Test(t, func(t *testing.T) {
		if s, err := listenUnix(path, 0o660, ""); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), dir.Name()) {
			t.Errorf("got %v, %v", s, err)
		}
	})
	checkFolder(t, dir.Name())
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	mustListenUnix(t, path, 0o660, "")
}
