package runner

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxFrameSizeLimit = 16 << 20 // a longer frame is a lost stream, whatever the setting
	minFrameSizeLimit = 512      // a smaller limit would skip every real message
	unixPathLimit     = 107      // sockaddr_un has 108 bytes, the last one zero
	minSeenBytes      = 64 << 20 // logs and tables of Pebble need some room
)

// check looks at values and at what one setting needs of another, when every
// setting has its value.
func (l *loader) check(replay bool) {
	c := l.cfg
	l.between("max_connections", c.MaxConnections, 1, 1_000_000)
	l.between("max_frame_size", c.MaxFrameSize, minFrameSizeLimit, maxFrameSizeLimit)
	l.between("cryptopan_address_entries", c.CryptopanAddressEntries, 0, 1_000_000_000)
	l.between("histogram_hll_explicit_threshold", c.HistogramHLLExplicitThreshold, 16, 31)
	l.between("minimiser_workers", c.MinimiserWorkers, 0, 1024)
	l.address("input_tcp", c.InputTCP)
	l.address("input_tls", c.InputTLS)
	l.address("metrics_listen", c.MetricsListen)
	l.apart("input_tcp", "input_tls")
	l.apart("input_tcp", "metrics_listen")
	l.apart("input_tls", "metrics_listen")
	if n := len(c.InputUnix); n > unixPathLimit {
		l.wrong("input_unix", fmt.Errorf("the path has %d bytes, a socket's path has at most %d", n, unixPathLimit))
	}
	if c.DataDir == "" {
		l.wrong("data_dir", errors.New("must not be empty"))
	}
	l.between("qname_seen_entries", c.QnameSeenEntries, 1000, 10_000_000_000)
	l.between("new_qname_backlog", c.NewQnameBacklog, 1, 1_000_000_000)
	l.between("mqtt_qos", c.MQTTQoS, 0, 1)
	if k := time.Duration(c.MQTTKeepalive); k%time.Second != 0 || k > 65535*time.Second {
		l.wrong("mqtt_keepalive", errors.New("must be whole seconds, up to 65535"))
	}
	if n := c.SeenMaxBytes; n != 0 && n < minSeenBytes {
		l.wrong("seen_max_bytes", fmt.Errorf("%d is too small, the least is %d, or 0 for no limit", n, minSeenBytes))
	}
	l.checkTLS()
	l.checkMQTT()
	l.checkHTTP()
	l.checkCryptopan()
	if !replay && !l.given("input_unix") && !l.given("input_tcp") && !l.given("input_tls") {
		l.missing("no input: set input_unix, input_tcp or input_tls")
	}
}

func (l *loader) checkTLS() {
	if l.given("input_tls_client_ca_file") && !l.given("input_tls") {
		l.fail("input_tls_client_ca_file", " needs input_tls")
	}
	if !l.given("input_tls") {
		return
	}
	var absent []string
	for _, key := range []string{"input_tls_cert_file", "input_tls_key_file"} {
		if !l.given(key) {
			absent = append(absent, key)
		}
	}
	if absent != nil {
		l.fail("input_tls", " needs "+strings.Join(absent, " and "))
	}
}

func (l *loader) checkMQTT() {
	l.pair("mqtt_client_cert_file", "mqtt_client_key_file")
	if l.given("mqtt_server") && !l.given("mqtt_signing_key_file") {
		l.fail("mqtt_server", " needs mqtt_signing_key_file")
	}
}

func (l *loader) checkHTTP() {
	l.pair("http_client_cert_file", "http_client_key_file")
	if l.cfg.OutboxMaxBytes < 0 {
		l.wrong("outbox_max_bytes", errors.New("must not be negative"))
	}
	if !l.given("http_url") {
		return
	}
	u, err := url.Parse(l.cfg.HTTPURL)
	switch {
	case err != nil || u.Hostname() == "":
		l.wrong("http_url", fmt.Errorf("%s is not a URL such as https://host:port", quoteURL(l.cfg.HTTPURL)))
	case u.Scheme != "https":
		l.wrong("http_url", fmt.Errorf("the scheme is %s, only https is taken", quote(u.Scheme)))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		l.wrong("http_url", errors.New("it must not have a user, a query or a fragment"))
	}
	if !l.given("http_signing_key_file") {
		l.fail("http_url", " needs http_signing_key_file")
	}
}

// pair tells of one of two settings that is given without the other.
func (l *loader) pair(a, b string) {
	switch givenA, givenB := l.given(a), l.given(b); {
	case givenA && !givenB:
		l.fail(a, " needs "+b)
	case givenB && !givenA:
		l.fail(b, " needs "+a)
	}
}

func (l *loader) checkCryptopan() {
	if _, set := l.origin["cryptopan_key"]; set && l.cfg.CryptopanKey == "" {
		l.wrong("cryptopan_key", errors.New("must not be empty"))
	}
	switch key, file := l.given("cryptopan_key"), l.given("cryptopan_key_file"); {
	case key && file:
		first, second := l.inOrder("cryptopan_key", "cryptopan_key_file")
		l.fail(second, " and "+first+" are both set, only one can be")
	case !key && !file:
		l.missing("no key for pseudonyms: set cryptopan_key or cryptopan_key_file")
	}
}

// given says whether a setting has a value that is not empty, or had one that
// is told as a problem already: what needs it is then not told as well.
func (l *loader) given(key string) bool {
	s, _ := lookupSetting(key)
	return l.failed[key] || !s.field(l.cfg).IsZero()
}

func (l *loader) between(key string, n, low, high int) {
	if n < low || n > high {
		l.wrong(key, fmt.Errorf("%d is not between %d and %d", n, low, high))
	}
}

func (l *loader) address(key, s string) {
	if s == "" {
		return
	}
	if err := checkAddress(s); err != nil {
		l.wrong(key, err)
	}
}

// apart tells of two settings that want to listen on the same port of the same
// address. Names of hosts are not resolved.
func (l *loader) apart(a, b string) {
	first, second := l.inOrder(a, b)
	x, y := l.addressOf(first), l.addressOf(second)
	if x.port == y.port && x.port != 0 && (x.host == y.host || x.host == everyHost || y.host == everyHost) {
		l.fail(second, fmt.Sprintf(" and %s both listen on port %d", first, x.port))
	}
}

// A listenAddress is a host:port. The zero value is that of a setting that is
// not set or at fault.
type listenAddress struct {
	host string // an address in its usual form, a name in lower case, or everyHost
	port uint64 // 0 = any free one
}

const everyHost = ""

func (l *loader) addressOf(key string) listenAddress {
	s, _ := lookupSetting(key)
	host, port, err := net.SplitHostPort(s.field(l.cfg).String())
	if err != nil {
		return listenAddress{}
	}
	a := listenAddress{host: strings.ToLower(host)}
	if ip, err := netip.ParseAddr(host); err == nil {
		if a.host = ip.Unmap().String(); ip.IsUnspecified() {
			a.host = everyHost // net.Listen takes both families
		}
	}
	a.port, _ = strconv.ParseUint(port, 10, 16) // was checked
	return a
}

// checkAddress says whether s is host:port, without resolving the host. The
// host may be empty (every address), the port 0 (any free one).
func checkAddress(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if ae, ok := errors.AsType[*net.AddrError](err); ok {
			err = errors.New(ae.Err)
		}
		return fmt.Errorf("%s is not host:port: %w", quote(s), err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s is not host:port: the port is a number up to 65535", quote(s))
	}
	if !isHost(host) {
		return fmt.Errorf("%s is not host:port: %s is neither an address nor a host name", quote(s), quote(host))
	}
	return nil
}

// isHost says whether s can be an address or the name of a host. A name whose
// last label is a number is a misspelt address.
func isHost(s string) bool {
	if s == "" {
		return true
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	for _, label := range labels {
		if label == "" || strings.ContainsFunc(label, func(r rune) bool {
			return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
		}) {
			return false
		}
	}
	_, err := strconv.ParseUint(labels[len(labels)-1], 10, 64)
	return err != nil
}
