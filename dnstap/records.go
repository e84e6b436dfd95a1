package dnstap

import "encoding/binary"

const (
	typeOPT     = 41
	recordFixed = 10 // octets of type, class, TTL and RDLENGTH
)

// Options whose data says nothing of the client (RFC 5001, 8914, 7830). All
// others are blanked: client subnet, cookies, and identifiers of devices and
// customers that have private codes.
const (
	optNSID    = 3
	optPadding = 12
	optEDE     = 15
)

// A walk goes over the records of a message, one step a record.
type walk struct {
	msg  []byte
	off  int
	left int // records still to come

	typ   uint16
	ttl   uint32
	rdata []byte // view into msg
}

// records returns a walk over the records that follow the questions, the first
// of which ends at off.
func records(msg []byte, off int) (walk, bool) {
	for range binary.BigEndian.Uint16(msg[4:]) - 1 {
		if off = skipName(msg, off); off < 0 || len(msg)-off < 4 {
			return walk{}, false
		}
		off += 4
	}
	n := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:])) + int(binary.BigEndian.Uint16(msg[10:]))
	return walk{msg: msg, off: off, left: n}, true
}

// next steps to the next record and reports whether there is one; ok is false
// if it does not fit the message.
func (w *walk) next() (more, ok bool) {
	if w.left == 0 {
		return false, true
	}
	w.left--
	off := skipName(w.msg, w.off)
	if off < 0 || len(w.msg)-off < recordFixed {
		return false, false
	}
	w.typ = binary.BigEndian.Uint16(w.msg[off:])
	w.ttl = binary.BigEndian.Uint32(w.msg[off+4:])
	end := off + recordFixed + int(binary.BigEndian.Uint16(w.msg[off+8:]))
	if end > len(w.msg) {
		return false, false
	}
	w.rdata = w.msg[off+recordFixed : end]
	w.off = end
	return true, true
}

// skipName returns the offset behind the name at msg[off:], negative if the
// name does not fit. Pointers are not followed.
func skipName(msg []byte, off int) int {
	for off < len(msg) {
		switch l := int(msg[off]); {
		case l == 0:
			return off + 1
		case l <= 63:
			off += 1 + l
		case l&pointerMask == pointerMask && off+1 < len(msg):
			return off + 2
		default:
			return -1
		}
	}
	return -1
}

// ExtendedRcode returns the response code of msg, which q was decoded from,
// with the upper eight bits that its first OPT record holds (RFC 6891 section
// 6.1.3). If the records cannot be walked up to there, it is the header's.
func (q *Question) ExtendedRcode(msg []byte) int {
	rcode := q.Rcode()
	if binary.BigEndian.Uint16(msg[10:]) == 0 {
		return rcode // OPT stands in the additional section
	}
	w, more := records(msg, q.End)
	for more {
		if more, _ = w.next(); more && w.typ == typeOPT {
			return rcode | int(w.ttl>>24)<<4
		}
	}
	return rcode
}

// Strip overwrites with zeros, in place, what identifies the client in msg,
// which q was decoded from: the data of every option of every OPT record but
// NSID, padding and extended errors. Lengths stay, so the message can still be
// parsed.
//
// It reports whether msg was walked exactly to its end. If not, what is left
// may hold anything and must not be kept.
func (q *Question) Strip(msg []byte) bool {
	w, ok := records(msg, q.End)
	if !ok {
		return false
	}
	for {
		more, ok := w.next()
		if !more {
			return ok && w.off == len(msg)
		}
		if w.typ == typeOPT && !blank(w.rdata) {
			return false
		}
	}
}

// blank overwrites the options in the data of an OPT record. It reports
// whether the data was nothing but whole options.
func blank(rdata []byte) bool {
	for len(rdata) >= 4 {
		code := binary.BigEndian.Uint16(rdata)
		end := 4 + int(binary.BigEndian.Uint16(rdata[2:]))
		if end > len(rdata) {
			return false
		}
		if code != optNSID && code != optPadding && code != optEDE {
			clear(rdata[4:end])
		}
		rdata = rdata[end:]
	}
	return len(rdata) == 0
}
