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
//   - A write fails: Pebble is cut off from its files, closed, and opened again
//     when that is possible. What was not synced is lost, marks and events
//     together.
//   - Pebble cannot read what it wrote: the committer moves the store aside and
//     goes on with a fresh one. No name is known in it, so busy names are
//     reported once more; that is better than none.
//   - The system does not let us (permissions, no more open files): it is
//     reported, the names of that commit are new again, and nothing is moved.
//   - Pebble finds that it is wrong itself, and stops for good. Whoever is in it
//     may hang for ever, with what it has locked. The store is lost until the
//     next start, and everything else goes on.

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

// background takes the error of a flush or a compaction. Not each is one: a
// compaction may be given up because its tables were dropped meanwhile.
func (s *Seen) background(opened int64, err error) {
	var errno syscall.Errno
	if errors.Is(err, pebble.ErrCorruption) || errors.As(err, &errno) && isDamage(err) {
		s.hurt(opened, err)
	}
}

// settle does what a commit's error, or that there was none, asks for.
func (s *Seen) settle(err error) {
	why := s.disk.whyCut()
	switch {
	case s.isLost() || s.isShut():
	case why != nil:
		s.shut()
		s.putOff(why)
		s.openAgain()
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
	s.reportLocked(err)
}

func (s *Seen) reportLocked(err error) {
	if s.options.Report != nil && !s.isLost() {
		s.wrong = err != nil
		s.options.Report(err)
	}
}

// reportStuck tells that a commit waits for room, unless something is known to
// be wrong.
func (s *Seen) reportStuck() {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	if !s.wrong {
		s.stuck.Store(true)
		s.reportLocked(errors.New("the disk is full: new names are not stored, and are new again when there is room"))
	}
}

// isShut reports whether nothing is open, because it could not be opened yet.
// The committer asks.
func (s *Seen) isShut() bool { return s.db == nil }

// exchange gives up a store that turned out to be damaged, and opens a fresh
// one.
func (s *Seen) exchange(why error) {
	s.shut()
	if s.isLost() {
		return
	}
	s.takeUp(func() error { return s.replace(why) })
}

// shut closes what is open. Until something is opened again, names are not
// stored, and no event is read.
func (s *Seen) shut() {
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
	// What they say is what is known already.
	_ = s.unlessPanic(func() error { return errors.Join(s.db.Close(), s.lock.Close()) })
	s.db, s.lock = nil, nil
}

// openAgain opens the store that was shut, if there is room and it is time to.
func (s *Seen) openAgain() {
	if s.disk.look(); s.disk.free < leastRoom || time.Now().Before(s.openAt) {
		return
	}
	s.takeUp(s.openOrReplace)
}

const (
	leastRoom = 2*memTables*minMemTableSize + 1<<20 // the least that disk holds in reserve
	waitMost  = 10 * time.Second                    // from one try to open the store to the next
)

// putOff sets when to open the store: at once, the first time, then later and
// later, because each try reads the whole log.
func (s *Seen) putOff(why error) {
	if time.Since(s.openAt) > waitMost {
		s.wait = 0
	} else {
		s.wait = min(max(2*s.wait, maintainEvery/2), waitMost)
	}
	s.openAt = time.Now().Add(s.wait)
	s.trouble = fmt.Errorf("the store of seen names is opened again as soon as possible; new names are not stored meanwhile, and are new again: %w", why)
	s.report(s.trouble)
}

// takeUp opens the store that was shut, or another in its place.
func (s *Seen) takeUp(open func() error) {
	if err := s.unlessPanic(open); err != nil {
		s.putOff(err)
		return
	}
	s.memory.clear() // not all that is in it need be in the store
	s.openAt = time.Now()
	s.trouble, s.written, s.over = nil, 0, false
	s.report(s.problem())
	s.queue.signal() // who read meanwhile was told that there is nothing
}

// openOrReplace opens what is there, or a fresh store if that is damaged.
func (s *Seen) openOrReplace() error {
	err := s.open()
	if err != nil && isDamage(err) {
		err = s.replace(err)
	}
	return err
}

// replace moves a damaged store aside and opens a fresh one.
func (s *Seen) replace(why error) error {
	aside, err := s.moveAside()
	if err != nil {
		return environment{errors.Join(why, err)}
	}
	s.counts.replaced.Add(1)
	s.report(fmt.Errorf("the store of seen names was damaged and is now %s, a fresh one is to be used: %w", aside, why))
	if err := s.open(); err != nil {
		return environment{err}
	}
	return nil
}

// peek finds the key of a store that cannot be opened for want of room, without
// a write. Where there is none to be found, it makes the key of the store that
// is to be.
func (s *Seen) peek() error {
	o := &pebble.Options{FS: s.options.files.fs, ReadOnly: true, Logger: pebbleLogger{s}}
	o.EventListener = &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}} // it comes back as an error
	db, err := openPebble(s.options.Dir, o)
	if err == nil {
		err = errors.Join(s.loadMeta(db), db.Close())
	}
	if err != nil && isDamage(err) { // or it is not there
		s.meta, err = newMeta(s.key)
	}
	s.key = s.meta.key
	return err
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
