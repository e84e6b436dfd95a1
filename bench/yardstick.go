package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"runtime"
	"strings"
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
	var failed error
	i := 0
	took, err := onThread(frames, func() {
		_, payload := p.Frame(i)
		var frame dnstap.Dnstap
		var msg dns.Msg
		err := proto.Unmarshal(payload, &frame)
		if err == nil {
			err = msg.Unpack(frame.Message.ResponseMessage)
		}
		if err != nil {
			failed = fmt.Errorf("yardstick: frame %d: %w", i, err)
		}
		i++
	})
	return took, errors.Join(failed, err)
}

// onThread gives the CPU time of one of n calls, that of their thread alone.
func onThread(n int, call func()) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	start, err := threadCPU()
	if err != nil {
		return 0, err
	}
	for range n {
		call()
	}
	end, err := threadCPU()
	return (end - start) / time.Duration(n), err
}

func threadCPU() (time.Duration, error) {
	var ru unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_THREAD, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), err
}

// sample is as long as what edm signs for an event.
var sample = []byte(strings.Repeat("x", 230))

// signature gives the CPU time of one Ed25519 signature of an event, as thread
// time: what is measured against it is not flattered.
func signature() (time.Duration, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return 0, err
	}
	return onThread(5000, func() { ed25519.Sign(key, sample) })
}
