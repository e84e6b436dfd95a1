package dnstap

import (
	"testing"

	golangdnstap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
)

func BenchmarkMessage(b *testing.B) {
	frame := fullFrame(b)
	var m Message
	b.ReportAllocs()
	for b.Loop() {
		if m.Decode(frame) != None {
			b.Fatal("it does not decode")
		}
	}
}

func BenchmarkMessageGolangDnstap(b *testing.B) {
	frame := fullFrame(b)
	b.ReportAllocs()
	for b.Loop() {
		var d golangdnstap.Dnstap
		if err := proto.Unmarshal(frame, &d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkQuestion(b *testing.B) {
	msg := dnsMessage(b, "www.Example-Name.com.")
	var q Question
	b.ReportAllocs()
	for b.Loop() {
		if q.Decode(msg) != None {
			b.Fatal("it does not decode")
		}
	}
}

func BenchmarkMessageMiekg(b *testing.B) {
	msg := answered(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		var m dns.Msg
		if err := m.Unpack(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStrip(b *testing.B) {
	msg := answered(b, nil)
	q := decoded(b, msg)
	b.ReportAllocs()
	for b.Loop() {
		if !q.Strip(msg) {
			b.Fatal("it cannot be walked")
		}
	}
}
