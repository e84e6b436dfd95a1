package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstHandedOver is the first of the file descriptors that the service manager
// hands over, see sd_listen_fds(3).
const firstHandedOver = 3

// handedOver returns the listening sockets that the service manager made for
// this process (socket activation), by the setting that each stands in for:
// its FileDescriptorName. There are none if the process was not started that way.
//
// The manager keeps them open, so while edm restarts connections wait in the
// kernel, and a socket's path, mode and group are the manager's affair: closing
// one of these removes nothing.
func handedOver() (sockets map[string]net.Listener, err error) {
	count, names := os.Getenv("LISTEN_FDS"), strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	if count == "" || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil // or meant for the process that started this one
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 0 && len(names) != n {
		return nil, fmt.Errorf("sockets of the service manager: LISTEN_FDS is %q, and LISTEN_FDNAMES %q", count, os.Getenv("LISTEN_FDNAMES"))
	}
	sockets = make(map[string]net.Listener, n)
	defer func() {
		if err != nil {
			closeAll(sockets)
		}
	}()
	for i := range n {
		name := names[i]
		l, err := takeSocket(firstHandedOver+i, name)
		if err != nil {
			return nil, fmt.Errorf("socket %q of the service manager: %w", name, err)
		}
		if sockets[name] != nil {
			l.Close()
			return nil, fmt.Errorf("the service manager has two sockets %q", name)
		}
		sockets[name] = l
	}
	return sockets, nil
}

// takeSocket makes a listener of a file descriptor, which is then closed.
func takeSocket(fd int, name string) (net.Listener, error) {
	family := map[string]string{"input_unix": "unix", "input_tcp": "tcp", "input_tls": "tcp"}[name]
	if family == "" {
		return nil, errors.New("FileDescriptorName must be input_unix, input_tcp or input_tls")
	}
	unix.CloseOnExec(fd)
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return nil, err
	}
	if listens == 0 {
		return nil, errors.New("it does not listen: the socket unit must have ListenStream, and Accept=no")
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	if got := l.Addr().Network(); got != family {
		l.Close()
		return nil, fmt.Errorf("it is a %s socket", got)
	}
	return l, nil
}

// standsIn says whether a socket is where a setting wants it. The two are
// written in different files, and resolvers go by one of them.
func standsIn(l net.Listener, setting string) error {
	switch addr := l.Addr().(type) {
	case *net.UnixAddr:
		if addr.Name == setting {
			return nil
		}
		if a, err := os.Stat(addr.Name); err == nil {
			if b, err := os.Stat(setting); err == nil && os.SameFile(a, b) {
				return nil
			}
		}
	case *net.TCPAddr:
		// The host may be written in many ways, the port in one.
		_, port, err := net.SplitHostPort(setting)
		if err == nil && (port == strconv.Itoa(addr.Port) || port == "0") {
			return nil
		}
	}
	return fmt.Errorf("the service manager's socket is %s, the setting is %q", l.Addr(), setting)
}

// closeAll closes listeners that nobody is to use.
func closeAll(sockets map[string]net.Listener) {
	for _, l := range sockets {
		l.Close()
	}
}

// opener opens the inputs one after the other, until one cannot be opened.
type opener struct {
	handed map[string]net.Listener // not used yet
	inputs []input
	err    error
}

// open adds the input of a setting: the socket that was handed over for it, or
// else the one that listen makes. Nothing is done if there is no setting.
func (o *opener) open(name, setting string, listen func() (net.Listener, error)) {
	if o.err != nil || setting == "" {
		return
	}
	l, handed := o.handed[name]
	var err error
	if handed {
		delete(o.handed, name)
		if err = standsIn(l, setting); err != nil {
			l.Close()
		}
	} else {
		l, err = listen()
	}
	if err != nil {
		o.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	o.inputs = append(o.inputs, input{l, name, name == "input_tls"})
}

// openInputs makes all listening sockets of cfg, or none. Those that the
// service manager hands over it takes.
func openInputs(cfg *Config) ([]input, error) {
	handed, err := handedOver()
	if err != nil {
		return nil, err
	}
	o := opener{handed: handed}
	o.open("input_unix", cfg.InputUnix, func() (net.Listener, error) {
		return listenUnix(cfg.InputUnix, fs.FileMode(cfg.InputUnixMode), cfg.InputUnixGroup)
	})
	o.open("input_tcp", cfg.InputTCP, func() (net.Listener, error) { return net.Listen("tcp", cfg.InputTCP) })
	o.open("input_tls", cfg.InputTLS, func() (net.Listener, error) { return net.Listen("tcp", cfg.InputTLS) })
	for name := range o.handed {
		if o.err == nil {
			o.err = fmt.Errorf("the service manager has a socket %q, and %s is not set", name, name)
		}
	}
	if o.err != nil {
		closeAll(o.handed)
		for _, in := range o.inputs {
			in.Close()
		}
		return nil, o.err
	}
	return o.inputs, nil
}
