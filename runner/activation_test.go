package runner

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	framestream "github.com/farsightsec/golang-framestream"
	"golang.org/x/sys/unix"
)

// startActivated runs the daemon in a process that is handed sockets, as the
// service manager does it.
func startActivated(t testing.TB, settings, names string, sockets ...*os.File) *child {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edm.toml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &child{exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0"`, os.Args[0]), t, &logBook{}, make(chan struct{})}
	c.Env = append(os.Environ(), childConfig+"="+path, fmt.Sprint("LISTEN_FDS=", len(sockets)), "LISTEN_FDNAMES="+names)
	c.ExtraFiles = sockets
	c.Stderr = c.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.Wait(); close(c.done) }()
	t.Cleanup(func() { c.Process.Kill(); <-c.done })
	return c
}

// managersSocket listens as the service manager does, and returns the socket
// and its address.
func managersSocket(t testing.TB, network, address string) (*os.File, string) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	file, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	t.Cleanup(func() { file.Close() })
	return file, l.Addr().String()
}

// While edm restarts a resolver can connect, and is served by the next edm.
// The socket stays as the manager made it.
func TestActivatedSocketOutlivesEDM(t *testing.T) {
	cfg := testConfig(t)
	socket, _ := managersSocket(t, "unix", cfg.InputUnix)
	if err := os.Chmod(cfg.InputUnix, 0o640); err != nil {
		t.Fatal(err)
	}
	before, err := os.Lstat(cfg.InputUnix)
	if err != nil {
		t.Fatal(err)
	}
	frame := framed(response(t, "example.com.", nil))
	for round := range 3 {
		p := newPeer(t, dial(t, "unix", cfg.InputUnix))
		p.send(readyFrame)
		c := startActivated(t, childSettings(cfg), "input_unix", socket)
		p.expect(framestream.CONTROL_ACCEPT)
		p.send(startFrame, frame)
		p.finish()
		c.Process.Signal(syscall.SIGTERM)
		if code := c.exited(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, c.log)
		}
		after, err := os.Lstat(cfg.InputUnix)
		if err != nil {
			t.Fatal(err)
		}
		if !os.SameFile(before, after) || after.Mode() != fs.ModeSocket|0o640 {
			t.Errorf("the socket is another one, or its mode %v", after.Mode())
		}
		if rows := rowsIn(t, cfg.sessions()); rows != round+1 {
			t.Errorf("%d rows, want %d", rows, round+1)
		}
	}
}

// Sockets go to inputs by their names, in whatever order; other inputs are
// edm's own.
func TestActivatedByName(t *testing.T) {
	cfg := testConfig(t)
	authority := newAuthority(t, socketDir(t))
	authority.issue("server", authority)
	local, _ := managersSocket(t, "unix", cfg.InputUnix)
	encrypted, address := managersSocket(t, "tcp", "127.0.0.1:0")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	settings := childSettings(cfg) + fmt.Sprintf("input_tcp = '127.0.0.1:0'\ninput_tls = 'localhost:%s'\ninput_tls_cert_file = %q\ninput_tls_key_file = %q\n",
		port, authority.path("server.pem"), authority.path("server.key"))
	c := startActivated(t, settings, "input_tls:input_unix", encrypted, local)
	c.ready()
	got := map[string]string{}
	for _, e := range c.log.entries("listening") {
		got[e["input"].(string)] = e["address"].(string)
	}
	if len(got) != 3 || got["input_unix"] != cfg.InputUnix || got["input_tls"] != address || strings.HasSuffix(got["input_tcp"], ":0") {
		t.Errorf("listening on %v", got)
	}
	p := newPeer(t, dial(t, "unix", cfg.InputUnix))
	p.open()
	p.finish()
}

// What the service manager hands over is used, or edm does not start.
func TestActivationRefused(t *testing.T) {
	dir := socketDir(t)
	local, path := managersSocket(t, "unix", filepath.Join(dir, "s"))
	tcp, address := managersSocket(t, "tcp", "127.0.0.1:0")
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	connected := os.NewFile(uintptr(pair[0]), "connected")
	t.Cleanup(func() { connected.Close(); unix.Close(pair[1]) })
	regular, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { regular.Close() })

	f := func(settings, names, want string, sockets ...*os.File) {
		t.Helper()
		cfg := testConfig(t)
		common := fmt.Sprintf("cryptopan_key = 'k'\ndata_dir = %q\nmetrics_listen = ''\n", cfg.DataDir)
		c := startActivated(t, common+settings, names, sockets...)
		if code := c.exited(); code != 1 || !regexp.MustCompile(want).MatchString(c.log.String()) {
			t.Errorf("%q: exit code %d, want %s\n%s", names, code, want, c.log)
		}
	}
	atPath := fmt.Sprintf("input_unix = %q\n", path)
	f(atPath, "edm.socket", `edm.socket.*FileDescriptorName must be`, local)
	f(atPath, "", `FileDescriptorName must be`, local)
	f(atPath, "input_unix", `LISTEN_FDS is .*2.*LISTEN_FDNAMES`, local, tcp)
	f(atPath, "input_unix:input_unix", `two sockets .*input_unix`, local, local)
	f(atPath, "input_unix", `it is a tcp socket`, tcp)
	f(atPath, "input_unix", `it does not listen`, connected)
	f(atPath, "input_unix", `not a socket|socket operation on non-socket`, regular)
	f(atPath, "input_unix:input_tcp", `socket .*input_tcp.*, and input_tcp is not set`, local, tcp)
	f("input_tcp = '127.0.0.1:1'\n", "input_tcp", `socket is `+address+`, the setting is .*127.0.0.1:1`, tcp)
	f(fmt.Sprintf("input_unix = %q\n", filepath.Join(dir, "other")), "input_unix", `socket is `+path+`, the setting is .*other`, local)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the manager's socket is gone: %v", err)
	}
}

// Sockets for another process are not for this one, and the path of a socket
// may be written in another way.
func TestActivationOfOthers(t *testing.T) {
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_FDNAMES", "input_unix")
	f := func(pid string) {
		t.Helper()
		t.Setenv("LISTEN_PID", pid)
		if sockets, err := handedOver(); sockets != nil || err != nil {
			t.Errorf("LISTEN_PID=%s: %v, %v", pid, sockets, err)
		}
	}
	f("")
	f("1")

	cfg := testConfig(t)
	socket, path := managersSocket(t, "unix", cfg.InputUnix)
	link := filepath.Join(socketDir(t), "link")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		t.Fatal(err)
	}
	cfg.InputUnix = filepath.Join(link, filepath.Base(path))
	startActivated(t, childSettings(cfg), "input_unix", socket).ready()
}
