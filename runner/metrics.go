package runner

import (
	"maps"
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"edm/dnstap"
)

// Every frame ends as exactly one of these: a result, a drop or a skip.
const (
	wellKnown = iota
	session
	ignoredClient
	ignoredName
	numResults
)

var resultNames = [numResults]string{"well_known", "session", "ignored_client", "ignored_name"}

// A drop is a dnstap.Fault, or one of two that the reader of a stream finds.
const (
	dropOversize = dnstap.NumFaults + iota
	dropCut
	numDrops
)

func dropName(i int) string {
	switch i {
	case dropOversize:
		return "oversize"
	case dropCut:
		return "cut"
	}
	return dnstap.Fault(i).String()
}

// A skip is a type of message, by number, or one of two that have none.
const (
	skipUnknown    = 0
	skipNotMessage = len(dnstap.TypeNames)
	numSkips       = skipNotMessage + 1
)

func skipName(i int) string {
	switch i {
	case skipUnknown:
		return "unknown"
	case skipNotMessage:
		return "not_message"
	}
	return dnstap.TypeNames[i]
}

// Fields of a frame that could not be used, though the frame was.
const (
	badQueryAddress = iota
	badResponseAddress
	badQueryPort
	badResponsePort
	badProtocol
	badTime
	badMessage
	numBad
)

var badNames = [numBad]string{"query_address", "response_address", "query_port", "response_port", "protocol", "time", "response_message"}

// frameCounts counts what became of frames. A worker has one of its own and
// adds it to the shared one after each chunk.
type frameCounts struct {
	received uint64
	results  [numResults]uint64
	drops    [numDrops]uint64
	skips    [numSkips]uint64
	bad      [numBad]uint64
	hits     uint64 // of the cache of pseudonyms

	forgotten uint64 // names that the store did not take in time
}

// An end is how a stream ended.
type end uint8

const (
	endNot end = iota
	endStop
	endEOF
	endCut
	endLost
	endControl
	endError
	endShutdown
	numEnds
)

var endNames = [numEnds]string{"", "stop", "eof", "cut", "lost", "control", "error", "shutdown"}

func (e end) String() string { return endNames[e] }

// metrics holds all that is counted. Its fields may be used by any goroutine.
type metrics struct {
	registry *prometheus.Registry
	version  string
	log      *zap.Logger

	received  atomic.Uint64
	results   [numResults]atomic.Uint64
	drops     [numDrops]atomic.Uint64
	skips     [numSkips]atomic.Uint64
	bad       [numBad]atomic.Uint64
	hits      atomic.Uint64
	forgotten atomic.Uint64

	bytesRead     atomic.Uint64
	streamEnds    [numEnds]atomic.Uint64
	refusals      *prometheus.CounterVec
	connections   *prometheus.GaugeVec
	connectsTotal *prometheus.CounterVec

	histogramRows prometheus.Counter
	sessionRows   prometheus.Counter
	rowsLost      *prometheus.CounterVec // kind, reason
	filesWritten  *prometheus.CounterVec // kind
}

// newMetrics registers everything that is counted. A worker's counts show at
// the end of the chunk it is at.
func newMetrics(version string, log *zap.Logger) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), version: version, log: log}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.counter("processed_dnstap_total", "Frames received, with those that were too large or cut off.", nil, &m.received)
	for i := range m.results {
		m.counter("frames_total", "Frames by what became of them; session is every name that is not well known.", prometheus.Labels{"result": resultNames[i]}, &m.results[i])
	}
	for i := range m.drops {
		if i != int(dnstap.None) {
			m.counter("frames_dropped_total", "Frames of no use, by what is wrong with them.", prometheus.Labels{"reason": dropName(i)}, &m.drops[i])
		}
	}
	for i := range m.skips {
		if i != dnstap.ClientResponse {
			m.counter("messages_skipped_total", "Frames of a type other than CLIENT_RESPONSE, by type.", prometheus.Labels{"type": skipName(i)}, &m.skips[i])
		}
	}
	for i := range m.bad {
		m.counter("fields_unusable_total", "Fields that could not be used, of frames that were.", prometheus.Labels{"field": badNames[i]}, &m.bad[i])
	}
	m.counter("cryptopan_lru_hit_total", "Pseudonyms found in the cache.", nil, &m.hits)
	m.counter("bytes_read_total", "Octets read from streams.", nil, &m.bytesRead)
	for i := range m.streamEnds {
		if end(i) != endNot {
			m.counter("streams_ended_total", "Streams by how they ended.", prometheus.Labels{"reason": end(i).String()}, &m.streamEnds[i])
		}
	}
	m.refusals = m.counterVec("handshake_failures_total", "Connections closed before their first frame, by reason.", "reason")
	m.connectsTotal = m.counterVec("connections_total", "Connections taken, by input.", "input")
	m.connections = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "edm_connections", Help: "Connections open, by input."}, []string{"input"})
	m.registry.MustRegister(m.connections)

	m.histogramRows = m.plainCounter("histogram_rows_total", "Rows written to histogram files.")
	m.sessionRows = m.plainCounter("session_rows_total", "Rows written to session files.")
	m.rowsLost = m.counterVec("rows_lost_total", "Rows that could not be written, by kind of file and reason.", "kind", "reason")
	m.filesWritten = m.counterVec("files_written_total", "Files written, by kind.", "kind")
	for _, kind := range []string{kindHistogram, kindSession} {
		m.filesWritten.WithLabelValues(kind)
	}
	m.gauge("build_info", "Always 1.", prometheus.Labels{"version": version, "goversion": runtime.Version()}, func() float64 { return 1 })
	return m
}

const (
	kindHistogram = "histogram"
	kindSession   = "session"
)

func (m *metrics) counter(name, help string, labels prometheus.Labels, n *atomic.Uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(
		prometheus.CounterOpts{Name: "edm_" + name, Help: help, ConstLabels: labels},
		func() float64 { return float64(n.Load()) }))
}

func (m *metrics) gauge(name, help string, labels prometheus.Labels, f func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "edm_" + name, Help: help, ConstLabels: maps.Clone(labels)}, f))
}

func (m *metrics) plainCounter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "edm_" + name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "edm_" + name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) refusal(reason string) prometheus.Counter {
	return m.refusals.WithLabelValues(reason)
}

func (m *metrics) connected(input string) {
	m.connectsTotal.WithLabelValues(input).Inc()
	m.connections.WithLabelValues(input).Inc()
}

func (m *metrics) disconnected(input string) { m.connections.WithLabelValues(input).Dec() }

// readerDropped counts a frame that never got as far as a worker.
func (m *metrics) readerDropped(reason int) {
	m.drops[reason].Add(1)
	m.received.Add(1) // last, as in add
}

// add adds a worker's counts and clears them. The first message of each type
// that is skipped is said in the log: a resolver that is set up to send it
// does work for nothing.
func (m *metrics) add(n *frameCounts) {
	addAll(m.results[:], n.results[:])
	addAll(m.drops[:], n.drops[:])
	addAll(m.bad[:], n.bad[:])
	for i, k := range n.skips {
		if k != 0 && m.skips[i].Add(k) == k {
			m.log.Warn("messages of this type are skipped, edm uses CLIENT_RESPONSE only: let the resolver send just that, and if it has none, listen to a server that clients ask, such as dnsdist",
				zap.String("type", skipName(i)))
		}
	}
	m.hits.Add(n.hits)
	m.forgotten.Add(n.forgotten)
	m.received.Add(n.received) // last, so that no frame shows without its end
	*n = frameCounts{}
}

func addAll(to []atomic.Uint64, from []uint64) {
	for i, k := range from {
		if k != 0 {
			to[i].Add(k)
		}
	}
}

// ends returns what became of all frames so far, by the names in the metrics,
// without what is zero.
func (m *metrics) ends() map[string]uint64 {
	all := map[string]uint64{"received": m.received.Load()}
	put := func(name string, n uint64) {
		if n != 0 {
			all[name] = n
		}
	}
	for i := range m.results {
		put(resultNames[i], m.results[i].Load())
	}
	for i := range m.drops {
		put("dropped_"+dropName(i), m.drops[i].Load())
	}
	for i := range m.skips {
		put("skipped_"+skipName(i), m.skips[i].Load())
	}
	return all
}

// watchFolders adds gauges that look at data_dir when they are asked for.
func (m *metrics) watchFolders(dataDir, outbox string) {
	m.gauge("data_dir_free_bytes", "Octets free for edm where data_dir is.", nil, func() float64 {
		var fs unix.Statfs_t
		if unix.Statfs(dataDir, &fs) != nil {
			return -1
		}
		return float64(fs.Bavail) * float64(fs.Bsize)
	})
	m.gauge("outbox_files", "Histogram files that wait in the outbox.", nil, func() float64 { n, _ := folderSize(outbox); return float64(n) })
	m.gauge("outbox_bytes", "Octets of the histogram files in the outbox.", nil, func() float64 { _, n := folderSize(outbox); return float64(n) })
}
