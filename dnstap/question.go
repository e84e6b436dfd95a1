package dnstap

import "encoding/binary"

const (
	headerLen     = 12
	maxName       = 255 // octets of a name in wire form, RFC 1035 section 3.1
	maxQuestions  = 16  // questions looked at in one message
	maxPointers   = 126 // a name has no more labels than that
	classIN       = 1
	pointerMask   = 0xc0
	pointerTarget = 0x3fff
)

// A Question is the header and the first question of a DNS message.
//
// The zero Question is ready for use. One is meant to be used again for every
// message: it holds the room for the name.
type Question struct {
	Flags uint16 // the second 16 bits of the header: QR to RCODE
	Count uint16 // QDCOUNT
	Type  uint16
	Class uint16
	End   int // offset of what follows the first question

	n     int // octets of the name
	name  [maxName]byte
	other [maxName]byte // of a later question
}

// Name returns the name asked for in uncompressed wire form, lower case (A to
// Z only), with the final zero octet. It is valid until the next Decode.
func (q *Question) Name() []byte { return q.name[:q.n] }

// Rcode returns the header's response code. OPT may extend it, see
// ExtendedRcode.
func (q *Question) Rcode() int { return int(q.Flags & 0xf) }

// Decode reads the header and the first question of msg, and nothing behind
// it: a message whose records are broken or cut off decodes all the same.
//
// A compression pointer in the name is malformed: there is nothing in front of
// the first question that it could point to.
func (q *Question) Decode(msg []byte) Fault {
	if len(msg) < headerLen {
		return ShortHeader
	}
	q.Flags = binary.BigEndian.Uint16(msg[2:])
	q.Count = binary.BigEndian.Uint16(msg[4:])
	switch {
	case q.Flags>>11&0xf != 0:
		return Opcode
	case q.Count == 0:
		return NoQuestion
	}
	off, n := headerLen, 0
	for {
		if off >= len(msg) {
			return QuestionName
		}
		l := int(msg[off])
		if l == 0 {
			break
		}
		if l > 63 || off+1+l >= len(msg) || n+1+l >= maxName {
			return QuestionName
		}
		q.name[n] = byte(l)
		lower(q.name[n+1:n+1+l], msg[off+1:off+1+l])
		n += 1 + l
		off += 1 + l
	}
	q.name[n] = 0
	q.n = n + 1
	off++
	if len(msg)-off < 4 {
		return QuestionName
	}
	q.Type = binary.BigEndian.Uint16(msg[off:])
	q.Class = binary.BigEndian.Uint16(msg[off+2:])
	q.End = off + 4
	return None
}

// lower copies src to dst, as long as src, with A to Z folded to a to z.
func lower(dst, src []byte) {
	dst = dst[:len(src)]
	i := 0
	for ; len(src)-i >= 8; i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], lower8(binary.LittleEndian.Uint64(src[i:])))
	}
	for ; i < len(src); i++ {
		c := src[i]
		if c-'A' < 26 {
			c += 'a' - 'A'
		}
		dst[i] = c
	}
}

// lower8 folds eight bytes at once. Adding to the low seven bits of each byte
// carries into its high bit exactly when the byte is at least 'A', or above
// 'Z'; bytes with the high bit set are left alone.
func lower8(x uint64) uint64 {
	const ones = 0x0101010101010101
	low := x & (0x7f * ones)
	upper := (low + (0x80-'A')*ones) &^ (low + (0x80-'Z'-1)*ones) &^ x & (0x80 * ones)
	return x | upper>>2
}

// OtherNames calls f with the name of every question after the first, in the
// form of Name, until f returns true. It reports whether f did, and whether
// all names could be read; of a message with more than maxQuestions questions
// they cannot. The name is valid during the call.
//
// Here compression pointers are followed, backwards only.
func (q *Question) OtherNames(msg []byte, f func(name []byte) bool) (found, whole bool) {
	if q.Count > maxQuestions {
		return false, false
	}
	off := q.End
	for range q.Count - 1 {
		name, next := appendName(q.other[:0], msg, off)
		if next < 0 || len(msg)-next < 4 {
			return false, false
		}
		if f(name) {
			return true, true
		}
		off = next + 4
	}
	return false, true
}

// appendName appends the name at msg[off:] to dst, lower case, and returns
// the offset behind it, negative if it is malformed.
func appendName(dst, msg []byte, off int) ([]byte, int) {
	end, limit := -1, len(msg)
	for range maxPointers + 128 {
		if off >= len(msg) {
			return dst, -1
		}
		l := int(msg[off])
		switch {
		case l == 0:
			if end < 0 {
				end = off + 1
			}
			return append(dst, 0), end
		case l <= 63:
			if off+1+l > len(msg) || len(dst)+1+l >= maxName {
				return dst, -1
			}
			at := len(dst) + 1
			dst = append(dst, msg[off:off+1+l]...)
			lower(dst[at:], msg[off+1:off+1+l])
			off += 1 + l
		case l&pointerMask == pointerMask && off+1 < len(msg):
			if end < 0 {
				end = off + 2
			}
			to := int(binary.BigEndian.Uint16(msg[off:])) & pointerTarget
			if to >= min(off, limit) || to < headerLen {
				return dst, -1
			}
			off, limit = to, to
		default:
			return dst, -1
		}
	}
	return dst, -1
}
