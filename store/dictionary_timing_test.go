package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkLookup asks for names in random order out of many more than the first
// caches hold: half of them on the list (exact, or below a suffix), half not.
func BenchmarkLookup(b *testing.B) {
	for _, entries := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("%dk", entries/1000), func(b *testing.B) {
			list := makeList(1, entries)
			d := dictionaryOf(b, list)
			for _, load := range []struct {
				name string
				hits int // of 4
			}{{"mixed", 2}, {"hits", 4}, {"misses", 0}} {
				names := makeQuestions(list, load.hits)
				b.Run(load.name, func(b *testing.B) {
					b.ReportAllocs()
					hits := 0
					i := 0
					for b.Loop() {
						if _, m := d.Lookup(names[i]); m != None {
							hits++
						}
						if i++; i == len(names) {
							i = 0
						}
					}
					b.ReportMetric(100*float64(hits)/float64(b.N), "hit%")
				})
			}
		})
	}
}

// makeList makes entries as well-known lists have them: two and three labels,
// three in ten of them suffixes. The same seed makes the same list.
func makeList(seed uint64, n int) []string {
	random := rand.New(rand.NewPCG(seed, 0))
	list := make([]string, 0, n)
	for i := range n {
		name := fmt.Sprintf("%s%d.%s.", randomLabel(random), i, topLevel[random.IntN(len(topLevel))])
		switch random.IntN(10) {
		case 0, 1, 2:
			name = "." + name
		case 3, 4, 5:
			name = hosts[random.IntN(len(hosts))] + "." + name
		}
		list = append(list, name)
	}
	return list
}

var (
	topLevel = []string{"com", "net", "org", "se", "de", "co.uk", "io", "dev", "info", "com.br"}
	hosts    = []string{"www", "mail", "api", "cdn", "img-1", "static", "_dmarc", "ns1"}
)

func randomLabel(random *rand.Rand) string {
	label := make([]byte, 3+random.IntN(9))
	for i := range label {
		label[i] = byte('a' + random.IntN(26))
	}
	return string(label)
}

// makeQuestions makes 2^16 names in wire form, of which this many in 4 fall
// under an entry of the list.
func makeQuestions(list []string, hits int) [][]byte {
	random := rand.New(rand.NewPCG(2, 0))
	var names [][]byte
	for i := range 1 << 16 {
		text := list[random.IntN(len(list))]
		if text[0] == '.' {
			text = hosts[random.IntN(len(hosts))] + text
		}
		if i%4 >= hits {
			text = fmt.Sprintf("%s.%s%x.%s.", hosts[random.IntN(len(hosts))], randomLabel(random), i, topLevel[random.IntN(len(topLevel))])
		}
		name, err := appendName(nil, []byte(text))
		if err != nil {
			panic("BUG: " + err.Error())
		}
		names = append(names, name)
	}
	return names
}
