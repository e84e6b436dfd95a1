package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// A disk watches the room where the store is. A write that Pebble cannot make
// to its log or manifest is fatal to it, so the committer must stop before.
//
// The memtables that may wait, as logs and once more as tables, and a manifest,
// are held in reserve: enough for Pebble to finish what it has begun. Under
// that, nothing is written, and names are new again when they are seen next.
//
// When somebody else takes the reserve, too, Pebble is kept waiting for room. See
// try.
type disk struct {
	dir     string
	fs      vfs.FS
	reserve int64
	lose    func(error) // called when Pebble cannot go on

	free int64 // when last looked at, less what was written since
	full bool

	refused   atomic.Bool  // a write was refused in spite of the reserve
	patient   atomic.Bool  // refused writes wait
	waits     atomic.Int32 // of them, to the log and the manifest
	impatient sync.Once
	gaveUp    chan struct{} // closed when nobody is to wait any more
}

// open looks at the disk and returns the size of the memtable that fits it.
func (d *disk) open(o SeenOptions) (memTable uint64) {
	d.dir, d.fs = o.Dir, o.files.fs
	if d.gaveUp == nil {
		d.gaveUp = make(chan struct{})
	}
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
	if s.disk.full != before {
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

// try does what is to be done to a file, and again until there is room for it.
//
// A table is not waited for: Pebble gives it up, and the room that it takes,
// and tries again. We see to it that it does not try without a pause.
//
// The log and the manifest are what Pebble cannot do without: it panics, in a
// way that nobody can recover from, or calls Fatalf. So it is not told. The
// store is lost, and who is here waits for ever, with what it has locked.
func (d *disk) try(name string, do func() error) error {
	err := do()
	if err == nil || !d.patient.Load() {
		return err
	}
	if ext := filepath.Ext(name); ext == ".sst" || ext == ".blob" {
		if isNoSpace(err) {
			d.refused.Store(true)
			select {
			case <-time.After(tableTry):
			case <-d.gaveUp:
			}
		}
		return err
	}
	if isNoSpace(err) {
		d.refused.Store(true)
		if err = d.await(do, err); err == nil {
			return nil
		}
	}
	d.lose(fmt.Errorf("%s: %w", filepath.Base(name), err))
	select {}
}

// await does it again and again until there is room, or nobody is to wait.
func (d *disk) await(do func() error, err error) error {
	d.waits.Add(1)
	defer d.waits.Add(-1)
	for err != nil && isNoSpace(err) {
		select {
		case <-time.After(askAgain):
		case <-d.gaveUp:
			return err
		}
		err = do()
	}
	return err
}

// A patientFS is where Pebble writes. See disk.try.
type patientFS struct {
	vfs.FS
	d *disk
}

func (fs patientFS) Unwrap() vfs.FS { return fs.FS }

func (fs patientFS) file(name string, open func() (vfs.File, error)) (f vfs.File, err error) {
	err = fs.d.try(name, func() error {
		f, err = open()
		return err
	})
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
	return fs.d.try(name, func() error { return fs.FS.Link(old, name) })
}

func (fs patientFS) Rename(old, name string) error {
	return fs.d.try(name, func() error { return fs.FS.Rename(old, name) })
}

type patientFile struct {
	vfs.File
	d    *disk
	name string
}

// Write writes the rest of p when there is room for it.
func (f patientFile) Write(p []byte) (n int, err error) {
	err = f.d.try(f.name, func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// once is for what is not done again when it found no room: what it should have
// synced may be gone, and the second time would not say so.
func (f patientFile) once(do func() error) error {
	return f.d.try(f.name, func() error {
		err := do()
		if isNoSpace(err) && f.d.patient.Load() {
			err = fmt.Errorf("%v", err)
		}
		return err
	})
}

func (f patientFile) Sync() error     { return f.once(f.File.Sync) }
func (f patientFile) SyncData() error { return f.once(f.File.SyncData) }
func (f patientFile) Close() error    { return f.once(f.File.Close) }

func (f patientFile) SyncTo(length int64) (full bool, err error) {
	err = f.once(func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
