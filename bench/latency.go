package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"edm/traffic"
)

// latencies finds out how long it takes from writing a frame with a new name
// to its event at the subscriber. The broker acknowledges the event to edm when
// it hands it to the subscriber, so this is a little more than what edm and
// the broker take.
type latencies struct {
	pool *traffic.Pool

	mu     sync.Mutex
	writes []mark // of the load, in order
	took   []time.Duration
	odd    error // an event that is of no frame
}

// before notes that frames are about to be written.
func (l *latencies) before(frames int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.writes); n > 0 {
		frames += l.writes[n-1].frames
	}
	l.writes = append(l.writes, mark{frames, time.Now()})
}

// arrived notes an event. Those of the warm-up do not count.
func (l *latencies) arrived(message []byte) {
	now := time.Now()
	frame, err := l.frameOf(message)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.odd = err
	case frame >= 0:
		i := sort.Search(len(l.writes), func(i int) bool { return l.writes[i].frames > frame })
		if i == len(l.writes) {
			l.odd = fmt.Errorf("an event for frame %d, which was not sent yet", frame)
			return
		}
		l.took = append(l.took, now.Sub(l.writes[i].at))
	}
}

// frameOf gives the number of the frame, counted from the first of the load,
// that an event is for, or -1 if it is for none of the load.
func (l *latencies) frameOf(message []byte) (int, error) {
	var jws struct{ Payload string }
	if err := json.Unmarshal(message, &jws); err != nil {
		return 0, err
	}
	payload, err := base64.RawURLEncoding.DecodeString(jws.Payload)
	if err != nil {
		return 0, err
	}
	var event struct{ Qname string }
	if err := json.Unmarshal(payload, &event); err != nil {
		return 0, err
	}
	label, _, _ := strings.Cut(event.Qname, ".")
	frame, pass, ok := l.pool.NovelFrame(label)
	if !ok || pass == 0 {
		return -1, nil
	}
	return (pass-1)*l.pool.Len() + frame, nil
}

// share gives the latency that a share of the events does not exceed.
func (l *latencies) share(share float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.took) == 0 {
		return 0
	}
	slices.Sort(l.took)
	return l.took[min(len(l.took)-1, int(share*float64(len(l.took))))]
}
