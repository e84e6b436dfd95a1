package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/parquet-go/parquet-go"
	"go.uber.org/zap"

	"edm/traffic"
)

// rowsBelow reads all parquet files of a folder and returns their rows as text,
// sorted, without the column that says when the interval began.
func rowsBelow(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, name := range files {
		b, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		info, err := b.Stat()
		if err != nil {
			t.Fatal(err)
		}
		f, err := parquet.OpenFile(b, info.Size())
		if err != nil {
			t.Fatal(err)
		}
		first := 0
		if f.Schema().Columns()[0][0] == "start_time" {
			first = 1
		}
		r := parquet.NewReader(f)
		for {
			rows := make([]parquet.Row, 100)
			n, err := r.ReadRows(rows)
			for _, row := range rows[:n] {
				all = append(all, fmt.Sprintf("%+q", row[first:]))
			}
			if err != nil {
				break
			}
		}
	}
	slices.Sort(all)
	return all
}

// The same frames make the same rows, however many workers there are and
// however the frames are cut into chunks.
func TestWorkersAndChunksDoNotShowInTheRows(t *testing.T) {
	names := traffic.List(1, 300)
	config := traffic.Default()
	config.Frames, config.WellKnown, config.SeenNames, config.Clients = 20_000, names, 500, 3000
	config.QueryShare, config.ResolverShare, config.MalformedShare = 0.02, 0.02, 0.02
	pool, err := traffic.Build(config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "names")
	if err := traffic.WriteList(path, names); err != nil {
		t.Fatal(err)
	}

	// run returns the rows of one interval: on a run that met the end of a minute
	// it begins again.
	var run func(workers, frames int) (histogram, sessions []string)
	run = func(workers, frames int) (histogram, sessions []string) {
		cfg := DefaultConfig()
		cfg.CryptopanKey, cfg.WellKnownDomainsFile, cfg.DataDir = "secret", path, t.TempDir()
		cfg.MinimiserWorkers = workers
		stop := make(chan struct{})
		d, err := newDaemon(&cfg, zap.NewNop(), "test", stop)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		err = d.serve(func() error {
			defer close(d.reading.chunks)
			for at := 0; at < pool.Len(); at += frames {
				c := d.reading.free.take()
				c.N = copy(c.Buf, pool.Framed(at, min(at+frames, pool.Len())))
				d.reading.chunks <- c
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ends, counts := d.metrics.ends(), pool.Counts()
		checkSum(t, ends)
		if ends["received"] != uint64(pool.Len()) || ends["well_known"] != uint64(counts.Kinds[traffic.WellKnown]) ||
			ends["session"] != uint64(counts.Kinds[traffic.Seen]+counts.Kinds[traffic.Novel]) {
			t.Errorf("%d workers: %v, of %+v", workers, ends, counts)
		}
		if files, err := filepath.Glob(filepath.Join(d.minutes.dir, "*.parquet")); err != nil || len(files) > 1 {
			return run(workers, frames)
		}
		return rowsBelow(t, d.minutes.dir), rowsBelow(t, d.sessions.dir)
	}

	histogram, sessions := run(1, 200)
	if len(histogram) == 0 || len(sessions) == 0 {
		t.Fatal("nothing was written")
	}
	for _, c := range []struct{ workers, frames int }{{1, 1}, {2, 300}, {8, 7}, {8, 1000}} {
		h, s := run(c.workers, c.frames)
		if !slices.Equal(h, histogram) {
			t.Errorf("%d workers, %d frames a chunk: the histogram differs", c.workers, c.frames)
		}
		if !slices.Equal(s, sessions) {
			t.Errorf("%d workers, %d frames a chunk: the session rows differ", c.workers, c.frames)
		}
	}
}
