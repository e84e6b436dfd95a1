package runner

import (
	"errors"
	"fmt"
	"io"
	"os"

	framestream "github.com/farsightsec/golang-framestream"
	"go.uber.org/zap"
)

// replay is the first stage of a replay: it reads capture files, Frame Streams
// files that begin with START, as if they came by a socket, and closes the
// channel of chunks behind them. It ends early when stop is closed, and with an
// error at a file that it cannot read.
func replay(files []string, shared *reading, stop <-chan struct{}) error {
	defer close(shared.chunks)
	for _, name := range files {
		if err := replayFile(name, shared, stop); err != nil {
			return err
		}
	}
	return nil
}

func replayFile(name string, shared *reading, stop <-chan struct{}) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	c := &connection{input: "replay", source: &capture{f, stop}, shared: shared}
	c.chunk = shared.free.take()
	defer func() { shared.free.give(c.chunk) }()
	start, err := c.control()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil // stop is closed
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s: it ends before a START frame does", name)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	if start.ControlType != framestream.CONTROL_START {
		return fmt.Errorf("%s: it begins with a control frame of type %d, not with START", name, start.ControlType)
	}
	end, err := c.stream()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if end != endStop && end != endEOF {
		shared.log.Warn("a capture file did not end with STOP", zap.String("file", name), zap.Stringer("reason", end))
	}
	return nil
}

// A capture is a file that ends when stop is closed.
type capture struct {
	*os.File
	stop <-chan struct{}
}

func (c *capture) Read(b []byte) (int, error) {
	select {
	case <-c.stop:
		return 0, os.ErrDeadlineExceeded
	default:
		return c.File.Read(b)
	}
}
