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
	for len(frame) > 0 {
		f, n := field(frame)
		if n < 0 {
			return Protobuf
		}
		frame = frame[n:]
		switch f.tag {
		case 1<<3 | 2:
			m.Identity = f.bytes
		case 14<<3 | 2:
			m.Present |= HasMessage
			if !m.decodeMessage(f.bytes) {
				return Protobuf
			}
		case 15<<3 | 0:
			m.DnstapType = int32(f.num)
			m.Present |= HasDnstapType
		}
	}
	if m.Present&HasDnstapType == 0 || m.DnstapType == 1 && m.Present&HasMessage == 0 {
		return NoMessage
	}
	return None
}

func (m *Message) decodeMessage(b []byte) bool {
	for len(b) > 0 {
		f, n := field(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch f.tag {
		case 1<<3 | 0:
			m.Type = int32(f.num)
			m.Present |= HasType
		case 3<<3 | 0:
			m.Protocol = int32(f.num)
			m.Present |= HasProtocol
		case 4<<3 | 2:
			m.QueryAddress = f.bytes
		case 5<<3 | 2:
			m.ResponseAddress = f.bytes
		case 6<<3 | 0:
			m.QueryPort = uint32(f.num)
			m.Present |= HasQueryPort
		case 7<<3 | 0:
			m.ResponsePort = uint32(f.num)
			m.Present |= HasResponsePort
		case 8<<3 | 0:
			m.QuerySec = f.num
			m.Present |= HasQueryTime
		case 9<<3 | 5:
			m.QueryNsec = uint32(f.num)
		case 12<<3 | 0:
			m.ResponseSec = f.num
			m.Present |= HasResponseTime
		case 13<<3 | 5:
			m.ResponseNsec = uint32(f.num)
		case 14<<3 | 2:
			m.Response = f.bytes
		}
	}
	return true
}

// A value is one protobuf field: its tag (number and wire type, of the fields
// we know always a single byte), and its content.
type value struct {
	tag   uint64
	num   uint64
	bytes []byte
}

// field reads the field at the start of b and returns its length, negative if
// it is malformed.
func field(b []byte) (value, int) {
	tag, n := uint64(b[0]), 1
	if tag >= 0x80 || tag < 8 {
		num, typ, k := protowire.ConsumeTag(b)
		if k < 0 {
			return value{}, -1
		}
		tag, n = protowire.EncodeTag(num, typ), k
	}
	switch tag & 7 {
	case 0:
		v, k := uvarint(b[n:])
		return value{tag: tag, num: v}, add(n, k)
	case 2:
		l, k := uvarint(b[n:])
		if k < 0 || l > uint64(len(b)-n-k) {
			return value{}, -1
		}
		n += k
		return value{tag: tag, bytes: b[n : n+int(l) : n+int(l)]}, n + int(l)
	case 5:
		if len(b) < n+4 {
			return value{}, -1
		}
		return value{tag: tag, num: uint64(binary.LittleEndian.Uint32(b[n:]))}, n + 4
	}
	return value{tag: tag}, add(n, protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b[n:]))
}

// uvarint reads a varint and returns its length, negative if it is malformed.
// The lengths and numbers of dnstap fit one or two bytes nearly always.
func uvarint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	if len(b) > 1 && b[1] < 0x80 {
		return uint64(b[0]&0x7f) | uint64(b[1])<<7, 2
	}
	return protowire.ConsumeVarint(b)
}

func add(n, k int) int {
	if k < 0 {
		return -1
	}
	return n + k
}
