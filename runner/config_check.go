package runner

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	maxFrameSizeLimit = 16 << 20 // a longer frame is a lost stream, whatever the setting
	minFrameSizeLimit = 512      // a smaller limit would skip every real message
	unixPathLimit     = 107      // sockaddr_un has 108 bytes, the last one zero
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
	if n := len(c.InputUnix); n > unixPathLimit {
		l.wrong("input_unix", fmt.Errorf("the path has %d bytes, a socket's path has at most %d", n, unixPathLimit))
	}
	if c.DataDir == "" {
		l.wrong("data_dir", errors.New("must not be empty"))
	}
	l.checkTLS()
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

func (l *loader) checkCryptopan() {
	switch key, file := l.given("cryptopan_key"), l.given("cryptopan_key_file"); {
	case key && file:
		// Told of the one that came later.
		first, second := "cryptopan_key", "cryptopan_key_file"
		if a, b := l.origin[first], l.origin[second]; a.flag && !b.flag || a.flag == b.flag && a.line > b.line {
			first, second = second, first
		}
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
