package dnstap

// plain holds the bytes that stand for themselves in the presentation form of
// a label.
var plain = func() (t [256]bool) {
	for c := '!'; c <= '~'; c++ {
		t[c] = true
	}
	for _, c := range `.'@;()"\` {
		t[c] = false
	}
	return t
}()

// AppendLabel appends the presentation form (RFC 1035 section 5.1) of a
// label's content to dst, escaped as github.com/miekg/dns does it: a backslash
// before . ' @ ; ( ) " \ and the blank, \DDD for every byte that is not
// printable ASCII. The result is valid UTF-8 whatever the label holds.
func AppendLabel(dst, label []byte) []byte {
	for i, c := range label {
		if !plain[c] {
			return appendEscaped(append(dst, label[:i]...), label[i:])
		}
	}
	return append(dst, label...)
}

func appendEscaped(dst, label []byte) []byte {
	for _, c := range label {
		switch {
		case plain[c]:
			dst = append(dst, c)
		case c >= ' ' && c <= '~':
			dst = append(dst, '\\', c)
		default:
			dst = append(dst, '\\', '0'+c/100, '0'+c/10%10, '0'+c%10)
		}
	}
	return dst
}

// AppendName appends the presentation form of a name in uncompressed wire
// form, with the final dot.
func AppendName(dst, name []byte) []byte {
	if len(name) <= 1 {
		return append(dst, '.')
	}
	for name[0] != 0 {
		n := 1 + int(name[0])
		dst = append(AppendLabel(dst, name[1:n]), '.')
		name = name[n:]
	}
	return dst
}
