package traffic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
)

// Names are put together from parts like these: pronounceable, of the lengths
// that real names have, and nobody's.
var parts = strings.Fields(`
	net web data cloud media news shop store play game sport film photo music
	travel home auto bank pay health care lab tech soft micro mega ultra meta
	blue red green black white north south east west nord sun moon star sky
	river stone wood iron gold silver fast quick smart easy open free safe pro
	prime first next new old big little bright clear deep dev code byte pixel
	logic craft works hub zone port gate way link line point spot place world
	globe land city town park field farm food cook taste fresh pure life style
	mode wear kids baby pet dog cat bird fish wolf bear lion tiger fox eagle
	ka ri to mo na shi yo ko len dor vik sen berg holm strom lund by gard hus
	stad maz tel nor fin dan sve pol rus ger fra ita esp bra mex can jap kor
	tion ment able ify ly io ex on us is el al an ar er or um ia ea oa`)

var hosts = strings.Fields(`
	www mail api cdn img static m login auth assets s3 fonts ads track metrics
	events telemetry push update download files edge gw vpn smtp imap mx ns1
	ns2 docs help support blog shop search video stream chat app portal secure
	data graph config collector beacon sync time ntp geo maps play accounts`)

// A suffix that stands here three times is drawn three times as often.
var suffixes = strings.Fields(`
	com com com com com com com com com com com com com com com com com com
	org org org org net net net de de se co.uk nl fr it ru io edu gov com.br
	co.jp pl es eu ca com.au ch at cz dk no fi info app dev xyz ac.uk in cn`)

var services = strings.Fields(`
	_ldap._tcp _kerberos._udp _sip._tls _dmarc _xmpp-client._tcp _autodiscover._tcp`)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// word draws one label of two or three parts.
func word(r *rand.Rand) string {
	w := pick(r, parts) + pick(r, parts)
	switch x := r.IntN(100); {
	case x < 8:
		w += "-" + pick(r, parts)
	case x < 35:
		w += pick(r, parts)
	case x < 44:
		w += fmt.Sprint(r.IntN(1000))
	}
	return w
}

func host(r *rand.Rand) string {
	if r.IntN(4) == 0 {
		return fmt.Sprint(pick(r, hosts), 1+r.IntN(60))
	}
	return pick(r, hosts)
}

// domain draws what somebody could have registered, with its final dot.
func domain(r *rand.Rand) string { return word(r) + "." + pick(r, suffixes) + "." }

// hostname draws a name as a stub resolver asks for it: mostly a host in a
// domain, some deeper, some reverse look-ups and service labels.
func hostname(r *rand.Rand) string {
	switch x := r.IntN(1000); {
	case x < 40:
		return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", r.IntN(256), r.IntN(256), r.IntN(256), 1+r.IntN(223))
	case x < 50:
		nibbles := strings.Split(fmt.Sprintf("%012x%012x", r.Uint64()>>16, r.Uint64()>>16), "")
		return strings.Join(nibbles, ".") + ".8.b.d.0.1.0.0.2.ip6.arpa."
	case x < 75:
		return pick(r, services) + "." + domain(r)
	case x < 225:
		return domain(r)
	case x < 700:
		return host(r) + "." + domain(r)
	case x < 850:
		return host(r) + "." + word(r) + "." + domain(r)
	case x < 950:
		return fmt.Sprintf("ip-%d-%d-%d.%s.%s.%s", r.IntN(256), r.IntN(256), r.IntN(256), host(r), word(r), domain(r))
	default:
		return fmt.Sprintf("%08x.%04x.%s.%s.%s", r.Uint32(), r.IntN(1<<16), host(r), word(r), domain(r))
	}
}

// List makes a list of n well-known names, distinct and in sorted order. Three
// in ten are suffix entries, which begin with a dot and cover what is below
// them but not themselves.
func List(seed uint64, n int) []string {
	r := rand.New(rand.NewPCG(seed, 0))
	have := make(map[string]bool, n)
	for len(have) < n {
		entry := domain(r)
		switch x := r.IntN(1000); {
		case x < 45:
			entry = host(r) + "." + word(r) + "." + entry
		case x < 330:
			entry = host(r) + "." + entry
		}
		if r.IntN(10) < 3 {
			entry = "." + entry
		}
		have[entry] = true
	}
	list := make([]string, 0, n)
	for entry := range have {
		list = append(list, entry)
	}
	slices.Sort(list)
	return list
}

// WriteList writes a list of names to a file, one a line.
func WriteList(path string, list []string) error {
	return os.WriteFile(path, []byte(strings.Join(list, "\n")+"\n"), 0o644)
}

// index finds the entry of a list that covers a name.
type index map[string]uint32

func newIndex(list []string) index {
	ix := make(index, len(list))
	for i, entry := range list {
		ix[entry] = uint32(i)
	}
	return ix
}

// covering returns the place in the list of the entry that a lower-case name
// counts under: itself if it is listed, else the longest suffix entry.
func (ix index) covering(name string) (entry uint32, ok bool) {
	if entry, ok = ix[name]; ok {
		return entry, true
	}
	for i := range len(name) - 1 {
		if name[i] == '.' {
			if entry, ok = ix[name[i:]]; ok {
				return entry, true
			}
		}
	}
	return 0, false
}

// zipf draws ranks with a probability proportional to 1/(rank+1)^s.
type zipf []float64

func newZipf(n int, s float64) zipf {
	z := make(zipf, n)
	sum := 0.0
	for i := range z {
		sum += math.Pow(float64(i+1), -s)
		z[i] = sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int {
	return min(sort.SearchFloat64s(z, r.Float64()*z[len(z)-1]), len(z)-1)
}
