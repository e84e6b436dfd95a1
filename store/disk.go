package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// A disk watches the room where the store is, and stands between Pebble and its
// files.
//
// The memtables that may wait, as logs and once more as tables, and a manifest,
// are held in reserve: enough for Pebble to finish what it has begun. Under
// that, the committer writes nothing, and names are new again when they are
// seen next. When somebody else takes the reserve, too, Pebble is kept waiting
// for room.
//
// What else can go wrong with a write to the log or the manifest, Pebble does
// not survive: it panics, in a way that nobody can recover from, or calls
// Fatalf, and either way keeps what it has locked. So it is not told. It is cut
// off: from then on everything that it does succeeds, and nothing of it reaches
// the disk. So it can be closed, and what is on the disk is what a crash at
// that moment would have left: whole, without the last marks and their events.
// The committer then opens it again. See try.
type disk struct {
	dir     string
	fs      vfs.FS
	reserve int64

	free int64 // when last looked at, less what was written since
	full bool

	refused   atomic.Bool           // a write was refused in spite of the reserve
	patient   atomic.Bool           // refused writes wait: the store is open
	waits     atomic.Int32          // of them
	cut       atomic.Pointer[error] // why Pebble is cut off; nil = it is not
	impatient sync.Once
	gaveUp    chan struct{} // closed when nobody is to wait any more
}

// open looks at the disk and returns the size of the memtable that fits it.
func (d *disk) open(o SeenOptions) (memTable uint64) {
	d.look()
	size := int64(memTableSize)
	if o.MaxBytes > 0 {
		size = min(size, o.MaxBytes/64)
	}
	size = max(minMemTableSize, min(size, d.free/32))
	d.reserve = 2*memTables*size + 1<<20
	d.full = false
	return uint64(size)
}

// look measures the room.
func (d *disk) look() {
	usage, err := d.fs.GetDiskUsage(d.dir)
	if err != nil {
		d.free = 1 << 50 // a file system in memory
		return
	}
	d.free = int64(min(usage.AvailBytes, 1<<50))
}

// roomFor reports whether n octets may be written, above the reserve, and takes
// them off the room.
func (d *disk) roomFor(n int64) bool {
	reserve := d.reserve
	if d.full {
		reserve += reserve / 4 // so that it is not full again at once
	}
	if d.refused.Swap(false) || d.free-n < reserve {
		d.look()
	}
	d.full = d.free-n < reserve || d.waits.Load() > 0
	if !d.full {
		d.free -= n
	}
	return !d.full
}

// problem says what is wrong with the disk, nil if nothing is.
func (d *disk) problem() error {
	if !d.full {
		return nil
	}
	return fmt.Errorf("the disk of %s has %d MiB left, which are kept for the store to stay whole: new names are not stored, and are new again when there is room", d.dir, d.free>>20)
}

// roomFor reports whether n octets may be written, and tells when that changes.
func (s *Seen) roomFor(n int64) bool {
	before := s.disk.full
	room := s.disk.roomFor(n)
	if stuck := s.stuck.Swap(false); stuck || s.disk.full != before {
		s.report(s.problem())
	}
	return room && !s.over
}

const (
	askAgain = 100 * time.Millisecond // whether there is room
	grace    = 2 * time.Second        // for a write that waits when the store is to be closed
	tableTry = time.Second            // after which a table may be tried again
)

// giveUp lets nobody wait for room any more, after a moment.
func (d *disk) giveUp() {
	d.impatient.Do(func() {
		time.AfterFunc(grace, func() { close(d.gaveUp) })
	})
}

// cutOff cuts Pebble off from its files.
func (d *disk) cutOff(why error) { d.cut.CompareAndSwap(nil, &why) }

// whyCut returns why Pebble is cut off, nil if it is not. It is asked after a
// write to know whether that write counts.
func (d *disk) whyCut() error {
	if why := d.cut.Load(); why != nil {
		return *why
	}
	return nil
}

// try does what is to be done to a file. What finds no room is done again until
// there is some, if that is good for it.
//
// A table is not waited for: Pebble gives it up, and the room that it takes,
// and tries again. We see to it that it does not try without a pause.
//
// While the store is opened, nothing waits, and no table is given up: Pebble
// would try it for ever.
func (d *disk) try(name string, again bool, do func() error) error {
	if d.whyCut() != nil {
		return nil
	}
	err := do()
	if err == nil {
		return nil
	}
	if isNoSpace(err) && d.patient.Load() {
		d.refused.Store(true)
		if ext := filepath.Ext(name); ext == ".sst" || ext == ".blob" {
			if d.pause() {
				return err
			}
		} else if again {
			err = d.await(do, err)
		}
	}
	if err != nil {
		d.cutOff(fmt.Errorf("%s: %w", filepath.Base(name), err))
	}
	return nil
}

// pause is for who is about to try a table again. Meanwhile the memtables may
// become full, and then a commit waits, too. It returns false when nobody is to
// wait any more.
func (d *disk) pause() bool {
	d.waits.Add(1)
	defer d.waits.Add(-1)
	select {
	case <-time.After(tableTry):
		return true
	case <-d.gaveUp:
		return false
	}
}

// await does it again and again until there is room, or nobody is to wait.
func (d *disk) await(do func() error, err error) error {
	d.waits.Add(1)
	defer d.waits.Add(-1)
	for err != nil && isNoSpace(err) && d.whyCut() == nil {
		select {
		case <-time.After(askAgain):
		case <-d.gaveUp:
			return err
		}
		err = do()
	}
	return err
}

// errCutOff is what Pebble is told when it asks for a file that it may believe
// to have written after it was cut off.
var errCutOff = errors.New("the store is cut off from its files")

// A patientFS is where Pebble has its files. See disk.try.
type patientFS struct {
	vfs.FS
	d *disk
}

func (fs patientFS) Unwrap() vfs.FS { return fs.FS }

// file returns a file to write to.
func (fs patientFS) file(name string, open func() (vfs.File, error)) (f vfs.File, err error) {
	err = fs.d.try(name, true, func() error {
		f, err = open()
		return err
	})
	if err == nil && f == nil { // it is cut off
		f, err = vfs.NewMem().Create("nowhere", vfs.WriteCategoryUnspecified)
	}
	if err != nil {
		return nil, err
	}
	return patientFile{f, fs.d, name}, nil
}

func (fs patientFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.file(name, func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

func (fs patientFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.file(name, func() (vfs.File, error) { return fs.FS.ReuseForWrite(old, name, c) })
}

func (fs patientFS) OpenDir(name string) (vfs.File, error) {
	return fs.file(name, func() (vfs.File, error) { return fs.FS.OpenDir(name) })
}

func (fs patientFS) Link(old, name string) error {
	return fs.d.try(name, true, func() error { return fs.FS.Link(old, name) })
}

func (fs patientFS) Rename(old, name string) error {
	return fs.d.try(name, true, func() error { return fs.FS.Rename(old, name) })
}

func (fs patientFS) MkdirAll(dir string, mode os.FileMode) error {
	return fs.d.try(dir, true, func() error { return fs.FS.MkdirAll(dir, mode) })
}

// Remove removes a file. That it cannot does no harm.
func (fs patientFS) Remove(name string) error {
	if fs.d.whyCut() != nil {
		return nil
	}
	return fs.FS.Remove(name)
}

func (fs patientFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	if fs.d.whyCut() != nil {
		return nil, errCutOff
	}
	return fs.FS.Open(name, o...)
}

func (fs patientFS) Stat(name string) (vfs.FileInfo, error) {
	if fs.d.whyCut() != nil {
		return nil, errCutOff
	}
	return fs.FS.Stat(name)
}

type patientFile struct {
	vfs.File
	d    *disk
	name string
}

// Write writes the rest of p when there is room for it.
func (f patientFile) Write(p []byte) (n int, err error) {
	err = f.d.try(f.name, true, func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	if err == nil {
		n = len(p)
	}
	return n, err
}

// A sync is not done again when it found no room: what it should have synced
// may be gone, and the second time would not say so.

func (f patientFile) Sync() error     { return f.d.try(f.name, false, f.File.Sync) }
func (f patientFile) SyncData() error { return f.d.try(f.name, false, f.File.SyncData) }

func (f patientFile) SyncTo(length int64) (full bool, err error) {
	err = f.d.try(f.name, false, func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f patientFile) Preallocate(offset, length int64) error {
	if f.d.whyCut() != nil {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

func (f patientFile) Close() error {
	err := f.File.Close() // in any case
	return f.d.try(f.name, false, func() error { return err })
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
