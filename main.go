// Command edm reads dnstap from DNS resolvers, keeps what is useful and nothing
// that identifies a person, and hands it on: a histogram a minute of the
// well-known names, and pseudonymised records of the rest.
//
// What the daemon does is in package runner; here are only the command line and
// the exit code.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"edm/runner"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version = "dev"

func main() { os.Exit(edm(os.Args[1:], os.Stdout, os.Stderr)) }

// edm does what the arguments ask for and returns the exit code: 0, or 1 after
// one line for each problem on stderr.
func edm(args []string, stdout, stderr io.Writer) int {
	cl, err := runner.ParseCommandLine(args)
	if err != nil {
		return fail(stderr, err)
	}
	switch {
	case cl.Help:
		err = runner.PrintUsage(stdout)
	case cl.Version:
		_, err = fmt.Fprintf(stdout, "edm %s (%s %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	case cl.CheckSettings:
		_, err = cl.LoadConfig()
	case cl.Check:
		err = check(cl)
	default:
		return serve(cl, stderr)
	}
	if err != nil {
		return fail(stderr, err)
	}
	return 0
}

// check looks at the settings, and at the files that the good ones name, so that
// everything to put right is told at once.
func check(cl *runner.CommandLine) error {
	cfg, err := cl.LoadConfig()
	if cfg == nil {
		return err
	}
	return errors.Join(err, runner.Check(cfg))
}

// serve runs or replays until it is done or told to stop.
func serve(cl *runner.CommandLine, stderr io.Writer) int {
	cfg, err := cl.LoadConfig()
	if err != nil {
		return fail(stderr, err)
	}
	log := runner.NewLogger(stderr, cfg.Debug)

	if os.Getenv("GOGC") == "" {
		// The path of a frame makes no garbage, so collecting it more often
		// costs little, and keeps the process small.
		debug.SetGCPercent(10)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop)       // a second signal kills
	signals := make(chan os.Signal, 1) // one that waits already stands for those after it
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGHUP)

	if cl.Replay {
		err = runner.Replay(ctx, cfg, log, cl.Files, version)
	} else {
		err = runner.Run(ctx, cfg, log, signals, version)
	}
	if err == nil {
		return 0
	}
	for problem := range strings.SplitSeq(err.Error(), "\n") {
		log.Error("failed", zap.String("error", shorten(problem)))
	}
	return 1
}

// fail prints an error, which may join several, and returns the exit code.
func fail(stderr io.Writer, err error) int {
	for problem := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(stderr, shorten(problem))
	}
	return 1
}

// shorten cuts the middle out of a problem that quotes more of a file, or a
// longer path, than anyone would read.
func shorten(problem string) string {
	const end = 500
	if len(problem) <= 2*end {
		return problem
	}
	return strings.ToValidUTF8(problem[:end], "") + "…" + strings.ToValidUTF8(problem[len(problem)-end:], "")
}
