package runner

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"edm/cryptopan"
	"edm/dnstap"
	"edm/output"
	"edm/store"
	"edm/traffic"
)

const benchmarkChunk = 400 // frames

// benchmarkWorker is a worker whose blocks and names go nowhere, and the chunks
// that it works on, in turn.
type benchmarkWorker struct {
	*worker
	pool   *traffic.Pool
	chunk  *dnstap.Chunk
	blocks chan *output.Block
	fresh  chan *store.Names
	at     int
}

func newBenchmarkWorker(v *view, pool *traffic.Pool, from int) *benchmarkWorker {
	w := &benchmarkWorker{
		worker: testWorker(v), pool: pool, chunk: &dnstap.Chunk{Buf: make([]byte, 1<<20)},
		blocks: make(chan *output.Block, 1), fresh: make(chan *store.Names, 1), at: from,
	}
	w.worker.blocks, w.worker.names = w.blocks, w.fresh
	w.worker.cache = cryptopan.NewCache(v.cipher, 500_000)
	return w
}

// next works on one chunk.
func (w *benchmarkWorker) next() {
	if w.at+benchmarkChunk > w.pool.Len() {
		w.at = 0
	}
	w.chunk.N = copy(w.chunk.Buf, w.pool.Framed(w.at, w.at+benchmarkChunk))
	w.at += benchmarkChunk
	w.worker.chunk(w.chunk)
	w.free.free = w.free.free[:0]
	for len(w.blocks) > 0 {
		w.empty.give(<-w.blocks)
	}
	for len(w.fresh) > 0 {
		w.spare.give(<-w.fresh)
	}
}

func benchmarkPool(b *testing.B, wellKnown float64) (*view, *traffic.Pool) {
	b.Helper()
	names := traffic.List(1, 100_000)
	cfg := traffic.Default()
	cfg.Frames, cfg.WellKnown = 200_000, names
	cfg.WellKnownShare, cfg.SeenShare = wellKnown, (1-wellKnown)*0.8
	pool, err := traffic.Build(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return testView(b, strings.Join(names, "\n")+"\n", "", ""), pool
}

// BenchmarkWorker measures a frame in one worker, without a socket, a writer or
// a store.
func BenchmarkWorker(b *testing.B) {
	for _, share := range []float64{1, 0.55, 0} {
		b.Run(fmt.Sprintf("well known %v", share), func(b *testing.B) {
			v, pool := benchmarkPool(b, share)
			w := newBenchmarkWorker(v, pool, 0)
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += benchmarkChunk {
				w.next()
			}
		})
	}
}

// BenchmarkWorkers shows how the throughput grows with the workers: the time is
// that of a frame, over all of them.
func BenchmarkWorkers(b *testing.B) {
	v, pool := benchmarkPool(b, 0.55)
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var all sync.WaitGroup
			var workers []*benchmarkWorker
			for i := range n {
				w := newBenchmarkWorker(v, pool, i*pool.Len()/n)
				for range pool.Len() / benchmarkChunk {
					w.next()
				}
				workers = append(workers, w)
			}
			b.ResetTimer()
			for _, w := range workers {
				all.Go(func() {
					for k := 0; k < b.N/n; k += benchmarkChunk {
						w.next()
					}
				})
			}
			all.Wait()
		})
	}
}
