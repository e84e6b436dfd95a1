package runner

import (
	"net/url"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"edm/output"
)

// uploadGrace is what the receiver gets at the stop to take what is in the
// outbox. What it does not take is sent after the next start.
const uploadGrace = 3 * time.Second

// uploads is the stage that delivers histograms and deletes what is old.
type uploads struct {
	uploader *output.Uploader
	wake     chan struct{} // has something: a histogram was written
	closing  chan struct{} // closed: no more will be
}

// newUploads makes the stage; without http_url it only deletes.
func newUploads(cfg *Config, files *tlsFiles, m *metrics, h *health) *uploads {
	u := &uploads{wake: make(chan struct{}, 1), closing: make(chan struct{})}
	codes := m.counterVec("upload_total", `Uploads of histograms by what came of them: an HTTP status (201 is delivered), "timeout" or "error".`, "code")
	for _, code := range []string{"201", "timeout", "error"} {
		codes.WithLabelValues(code)
	}
	deleted := m.counterVec("files_deleted_total", "Files deleted, by kind and reason; outbox_full: a histogram that was never delivered.", "kind", "reason")
	deletions := [...]prometheus.Counter{
		output.OutboxFull:     deleted.WithLabelValues(kindHistogram, "outbox_full"),
		output.SentExpired:    deleted.WithLabelValues(kindHistogram, "sent_retention"),
		output.SessionExpired: deleted.WithLabelValues(kindSession, "session_retention"),
	}
	o := output.UploaderOptions{
		Version:          m.version,
		Histograms:       filepath.Join(cfg.DataDir, histogramsDir),
		Sessions:         filepath.Join(cfg.DataDir, sessionsDir),
		OutboxMaxBytes:   cfg.OutboxMaxBytes,
		SentRetention:    time.Duration(cfg.SentRetention),
		SessionRetention: time.Duration(cfg.SessionRetention),
		Grace:            uploadGrace,
		Wake:             u.wake,
		State:            h.reporter(m.log, "upload"),
		Folders:          h.reporter(m.log, "outbox"),
		Answered:         func(code string) { codes.WithLabelValues(code).Inc() },
		Deleted:          func(why output.Deletion, n int) { deletions[why].Add(float64(n)) },
		Settled: func(path string, refusal error) {
			if refusal == nil {
				m.log.Info("histogram delivered", zap.String("file", path))
			} else {
				m.log.Warn("histogram refused, it is not sent again unless it is moved back to the outbox", zap.String("file", path), zap.Error(refusal))
			}
		},
		Clock: func(ahead time.Duration) {
			m.log.Warn("our clock and the receiver's differ, which may be why it does not take our signatures",
				zap.Duration("ahead_of_the_receiver", ahead))
		},
	}
	if cfg.HTTPURL != "" {
		u.connect(cfg, files, &o)
	}
	u.uploader = output.NewUploader(o)
	return u
}

func (u *uploads) connect(cfg *Config, files *tlsFiles, o *output.UploaderOptions) {
	base, err := url.Parse(cfg.HTTPURL)
	if err != nil {
		panic("BUG: http_url was not checked: " + err.Error())
	}
	o.URL, o.TLS = base, files.httpTLS
	o.Key = func() *output.SigningKey { return files.httpKey }
}

// run delivers until closing is closed, and a moment longer.
func (u *uploads) run() { u.uploader.Run(u.closing) }

// written says that there is another histogram in the outbox. A nil u is told
// in vain.
func (u *uploads) written() {
	if u == nil {
		return
	}
	select {
	case u.wake <- struct{}{}:
	default: // it is said already
	}
}
