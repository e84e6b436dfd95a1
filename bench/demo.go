package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"edm/traffic"
)

// demo replays a minute of made-up traffic through edm and shows what came of
// it. Everything is in dir; what an earlier demo left there is removed.
func demo(dir string, out io.Writer) error {
	d := demonstration{dir: dir, out: out}
	for _, step := range []func() error{d.clean, d.prepare, d.replay, d.showFrames, d.showNames, d.showSessions} {
		if err := step(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(d.out, "\nLook around in ./%s; make clean takes it away.\n", dir)
	return err
}

type demonstration struct {
	dir    string
	out    io.Writer
	binary string
	pool   *traffic.Pool
	ends   map[string]int // where edm says that the frames went
}

func (d *demonstration) path(name string) string { return filepath.Join(d.dir, name) }

// The demonstration's files. Nothing else in its folder is ever touched.
const (
	captureFile = "minute.fstrm"
	listFile    = "well-known.txt"
	configFile  = "edm.toml"
	binaryFile  = "edm"
	logFile     = "edm.log"
	dataDir     = "data"
)

func (d *demonstration) clean() error {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{captureFile, listFile, configFile, binaryFile, logFile, dataDir} {
		if err := os.RemoveAll(d.path(name)); err != nil {
			return err
		}
	}
	return os.Mkdir(d.path(dataDir), 0o755)
}

// minute is a minute at a resolver with 5000 answers a second.
func minute() traffic.Config {
	cfg := traffic.Default()
	cfg.WellKnown = traffic.List(cfg.Seed, 100_000)
	cfg.Frames = 300_000
	cfg.FrameEvery = 200 * time.Microsecond
	cfg.Start = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	cfg.SeenNames, cfg.Clients = 50_000, 20_000
	cfg.QueryShare, cfg.ResolverShare, cfg.MalformedShare = 0.01, 0.005, 0.0005
	return cfg
}

// prepare builds edm and makes everything that it reads.
func (d *demonstration) prepare() (err error) {
	fmt.Fprintf(d.out, "Building edm, and making up a minute of traffic in ./%s\n\n", d.dir)
	built := make(chan error, 1)
	go func() {
		var err error
		d.binary, err = buildEDM(d.dir, "off")
		built <- err
	}()
	cfg := minute()
	if d.pool, err = traffic.Build(cfg); err != nil {
		return err
	}
	err = errors.Join(
		d.pool.WriteFile(d.path(captureFile)),
		traffic.WriteList(d.path(listFile), cfg.WellKnown),
		os.WriteFile(d.path(configFile), fmt.Appendf(nil, `cryptopan_key = "for the demonstration only"
input_unix = "%[1]s/dnstap.sock"
well_known_domains_file = "%[1]s/%[2]s"
data_dir = "%[1]s/%[3]s"
`, d.dir, listFile, dataDir), 0o644),
		<-built)
	if err != nil {
		return err
	}
	config, err := os.ReadFile(d.path(configFile))
	if err != nil {
		return err
	}
	info, err := os.Stat(d.path(captureFile))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s: a minute of traffic from a fixed seed, %.0f MiB\n\n", d.path(captureFile), mebibytes(int(info.Size())))
	counts := d.pool.Counts()
	entries, seen, clients := d.pool.Distinct()
	count := func(what string, n int) []string { return []string{what, grouped(n)} }
	table(d.out, "lr", [][]string{
		{"CAME IN", "frames"},
		count(fmt.Sprintf("answers to clients, for %s of %s well-known names", grouped(entries), grouped(len(cfg.WellKnown))), counts.Kinds[traffic.WellKnown]),
		count(fmt.Sprintf("answers to clients, for %s other names again and again", grouped(seen)), counts.Kinds[traffic.Seen]),
		count("answers to clients, for names never asked for before", counts.Kinds[traffic.Novel]),
		count("queries of clients", counts.Kinds[traffic.Query]),
		count("answers to the resolver itself", counts.Kinds[traffic.Resolver]),
		count("damaged", counts.Kinds[traffic.Malformed]),
		count("in all", counts.Frames),
	})
	fmt.Fprintf(d.out, "  from %s clients; %s answers over IPv4, %s over IPv6\n", grouped(clients), grouped(counts.V4), grouped(counts.V6))
	fmt.Fprintf(d.out, "\n%s:\n\n    %s\n", d.path(configFile), strings.ReplaceAll(strings.TrimSpace(string(config)), "\n", "\n    "))
	return nil
}

// replay runs edm over the capture and reads from its log where the frames went.
func (d *demonstration) replay() error {
	cmd := exec.Command(d.binary, "-config", d.path(configFile), "-replay", d.path(captureFile))
	var log bytes.Buffer
	cmd.Stderr = &log
	// It takes a second or two. At the turn of a minute the counts would be in
	// two files, and what is shown those of one.
	const enough = 5 * time.Second
	if left := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)); left < enough {
		time.Sleep(left)
	}
	start := time.Now()
	err := cmd.Run()
	if err := os.WriteFile(d.path(logFile), log.Bytes(), 0o644); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, log.String())
	}
	fmt.Fprintf(d.out, "\n$ edm -config %s -replay %s    (%.1f s)\n", d.path(configFile), d.path(captureFile), time.Since(start).Seconds())
	d.ends, err = lastFrames(&log)
	return err
}

// lastFrames finds the last line of edm's log, which says where the frames went.
func lastFrames(log io.Reader) (ends map[string]int, err error) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var entry struct {
			Msg    string         `json:"msg"`
			Frames map[string]int `json:"frames"`
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			return nil, fmt.Errorf("edm's log: %q: %w", lines.Text(), err)
		}
		if entry.Msg == "stopped" {
			ends = entry.Frames
		}
	}
	if ends == nil && lines.Err() == nil {
		return nil, errors.New("edm's log does not say that it stopped")
	}
	return ends, lines.Err()
}

// showFrames shows where each frame went, and that none went nowhere.
func (d *demonstration) showFrames() error {
	rows := [][]string{{"WHERE EACH FRAME WENT", "", "frames"}}
	var names []string
	sum := 0
	for name, n := range d.ends {
		if name != "received" && n > 0 {
			names = append(names, name)
			sum += n
		}
	}
	slices.SortFunc(names, func(a, b string) int { return d.ends[b] - d.ends[a] })
	for _, name := range names {
		rows = append(rows, []string{name, explain(name), grouped(d.ends[name])})
	}
	rows = append(rows, []string{"in all", "", grouped(sum)})
	fmt.Fprintln(d.out)
	table(d.out, "llr", rows)
	counts := d.pool.Counts()
	others := counts.Kinds[traffic.Seen] + counts.Kinds[traffic.Novel]
	if sum != counts.Frames || d.ends["received"] != sum || d.ends["well_known"] != counts.Kinds[traffic.WellKnown] || d.ends["session"] != others {
		return fmt.Errorf("that is not what was sent: %+v", counts)
	}
	return nil
}

// explain says what a counter of frames means.
func explain(name string) string {
	if strings.HasPrefix(name, "skipped_") {
		return "not an answer to a client: counted, nothing else"
	}
	switch name {
	case "well_known":
		return "counted in the histogram of the minute"
	case "session":
		return "a row in a session file, the client's address a pseudonym"
	case "dropped_protobuf":
		return "unreadable: no whole dnstap message"
	case "dropped_dns_header":
		return "unreadable: no whole DNS header"
	case "dropped_no_question":
		return "unreadable: no question"
	case "dropped_question":
		return "unreadable: the question's name is cut off or has no end"
	case "dropped_opcode":
		return "not a query: another opcode"
	}
	return ""
}

// showNames shows the busiest well-known names.
func (d *demonstration) showNames() error {
	rows, files, err := readFiles(d.path(dataDir + "/parquet/histograms/outbox"))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%s\n  %s rows; the ten busiest well-known names:\n\n", strings.Join(files, "\n"), grouped(len(rows)))
	slices.SortStableFunc(rows, func(a, b row) int { return b.questions() - a.questions() })
	out := [][]string{{"NAME", "answers", "A", "AAAA", "NXDOMAIN", "IPv4 clients", "IPv6 clients"}}
	for _, r := range rows[:min(10, len(rows))] {
		cells := []string{r.name(), grouped(r.questions())}
		for _, column := range []string{"a_count", "aaaa_count", "nx_count", "v4client_count", "v6client_count"} {
			cells = append(cells, grouped(r.number(column)))
		}
		out = append(out, cells)
	}
	table(d.out, "lrrrrrr", out)
	return nil
}

// showSessions shows five session rows from over the minute.
func (d *demonstration) showSessions() error {
	rows, files, err := readFiles(d.path(dataDir + "/parquet/sessions"))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%s\n  %s rows; five of them:\n\n", strings.Join(files, "\n"), grouped(len(rows)))
	// Workers write in any order; by time the same rows are shown every time.
	slices.SortFunc(rows, func(a, b row) int { return a.responseTime().Compare(b.responseTime()) })
	out := [][]string{{"TIME (UTC)", "CLIENT'S PSEUDONYM", "OVER", "NAME", "TYPE", "ANSWER"}}
	for i := range min(5, len(rows)) {
		r := rows[i*len(rows)/5]
		var m dns.Msg
		if err := m.Unpack(r.value("response_message").ByteArray()); err != nil {
			return fmt.Errorf("the message of a session row: %w", err)
		}
		out = append(out, []string{r.responseTime().Format("15:04:05.000000"), r.client(), r.protocol(), r.name(),
			dns.TypeToString[m.Question[0].Qtype], dns.RcodeToString[m.Rcode]})
	}
	table(d.out, "llllll", out)
	return nil
}
