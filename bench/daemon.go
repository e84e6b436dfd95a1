package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daemon is an edm that was started, listening on a unix socket.
type daemon struct {
	cmd    *exec.Cmd
	socket string
	data   string
	logged string // file with what it wrote to stderr
	url    string // of its metrics, up to the path
	exited chan struct{}

	client http.Client
}

// startDaemon starts edm, a command to which its arguments are added, in a
// folder of its own with some settings beyond those that it needs, and waits
// until it listens.
func startDaemon(command []string, dir string, settings ...string) (*daemon, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	d := &daemon{
		socket: filepath.Join(dir, "dnstap.sock"),
		data:   filepath.Join(dir, "data"),
		logged: filepath.Join(dir, "log"),
		url:    "http://" + port,
		exited: make(chan struct{}),
		client: http.Client{
			Timeout: 10 * time.Second,
			// Compressing its metrics would be work that edm does for the bench.
			Transport: &http.Transport{DisableCompression: true},
		},
	}
	if err := os.Mkdir(d.data, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "edm.toml")
	settings = append([]string{
		`cryptopan_key = "bench"`,
		fmt.Sprintf("input_unix = %q", d.socket),
		fmt.Sprintf("data_dir = %q", d.data),
		fmt.Sprintf("metrics_listen = %q", port),
	}, settings...)
	if err := os.WriteFile(config, []byte(strings.Join(settings, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(d.logged)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command = append(command, "-config", config)
	d.cmd = exec.Command(command[0], command[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		d.cmd.Wait() // how it ended is in d.cmd.ProcessState
		close(d.exited)
	}()
	if err := d.wait(30*time.Second, 10*time.Millisecond, func() bool { return d.listens() }); err != nil {
		d.kill()
		return nil, fmt.Errorf("edm does not listen: %w", err)
	}
	return d, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (d *daemon) listens() bool {
	if _, err := os.Stat(d.socket); err != nil {
		return false
	}
	_, err := d.metrics()
	return err == nil
}

// wait calls done every now and then until it is true.
func (d *daemon) wait(limit, step time.Duration, done func() bool) error {
	for end := time.Now().Add(limit); !done(); time.Sleep(step) {
		select {
		case <-d.exited:
			return fmt.Errorf("edm has ended: %v\n%s", d.cmd.ProcessState, d.lastWords())
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v\n%s", limit, d.lastWords())
		}
	}
	return nil
}

// lastWords gives the end of the daemon's log.
func (d *daemon) lastWords() string {
	b, err := os.ReadFile(d.logged)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// stop sends SIGTERM and waits for the end.
func (d *daemon) stop() (took time.Duration, err error) {
	start := time.Now()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-d.exited:
	case <-time.After(60 * time.Second):
		d.kill()
		return 0, errors.New("edm did not end within a minute of SIGTERM")
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		return 0, fmt.Errorf("edm ended with code %d\n%s", code, d.lastWords())
	}
	return time.Since(start), nil
}

// kill ends the daemon if it is still there.
func (d *daemon) kill() {
	d.cmd.Process.Kill() // fails if it has ended
	<-d.exited
}

// metrics is a scrape: series, with their labels as they stand in it, to values.
type metrics map[string]float64

func (d *daemon) metrics() (metrics, error) {
	resp, err := d.client.Get(d.url + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	return parseMetrics(resp.Body)
}

func parseMetrics(r io.Reader) (metrics, error) {
	m := metrics{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		m[line[:space]] = v
	}
	return m, lines.Err()
}

// sum adds all series of one name.
func (m metrics) sum(name string) (sum int) {
	for series, v := range m {
		if rest, ok := strings.CutPrefix(series, name); ok && (rest == "" || rest[0] == '{') {
			sum += int(v)
		}
	}
	return sum
}

func (m metrics) result(result string) int {
	return int(m[fmt.Sprintf("edm_frames_total{result=%q}", result)])
}

// waitFor waits until the daemon has counted a number of frames in all.
func (d *daemon) waitFor(frames int) error {
	counted := 0
	err := d.wait(60*time.Second, 10*time.Millisecond, func() bool {
		if m, err := d.metrics(); err == nil {
			counted = m.sum("edm_processed_dnstap_total")
		}
		return counted >= frames
	})
	if err != nil {
		return fmt.Errorf("edm has counted %d of %d frames: %w", counted, frames, err)
	}
	return nil
}

// cpu gives the CPU time that the daemon has used so far, in steps of 10 ms.
func (d *daemon) cpu() (user, sys time.Duration, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	// The second field is the command's name in brackets, and may hold anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("/proc/PID/stat has only %d fields", len(fields))
	}
	u, err1 := strconv.Atoi(fields[11])
	s, err2 := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ is 100
	return time.Duration(u) * tick, time.Duration(s) * tick, errors.Join(err1, err2)
}

// memory gives the daemon's resident memory in bytes, now and at its highest.
// (The rusage of an ended child is no use for that: it begins with what its
// parent had at the fork.)
func (d *daemon) memory() (now, peak int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			now = kib << 10
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			peak = kib << 10
		}
	}
	return now, peak, nil
}
