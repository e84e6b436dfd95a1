package output

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"

	"edm/dnstap"
)

// An Event says that a name was seen for the first time.
type Event struct {
	Number uint64 // of the queue that it comes from
	Name   []byte // wire form, lower case
	Flags  uint16 // of the DNS header
	Type   uint16 // asked for
	Class  uint16
	Minute int64 // since 1970, when it was seen

	faults int // how often it went wrong, with others taken in between
	smooth int // what it was in the window, the last time that counted
}

// appendPayload appends the event as the schema of new_qname has it: these
// members in this order, and no others.
func (e *Event) appendPayload(dst []byte) []byte {
	dst = append(dst, `{"flags":`...)
	dst = strconv.AppendUint(dst, uint64(e.Flags), 10)
	dst = append(dst, `,"qclass":`...)
	dst = strconv.AppendUint(dst, uint64(e.Class), 10)
	dst = append(dst, `,"qname":"`...)
	dst = appendJSONName(dst, e.Name)
	dst = append(dst, `","qtype":`...)
	dst = strconv.AppendUint(dst, uint64(e.Type), 10)
	dst = append(dst, `,"timestamp":"`...)
	dst = time.Unix(e.Minute*60, 0).UTC().AppendFormat(dst, time.RFC3339)
	return append(dst, `","type":"new_qname","version":0}`...)
}

// appendJSONName appends the presentation form of a name as the inside of a
// JSON string. It is printable ASCII, so only quotes and backslashes matter.
func appendJSONName(dst, name []byte) []byte {
	start := len(dst)
	dst = dnstap.AppendName(dst, name)
	for i := start; i < len(dst); i++ {
		if dst[i] == '"' || dst[i] == '\\' {
			dst = append(dst, 0)
			copy(dst[i+1:], dst[i:])
			dst[i] = '\\'
			i++
		}
	}
	return dst
}

// storable reports whether Core can store the name: it is not the root, and
// has no characters but letters, digits and -/_=.
func (e *Event) storable() bool {
	if len(e.Name) <= 1 {
		return false
	}
	for i := 0; e.Name[i] != 0; i += 1 + int(e.Name[i]) {
		for _, c := range e.Name[i+1 : i+1+int(e.Name[i])] {
			switch {
			case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '/', c == '_', c == '=':
			default:
				return false
			}
		}
	}
	return true
}

// A signer makes signed events with one key, on one goroutine.
type signer struct {
	key       *SigningKey
	protected []byte // the header, in base64url
	payload   []byte
	input     []byte // what is signed: the header, a dot and the payload in base64url
}

func newSigner(key *SigningKey) *signer {
	header, err := json.Marshal(struct {
		Alg string `json:"alg"`
		Kid string `json:"kid"`
	}{"EdDSA", key.ID})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &signer{key: key, protected: base64.RawURLEncoding.AppendEncode(nil, header)}
}

// appendSigned appends the event as a flattened JSON Web Signature (RFC 7515
// section 7.2.2).
func (s *signer) appendSigned(dst []byte, e *Event) []byte {
	s.payload = e.appendPayload(s.payload[:0])
	s.input = append(append(s.input[:0], s.protected...), '.')
	s.input = base64.RawURLEncoding.AppendEncode(s.input, s.payload)
	signature := s.key.sign(s.input)

	dst = append(dst, `{"payload":"`...)
	dst = append(dst, s.input[len(s.protected)+1:]...)
	dst = append(dst, `","protected":"`...)
	dst = append(dst, s.protected...)
	dst = append(dst, `","signature":"`...)
	dst = base64.RawURLEncoding.AppendEncode(dst, signature)
	return append(dst, `"}`...)
}
