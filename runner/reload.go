package runner

import (
	"context"
	"errors"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// reloads says how the last reload went.
type reloads struct {
	failed atomic.Bool
	at     atomic.Int64 // seconds since 1970 of the last that went well, or the start
}

func (r *reloads) register(m *metrics) {
	r.at.Store(time.Now().Unix())
	m.gauge("reload_success", "Whether the last reload went well.", nil, func() float64 {
		if r.failed.Load() {
			return 0
		}
		return 1
	})
	m.gauge("reload_timestamp_seconds", "When what is in use was loaded, in seconds since 1970.", nil, func() float64 { return float64(r.at.Load()) })
}

// obey does what signals ask for, one after the other, until ctx ends: SIGUSR1
// ends the interval, SIGHUP reloads.
func (d *daemon) obey(ctx context.Context, signals <-chan os.Signal, rotate chan<- *view) {
	for {
		var signal os.Signal
		select {
		case <-ctx.Done():
			return
		case signal = <-signals:
		}
		var v *view // the one in use
		if signal == syscall.SIGHUP {
			if v = d.reload(); v == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case rotate <- v:
		}
	}
}

// reload reads the configuration and all that it names again. It returns the
// new view, or nil if anything is wrong: then everything stays as it was.
//
// When the minute loop has the view in use, it calls reloaded.
func (d *daemon) reload() *view {
	if state, err := stateReloading(); err == nil {
		d.notify(state)
	}
	v, err := d.loadAgain()
	d.reloads.failed.Store(err != nil)
	d.health.reporter(zap.NewNop(), "reload")(err) // each time is worth a line, here and in reloaded
	if err != nil {
		d.log.Error("reload failed, everything stays as it was", zap.Error(err))
		d.notify(stateReady)
		return nil
	}
	return v
}

// reloaded says that the view of the minute loop is in use.
func (d *daemon) reloaded() {
	d.reloads.at.Store(time.Now().Unix())
	d.log.Info("reloaded", zap.Int("well_known_names", d.minute.view.names.Len()))
	d.notify(stateReady)
}

func (d *daemon) loadAgain() (*view, error) {
	if d.cfg.source == nil {
		return nil, errors.New("there is no configuration to read again")
	}
	cfg, err := d.cfg.source.LoadConfig()
	if err != nil {
		return nil, err
	}
	v, err := loadView(cfg)
	files, errTLS := loadTLS(cfg, d.log)
	if err = errors.Join(err, errTLS); err != nil {
		return nil, err
	}
	d.files.follow(files)
	if keys := needRestart(d.cfg, cfg); len(keys) > 0 {
		d.log.Warn("these settings have changed and need a restart", zap.Strings("settings", keys))
	}
	return v, nil
}

// needRestart returns the keys of settings that differ and are not reloaded. The
// path of a certificate may change, but not whether there is one.
func needRestart(a, b *Config) (keys []string) {
	for _, s := range settings {
		x, y := s.field(a), s.field(b)
		same := reflect.DeepEqual(x.Interface(), y.Interface())
		switch s.reload {
		case "yes":
			same = true
		case "path":
			same = x.IsZero() == y.IsZero()
		}
		if !same {
			keys = append(keys, s.key)
		}
	}
	return keys
}
