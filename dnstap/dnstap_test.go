package dnstap

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"

	golangdnstap "github.com/dnstap/golang-dnstap"
	framestream "github.com/farsightsec/golang-framestream"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// dnsMessage packs a response with the given question names.
func dnsMessage(t testing.TB, names ...string) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.Response, m.RecursionDesired = true, true
	for _, n := range names {
		m.Question = append(m.Question, dns.Question{Name: n, Qtype: dns.TypeAAAA, Qclass: dns.ClassINET})
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fullFrame is a Dnstap with every field of dnstap.pb set.
func fullFrame(t testing.TB) []byte {
	t.Helper()
	d := &golangdnstap.Dnstap{
		Identity: []byte("resolver-1"), Version: []byte("v1"), Extra: []byte("x"),
		Type: golangdnstap.Dnstap_MESSAGE.Enum(),
		Message: &golangdnstap.Message{
			Type:           golangdnstap.Message_CLIENT_RESPONSE.Enum(),
			SocketFamily:   golangdnstap.SocketFamily_INET.Enum(),
			SocketProtocol: golangdnstap.SocketProtocol_DOT.Enum(),
			QueryAddress:   net.IPv4(192, 0, 2, 1).To4(), ResponseAddress: net.IPv4(192, 0, 2, 53).To4(),
			QueryPort: proto.Uint32(40000), ResponsePort: proto.Uint32(853),
			QueryTimeSec: proto.Uint64(1796032860), QueryTimeNsec: proto.Uint32(999999999),
			ResponseTimeSec: proto.Uint64(1796032861), ResponseTimeNsec: proto.Uint32(5),
			QueryMessage: []byte("q"), QueryZone: []byte("z"),
			ResponseMessage: dnsMessage(t, "www.example.com."),
		},
	}
	b, err := proto.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkMessage compares Decode with golang-dnstap on one frame.
func checkMessage(t *testing.T, frame []byte) {
	t.Helper()
	var m Message
	fault := m.Decode(frame)
	var d golangdnstap.Dnstap
	err := proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(frame, &d)
	if (fault == Protobuf) != (err != nil) {
		t.Fatalf("Decode says %q, the oracle %v", fault, err)
	}
	if err != nil {
		return
	}
	o := d.GetMessage()
	same := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %v, the oracle has %v", what, got, want)
		}
	}
	same("identity", string(m.Identity), string(d.GetIdentity()))
	same("message present", m.Present&HasMessage != 0, d.Message != nil)
	same("query address", string(m.QueryAddress), string(o.GetQueryAddress()))
	same("response address", string(m.ResponseAddress), string(o.GetResponseAddress()))
	same("query port", m.QueryPort, o.GetQueryPort())
	same("response port", m.ResponsePort, o.GetResponsePort())
	same("query seconds", m.QuerySec, o.GetQueryTimeSec())
	same("query nanoseconds", m.QueryNsec, o.GetQueryTimeNsec())
	same("response seconds", m.ResponseSec, o.GetResponseTimeSec())
	same("response nanoseconds", m.ResponseNsec, o.GetResponseTimeNsec())
	same("response", string(m.Response), string(o.GetResponseMessage()))
	if o != nil {
		same("port present", m.Present&HasQueryPort != 0, o.QueryPort != nil)
		same("time present", m.Present&HasResponseTime != 0, o.ResponseTimeSec != nil)
	}
	// The oracle keeps closed enums: a value it does not know, even one that
	// follows a known one, is not in the field.
	if o != nil && o.Type != nil && int(m.Type) < len(TypeNames) && m.Type > 0 {
		same("type", m.Type, int32(o.GetType()))
	}
}

func TestDecodeMessage(t *testing.T) {
	f := func(name string, frame []byte, want Fault) {
		t.Run(name, func(t *testing.T) {
			var m Message
			if got := m.Decode(frame); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			checkMessage(t, frame)
		})
	}
	full := fullFrame(t)
	dnstapType := []byte{15 << 3, 1}
	f("all fields", full, None)
	f("cut", full[:len(full)-3], Protobuf)
	f("one byte", []byte{0x0a}, Protobuf)
	f("empty", nil, NoMessage)
	f("no message", dnstapType, NoMessage)
	f("no type", protowire.AppendBytes([]byte{14<<3 | 2}, []byte{8, 6}), NoMessage)
	f("another dnstap type", []byte{15 << 3, 2}, None)
	f("field number 0", append([]byte{0, 0}, dnstapType...), Protobuf)
	f("group", append([]byte{9<<3 | 3, 9<<3 | 4}, full...), None)
	f("group without an end", append([]byte{9<<3 | 3}, full...), Protobuf)
	f("wrong wire type", append([]byte{1 << 3, 7}, full...), None)
	f("two messages are merged", append(bytes.Clone(full), 14<<3|2, 2, 6<<3, 9), None)
	f("long varint", append([]byte{16 << 3 & 0x7f, 0x80}, full...), Protobuf)
	f("longest varint", append([]byte{15 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, full...), None)
}

func TestDecodeMessageEnums(t *testing.T) {
	for _, typ := range []int32{0, 6, 14, 15, 255, -1} {
		inner := protowire.AppendVarint([]byte{8}, uint64(int64(typ)))
		inner = append(inner, 3<<3, 99)
		frame := protowire.AppendBytes([]byte{15 << 3, 1, 14<<3 | 2}, inner)
		var m Message
		if fault := m.Decode(frame); fault != None || m.Type != typ || m.Protocol != 99 {
			t.Errorf("type %d: got %q, type %d, protocol %d", typ, fault, m.Type, m.Protocol)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(fullFrame(f))
	f.Add([]byte{15 << 3, 1, 14<<3 | 2, 2, 8, 6})
	f.Add([]byte{9<<3 | 3, 9<<3 | 4, 15 << 3, 1})
	f.Fuzz(func(t *testing.T, frame []byte) { checkMessage(t, frame) })
}

// checkQuestion compares Decode with miekg/dns on one message.
func checkQuestion(t *testing.T, msg []byte) {
	t.Helper()
	var q Question
	fault := q.Decode(msg)
	if len(msg) < 12 {
		if fault != ShortHeader {
			t.Fatalf("got %q for %d bytes", fault, len(msg))
		}
		return
	}
	if fault == Opcode || fault == NoQuestion {
		if op, n := msg[2]>>3&0xf, binary.BigEndian.Uint16(msg[4:]); op == 0 && n != 0 {
			t.Fatalf("got %q for opcode %d and %d questions", fault, op, n)
		}
		return
	}
	want, off, err := dns.UnpackDomainName(msg, 12)
	pointer := false // in the first name, which we refuse
	for at := 12; at < len(msg) && msg[at] != 0 && !pointer; at += 1 + int(msg[at]) {
		pointer = msg[at] > 63
	}
	ok := err == nil && !pointer && off+4 <= len(msg)
	if (fault == None) != ok {
		t.Fatalf("got %q, the oracle %v", fault, err)
	}
	if !ok {
		return
	}
	if got := string(AppendName(nil, q.Name())); got != toLower(want) {
		t.Errorf("got name %q, the oracle has %q", got, toLower(want))
	}
	if q.Type != binary.BigEndian.Uint16(msg[off:]) || q.End != off+4 {
		t.Errorf("type %d and end %d do not follow the name", q.Type, q.End)
	}
}

// toLower folds A to Z of a presentation form. No escape holds a letter that
// is not one.
func toLower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

func header(count byte, rest ...byte) []byte {
	return append([]byte{0, 1, 0x81, 0x80, 0, count, 0, 0, 0, 0, 0, 0}, rest...)
}

func TestDecodeQuestion(t *testing.T) {
	f := func(name string, msg []byte, want Fault, wantName string) {
		t.Run(name, func(t *testing.T) {
			var q Question
			got := q.Decode(msg)
			if got != want || got == None && string(AppendName(nil, q.Name())) != wantName {
				t.Errorf("got %q, name %q", got, AppendName(nil, q.Name()))
			}
			checkQuestion(t, msg)
		})
	}
	long := strings.Repeat("a", 63)
	f("mixed case", dnsMessage(t, "ExAmPlE.COM."), None, "example.com.")
	f("only ASCII folds", header(1, 4, 'A', 0xc4, '[', '@', 0, 0, 1, 0, 1), None, `a\196[\@.`)
	f("root", dnsMessage(t, "."), None, ".")
	f("127 labels", dnsMessage(t, strings.Repeat("X.", 127)), None, strings.Repeat("x.", 127))
	f("255 octets", dnsMessage(t, strings.Repeat(long+".", 3)+long[:61]+"."), None, strings.Repeat(long+".", 3)+long[:61]+".")
	f("256 octets", header(1, []byte(strings.Repeat("\x3f"+long, 4)+"\x00\x00\x01\x00\x01")...), QuestionName, "")
	f("control characters", header(1, 5, '\t', '\n', 0, '"', 0x80, 0, 0, 1, 0, 1), None, `\009\010\000\"\128.`)
	f("dot in a label", header(1, 3, 'a', '.', 'B', 3, 'c', 'o', 'm', 0, 0, 1, 0, 1), None, `a\.b.com.`)
	f("two questions", dnsMessage(t, "a.example.", "b.example."), None, "a.example.")
	f("no question", header(0), NoQuestion, "")
	f("header alone", header(1), QuestionName, "")
	f("eleven bytes", header(1)[:11], ShortHeader, "")
	f("pointer to itself", header(1, 0xc0, 12, 0, 1, 0, 1), QuestionName, "")
	f("pointer into the header", header(1, 0xc0, 0, 0, 1, 0, 1), QuestionName, "")
	f("label type 0x40", header(1, 0x41, 'a', 0, 0, 1, 0, 1), QuestionName, "")
	f("label cut", header(1, 9, 'a'), QuestionName, "")
	f("class cut", header(1, 1, 'a', 0, 0, 1, 0), QuestionName, "")
	f("update", append([]byte{0, 1, 0x28, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0, 0, 6, 0, 1), Opcode, "")
}

func TestOtherNames(t *testing.T) {
	f := func(name string, msg []byte, wantNames string, wantWhole bool) {
		t.Run(name, func(t *testing.T) {
			var q Question
			if fault := q.Decode(msg); fault != None {
				t.Fatal(fault)
			}
			var got []string
			_, whole := q.OtherNames(msg, func(n []byte) bool {
				got = append(got, string(AppendName(nil, n)))
				return false
			})
			if strings.Join(got, " ") != wantNames || whole != wantWhole {
				t.Errorf("got %q, whole %v", got, whole)
			}
		})
	}
	first := []byte("\x07Example\x00\x00\x01\x00\x01")
	with := func(count byte, rest string) []byte { return header(count, append(bytes.Clone(first), rest...)...) }
	f("one question", with(1, ""), "", true)
	f("plain", with(2, "\x01B\x00\x00\x01\x00\x01"), "b.", true)
	f("pointer backwards", with(2, "\x01B\xc0\x0c\x00\x01\x00\x01"), "b.example.", true)
	f("pointer forwards", with(2, "\xc0\x40\x00\x01\x00\x01"), "", false)
	f("pointer to itself", with(2, "\xc0\x19\x00\x01\x00\x01"), "", false)
	f("chain", with(3, "\x01b\xc0\x0c\x00\x01\x00\x01\x01c\xc0\x19\x00\x01\x00\x01"), "b.example. c.b.example.", true)
	f("cut", with(2, "\x01B\x00\x00\x01"), "", false)
	f("too many", with(17, strings.Repeat("\xc0\x0c\x00\x01\x00\x01", 16)), "", false)
}

func FuzzQuestion(f *testing.F) {
	f.Add(dnsMessage(f, "ExAmPlE.com.", "b.example.com."))
	f.Add(header(1, 0xc0, 12, 0, 1, 0, 1))
	f.Add(header(2, []byte("\x01a\x00\x00\x01\x00\x01\x01b\xc0\x0c\x00\x01\x00\x01")...))
	f.Fuzz(func(t *testing.T, msg []byte) {
		checkQuestion(t, msg)
		var q Question
		if q.Decode(msg) == None {
			q.OtherNames(msg, func(name []byte) bool {
				if n := len(name); n == 0 || n > 255 || name[n-1] != 0 {
					t.Errorf("name %q", name)
				}
				return false
			})
		}
	})
}

func FuzzControl(f *testing.F) {
	var b bytes.Buffer
	c := framestream.ControlFrame{ControlType: framestream.CONTROL_READY, ContentTypes: [][]byte{[]byte(ContentType)}}
	if err := c.Encode(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		n, stop := Scan(b, 1<<16)
		if stop != Control {
			return
		}
		b = b[n:]
		got, _, err := DecodeControl(b)
		var want framestream.ControlFrame
		if want.DecodeEscape(bytes.NewReader(b)) != nil {
			return // it refuses more than we do
		}
		if err != nil || got.ControlType != want.ControlType || len(got.ContentTypes) != len(want.ContentTypes) {
			t.Fatalf("got %+v, %v, the oracle has %+v", got, err, want)
		}
		for i, ct := range want.ContentTypes {
			if !bytes.Equal(got.ContentTypes[i], ct) {
				t.Errorf("content type %d is %q, want %q", i, got.ContentTypes[i], ct)
			}
		}
	})
}

func TestScan(t *testing.T) {
	f := func(name, in string, wantN int, want Stop) {
		t.Run(name, func(t *testing.T) {
			if n, stop := Scan([]byte(in), 100); n != wantN || stop != want {
				t.Errorf("got %d, %d, want %d, %d", n, stop, wantN, want)
			}
		})
	}
	a := "\x00\x00\x00\x02ab"
	stop := "\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x03"
	f("nothing", "", 0, Partial)
	f("two frames", a+a, 12, Partial)
	f("cut in the length", a+"\x00\x00\x00", 6, Partial)
	f("cut in the frame", a+a[:5], 6, Partial)
	f("stop", a+stop+a, 6, Control)
	f("cut in the control frame", a+stop[:11], 6, Partial)
	f("control frame too short", a+stop[:7]+"\x03", 6, Lost)
	f("control frame too long", a+stop[:6]+"\x02\x01", 6, Lost)
	f("over the limit", a+"\x00\x00\x00\x65", 6, Oversize)
	f("at the limit", a+"\x00\x00\x00\x64", 6, Partial)
	f("16 MiB", a+"\x01\x00\x00\x00", 6, Oversize)
	f("above 16 MiB", a+"\x01\x00\x00\x01", 6, Lost)
	f("2 GB", a+"\x7f\xff\xff\xff", 6, Lost)
}

func TestDecodeControlIsTolerant(t *testing.T) {
	f := func(name, fields string, wantTypes int, wantErr bool) {
		t.Run(name, func(t *testing.T) {
			b := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(4+len(fields)))
			b = append(append(b, 0, 0, 0, 4), fields...)
			c, n, err := DecodeControl(append(b, "more"...))
			if len(c.ContentTypes) != wantTypes || (err != nil) != wantErr || n != len(b) {
				t.Errorf("got %q, %d, %v", c.ContentTypes, n, err)
			}
		})
	}
	f("no field", "", 0, false)
	f("two content types", "\x00\x00\x00\x01\x00\x00\x00\x01a\x00\x00\x00\x01\x00\x00\x00\x02bc", 2, false)
	f("empty content type", "\x00\x00\x00\x01\x00\x00\x00\x00", 1, false)
	f("unknown field", "\x00\x00\x00\x09\x00\x00\x00\x01z\x00\x00\x00\x01\x00\x00\x00\x01a", 1, false)
	f("field too long", "\x00\x00\x00\x01\x00\x00\x00\x09a", 0, true)
	f("half a field", "\x00\x00\x00\x01\x00", 0, true)
}

func TestNoAllocations(t *testing.T) {
	frame := fullFrame(t)
	var m Message
	var q Question
	if n := testing.AllocsPerRun(100, func() {
		if m.Decode(frame) != None || q.Decode(m.Response) != None {
			t.Fatal("the frame does not decode")
		}
		q.OtherNames(m.Response, func([]byte) bool { return false })
		q.ExtendedRcode(m.Response)
		q.Strip(m.Response)
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}
