package store

import "encoding/binary"

// A Match says how a name is on a list. The values are those of
// edm_status_bits in histogram files.
type Match uint8

const (
	None   Match = 0
	Exact  Match = 1 // the entry is the name
	Suffix Match = 2 // the entry is a name above it
)

// A Dictionary is an immutable list of names, shared by all goroutines. A nil
// Dictionary matches nothing.
//
// It is one flat hash table over names that lie one behind the other in an
// arena: no pointer an entry, so the garbage collector has nothing to walk, and
// 20 to 32 bytes an entry besides its name.
//
// A record in the arena is 4 bytes (little-endian: id<<1, and 1 for a suffix
// entry) and the name. A slot of the table is the offset of a record in its
// lower half and a tag in its upper half: 31 bits of the hash and the same
// suffix bit. Slot 0 is empty; offset 0 is never a record.
type Dictionary struct {
	slots     []uint64 // power of two, at most two thirds full, linear probing
	slotShift uint
	arena     []byte
	offsets   []uint32 // of record id; one more than there are records, the last is the end

	// What spares a miss the table: the filter has a bit set for the hash of
	// each exact entry and for the complement of that of each suffix entry, by
	// its upper bits; suffix entries have suffixMin to suffixMin+suffixSpan labels.
	filter      []uint64
	filterShift uint
	suffixMin   int
	suffixSpan  uint
}

const (
	recordHeader = 4
	maxName      = 255 // bytes of a name in wire form
	maxLabels    = 127
)

// Len returns the number of entries, 0 for a nil Dictionary. An empty file is no
// error here: whether it may be empty is for the caller to say.
func (d *Dictionary) Len() int {
	if d == nil {
		return 0
	}
	return len(d.offsets) - 1
}

// Entry returns the name of entry id, which must be below Len, and whether it is
// Exact or Suffix. The name lives as long as the Dictionary and must not be
// changed.
func (d *Dictionary) Entry(id uint32) (name []byte, m Match) {
	record := d.arena[d.offsets[id]:d.offsets[id+1]:d.offsets[id+1]]
	m = Exact
	if record[0]&1 != 0 {
		m = Suffix
	}
	return record[recordHeader:], m
}

// Lookup finds the entry that a name falls under: the exact one, else the
// suffix entry with the most labels. It allocates nothing and keeps nothing.
//
// The name must be in wire form and lower case. What is no such name matches
// nothing.
//
// Hashes grow from the root towards the host, so one pass gives those of all
// suffixes. The pass only asks the filter; the table, which is too large for
// most caches, is asked for the whole name and for the longest suffix, and only
// if the filter lets them through.
func (d *Dictionary) Lookup(name []byte) (id uint32, m Match) {
	if d == nil || len(name) > maxName {
		return 0, None
	}
	var starts [maxLabels + 1]uint8
	labels := splitLabels(name, &starts)
	if labels < 0 {
		return 0, None
	}

	h := hashRoot
	longest, longestHash := -1, uint64(0)
	end := len(name) - 1
	for i := labels - 1; i >= 0; i-- {
		// h is the hash of the suffix that begins at end and has this many labels.
		above := labels - 1 - i
		if uint(above-d.suffixMin) <= d.suffixSpan && d.maybe(^h) {
			longest, longestHash = i, h
		}
		start := int(starts[i])
		h = hashLabel(h, name, start, end)
		end = start
	}

	if d.maybe(h) {
		if id, ok := d.find(h, 0, name); ok {
			return id, Exact
		}
	}
	if longest < 0 {
		return 0, None
	}
	if id, ok := d.find(longestHash, 1, name[suffixStart(name, &starts, longest):]); ok {
		return id, Suffix
	}
	return d.lookupShorter(name, &starts, longest)
}

// lookupShorter goes on where the filter was wrong about the suffix behind
// label i: it asks the table for every shorter one. Rare, so it may be slow.
func (d *Dictionary) lookupShorter(name []byte, starts *[maxLabels + 1]uint8, i int) (id uint32, m Match) {
	start := suffixStart(name, starts, i)
	for name[start] != 0 {
		start += 1 + int(name[start])
		if id, ok := d.find(hashName(name[start:]), 1, name[start:]); ok {
			return id, Suffix
		}
	}
	return 0, None
}

// splitLabels writes down where each label begins and returns how many there
// are, or -1 if name is not a whole name and nothing else. Name has at most
// maxName bytes.
func splitLabels(name []byte, starts *[maxLabels + 1]uint8) int {
	n, at := 0, 0
	for at < len(name) {
		length := int(name[at])
		if length == 0 {
			if at != len(name)-1 {
				return -1
			}
			return n
		}
		if length > 63 || n == maxLabels {
			return -1
		}
		starts[n&maxLabels] = uint8(at)
		n++
		at += 1 + length
	}
	return -1
}

// suffixStart returns where the suffix without labels 0 to i begins.
func suffixStart(name []byte, starts *[maxLabels + 1]uint8, i int) int {
	start := int(starts[i])
	return start + 1 + int(name[start])
}

// maybe is false for most hashes that no exact entry has; for suffix entries it
// is to be asked about the complement.
func (d *Dictionary) maybe(h uint64) bool {
	bit := h >> d.filterShift
	return d.filter[bit>>6]>>(bit&63)&1 != 0
}

// find returns the id of the entry with this name; suffix is 1 for suffix
// entries, 0 for exact ones.
func (d *Dictionary) find(h uint64, suffix uint32, name []byte) (id uint32, ok bool) {
	slots := d.slots
	tag := slotTag(h, suffix)
	for i := d.firstSlot(h); ; i++ {
		slot := slots[i&uint64(len(slots)-1)]
		if slot == 0 {
			return 0, false
		}
		if uint32(slot>>32) != tag {
			continue
		}
		// No name is the beginning of another, so it is enough to compare as
		// many bytes as this one has.
		record := d.arena[uint32(slot):]
		if len(record) >= recordHeader+len(name) && string(record[recordHeader:recordHeader+len(name)]) == string(name) {
			return binary.LittleEndian.Uint32(record) >> 1, true
		}
	}
}

// firstSlot returns where to begin to look for a hash. The multiplication is
// for names that differ in a few digits, whose hashes may lie close together.
func (d *Dictionary) firstSlot(h uint64) uint64 { return h * hashRoot >> d.slotShift }

func slotTag(h uint64, suffix uint32) uint32 { return uint32(h>>32)&^1 | suffix }
