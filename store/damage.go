package store

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sys/unix"
)

// What can go wrong with a store, and what becomes of it:
//
//   - The disk is full: the committer stops before Pebble has to write, and goes
//     on when there is room. See disk.
//   - Pebble cannot read what it wrote: the committer moves the store aside and
//     goes on with a fresh one. No name is known in it, so busy names are
//     reported once more; that is better than none.
//   - The system does not let us (permissions, no more open files): it is
//     reported, the names of that commit are new again, and nothing is moved.
//   - Pebble has stopped for good (it could not write to its log or manifest, and
//     cannot tell what is on the disk). Whoever is in it may hang for ever. The
//     store is lost until the next start, and everything else goes on.

// A damage is what is wrong with the store that was opened as number opened.
type damage struct {
	opened int64
	err    error
}

// errLocked is that a store is in use, by this process or another.
var errLocked = errors.New("it is in use")

// An environment is an error that a fresh store would meet, too.
type environment struct{ error }

func (e environment) Unwrap() error { return e.error }

// isDamage tells damage, which a fresh store mends, from a system that is in
// the way. Of what the system says, it is damage that a file is missing, is a
// folder, or cannot be read off the disk.
func isDamage(err error) bool {
	var ours environment
	if errors.As(err, &ours) || errors.Is(err, pebble.ErrClosed) {
		return false
	}
	if errors.Is(err, pebble.ErrCorruption) || errors.Is(err, os.ErrNotExist) {
		return true
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return true
	}
	switch errno {
	case unix.EIO, unix.EISDIR, unix.ENOTDIR, unix.EUCLEAN, unix.ENODATA, unix.EILSEQ, unix.EBADMSG:
		return true
	}
	return false
}

// hurt tells the committer of an error that another goroutine met.
func (s *Seen) hurt(opened int64, err error) {
	select {
	case s.damage <- damage{opened, err}:
	default: // it is told already
	}
}

// settle does what a commit's error, or that there was none, asks for.
func (s *Seen) settle(err error) {
	switch {
	case s.isLost():
	case err != nil && isDamage(err):
		s.exchange(err)
	case (err == nil) != (s.trouble == nil):
		s.trouble = err
		s.report(s.problem())
	}
}

// problem says what is wrong with the store, nil if nothing is.
func (s *Seen) problem() error {
	if err := s.disk.problem(); err != nil {
		return err
	}
	if s.over {
		return fmt.Errorf("the store of seen names takes the %d MiB that it may, for the events that wait: new names are not stored, and are new again when there is room", s.options.MaxBytes>>20)
	}
	return s.trouble
}

// report tells what is wrong, unless the store is lost: that was the last word.
func (s *Seen) report(err error) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	if s.options.Report != nil && !s.isLost() {
		s.options.Report(err)
	}
}

// exchange gives up a store that turned out to be damaged, and opens a fresh
// one. The committer calls it.
func (s *Seen) exchange(why error) {
	synced := make(chan struct{})
	select {
	case s.pending <- pendingSync{barrier: synced}:
	case <-s.lost:
		return
	}
	select {
	case <-synced:
	case <-s.lost:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Its error is that of the damage once more.
	_ = s.db.Close()
	_ = s.lock.Close()
	s.db = nil
	if err := s.replace(why); err != nil {
		_ = s.lose(fmt.Errorf("no fresh one could be opened: %w", err))
		return
	}
	s.memory.clear()
	s.trouble, s.written, s.over = nil, 0, false
	s.report(s.problem())
}

// replace moves a damaged store aside and opens a fresh one.
func (s *Seen) replace(why error) error {
	aside, err := s.moveAside()
	if err != nil {
		return errors.Join(why, err)
	}
	if err := s.open(); err != nil {
		return err
	}
	s.counts.replaced.Add(1)
	s.report(fmt.Errorf("the store of seen names was damaged and is now %s, a fresh one is in use: %w", aside, why))
	s.report(s.problem())
	return nil
}

// moveAside gives the store's folder a name that nothing has.
func (s *Seen) moveAside() (aside string, err error) {
	fs, dir := s.options.files.fs, s.options.Dir
	base := dir + ".damaged-" + time.Now().UTC().Format("2006-01-02T15-04-05Z")
	aside = base
	for n := 2; ; n++ {
		if _, err := fs.Stat(aside); errors.Is(err, os.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
		aside = fmt.Sprintf("%s_%d", base, n)
	}
	if err := fs.Rename(dir, aside); err != nil {
		return "", fmt.Errorf("move it aside: %w", err)
	}
	return aside, syncFolder(fs, fs.PathDir(dir))
}

func (s *Seen) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// lose gives the store up for good: nothing is looked up or written any more.
// It returns why.
func (s *Seen) lose(why error) error {
	s.losing.Do(func() {
		s.why = fmt.Errorf("the store of seen names is lost until the next start: %w", why)
		s.report(s.why)
		close(s.lost)
	})
	return s.why
}

// unlessLost returns what f does, or why the store is lost: f may hang in
// Pebble then, and never end.
func (s *Seen) unlessLost(f func() error) error {
	if s.isLost() {
		return s.why // the committer may still be at it
	}
	done := make(chan error, 1)
	go func() { done <- s.unlessPanic(f) }()
	select {
	case err := <-done:
		return err
	case <-s.lost:
		return s.why
	}
}

// unlessPanic returns what f does. Pebble panics when it cannot go on to the
// next log.
func (s *Seen) unlessPanic(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			cause, _ := r.(error)
			err = s.lose(fatal{fmt.Sprint(r), cause})
		}
	}()
	return f()
}
