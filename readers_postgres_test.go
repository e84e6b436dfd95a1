package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// PostgreSQL with Debian's hll package makes sketches of the same pseudonyms
// and merges ours.
func TestPostgreSQLReadsTheSketches(t *testing.T) {
	sql := postgres(t)
	runs := replayedRuns(t)
	sql("CREATE EXTENSION hll; CREATE TABLE client (run int, family int, size int, address bytea); CREATE TABLE ours (run int, family int, size int, counted bigint, sketch hll);")
	var copies strings.Builder
	ours := make(map[string][]byte) // by run, family and size
	copies.WriteString("COPY client FROM STDIN;\n")
	each := func(f func(run, family, size int, key string)) {
		for run := range runs {
			for _, family := range []int{4, 6} {
				for _, size := range readerSizes {
					f(run, family, size, fmt.Sprintf("%d\t%d\t%d", run, family, size))
				}
			}
		}
	}
	each(func(run, family, size int, key string) {
		for i := range size {
			fmt.Fprintf(&copies, "%s\t\\\\x%x\n", key, pseudonym(readerClient(family, run, i)).AsSlice())
		}
	})
	copies.WriteString("\\.\nCOPY ours FROM STDIN;\n")
	histograms := [2]map[string]row{}
	for run, d := range runs {
		histograms[run] = make(map[string]row)
		for _, r := range readAll(t, d.histogramFiles(t)) {
			histograms[run][r.name()] = r
		}
	}
	each(func(run, family, size int, key string) {
		r := histograms[run][sizedName(size)]
		b, _ := r[fmt.Sprintf("v%dclient_count_hll", family)].([]byte)
		if (b != nil) != (size > 20) {
			t.Errorf("%s: a sketch of %d clients is %x", r.name(), size, b)
		}
		if b != nil {
			ours[key] = b
			fmt.Fprintf(&copies, "%s\t%d\t\\\\x%x\n", key, r.u(fmt.Sprintf("v%dclient_count", family)), b)
		}
	})
	copies.WriteString("\\.\n")
	sql(copies.String())

	compareSketches(t, sql, ours)
	checkUnions(t, sql)
}

// compareSketches compares our sketches with those that PostgreSQL makes. Of
// 257 to 292 registers PostgreSQL makes a sparse sketch and we a full one, so
// there only the sets are compared.
func compareSketches(t *testing.T, sql func(string) [][]string, ours map[string][]byte) {
	t.Helper()
	equal, merged := 0, 0
	for _, line := range sql(`
		WITH theirs AS (SELECT run, family, size, hll_add_agg(hll_hash_bytea(address), 10, 4, 8, 1) AS sketch FROM client GROUP BY run, family, size)
		SELECT run, family, size, substr(theirs.sketch::text, 3), substr(ours.sketch::text, 3),
			hll_cardinality(theirs.sketch), hll_cardinality(ours.sketch), hll_cardinality(hll_union(theirs.sketch, ours.sketch)), counted
		FROM theirs JOIN ours USING (run, family, size) ORDER BY size`) {
		key := strings.Join(line[:3], "\t")
		theirs, err := hex.DecodeString(line[3])
		if err != nil {
			t.Fatal(err)
		}
		if line[5] != line[6] || line[5] != line[7] {
			t.Errorf("%s: cardinality %s in PostgreSQL, of ours %s, of the union %s", key, line[5], line[6], line[7])
		}
		if want := strconv.Itoa(int(math.Ceil(number(t, line[6])))); line[8] != want {
			t.Errorf("%s: the count is %s, PostgreSQL's cardinality %s", key, line[8], line[6])
		}
		switch {
		case bytes.Equal(theirs, ours[key]):
			equal++
		case theirs[0] == 0x13 && ours[key][0] == 0x14: // sparse there, full here
			merged++
		default:
			t.Errorf("%s: PostgreSQL makes %x, we %x", key, theirs, ours[key])
		}
	}
	if equal+merged != len(ours) || equal < len(ours)*3/4 || merged == 0 {
		t.Errorf("of %d sketches %d are equal, %d of another form", len(ours), equal, merged)
	}
}

// checkUnions merges the sketches of two files: half of the clients are the
// same, and the estimate must be near the true number.
func checkUnions(t *testing.T, sql func(string) [][]string) {
	t.Helper()
	lines := sql(`
		SELECT ours.family, ours.size, hll_cardinality(hll_union_agg(sketch)),
			(SELECT count(DISTINCT address) FROM client c WHERE c.family = ours.family AND c.size = ours.size)
		FROM ours GROUP BY ours.family, ours.size ORDER BY 2`)
	for _, line := range lines {
		got, want := number(t, line[2]), number(t, line[3])
		size := number(t, line[1])
		if want <= size || want >= 2*size {
			t.Fatalf("the test's own clients are wrong: %v", line)
		}
		// The standard error of 1024 registers is 3.3 %.
		if math.Abs(got-want) > 0.15*want {
			t.Errorf("IPv%s, union of two times %s clients: estimated %v, there are %v", line[0], line[1], got, want)
		}
	}
	if len(lines) == 0 {
		t.Error("nothing to merge")
	}
}

func number(t testing.TB, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// postgres starts a PostgreSQL server of its own that is reached by a Unix
// socket only, and returns a function that runs SQL and returns the lines of
// its last result.
func postgres(t *testing.T) func(string) [][]string {
	t.Helper()
	initdb := need(t, "initdb", "postgresql-15")
	server, psql := need(t, "postgres", "postgresql-15"), need(t, "psql", "postgresql-client-15")
	if _, err := os.Stat("/usr/share/postgresql/15/extension/hll.control"); err != nil {
		missing(t, "PostgreSQL's hll extension is not installed: apt-get install postgresql-15-hll")
	}
	// Not t.TempDir: its parent is closed to the user postgres.
	dir, err := os.MkdirTemp("", "edm-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		as.Credential = userPostgres(t)
		if err := os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		attr := *as
		cmd.SysProcAttr = &attr
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := command(initdb, "-D", data, "-A", "trust", "-U", "test", "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	p := run(t, command(server, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"))
	query := func(sql string) ([]byte, error) {
		cmd := command(psql, "-X", "-q", "-At", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-h", dir, "-U", "test", "-d", "postgres")
		cmd.Stdin = strings.NewReader(sql)
		return cmd.Output()
	}
	until(t, func() bool { _, err := query("SELECT 1"); return err == nil }, p.log)
	return func(sql string) [][]string {
		t.Helper()
		out, err := query(sql)
		if err != nil {
			t.Fatalf("psql: %v\n%s", err, stderrOf(err))
		}
		var lines [][]string
		for line := range strings.Lines(string(out)) {
			lines = append(lines, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
		return lines
	}
}

func userPostgres(t *testing.T) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
