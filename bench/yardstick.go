package main

import (
	"fmt"
	"runtime"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"edm/traffic"
)

// yardstick gives the CPU time of decoding one frame with golang-dnstap and
// miekg/dns, as one would write it who wants to have it, and nothing else.
//
// It is the time of the thread that decodes: the garbage collector's own
// threads would add to it, so what is measured against it is not flattered.
func yardstick(p *traffic.Pool, frames int) (time.Duration, error) {
	frames = min(frames, p.Len())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	start, err := threadCPU()
	if err != nil {
		return 0, err
	}
	for i := range frames {
		_, payload := p.Frame(i)
		var frame dnstap.Dnstap
		if err := proto.Unmarshal(payload, &frame); err != nil {
			return 0, fmt.Errorf("yardstick: frame %d: %w", i, err)
		}
		var msg dns.Msg
		if err := msg.Unpack(frame.Message.ResponseMessage); err != nil {
			return 0, fmt.Errorf("yardstick: frame %d: %w", i, err)
		}
	}
	end, err := threadCPU()
	return (end - start) / time.Duration(frames), err
}

func threadCPU() (time.Duration, error) {
	var ru unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_THREAD, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), err
}
