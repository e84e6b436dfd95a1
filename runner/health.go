package runner

import (
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"
)

// health holds what is wrong at the moment, one sentence for each part of the
// daemon. It writes one log line when something goes wrong and one when it is
// right again, however often it is told.
type health struct {
	mu       sync.Mutex
	problems map[string]string // guarded by mu
}

// set says that a part has a problem.
func (h *health) set(log *zap.Logger, part, problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.problems[part]; !known {
		log.Error("degraded", zap.String("part", part), zap.String("problem", problem))
	}
	if h.problems == nil {
		h.problems = make(map[string]string)
	}
	h.problems[part] = problem
}

// clear says that a part has no problem.
func (h *health) clear(log *zap.Logger, part string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.problems[part]; known {
		delete(h.problems, part)
		log.Info("recovered", zap.String("part", part))
	}
}

// reporter returns a function that takes a part's problem, or nil for none.
func (h *health) reporter(log *zap.Logger, part string) func(error) {
	return func(err error) {
		if err == nil {
			h.clear(log, part)
		} else {
			h.set(log, part, err.Error())
		}
	}
}

// list returns the problems in the order of their parts.
func (h *health) list() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []string
	for _, part := range slices.Sorted(maps.Keys(h.problems)) {
		list = append(list, part+": "+h.problems[part])
	}
	return list
}
