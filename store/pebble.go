package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// files is where a store's files are. Tests have a file system that loses what
// was not synced, or that fails.
type files struct {
	fs vfs.FS // nil = the disk
}

const (
	// memTableSize is how much is written before Pebble makes a table of it,
	// on a disk with room. With this many more may wait to be written.
	memTableSize    = 8 << 20
	minMemTableSize = 256 << 10
	memTables       = 4

	// cacheSize is Pebble's cache. The memtables are taken off it. What is left
	// has room for the filters of fifty million names: one that is not in the
	// cache is read for each commit that needs it.
	cacheSize = memTables*memTableSize + 32<<20

	// The bits of filters. The lowest level has most of the names, and fewer
	// bits for each: that a filter is wrong costs a block of 4 KiB now and then,
	// and that it is not in the cache costs all of it.
	bitsPerName = 10
	bitsLowest  = 7

	// markInTable is what a mark takes in a table, with its part of the filter.
	markInTable = 10
	// filterRoom is what the memtables mostly leave of the cache.
	filterRoom = cacheSize - 2*memTableSize

	// tableSize is that of the largest tables, unless more than openTables are
	// to be expected. While one is written, its filter is put together in
	// memory, from 4 octets a name; and a filter is read, and cached, as a whole.
	tableSize  = 16 << 20
	openTables = 512

	// leastMark is less than a mark takes in a memtable: its key, what Pebble
	// adds to it, and a node of a skip list.
	leastMark = 40
)

// metaVersion is the version of the layout of keys and values. A store of
// another version is moved aside.
const metaVersion = 1

// A meta is what a store knows of itself, under keyMeta.
type meta struct {
	generation uint64 // the young one
	since      int64  // when it began, in seconds since 1970
	oldEmpty   bool
	key        [2]uint64 // of the fingerprints
}

// mark is the first byte of the keys of a generation, counted from the young
// one.
func (m *meta) mark(age int) byte {
	return byte(keyMarks + (m.generation+numMarks+uint64(age))%numMarks)
}

func (m *meta) encode() []byte {
	b := []byte{metaVersion, 0}
	if m.oldEmpty {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint64(b, m.generation)
	b = binary.BigEndian.AppendUint64(b, uint64(m.since))
	b = binary.BigEndian.AppendUint64(b, m.key[0])
	return binary.BigEndian.AppendUint64(b, m.key[1])
}

func (m *meta) decode(b []byte) error {
	if len(b) != 2+4*8 || b[0] != metaVersion {
		return errors.New("the store was made by another version of edm")
	}
	m.oldEmpty = b[1] == 1
	m.generation = binary.BigEndian.Uint64(b[2:])
	m.since = int64(binary.BigEndian.Uint64(b[10:]))
	m.key = [2]uint64{binary.BigEndian.Uint64(b[18:]), binary.BigEndian.Uint64(b[26:])}
	return nil
}

// OpenSeen opens the store in o.Dir, or makes it. One that is damaged is moved
// aside, to a name with the time in it, and a fresh one is made: that is told
// to o.Report, and is no error. Run must be called next.
func OpenSeen(o SeenOptions) (*Seen, error) {
	s := &Seen{
		options: o,
		pending: make(chan pendingSync, 256),
		damage:  make(chan damage, 1),
		lost:    make(chan struct{}),
		queue:   queue{wake: make(chan struct{}, 1)},
	}
	if o.files.fs == nil {
		s.options.files.fs = vfs.Default
	}
	s.disk = disk{dir: o.Dir, fs: s.options.files.fs, gaveUp: make(chan struct{})}
	var err error
	if s.memory, err = newMemory(o.Entries); err != nil {
		return nil, fmt.Errorf("memory for %d names: %w", o.Entries, err)
	}
	err = s.unlessLost(func() error {
		err := s.openOrReplace()
		if isNoSpace(err) {
			s.putOff(err)
			return s.peek()
		}
		s.key = s.meta.key
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the store of seen names %s: %w", o.Dir, err), s.memory.free())
	}
	if s.counts.replaced.Load() > 0 && !s.isShut() {
		s.report(s.problem())
	}
	return s, nil
}

// open opens Pebble and reads what it says of itself. Its error is damage if
// isDamage says so.
func (s *Seen) open() error {
	fs, dir := s.options.files.fs, s.options.Dir
	if err := makeFolder(fs, dir, 0o700); err != nil { // of the owner alone: the names that wait are in it
		return environment{err}
	}
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) || errno == unix.EAGAIN {
			err = fmt.Errorf("%w: %w", errLocked, err)
		}
		return environment{err}
	}
	opened := s.opened.Add(1)
	o := s.pebbleOptions(lock, opened)
	defer o.Cache.Unref() // Pebble has a reference of its own
	s.disk.cut.Store(nil)
	s.disk.patient.Store(false)
	db, err := openPebble(dir, o)
	if err == nil {
		if err = s.load(db); err != nil || s.disk.whyCut() != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if why := s.disk.whyCut(); why != nil {
		return errors.Join(environment{why}, lock.Close()) // of which the rest comes
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	s.disk.patient.Store(true)
	s.mu.Lock()
	s.db, s.lock = db, lock
	s.mu.Unlock()
	s.memTableMarks = int64(o.MemTableSize) / leastMark
	s.weighFilters()
	s.flushed, s.remembered = nil, 0 // Pebble makes tables of the log before it is open
	return nil
}

// openPebble opens Pebble, to which some damage is a reason to panic.
func openPebble(dir string, o *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it makes Pebble panic: %v", r)
		}
	}()
	return pebble.Open(dir, o)
}

// makeFolder makes a folder and those above it, so that they are still there
// when the power is.
func makeFolder(fs vfs.FS, dir string, mode os.FileMode) error {
	if _, err := fs.Stat(dir); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err // a file is found out when it is locked
	}
	above := fs.PathDir(dir)
	if above != dir {
		if err := makeFolder(fs, above, 0o750); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, mode); err != nil {
		return err
	}
	return syncFolder(fs, above)
}

func syncFolder(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (s *Seen) pebbleOptions(lock *pebble.Lock, opened int64) *pebble.Options {
	memTable := s.disk.open(s.options)
	s.groupNames = int(memTable / 1024) // a mark and an event take a quarter of that
	o := &pebble.Options{
		FS:                          patientFS{s.options.files.fs, &s.disk},
		Lock:                        lock,
		Cache:                       pebble.NewCache(cacheSize),
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                memTable,
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       8, // half the writing of 4, and a filter more to ask now and then
		L0StopWritesThreshold:       24,
		MaxOpenFiles:                openTables,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		TargetFileSizes:             [7]int64{2 << 20},
		WALBytesPerSync:             1 << 20,
		Logger:                      pebbleLogger{s},
		EventListener: &pebble.EventListener{
			// Without a listener, Pebble takes this for fatal.
			DataCorruption:  func(i pebble.DataCorruptionInfo) { s.hurt(opened, i.Details) },
			BackgroundError: func(err error) { s.background(opened, err) },
		},
	}
	if limit := s.options.MaxBytes; limit > 0 {
		// A compaction into the lowest level would else write all of a
		// generation once more before it lets go of what it read.
		o.LBaseMaxBytes = min(64<<20, max(1<<20, limit/32))
		o.TargetFileSizes[0] = min(o.TargetFileSizes[0], max(256<<10, limit/128))
	}
	if s.options.Sync {
		o.WALMinSyncInterval = func() time.Duration { return 500 * time.Microsecond }
	}
	for i := 1; i < len(o.TargetFileSizes); i++ {
		o.TargetFileSizes[i] = min(2*o.TargetFileSizes[i-1], max(tableSize, s.options.MaxBytes/openTables))
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bitsPerName)
	}
	o.Levels[len(o.Levels)-1].FilterPolicy = bloom.FilterPolicy(bitsLowest)
	return o
}

// load reads what the store says of itself, or writes it if the store is new.
func (s *Seen) load(db *pebble.DB) error {
	err := s.loadMeta(db)
	if errors.Is(err, pebble.ErrNotFound) {
		return s.begin(db)
	}
	if err != nil {
		return err
	}
	if s.key != s.meta.key && s.key != [2]uint64{} {
		return errors.New("its fingerprints are not those that are in use")
	}
	if err := s.dropForgotten(db); err != nil {
		return err
	}
	return s.loadQueue(db)
}

func (s *Seen) loadMeta(db *pebble.DB) error {
	value, closer, err := db.Get([]byte{keyMeta})
	if err != nil {
		return err
	}
	return errors.Join(s.meta.decode(value), closer.Close())
}

// begin makes an empty Pebble a store.
func (s *Seen) begin(db *pebble.DB) error {
	it, err := db.NewIter(nil)
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := it.Close(); err != nil {
		return err
	}
	if !empty {
		return errors.New("it was made by another program")
	}
	if s.meta, err = newMeta(s.key); err != nil {
		return environment{err}
	}
	next := s.queue.number()
	b := db.NewBatch()
	must(b.Set([]byte{keyMeta}, s.meta.encode(), nil))
	must(b.Set([]byte{keyHead}, encodeHead(next, next), nil))
	if err := b.Commit(pebble.Sync); err != nil {
		return err
	}
	s.startQueue(next, next, nil)
	return b.Close()
}

// loadQueue finds the events that an earlier process left in the queue.
func (s *Seen) loadQueue(db *pebble.DB) error {
	value, closer, err := db.Get([]byte{keyHead})
	if err != nil {
		return err
	}
	head, next, err := decodeHead(value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return err
	}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: eventKey(nil, head), UpperBound: []byte{keyQueue + 1}})
	if err != nil {
		return err
	}
	var missing gaps
	at := head
	for ok := it.First(); ok; ok = it.Next() {
		if len(it.Key()) != 9 {
			return errors.Join(errors.New("an event has a key that is not a number"), it.Close())
		}
		number := binary.BigEndian.Uint64(it.Key()[1:])
		if at < number {
			missing = append(missing, gap{at, number})
		}
		at = number + 1
	}
	if at < next {
		missing = append(missing, gap{at, next})
	}
	if err := it.Close(); err != nil {
		return err
	}
	s.startQueue(head, max(at, next), missing)
	return nil
}

// startQueue sets the queue to what is in a store. Names whose events are lost
// are not marked in it either.
func (s *Seen) startQueue(head, next uint64, missing gaps) {
	if s.disk.whyCut() == nil { // else that may not be what is on the disk
		s.counts.discarded.Add(uint64(s.queue.start(head, next, missing)))
	}
}

// newMeta is the meta of a fresh store, with the key of the one before it, if
// there was one.
func newMeta(key [2]uint64) (m meta, err error) {
	m.key = key
	if key == [2]uint64{} {
		var b [16]byte
		if _, err := rand.Read(b[:]); err != nil {
			return m, err
		}
		m.key = [2]uint64{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
	}
	m.since, m.oldEmpty = time.Now().Unix(), true
	return m, nil
}

// Close writes and syncs what is left and closes the store. Run has returned,
// and nobody may ask for names, read or remove any more. It does not wait long for a disk
// that is full.
func (s *Seen) Close() error {
	err := s.unlessLost(func() error {
		s.disk.giveUp()
		if s.isShut() {
			return nil // that was reported
		}
		err := s.writeRemoved()
		s.mu.Lock()
		db := s.db
		s.db = nil
		s.mu.Unlock()
		err = errors.Join(err, db.Close(), s.lock.Close())
		if why := s.disk.whyCut(); why != nil {
			return fmt.Errorf("the last marks and events could not be written: %w", why)
		}
		return err
	})
	if s.isLost() {
		return nil // it was reported; who hangs in Pebble may still ask the memory
	}
	return errors.Join(err, s.memory.free())
}

// pebbleLogger takes what Pebble says. Its information is not for operators;
// what is fatal to it must not end the process.
type pebbleLogger struct{ s *Seen }

func (pebbleLogger) Infof(string, ...any)  {}
func (pebbleLogger) Errorf(string, ...any) {} // comes back as an error, too

// Fatalf does not return: Pebble relies on that. The goroutine waits for ever,
// with what it has locked.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	why := fatal{text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			why.cause = err
		}
	}
	_ = l.s.lose(why)
	select {}
}

// A fatal is what Pebble died of.
type fatal struct {
	text  string
	cause error // may be nil
}

func (f fatal) Error() string { return f.text }
func (f fatal) Unwrap() error { return f.cause }
