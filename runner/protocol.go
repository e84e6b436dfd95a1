package runner

import "bytes"

// wrongProtocol says what b, the first octets of a stream and at least four,
// may be instead of Frame Streams.
func wrongProtocol(b []byte) error {
	begins := func(with ...string) bool {
		for _, w := range with {
			if bytes.HasPrefix(b, []byte(w)) {
				return true
			}
		}
		return false
	}
	switch {
	case begins("\x16\x03"):
		return refuse("tls", "the peer speaks TLS, this input does not: use input_tls, or no TLS in the resolver")
	case begins("GET ", "POST", "HEAD", "PUT ", "PRI ", "OPTI", "HTTP"):
		return refuse("http", "the peer speaks HTTP: metrics are at metrics_listen, this is an input for dnstap")
	case isText(b) && !isIdentity(b):
		return refuse("text", "the peer sends plain text, not Frame Streams")
	case begins("\x0a", "\x12", "\x1a", "\x72", "\x78"):
		// The fields of a Dnstap: identity, version, extra, message, type.
		return refuse("protobuf", "the peer sends protobuf without Frame Streams around it")
	case b[0] == 0 && !begins("\x00\x00\x00\x00"):
		return refuse("no_start", "the peer sends data frames, or another protocol, without START in front")
	}
	return refuse("unknown", "the peer does not speak Frame Streams")
}

// isText reports whether b looks like lines of ASCII.
func isText(b []byte) bool {
	for _, c := range b[:min(len(b), 64)] {
		if (c < ' ' || c > '~') && c != '\n' && c != '\r' && c != '\t' {
			return false
		}
	}
	return true
}

// isIdentity reports whether b begins with the identity of a Dnstap and another
// field. An identity of 32 octets or more may look like text at first.
func isIdentity(b []byte) bool {
	next := 2 + int(b[1])
	return b[0] == '\x0a' && next < len(b) && bytes.IndexByte([]byte("\x12\x1a\x72\x78"), b[next]) >= 0
}
