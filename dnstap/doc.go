// Package dnstap turns the bytes a resolver sends into the fields edm uses.
//
// It has three layers, each a file or two:
//
//   - frames.go cuts Frame Streams data frames out of large reads;
//   - message.go reads the dnstap protobuf by field number;
//   - question.go and records.go read the DNS header, the questions, and walk
//     the records far enough to find OPT.
//
// One rule holds everywhere in it: bytes are borrowed. What a decoder returns
// is a view into the frame it was given, valid until that frame's buffer is
// used again; the decoders copy nothing but the question name (which they fold
// to lower case) and allocate nothing. Lengths in the input are never trusted:
// each is compared with what is left before it is used. Nothing here logs,
// counts or panics; what cannot be read is a Fault, and the caller counts it.
//
// Specifications: Frame Streams (farsightsec/fstrm, fstrm/control.h), dnstap
// (dnstap.pb), RFC 1035 (messages and names), RFC 6891 (OPT).
package dnstap

// A Fault says why a frame is of no use. The zero Fault is none.
type Fault uint8

const (
	None         Fault = iota
	Protobuf           // not a dnstap protobuf
	NoMessage          // the Dnstap has type MESSAGE and no message, or no type
	NoDNS              // the message carries no DNS response
	ShortHeader        // fewer than the 12 bytes of a DNS header
	NoQuestion         // QDCOUNT is 0
	Opcode             // an opcode other than QUERY
	QuestionName       // the question is cut short, or its name malformed
	numFaults
)

// NumFaults is the number of Fault values, None included.
const NumFaults = int(numFaults)

var faultNames = [NumFaults]string{"", "protobuf", "no_message", "no_dns_message", "dns_header", "no_question", "opcode", "question"}

// String returns the name of f as it stands in metrics, "" for None.
func (f Fault) String() string { return faultNames[f] }
