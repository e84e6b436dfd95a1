package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process is a program that a test started. The test's end ends it.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	output lockedBuffer
}

// run starts cmd, its output kept and shown if the test fails.
func run(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	// Children of ours that outlive a killed test binary would hold its ports.
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := start(cmd); err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	go func() { cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() {
		p.terminate(t, 10*time.Second)
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(cmd.Path), p.log())
		}
	})
	return p
}

// starter starts processes from one thread that never ends: Linux sends the
// parent-death signal when the thread that forked is gone.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func start(cmd *exec.Cmd) error {
	failed := make(chan error)
	starter() <- func() { failed <- cmd.Start() }
	return <-failed
}

// terminate ends the process, by SIGKILL if it takes longer than limit, and
// returns its exit code. It may be called again.
func (p *process) terminate(t testing.TB, limit time.Duration) int {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.cmd.Process.Kill()
		<-p.exited
		t.Errorf("%s does not end within %v of SIGTERM", filepath.Base(p.cmd.Path), limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// log returns what the process printed so far, or the end of it.
func (p *process) log() string {
	s := p.output.String()
	if len(s) > 8000 {
		s = "…" + s[len(s)-8000:]
	}
	return s
}

// entries returns the lines of edm's log that are at the level.
func (p *process) entries(level string) []map[string]any {
	var found []map[string]any
	for line := range strings.Lines(p.output.String()) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil && e["level"] == level {
			found = append(found, e)
		}
	}
	return found
}

// A lockedBuffer is a bytes.Buffer for a writer and a reader.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
