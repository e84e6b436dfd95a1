package output

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"edm/cryptopan"
)

// BenchmarkSessionFile measures a row's way from a Row to the disk, in blocks
// of usual size.
func BenchmarkSessionFile(b *testing.B) {
	cipher, err := cryptopan.New([]byte("secret"), []byte("salt"))
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	names := [][]byte{
		[]byte("\x03www\x07example\x03com\x00"), []byte("\x05mail2\x09something\x02co\x02uk\x00"),
		[]byte("\x0dabcdefghijklm\x04edge\x08provider\x03net\x00"), []byte("\x07example\x03org\x00"),
	}
	rows := make([]Row, 10_000)
	for i := range rows {
		client := netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
		if i%5 == 0 {
			client = netip.AddrFrom16([16]byte{0x20, 1, 13: byte(r.Uint32()), 14: byte(r.Uint32()), 15: byte(r.Uint32())})
		}
		response := make([]byte, 60+r.IntN(140))
		for j := range response {
			if j%4 == 0 {
				response[j] = byte(r.Uint32())
			}
		}
		binary.BigEndian.PutUint16(response, uint16(i))
		rows[i] = Row{
			Has: HasResponseTime | HasSourcePort | HasDestPort | HasProtocol, Protocol: 1,
			SourcePort: uint16(r.Uint32()), DestPort: 53, ResponseTime: 1_796_000_000_000_000 + int64(i)*100,
			Source: cipher.Pseudonym(client), Dest: cipher.Pseudonym(netip.MustParseAddr("192.0.2.53")),
			Name: names[i%len(names)], ServerID: []byte("resolver-01"), Response: response,
		}
	}
	s, err := CreateSession(b.TempDir(), time.Now())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Abort()
	var block Block
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n++ {
		block.Append(&rows[n%len(rows)])
		if block.Full() {
			if err := s.Write(&block); err != nil {
				b.Fatal(err)
			}
			block.Reset()
		}
	}
}
