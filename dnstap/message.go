package dnstap

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// ClientResponse is the Message type of an answer given to a client.
const ClientResponse = 6

// TypeNames holds the names of the Message types of dnstap.pb, by number.
var TypeNames = [...]string{
	1: "AUTH_QUERY", 2: "AUTH_RESPONSE", 3: "RESOLVER_QUERY", 4: "RESOLVER_RESPONSE",
	5: "CLIENT_QUERY", 6: "CLIENT_RESPONSE", 7: "FORWARDER_QUERY", 8: "FORWARDER_RESPONSE",
	9: "STUB_QUERY", 10: "STUB_RESPONSE", 11: "TOOL_QUERY", 12: "TOOL_RESPONSE",
	13: "UPDATE_QUERY", 14: "UPDATE_RESPONSE",
}

// Set says which optional fields of a Message were present.
type Set uint16

const (
	HasDnstapType Set = 1 << iota
	HasMessage
	HasType
	HasProtocol
	HasQueryPort
	HasResponsePort
	HasQueryTime
	HasResponseTime
)

// A Message holds the fields of a Dnstap and of the Message in it. Its slices
// are views into the frame that was decoded.
//
// A number wider than its field is cut to the field's width, a field of the
// wrong wire type is taken for an unknown one, the last of several values
// counts and several messages are merged: all as protobuf has it.
type Message struct {
	Present Set

	DnstapType int32 // 1 is MESSAGE
	Type       int32 // ClientResponse and others, see TypeNames
	Protocol   int32 // 1 UDP, 2 TCP, 3 DoT, 4 DoH, and newer ones

	QueryPort    uint32
	ResponsePort uint32

	QuerySec, ResponseSec   uint64 // since 1970
	QueryNsec, ResponseNsec uint32

	Identity        []byte
	QueryAddress    []byte // of the client, any length
	ResponseAddress []byte // of the resolver, any length
	Response        []byte // the DNS message, nil if absent
}

// Decode reads frame, the content of one data frame. It returns Protobuf or
// NoMessage if it cannot, and then m is of no use.
func (m *Message) Decode(frame []byte) Fault {
	*m = Message{}
	for i := 0; i < len(frame); {
		f, next := field(frame, i)
		if next < 0 {
			return Protobuf
		}
		switch frame[i] {
		case 1<<3 | wireBytes:
			m.Identity = frame[f:next:next]
		case 14<<3 | wireBytes:
			m.Present |= HasMessage
			if !m.decodeMessage(frame[f:next]) {
				return Protobuf
			}
		case 15<<3 | wireVarint:
			m.DnstapType = int32(f)
			m.Present |= HasDnstapType
		}
		i = next
	}
	if m.Present&HasDnstapType == 0 || m.DnstapType == 1 && m.Present&HasMessage == 0 {
		return NoMessage
	}
	return None
}

func (m *Message) decodeMessage(b []byte) bool {
	for i := 0; i < len(b); {
		f, next := field(b, i)
		if next < 0 {
			return false
		}
		switch b[i] {
		case 1<<3 | wireVarint:
			m.Type = int32(f)
			m.Present |= HasType
		case 3<<3 | wireVarint:
			m.Protocol = int32(f)
			m.Present |= HasProtocol
		case 4<<3 | wireBytes:
			m.QueryAddress = b[f:next:next]
		case 5<<3 | wireBytes:
			m.ResponseAddress = b[f:next:next]
		case 6<<3 | wireVarint:
			m.QueryPort = uint32(f)
			m.Present |= HasQueryPort
		case 7<<3 | wireVarint:
			m.ResponsePort = uint32(f)
			m.Present |= HasResponsePort
		case 8<<3 | wireVarint:
			m.QuerySec = f
			m.Present |= HasQueryTime
		case 9<<3 | wireFixed32:
			m.QueryNsec = uint32(f)
		case 12<<3 | wireVarint:
			m.ResponseSec = f
			m.Present |= HasResponseTime
		case 13<<3 | wireFixed32:
			m.ResponseNsec = uint32(f)
		case 14<<3 | wireBytes:
			m.Response = b[f:next:next]
		}
		i = next
	}
	return true
}

const (
	wireVarint  = 0
	wireBytes   = 2
	wireFixed32 = 5
)

// field reads the protobuf field at b[i]. For a varint or a fixed32 it returns
// the number, for bytes the offset at which they begin, and for all the offset
// behind the field, negative if it is malformed.
//
// Its tag, number and wire type, is b[i] alone for every field that we know;
// a tag of several octets begins with one that is none of ours.
func field(b []byte, i int) (f uint64, next int) {
	tag := b[i]
	if tag >= 0x80 || tag < 8 {
		return 0, skipField(b, i)
	}
	i++
	switch tag & 7 {
	case wireVarint, wireBytes:
		n, end := uvarint(b, i)
		if tag&7 == wireVarint || end < 0 {
			return n, end
		}
		if n > uint64(len(b)-end) {
			return 0, -1
		}
		return uint64(end), end + int(n)
	case wireFixed32:
		if len(b)-i < 4 {
			return 0, -1
		}
		return uint64(binary.LittleEndian.Uint32(b[i:])), i + 4
	}
	return 0, skipField(b, i-1)
}

// uvarint reads the varint at b[i] and returns the offset behind it, negative
// if it is malformed. The numbers in dnstap have one to three octets, but for
// times, of five.
func uvarint(b []byte, i int) (n uint64, end int) {
	for shift := uint(0); i < len(b) && shift < 35; shift += 7 {
		c := b[i]
		n |= uint64(c&0x7f) << shift
		i++
		if c < 0x80 {
			return n, i
		}
	}
	if i >= len(b) {
		return 0, -1
	}
	start := i - 5
	n, k := protowire.ConsumeVarint(b[start:])
	if k < 0 {
		return 0, -1
	}
	return n, start + k
}

// skipField returns the offset behind a field that is none of ours, negative
// if it is malformed.
func skipField(b []byte, i int) int {
	number, _, n := protowire.ConsumeField(b[i:])
	if n < 0 || number > protowire.MaxValidNumber {
		return -1
	}
	return i + n
}
