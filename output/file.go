package output

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// What the names of files begin with.
const (
	histogramPrefix = "dns_histogram"
	sessionPrefix   = "dns_session_block"
)

const (
	fileTime   = "2006-01-02T15-04-05Z" // in UTC
	fileSuffix = ".parquet"
	fileMode   = 0o640 // pseudonyms are not for everyone on the host
	fileBuffer = 64 << 10
)

// An Interval is a span of time that a file is about. Only the whole seconds
// of its ends are used.
type Interval struct{ Start, Stop time.Time }

// String returns the interval in ISO 8601, as start and duration:
// 2026-11-30T10:00:00Z/PT1M.
func (iv Interval) String() string {
	start, stop := iv.Start.UTC().Truncate(time.Second), iv.Stop.Truncate(time.Second)
	return start.Format(time.RFC3339) + "/" + isoDuration(stop.Sub(start))
}

// isoDuration returns whole seconds as an ISO 8601 duration: PT1M5S. A clock
// that was set back gives PT0S.
func isoDuration(d time.Duration) string {
	text := "PT"
	if h := d / time.Hour; h > 0 {
		text += fmt.Sprintf("%dH", h)
	}
	if m := d % time.Hour / time.Minute; m > 0 {
		text += fmt.Sprintf("%dM", m)
	}
	if s := d % time.Minute / time.Second; s > 0 || text == "PT" {
		text += fmt.Sprintf("%dS", max(s, 0))
	}
	return text
}

// Meta says who made a file.
type Meta struct {
	Version string // of edm
	Node    string // the key id, or the host's name
}

// each calls set for each entry of a file's key/value metadata. One entry is
// random: whoever collects files drops one whose bytes were seen before, from
// any node, so no two files may be the same.
func (m Meta) each(iv Interval, set func(key, value string)) {
	set("edm.version", m.Version)
	set("edm.node", m.Node)
	set("edm.interval", iv.String())
	set("edm.file_id", rand.Text())
}

// A file appears in its folder whole or not at all. These are the steps, in
// this order:
//
//  1. open the folder, to sync it at the end
//  2. create .<prefix>-<start>.parquet in it, which must not exist
//  3. write, through a buffer
//  4. write what is left in the buffer
//  5. sync the file
//  6. close it
//  7. link it to <prefix>-<start>_<stop>.parquet, which must not exist
//  8. remove the name that begins with a dot
//  9. sync the folder
//
// createFile does 1 and 2, Commit does 4 to 9. If one fails, the file is
// removed; but if 8 fails, the file is whole and in its place all the same. So
// that, or a crash between 7 and 8, leaves a second name for a whole file, and
// a crash before 7 leaves a part of one. RemoveTemporary removes both.
//
// 7 and 8 are together a rename that never overwrites. (Rename itself does;
// renameat2 with RENAME_NOREPLACE does not, but some file systems refuse it.)
//
// One goroutine owns a file, until Commit or Abort.
type file struct {
	dir  *os.File
	temp *os.File // nil once committed or aborted
	buf  *bufio.Writer
	base string // <prefix>-<start>
}

// createFile begins a file in dir. Its interval begins at start; when it ends
// is Commit's argument.
func createFile(dir, prefix string, start time.Time) (*file, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	base := prefix + "-" + start.UTC().Format(fileTime)
	var temp *os.File
	for n := 1; n == 1 || errors.Is(err, fs.ErrExist); n++ {
		temp, err = os.OpenFile(filepath.Join(dir, numbered("."+base, n)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return &file{dir: d, temp: temp, buf: bufio.NewWriterSize(temp, fileBuffer), base: base}, nil
}

// numbered returns the nth file name for base: the first one has no number.
func numbered(base string, n int) string {
	if n > 1 {
		base = fmt.Sprintf("%s_%d", base, n)
	}
	return base + fileSuffix
}

// Write implements io.Writer. After an error the file is of no more use, and
// Commit returns the same error.
func (f *file) Write(p []byte) (int, error) { return f.buf.Write(p) }

// Commit makes the file appear, and returns its path. If a file of its name
// exists, it is <prefix>-<start>_<stop>_2.parquet, or _3, and so on.
func (f *file) Commit(stop time.Time) (path string, err error) {
	defer f.Abort()
	if err := f.finish(); err != nil {
		return "", err
	}
	if path, err = f.link(stop); err != nil {
		return "", err
	}
	os.Remove(f.temp.Name()) // the file is whole without, see above
	if err := f.dir.Sync(); err != nil {
		os.Remove(path)
		return "", err
	}
	f.dir.Close()
	f.temp = nil
	return path, nil
}

// finish brings all that was written to the disk and closes the file.
func (f *file) finish() error {
	if err := f.buf.Flush(); err != nil {
		return err
	}
	if err := f.temp.Sync(); err != nil {
		return err
	}
	return f.temp.Close()
}

// link gives the file its name beside the temporary one.
func (f *file) link(stop time.Time) (path string, err error) {
	base := f.base + "_" + stop.UTC().Format(fileTime)
	for n := 1; n == 1 || errors.Is(err, fs.ErrExist); n++ {
		path = filepath.Join(f.dir.Name(), numbered(base, n))
		err = os.Link(f.temp.Name(), path)
	}
	return path, err
}

// Abort closes and removes the file. After Commit it does nothing, so it can be
// deferred. A file that cannot be removed is left to RemoveTemporary.
func (f *file) Abort() {
	if f.temp == nil {
		return
	}
	f.temp.Close()
	os.Remove(f.temp.Name())
	f.dir.Close()
	f.temp = nil
}

// temporary matches the names that createFile gives.
var temporary = regexp.MustCompile(`^\.(` + histogramPrefix + `|` + sessionPrefix + `)-` +
	`\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(_[1-9]\d*)?` + regexp.QuoteMeta(fileSuffix) + `$`)

// RemoveTemporary removes what files begun and never finished, by a process
// that is gone, have left in dir. It touches nothing else, and a folder that
// does not exist has none.
func RemoveTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !temporary.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		if rmErr := os.Remove(filepath.Join(dir, e.Name())); rmErr != nil {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}
