package dnstap

import (
	"bytes"
	"net"
	"testing"

	"github.com/miekg/dns"
)

// answered is a response with an answer, extra records of its own and two
// options that identify a client.
func answered(t testing.TB, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion("www.example.com.", dns.TypeA)
	m.Response, m.Compress = true, true
	rr, err := dns.NewRR("www.example.com. 60 IN A 192.0.2.80")
	if err != nil {
		t.Fatal(err)
	}
	m.Answer = []dns.RR{rr}
	m.SetEdns0(1232, true)
	o := m.IsEdns0()
	o.Option = []dns.EDNS0{
		&dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "6e73"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 32, Address: net.IPv4(198, 51, 100, 7).To4()},
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_EDE{InfoCode: 3, ExtraText: "stale"},
		&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("device")},
		&dns.EDNS0_PADDING{Padding: []byte("pad")},
	}
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decoded(t testing.TB, msg []byte) *Question {
	t.Helper()
	q := new(Question)
	if fault := q.Decode(msg); fault != None {
		t.Fatal(fault)
	}
	return q
}

func TestStripBlanksWhatNamesTheClient(t *testing.T) {
	f := func(name string, change func(*dns.Msg)) {
		t.Run(name, func(t *testing.T) {
			msg := answered(t, change)
			before := len(msg)
			if !decoded(t, msg).Strip(msg) || len(msg) != before {
				t.Fatal("not walked to the end")
			}
			for _, secret := range []string{"\xc6\x33\x64\x07", "\x01\x02\x03\x04\x05\x06\x07\x08", "device"} {
				if bytes.Contains(msg, []byte(secret)) {
					t.Errorf("%q is still there", secret)
				}
			}
			for _, kept := range []string{"ns", "stale", "pad"} {
				if !bytes.Contains(msg, []byte(kept)) {
					t.Errorf("%q is gone", kept)
				}
			}
			q := decoded(t, msg)
			if string(AppendName(nil, q.Name())) != "www.example.com." {
				t.Error("the question is damaged")
			}
			for w, ok := records(msg, q.End); ; {
				more, fits := w.next()
				if !ok || !fits {
					t.Fatal("the stripped message cannot be walked")
				}
				if !more {
					break
				}
			}
		})
	}
	f("one OPT", nil)
	f("two OPT", func(m *dns.Msg) { m.Extra = append(m.Extra, dns.Copy(m.Extra[0])) })
	f("OPT in the answer section", func(m *dns.Msg) { m.Answer = append(m.Answer, m.Extra[0]); m.Extra = nil })
	f("two questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })
}

func TestStripRefusesWhatItCannotWalk(t *testing.T) {
	whole := answered(t, nil)
	for n := range whole {
		msg := bytes.Clone(whole[:n])
		var q Question
		if q.Decode(msg) == None && q.Strip(msg) {
			t.Errorf("the first %d of %d bytes pass", n, len(whole))
		}
	}
	longer := append(bytes.Clone(whole), 0)
	if decoded(t, longer).Strip(longer) {
		t.Error("a byte behind the last record passes")
	}
	option := bytes.Clone(whole)
	i := bytes.Index(option, []byte("\x00\x0c\x00\x03pad"))
	option[i+3] = 4 // the last option is longer than the record
	if decoded(t, option).Strip(option) {
		t.Error("an option that does not fit its record passes")
	}
}

func TestExtendedRcode(t *testing.T) {
	f := func(name string, want int, change func(*dns.Msg)) {
		t.Run(name, func(t *testing.T) {
			msg := answered(t, change)
			if got := decoded(t, msg).ExtendedRcode(msg); got != want {
				t.Errorf("got %d, want %d", got, want)
			}
		})
	}
	f("no error", 0, nil)
	f("NXDOMAIN", 3, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError })
	f("BADVERS", 16, func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers })
	f("without OPT", 2, func(m *dns.Msg) { m.Extra = nil; m.Rcode = dns.RcodeServerFailure })
	f("large code", 0xff3, func(m *dns.Msg) { m.Rcode = 0xff3 })
	cut := answered(t, func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers })
	cut = cut[:len(cut)-60]
	if got := decoded(t, cut).ExtendedRcode(cut); got != 0 {
		t.Errorf("a cut message gives %d", got)
	}
}

// FuzzStrip holds that Strip finds the records where miekg/dns does: what it
// passes has no option left whose data is not zeros.
func FuzzStrip(f *testing.F) {
	f.Add(answered(f, nil))
	f.Add(answered(f, func(m *dns.Msg) { m.Extra = append(m.Extra, m.Extra[0]) }))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var q Question
		if q.Decode(msg) != None {
			return
		}
		rcode := q.ExtendedRcode(msg)
		if !q.Strip(msg) {
			return
		}
		if got := q.ExtendedRcode(msg); got != rcode {
			t.Errorf("the response code was %d, is %d", rcode, got)
		}
		var m dns.Msg
		if m.Unpack(msg) != nil {
			return
		}
		for _, rr := range append(append(m.Answer, m.Ns...), m.Extra...) {
			o, ok := rr.(*dns.OPT)
			if !ok {
				continue
			}
			for _, opt := range o.Option {
				if l, ok := opt.(*dns.EDNS0_LOCAL); ok && l.Code != optEDE && len(bytes.Trim(l.Data, "\x00")) > 0 {
					t.Errorf("option %d holds %q", l.Code, l.Data)
				}
				if c, ok := opt.(*dns.EDNS0_COOKIE); ok && len(bytes.Trim([]byte(c.Cookie), "0")) > 0 {
					t.Errorf("cookie %s", c.Cookie)
				}
			}
		}
	})
}
