package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"edm/output"
)

// Folders below data_dir.
const (
	histogramsDir = "parquet/histograms"
	outboxDir     = histogramsDir + "/" + output.OutboxFolder
	sessionsDir   = "parquet/sessions"
)

// folderMode is that of folders: pseudonyms are not for everyone on the host.
const folderMode = 0o750

// retryWrite is how long to wait before a histogram that could not be written
// is tried again.
const retryWrite = 5 * time.Second

// lossReason names why rows could not be written, as it stands in metrics.
func lossReason(err error) string {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return "no_space"
	}
	return "io"
}

// A loss is rows that could not be written.
type loss struct {
	rows int
	why  error // of the first ones
}

func (l *loss) add(rows int, why error) {
	if l.why == nil {
		l.why = why
	}
	l.rows += rows
}

// err says what was lost; nil if nothing was.
func (l *loss) err(kind string) error {
	if l.rows == 0 {
		return nil
	}
	return fmt.Errorf("%d %s rows are lost: %w", l.rows, kind, l.why)
}

// A sessionWriter is the stage that writes session files. It never stops
// receiving: what a full or failing disk refuses is dropped and counted.
type sessionWriter struct {
	dir     string
	meta    output.Meta
	blocks  <-chan *output.Block
	ends    <-chan output.Interval
	empty   *blockList
	metrics *metrics
	health  *health
	log     *zap.Logger

	pulse pulse
	start time.Time           // of the interval
	file  *output.SessionFile // nil until there is a row
	loss  loss                // whoever waited for run to return may read it
}

// run writes until ends is closed. At the end of an interval all its blocks
// have been sent, so they are received or wait in the channel.
func (s *sessionWriter) run() {
	blocks := s.blocks
	for {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			s.write(b)
		case interval, ok := <-s.ends:
			if !ok {
				return
			}
			for len(blocks) > 0 {
				s.write(<-blocks)
			}
			s.commit(interval.Stop)
			s.start = interval.Stop
		case <-s.pulse:
		}
	}
}

func (s *sessionWriter) write(b *output.Block) {
	defer s.empty.give(b)
	if s.file == nil {
		f, err := s.create()
		if err != nil {
			s.lost(b.Len(), err)
			return
		}
		s.file = f
	}
	err := s.file.Write(b)
	if err == nil {
		s.health.clear(s.log, kindSession)
		return
	}
	rows := b.Len()
	if s.file.Failed() {
		rows += s.file.Rows()
		s.file.Abort()
		s.file = nil
	}
	s.lost(rows, err)
}

// create begins a file, in a folder that somebody may have removed.
func (s *sessionWriter) create() (*output.SessionFile, error) {
	if err := os.MkdirAll(s.dir, folderMode); err != nil {
		return nil, err
	}
	return output.CreateSession(s.dir, s.start)
}

func (s *sessionWriter) commit(stop time.Time) {
	if s.file == nil {
		return
	}
	rows := s.file.Rows()
	path, err := "", error(nil)
	if rows == 0 { // no block found room
		s.file.Abort()
	} else if path, err = s.file.Commit(s.meta, stop); err != nil {
		s.lost(rows, err)
	} else {
		s.health.clear(s.log, kindSession)
		s.metrics.sessionRows.Add(float64(rows))
		s.metrics.filesWritten.WithLabelValues(kindSession).Inc()
		s.log.Info("session file written", zap.String("file", path), zap.Int("rows", rows))
	}
	s.file = nil
}

func (s *sessionWriter) lost(rows int, err error) {
	s.loss.add(rows, err)
	s.metrics.rowsLost.WithLabelValues(kindSession, lossReason(err)).Add(float64(rows))
	s.health.set(s.log, kindSession, "session rows are lost: "+err.Error())
}

// A histogramWriter is the stage that writes histogram files. A histogram that
// cannot be written is kept and tried again; meanwhile the minute loop waits
// and the workers count on.
type histogramWriter struct {
	dir      string
	meta     output.Meta
	minutes  <-chan minute
	stopping <-chan struct{} // closed: there is no later to try again
	uploads  *uploads        // is told of each file; nil: nobody is
	metrics  *metrics
	health   *health
	log      *zap.Logger
	pulse    pulse
	loss     loss // whoever waited for run to return may read it
}

func (h *histogramWriter) run() {
	for {
		select {
		case m, ok := <-h.minutes:
			if !ok {
				return
			}
			h.write(m)
		case <-h.pulse:
		}
	}
}

// write writes a histogram, now or when it can be; at the stop there is one
// last try.
func (h *histogramWriter) write(m minute) {
	defer m.tally.free()
	histogram := m.tally.histogram(m.interval)
	for last := false; ; {
		path, err := h.try(histogram)
		if err == nil {
			h.health.clear(h.log, kindHistogram)
			h.metrics.histogramRows.Add(float64(histogram.Rows))
			h.metrics.filesWritten.WithLabelValues(kindHistogram).Inc()
			h.log.Info("histogram written", zap.String("file", path), zap.Int("rows", histogram.Rows))
			h.uploads.written()
			return
		}
		if last {
			h.loss.add(histogram.Rows, err)
			h.metrics.rowsLost.WithLabelValues(kindHistogram, lossReason(err)).Add(float64(histogram.Rows))
			h.log.Error("a histogram is lost at the stop", zap.Int("rows", histogram.Rows), zap.Error(err))
			return
		}
		h.health.set(h.log, kindHistogram, "histograms wait to be written: "+err.Error())
		last = h.wait()
	}
}

// try writes a histogram once. Somebody may have removed the folders.
func (h *histogramWriter) try(histogram output.Histogram) (path string, err error) {
	if err := makeHistogramFolders(filepath.Dir(h.dir)); err != nil {
		return "", err
	}
	return output.WriteHistogram(h.dir, h.meta, histogram)
}

// wait waits until a write is to be tried again, and says whether it is for the
// last time.
func (h *histogramWriter) wait() (last bool) {
	again := time.After(retryWrite)
	for {
		select {
		case <-again:
			return false
		case <-h.stopping:
			return true
		case <-h.pulse:
		}
	}
}

// makeFolders makes the folders below data_dir, and removes files in them that
// an earlier process did not finish.
func makeFolders(dataDir string) error {
	sessions := filepath.Join(dataDir, sessionsDir)
	if err := os.MkdirAll(sessions, folderMode); err != nil {
		return err
	}
	if err := makeHistogramFolders(filepath.Join(dataDir, histogramsDir)); err != nil {
		return err
	}
	return errors.Join(output.RemoveTemporary(sessions), output.RemoveTemporary(filepath.Join(dataDir, outboxDir)))
}

func makeHistogramFolders(dir string) error {
	for _, name := range []string{output.OutboxFolder, output.SentFolder, output.RefusedFolder} {
		if err := os.MkdirAll(filepath.Join(dir, name), folderMode); err != nil {
			return err
		}
	}
	return nil
}

// folderSize counts the histogram files in a folder and their octets.
func folderSize(dir string) (files int, octets int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && e.Name()[0] != '.' {
			files++
			octets += info.Size()
		}
	}
	return files, octets
}
