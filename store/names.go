package store

// A Sighting is what is known of a name that may be new: the name, and what an
// event says of the response that it was seen in.
type Sighting struct {
	Name   []byte // wire form, lower case
	Flags  uint16 // of the DNS header
	Type   uint16 // asked for
	Class  uint16
	Minute int64 // since 1970
}

// Names is a batch of sightings on their way from a worker to the store. It
// copies what it is given into an arena. It belongs to the worker, then to
// Seen, which gives it back empty.
type Names struct {
	list  []sighting
	bytes []byte
}

// A sighting is a Sighting whose name lies in its batch's arena.
type sighting struct {
	fingerprint       uint64
	minute            uint32
	at                uint32
	flags, typ, class uint16
	length            uint8
}

// Len returns the number of sightings.
func (n *Names) Len() int { return len(n.list) }

// Add adds a sighting. The fingerprint is what Seen.Fingerprint makes of its
// name.
func (n *Names) Add(fingerprint uint64, s Sighting) {
	n.list = append(n.list, sighting{
		fingerprint: fingerprint,
		minute:      uint32(s.Minute),
		at:          uint32(len(n.bytes)),
		flags:       s.Flags, typ: s.Type, class: s.Class,
		length: uint8(len(s.Name)),
	})
	n.bytes = append(n.bytes, s.Name...)
}

// Reset empties the batch. It keeps its memory, unless that is far more than was
// needed: where no name is known yet, all are new, and soon few are.
func (n *Names) Reset() {
	if cap(n.list) > 8*len(n.list)+64 {
		*n = Names{}
	}
	n.list, n.bytes = n.list[:0], n.bytes[:0]
}

func (n *Names) name(s *sighting) []byte { return n.bytes[s.at : s.at+uint32(s.length)] }
