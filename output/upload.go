package output

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// An Uploader delivers the histograms in the outbox, the newest first, one at a
// time, and keeps the folders within their bounds.
//
// Run owns the folders: it looks, decides, moves and deletes. A try runs on a
// goroutine of its own, so that a receiver that hangs holds up nothing else;
// there is never more than one.
//
//	outbox ─newest▶ try ─┬─ 201 ───────────────────────▶ sent, for a while
//	                     ├─ 400, 404, 405, 413, 422 ───▶ refused, for good
//	                     └─ anything else ─▶ wait, and try again
//
// A receiver that fails is left alone for a while, with all files. A file that
// fails again and again while others are delivered comes after all others, so
// it does not stop them.
type Uploader struct {
	o                     UploaderOptions
	outbox, sent, refused string
	client                *http.Client // nil without a URL
	target                *url.URL
	wait                  time.Duration // responseWait; less in tests

	// All that follows is Run's.

	files    []finished          // in the outbox when it was last looked at, the oldest first
	troubles map[string]*trouble // by name, of some of files
	trying   string              // the name of the file under way; "" if none is
	lookAt   time.Time           // when the folders are to be looked at again
	resumeAt time.Time           // no try before
	failures int                 // tries since the last one that was answered well
	done     uint64              // files delivered, ever

	clockTold bool  // that it is wrong
	full      bool  // files were deleted because the outbox was full
	problem   error // with the folders, since the last look
}

// UploaderOptions are what an Uploader needs. Its functions are called by Run.
type UploaderOptions struct {
	URL     *url.URL // base of the receiver; nil: nothing is sent, and the bounds hold all the same
	TLS     *tls.Config
	Key     func() *SigningKey // of the moment; must pass SignsRequests; called by the try
	Version string             // of edm

	Histograms string // the folder with OutboxFolder, SentFolder and RefusedFolder in it
	Sessions   string // the folder of session files

	OutboxMaxBytes   int64         // above, the oldest histograms are deleted; 0 = no limit
	SentRetention    time.Duration // how long delivered histograms are kept; 0 = for ever
	SessionRetention time.Duration // how long session files are kept; 0 = for ever

	// Grace is how long Run goes on at most when it is told to end.
	Grace time.Duration
	// Wake is signalled when a histogram was written.
	Wake <-chan struct{}

	// State is called with what is wrong between us and the receiver after each
	// try, and with nil when it delivered.
	State func(error)
	// Folders is called with what is wrong with the folders, and with nil when
	// nothing is.
	Folders func(error)
	// Answered is called after each try with the status, "timeout" or "error".
	Answered func(code string)
	// Settled is called when a file was moved: delivered, or refused for a reason.
	Settled func(path string, refusal error)
	// Deleted is called for files that were deleted.
	Deleted func(Deletion, int)
	// Clock is called with how far our clock is ahead of the receiver's, once
	// until a file is delivered.
	Clock func(ahead time.Duration)
}

// A Deletion is why files were deleted.
type Deletion uint8

const (
	OutboxFull     Deletion = iota // histograms that were not delivered
	SentExpired                    // histograms that were
	SessionExpired                 // session files
)

// lookEvery is how often the folders are looked at without a cause.
const lookEvery = time.Minute

// A trouble is what hinders a single file.
type trouble struct {
	// A file whose fate is known is not sent again, unless edm is restarted: it
	// is moved at a later look if it cannot be moved at once.
	to      string // the folder; "" while it is not known
	info    fs.FileInfo
	refusal error

	err     error  // why it cannot be read or moved
	unread  bool   // and is not tried until the next look
	failed  uint64 // Uploader.done + 1 when a try of it failed last
	suspect int    // how often one failed though others were delivered since it failed before
}

// NewUploader returns an uploader that does nothing until Run.
func NewUploader(o UploaderOptions) *Uploader {
	u := &Uploader{
		o:        o,
		outbox:   filepath.Join(o.Histograms, OutboxFolder),
		sent:     filepath.Join(o.Histograms, SentFolder),
		refused:  filepath.Join(o.Histograms, RefusedFolder),
		wait:     responseWait,
		troubles: make(map[string]*trouble),
	}
	if o.URL != nil {
		base := *o.URL
		if base.Path == "" {
			base.Path = "/" // or the path of the target would not begin with it
		}
		u.client, u.target = newClient(&u.o), base.JoinPath(uploadPath)
	}
	return u
}

// Run delivers until closing is closed, and then as long as there are files,
// the receiver takes them, and Grace has not passed. It is called once.
func (u *Uploader) Run(closing <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if u.client != nil {
		defer u.client.CloseIdleConnections()
	}
	answers := make(chan answer, 1)
	for last := false; ; {
		now := time.Now()
		if !now.Before(u.lookAt) {
			u.look(now)
		}
		if ctx.Err() == nil {
			u.begin(ctx, now, answers)
		}
		u.bound()
		u.report()
		if last && u.trying == "" {
			return
		}
		timer := time.NewTimer(time.Until(u.due(now)))
		select {
		case a := <-answers:
			u.settle(a)
		case <-u.o.Wake:
			u.lookAt = time.Time{}
		case <-closing:
			closing, last = nil, true
			u.lookAt = time.Time{}
			defer time.AfterFunc(u.o.Grace, cancel).Stop()
		case <-timer.C:
		}
		timer.Stop()
	}
}

// due is when there is something to do that was not to be done by now.
func (u *Uploader) due(now time.Time) time.Time {
	if u.trying == "" && u.resumeAt.After(now) && u.resumeAt.Before(u.lookAt) {
		return u.resumeAt
	}
	return u.lookAt
}

// look reads the outbox, moves what could not be moved before, and deletes what
// is old enough.
func (u *Uploader) look(now time.Time) {
	u.lookAt, u.problem = now.Add(lookEvery), nil
	var err error
	if u.files, err = listFinished(u.outbox, histogramPrefix); err != nil {
		u.wrong(fmt.Errorf("read the outbox: %w", err))
	}
	troubles := u.troubles
	u.troubles = make(map[string]*trouble)
	for _, f := range slices.Clone(u.files) {
		t := troubles[f.name]
		if t == nil || t.info != nil && !same(t.info, f.info) {
			continue
		}
		t.unread = false
		u.troubles[f.name] = t
		if t.to != "" {
			u.move(&f)
		}
	}
	u.expire(u.sent, histogramPrefix, now, u.o.SentRetention, SentExpired)
	u.expire(u.o.Sessions, sessionPrefix, now, u.o.SessionRetention, SessionExpired)
}

func (u *Uploader) expire(dir, prefix string, now time.Time, retention time.Duration, why Deletion) {
	if retention == 0 {
		return
	}
	n, err := expire(dir, prefix, now.Add(-retention))
	if n > 0 {
		u.o.Deleted(why, n)
	}
	if err != nil {
		u.wrong(fmt.Errorf("delete old files: %w", err))
	}
}

// begin starts a try, if it is time for one and there is a file.
func (u *Uploader) begin(ctx context.Context, now time.Time, answers chan<- answer) {
	if u.client == nil || u.trying != "" || now.Before(u.resumeAt) {
		return
	}
	if f, ok := u.next(); ok {
		u.trying = f.name
		go func() { answers <- u.try(ctx, f) }()
	}
}

// next returns the file to try: the newest of those least suspect.
func (u *Uploader) next() (f finished, ok bool) {
	least := 0
	for _, file := range slices.Backward(u.files) {
		suspect := 0
		if t := u.troubles[file.name]; t != nil {
			if t.to != "" || t.unread {
				continue
			}
			suspect = t.suspect
		}
		if !ok || suspect < least {
			f, ok, least = file, true, suspect
		}
		if least == 0 {
			break
		}
	}
	return f, ok
}

// settle does what the answer to the try under way asks for.
func (u *Uploader) settle(a answer) {
	name := u.trying
	u.trying = ""
	if a.verdict == cancelled {
		return
	}
	if a.verdict == unread {
		if errors.Is(a.err, fs.ErrNotExist) {
			u.forget(name)
			return
		}
		t := u.trouble(name)
		t.unread, t.err = true, fmt.Errorf("a histogram cannot be read: %w", a.err)
		return
	}
	u.o.Answered(a.code)
	switch a.verdict {
	case delivered:
		u.failures, u.resumeAt, u.clockTold = 0, time.Time{}, false
		u.done++
		u.o.State(nil)
		u.settled(name, a, u.sent)
	case refused:
		u.failures, u.resumeAt = 0, time.Time{}
		u.o.State(fmt.Errorf("the receiver refuses %s: %w", name, a.err))
		u.settled(name, a, u.refused)
	default:
		u.failed(name, a)
	}
}

// failed puts off the next try. Connections are not used again: what is wrong
// may be one of them.
func (u *Uploader) failed(name string, a answer) {
	t := u.trouble(name)
	if t.failed > 0 && t.failed <= u.done {
		t.suspect++
	}
	t.failed, t.err = u.done+1, nil
	u.failures++
	u.resumeAt = time.Now().Add(max(min(backoff(u.failures), longestBackoff), a.retryAfter))
	u.client.CloseIdleConnections()
	u.o.State(fmt.Errorf("the upload of %s failed: %w", name, a.err))
	if a.ahead != 0 && !u.clockTold {
		u.clockTold = true
		u.o.Clock(a.ahead)
	}
}

// settled moves a file whose fate is known, now or at a later look.
func (u *Uploader) settled(name string, a answer, to string) {
	t := u.trouble(name)
	t.to, t.info, t.refusal = to, a.info, a.err
	if i := u.index(name); i >= 0 {
		u.move(&u.files[i])
	}
}

// move moves a settled file.
func (u *Uploader) move(f *finished) {
	t := u.troubles[f.name]
	path, err := moveFinished(f, t.info, u.outbox, t.to)
	switch {
	case path != "":
		if err != nil {
			u.wrong(fmt.Errorf("after a histogram was moved: %w", err))
		}
		u.o.Settled(path, t.refusal)
		u.forget(f.name)
	case errors.Is(err, errReplaced):
		u.forget(f.name)
		u.lookAt = time.Time{}
	default:
		t.err = fmt.Errorf("a histogram cannot be moved: %w", err)
	}
}

func (u *Uploader) trouble(name string) *trouble {
	t := u.troubles[name]
	if t == nil {
		t = &trouble{}
		u.troubles[name] = t
	}
	return t
}

func (u *Uploader) index(name string) int {
	return slices.IndexFunc(u.files, func(f finished) bool { return f.name == name })
}

// forget takes a file that is no longer in the outbox off the list.
func (u *Uploader) forget(name string) {
	delete(u.troubles, name)
	if i := u.index(name); i >= 0 {
		u.files = slices.Delete(u.files, i, i+1)
	}
}

// bound deletes the oldest files while the outbox is too large, but not the one
// under way.
func (u *Uploader) bound() {
	limit := u.o.OutboxMaxBytes
	if limit == 0 {
		return
	}
	var size int64
	for i := range u.files {
		size += u.files[i].info.Size()
	}
	deleted := 0
	for i := 0; size > limit && i < len(u.files); {
		f := &u.files[i]
		if f.name == u.trying {
			i++
			continue
		}
		if err := os.Remove(filepath.Join(u.outbox, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			u.wrong(fmt.Errorf("delete the oldest histogram: %w", err))
			i++
			continue
		}
		size -= f.info.Size()
		deleted++
		u.forget(f.name)
	}
	if deleted > 0 {
		u.full = true
		u.o.Deleted(OutboxFull, deleted)
	} else if size <= limit/2 {
		u.full = false
	}
}

// wrong notes what is wrong with the folders.
func (u *Uploader) wrong(err error) {
	if u.problem == nil {
		u.problem = err
	}
}

// report tells the state of the folders.
func (u *Uploader) report() {
	err := u.problem
	for i := 0; i < len(u.files) && err == nil && len(u.troubles) > 0; i++ {
		if t := u.troubles[u.files[i].name]; t != nil {
			err = t.err
		}
	}
	if u.full {
		err = errors.Join(err, errors.New("the outbox is full: its oldest histograms are deleted"))
	}
	u.o.Folders(err)
}
