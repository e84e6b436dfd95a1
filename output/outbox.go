package output

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Folders of histograms, below the one that is given.
const (
	OutboxFolder  = "outbox"  // to be delivered
	SentFolder    = "sent"    // delivered
	RefusedFolder = "refused" // the receiver will never take them
)

// The folders are all the state there is: where a file is says what became of
// it. It is moved by one rename, so a crash leaves it in one place, and it is
// never written again, so whoever gets it twice gets the same bytes.
//
// Only files with a name exactly as edm gives it are moved, sent or deleted,
// and only if they are files: a symbolic link with such a name is left alone.

// A finished file is one whose name says that edm wrote it, and when.
type finished struct {
	name   string
	iv     Interval
	number int // 1, or more if there were others of the same interval
	info   fs.FileInfo
}

// finishedName matches the names that Commit gives; the times may be none.
var finishedName = regexp.MustCompile(`^(` + histogramPrefix + `|` + sessionPrefix + `)-` +
	`(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)(?:_([2-9]|[1-9]\d{1,8}))?` + regexp.QuoteMeta(fileSuffix) + `$`)

// parseName takes the name of a file apart. It reports false if the name is not
// one that edm gives to files of the prefix.
func parseName(prefix, name string) (f finished, ok bool) {
	m := finishedName.FindStringSubmatch(name)
	if m == nil || m[1] != prefix {
		return finished{}, false
	}
	start, errStart := time.Parse(fileTime, m[2])
	stop, errStop := time.Parse(fileTime, m[3])
	if errStart != nil || errStop != nil || !stop.After(start) {
		return finished{}, false
	}
	f = finished{name: name, iv: Interval{start, stop}, number: 1}
	if m[4] != "" {
		f.number, _ = strconv.Atoi(m[4]) // digits, and not too many
	}
	return f, true
}

// base is the name without a number and the suffix.
func (f *finished) base() string {
	base := strings.TrimSuffix(f.name, fileSuffix)
	if f.number > 1 {
		base = strings.TrimSuffix(base, "_"+strconv.Itoa(f.number))
	}
	return base
}

// older orders files by their intervals.
func older(a, b finished) int {
	return cmp.Or(a.iv.Start.Compare(b.iv.Start), a.iv.Stop.Compare(b.iv.Stop), cmp.Compare(a.number, b.number))
}

// listFinished returns the files of a prefix in dir, the oldest first.
func listFinished(dir, prefix string) ([]finished, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []finished
	for _, e := range entries {
		f, ok := parseName(prefix, e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		if f.info, err = e.Info(); err == nil && f.info.Mode().IsRegular() { // else it is gone
			files = append(files, f)
		}
	}
	slices.SortFunc(files, older)
	return files, nil
}

// openFinished opens a file to be read. It opens nothing but a file, and waits
// for nobody if there is something else of its name.
func openFinished(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// same says whether a name still stands for the file that it stood for.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.Size() == b.Size() }

// errReplaced says that a file is gone, or another one has its name.
var errReplaced = errors.New("the file is another one by now")

// moveFinished moves a file from one folder to another, and returns its new
// path. These are the steps, in this order:
//
//  1. see that the name still stands for the file that info is of
//  2. make the other folder, if somebody removed it, and find a name in it that
//     is free: the same, or with a number
//  3. set the time of modification to now, from which on a file is kept
//  4. rename
//  5. sync the other folder, then this one
//
// If 1 to 4 fail, the file is where it was. If 5 fails it is moved, and after a
// power cut it may be back. Nobody but the caller puts files into the other
// folder, so the name that 2 finds is still free in 4.
func moveFinished(f *finished, info fs.FileInfo, from, to string) (path string, err error) {
	old := filepath.Join(from, f.name)
	now, err := os.Lstat(old)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !same(now, info) {
		return "", errReplaced
	}
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(to, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	for n := f.number; ; n++ {
		path = filepath.Join(to, numbered(f.base(), n))
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
	}
	// Without it the file is deleted sooner, which is no reason to stop.
	at := unix.NsecToTimespec(time.Now().UnixNano())
	unix.UtimesNanoAt(unix.AT_FDCWD, old, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	if err := os.Rename(old, path); err != nil {
		return "", err
	}
	return path, errors.Join(syncFolder(to), syncFolder(from))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// expire deletes files of a prefix in dir that were last modified before a
// time, and returns how many.
func expire(dir, prefix string, before time.Time) (deleted int, err error) {
	files, err := listFinished(dir, prefix)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		if !f.info.ModTime().Before(before) {
			continue
		}
		if rmErr := os.Remove(filepath.Join(dir, f.name)); rmErr == nil {
			deleted++
		} else if !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return deleted, err
}
