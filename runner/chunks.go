package runner

import (
	"sync"

	"edm/dnstap"
	"edm/output"
	"edm/store"
)

// poison makes give overwrite a chunk, so that a view kept too long shows.
// Only tests set it, before anything runs.
var poison bool

// A freeList lends chunks to the readers of sockets. At most two for each
// connection, each worker and each place in the channel between them is in
// use at a time, so it needs no bound of its own: it holds as many chunks as
// were ever in use at once. The one given back last is lent first, while it
// is still in the processor's cache.
type freeList struct {
	size int // octets of a chunk

	mu   sync.Mutex
	free []*dnstap.Chunk // guarded by mu
}

// newFreeList returns a list of chunks with room for one frame of maxFrame
// octets and its length, and for 64 KiB at least: reads are as large as that.
func newFreeList(maxFrame int) *freeList {
	return &freeList{size: max(64<<10, maxFrame+4, dnstap.MaxControl)}
}

// take returns an empty chunk, which belongs to the caller.
func (l *freeList) take() *dnstap.Chunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		c := l.free[n-1]
		l.free = l.free[:n-1]
		return c
	}
	return &dnstap.Chunk{Buf: make([]byte, l.size)}
}

// give ends the caller's use of c and of every view into it.
func (l *freeList) give(c *dnstap.Chunk) {
	if poison {
		for i := range c.Buf[:c.N] { // where the frames were
			c.Buf[i] = 0xCC
		}
	}
	c.N = 0
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, c)
}

// A spareList lends what is filled here and emptied there: like a freeList, it
// holds as many as were ever in use at once.
type spareList[T any, P interface {
	*T
	Reset()
}] struct {
	mu   sync.Mutex
	free []P // guarded by mu
}

type (
	blockList = spareList[output.Block, *output.Block] // one a worker, and those on their way to the file
	namesList = spareList[store.Names, *store.Names]   // one a worker, and those on their way to the store
	pageList  = spareList[page, *page]                 // of the tallies of workers, and of the one being written
)

// take returns an empty one, which belongs to the caller.
func (l *spareList[T, P]) take() P {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		p := l.free[n-1]
		l.free = l.free[:n-1]
		return p
	}
	return new(T)
}

// give empties p and ends the caller's use of it.
func (l *spareList[T, P]) give(p P) {
	p.Reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, p)
}
