package main

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"edm/runner"
)

// The README lists every setting, flag, metric, file and column. These tests
// hold each list against what edm has, in both directions: nothing is missing
// from the README, and nothing in it is gone.

// section returns a section of the README, without its heading.
func section(t testing.TB, title string) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+title+"\n")
	if !found {
		t.Fatalf("README.md has no section %q", title)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

// tables returns the cells of all tables in a text, without the two lines that
// a table begins with.
func tables(text string) [][][]string {
	var all [][][]string
	var table [][]string
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if len(table) > 2 {
				all = append(all, table[2:])
			}
			table = nil
			continue
		}
		const bar = "\x00" // for one that is part of a cell
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.ReplaceAll(line, `\|`, bar), "|"), "|") {
			cells = append(cells, strings.TrimSpace(strings.ReplaceAll(cell, bar, "|")))
		}
		table = append(table, cells)
	}
	return all
}

// sameSet compares what the README lists with what there is.
func sameSet(t *testing.T, what string, listed, have []string) {
	t.Helper()
	if len(have) == 0 {
		t.Fatalf("there is no %s", what)
	}
	for _, s := range have {
		if !slices.Contains(listed, s) {
			t.Errorf("%s %s is not in README.md", what, s)
		}
	}
	for _, s := range listed {
		if !slices.Contains(have, s) {
			t.Errorf("README.md lists the %s %s, which does not exist", what, s)
		}
	}
	sorted := slices.Sorted(slices.Values(listed))
	for i := range len(sorted) - 1 {
		if sorted[i] == sorted[i+1] {
			t.Errorf("README.md lists the %s %s twice", what, sorted[i])
		}
	}
}

// Every setting is there with its default, in the order of the fields.
func TestReadmeSettings(t *testing.T) {
	var want, got []string
	config := reflect.TypeFor[runner.Config]()
	for i := range config.NumField() {
		if !config.Field(i).IsExported() {
			continue
		}
		tag := config.Field(i).Tag
		want = append(want, fmt.Sprintf("%s = %s", tag.Get("toml"), tag.Get("default")))
	}
	for _, row := range tables(section(t, "Settings"))[0] {
		got = append(got, fmt.Sprintf("%s = %s", strings.Trim(row[0], "`"), strings.Trim(row[1], "`\"")))
	}
	if !slices.Equal(got, want) {
		t.Errorf("README.md lists\n%s\nthe settings are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every flag that is not a setting is there.
func TestReadmeFlags(t *testing.T) {
	var out, errs bytes.Buffer
	if code := edm([]string{"-help"}, &out, &errs); code != 0 {
		t.Fatalf("edm -help: %d %s", code, &errs)
	}
	own, _, found := strings.Cut(out.String(), "\nSettings.")
	if !found {
		t.Fatalf("edm -help lists no settings:\n%s", &out)
	}
	var have, listed []string
	for _, m := range regexp.MustCompile(`(?m)^  (-\S+)`).FindAllStringSubmatch(own, -1) {
		have = append(have, m[1])
	}
	for _, table := range tables(section(t, "Run it")) {
		for _, row := range table {
			if flag, _, _ := strings.Cut(strings.Trim(row[0], "`"), " "); strings.HasPrefix(flag, "-") {
				listed = append(listed, flag)
			}
		}
	}
	sameSet(t, "flag", listed, have)
}

// rareLabels tells where in package runner the values of a label stand whose
// series show only once something has happened.
var rareLabels = []struct{ metric, label, source string }{
	{"edm_connections", "input", `open\("(input_\w+)"`},
	{"edm_connections_total", "input", `open\("(input_\w+)"`},
	{"edm_handshake_failures_total", "reason", `refus(?:e\(|al\{|al\()"(\w+)"`},
	{"edm_rows_lost_total", "kind", `kind\w+ += "(\w+)"`},
	{"edm_rows_lost_total", "reason", `return "(no_space|io)"`},
}

// Every series is there that the daemon can have, and no other.
func TestReadmeMetrics(t *testing.T) {
	t.Parallel()
	var listed, have []string
	for _, table := range tables(section(t, "Metrics")) {
		for _, row := range table {
			listed = append(listed, expandSeries(t, strings.Trim(row[0], "`"))...)
		}
	}
	ca := newAuthority(t, t.TempDir())
	cert, key := ca.issue("node", x509.ExtKeyUsageClientAuth)
	jwk := filepath.Join(t.TempDir(), "datakey-priv.json")
	// The key of RFC 8037, appendix A.1.
	write(t, jwk, `{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"node",
		"d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`)
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", wellKnownFile(t)),
		fmt.Sprintf("mqtt_server = %q", "mqtt://"+local(freePort(t))), // nobody is there
		fmt.Sprintf("mqtt_client_cert_file = %q", cert), fmt.Sprintf("mqtt_client_key_file = %q", key),
		fmt.Sprintf("mqtt_signing_key_file = %q", jwk))
	d.set(t, fmt.Sprintf("input_unix = %q", d.socket))
	d.start(t)
	dial(t, "unix", d.socket)
	for series := range d.await(t, 1, "edm_connections") {
		name, _, _ := strings.Cut(series, "{")
		switch {
		case name == "edm_build_info", name == "edm_certificate_not_after_seconds":
			have = append(have, name) // its labels are those of this build, or of this host
		case strings.HasPrefix(name, "edm_seen_commit_seconds"):
			have = append(have, "edm_seen_commit_seconds") // a histogram has a name for each of its parts
		case strings.HasPrefix(name, "edm_"):
			have = append(have, series)
		case !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_"):
			t.Errorf("README.md does not tell of metrics like %s", name)
		}
	}
	have = append(have, rareSeries(t)...)
	slices.Sort(have)
	sameSet(t, "series", listed, slices.Compact(have))
}

// rareSeries returns all series of the metrics in rareLabels.
func rareSeries(t *testing.T) []string {
	t.Helper()
	var source bytes.Buffer
	files, err := filepath.Glob("runner/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			source.Write(text)
		}
	}
	matchers := make(map[string][]string) // by metric
	for _, l := range rareLabels {
		var values []string
		for _, m := range regexp.MustCompile(l.source).FindAllSubmatch(source.Bytes(), -1) {
			values = append(values, string(m[1]))
		}
		if values == nil {
			t.Errorf("%s: %s matches nothing in package runner", l.metric, l.source)
		}
		matchers[l.metric] = append(matchers[l.metric], fmt.Sprintf("%s=~%q", l.label, strings.Join(values, "|")))
	}
	var all []string
	for metric, m := range matchers {
		all = append(all, expandSeries(t, metric+"{"+strings.Join(m, ",")+"}")...)
	}
	return all
}

// expandSeries returns the series that a PromQL selector names, as /metrics
// prints them. A label is either ="value" or =~"one|or|another".
func expandSeries(t *testing.T, selector string) []string {
	t.Helper()
	m := regexp.MustCompile(`^(\w+)(?:\{(.+)\})?$`).FindStringSubmatch(selector)
	if m == nil {
		t.Fatalf("%q is not a series", selector)
	}
	if m[2] == "" {
		return []string{m[1]}
	}
	sets := []string{""}
	for matcher := range strings.SplitSeq(m[2], ",") {
		label, values, ok := strings.Cut(matcher, "=")
		if !ok {
			t.Fatalf("%q: no value in %q", selector, matcher)
		}
		var longer []string
		for _, set := range sets {
			for value := range strings.SplitSeq(strings.Trim(values, `~"`), "|") {
				longer = append(longer, fmt.Sprintf("%s,%s=%q", set, label, value))
			}
		}
		sets = longer
	}
	for i, set := range sets {
		sets[i] = m[1] + "{" + set[1:] + "}"
	}
	return sets
}

// Every kind of file is there, with its columns and its metadata.
func TestReadmeFiles(t *testing.T) {
	t.Parallel()
	capture := filepath.Join(t.TempDir(), "traffic.fstrm")
	if err := smallTraffic(t).WriteFile(capture); err != nil {
		t.Fatal(err)
	}
	d := plan(t, fmt.Sprintf("well_known_domains_file = %q", wellKnownFile(t)))
	if out, err := d.replay(t, capture); err != nil {
		t.Fatalf("replay: %v\n%s", err, out)
	}

	text := section(t, "Files")
	lists := tables(text)
	if len(lists) != 3 {
		t.Fatalf("%d tables about files, want the files and the columns of two kinds", len(lists))
	}
	var have []string
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (!e.IsDir() || e.Name() == "sent" || e.Name() == "refused") {
			name, err := filepath.Rel(d.dir, path)
			if err != nil {
				return err
			}
			const when = `\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ`
			switch {
			case strings.HasPrefix(name, "seen/"):
				name = "seen/" // Pebble's own
			case e.IsDir():
				name += "/" // for files that a receiver has answered
			}
			have = append(have, regexp.MustCompile(when+"_"+when).ReplaceAllString(name, "<start>_<stop>"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sameSet(t, "file", firstCells(lists[0]), have)
	for i, files := range [][]string{d.histogramFiles(t), d.sessionFiles(t)} {
		sameSet(t, "column", firstCells(lists[1+i]), parquetColumns(t, files[0]))
		for key := range maps.Keys(goMetadata(t, files[0])) {
			if !strings.Contains(text, "`"+key+"`") {
				t.Errorf("metadata %s is not in README.md", key)
			}
		}
	}
}

// firstCells returns what stands in backticks in the first column of a table.
// "`label0` … `label9`" are ten.
func firstCells(table [][]string) []string {
	var all []string
	for _, row := range table {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[0], -1) {
			all = append(all, m[1])
		}
		if row[0] == "`label0` … `label9`" {
			for i := 1; i < 9; i++ {
				all = append(all, fmt.Sprint("label", i))
			}
		}
	}
	return all
}

func parquetColumns(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, path := range file.Schema().Columns() {
		columns = append(columns, strings.Join(path, "."))
	}
	return columns
}

// The size of a block is told as it is.
func TestReadmeMemory(t *testing.T) {
	source, err := os.ReadFile("output/block.go")
	if err != nil {
		t.Fatal(err)
	}
	number := func(pattern string) int {
		m := regexp.MustCompile(pattern).FindSubmatch(source)
		if m == nil {
			t.Fatalf("%s matches nothing in package output", pattern)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	want := fmt.Sprintf("%d KiB of bytes or %d rows", number(`blockBytes += (\d+) << 10`), number(`blockRows += (\d+) << 10`)<<10)
	if !strings.Contains(section(t, "Memory and speed"), want) {
		t.Errorf("README.md does not say %q", want)
	}
}

// What the documents link to exists, and so do the targets of make that they
// name.
func TestDocumentLinks(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([\w./-]+)\)`).FindAllSubmatch(text, -1) {
			if _, err := os.Stat(string(m[1])); err != nil {
				t.Errorf("%s links to a file that is not there: %v", name, err)
			}
		}
		for _, m := range regexp.MustCompile("(?m)(?:`|^    )make ([a-z]+)").FindAllSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^` + string(m[1]) + `:`).Match(makefile) {
				t.Errorf("%s names make %s, which does not exist", name, m[1])
			}
		}
	}
}
