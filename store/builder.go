package store

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
)

// A builder collects entries and makes a Dictionary of them. It belongs to one
// goroutine, and is of no use after finish.
//
// The arena is all that grows while a list is read; the table is made at the
// end, when the number of entries is known. With enough room reserved, the
// memory while loading is that of the Dictionary.
type builder struct {
	arena []byte
	count int
}

// arenaStart is the offset of the first record: offset 0 is that of none.
const arenaStart = 1

var errTooLarge = errors.New("more than 4 GiB of names")

// reserve makes room for this many bytes of records, in all.
func (b *builder) reserve(size int) {
	if size > cap(b.arena) {
		b.arena = append(make([]byte, 0, size), b.arena...)
	}
}

// predict makes room for the whole list when the arena is full, judging by the
// part of the file that was read to fill it, with a margin. Growing step by step
// would need room for two arenas each time.
func (b *builder) predict(read, total int64) {
	if cap(b.arena)-len(b.arena) >= recordHeader+maxName || read <= 0 {
		return
	}
	size := len(b.arena) + len(b.arena)/4 + 64<<10
	whole := float64(len(b.arena)) * float64(total) / float64(read) * 1.06
	// A line of n bytes makes a record of n+5 or so: a file that begins with
	// short names must not make us ask for the moon.
	size = max(size, int(min(whole, 4*float64(total), math.MaxUint32)))
	b.reserve(size)
}

// add takes an entry: a well-formed name, and Exact or Suffix. Room for a
// record's offset ends at 4 GiB.
func (b *builder) add(name []byte, m Match) error {
	if len(b.arena) == 0 {
		b.arena = append(b.arena, make([]byte, arenaStart)...)
	}
	if uint64(len(b.arena)+recordHeader+len(name)) > math.MaxUint32 {
		return errTooLarge
	}
	header := [recordHeader]byte{suffixBit(m)}
	b.arena = append(b.arena, header[:]...)
	b.arena = append(b.arena, name...)
	b.count++
	return nil
}

func suffixBit(m Match) byte {
	if m == Suffix {
		return 1
	}
	return 0
}

// finish puts every record into the table, in the order in which they came, and
// moves them together where one is left out that was there already.
func (b *builder) finish() *Dictionary {
	width := bits.Len(uint(b.count + b.count/2))
	d := &Dictionary{
		slots:     make([]uint64, 1<<width),
		slotShift: uint(64 - width),
		arena:     b.arena,
		offsets:   make([]uint32, 0, b.count+1),
	}
	d.makeFilter(b.count)
	read, write := arenaStart, arenaStart
	for range b.count {
		suffix := uint32(b.arena[read])
		name := b.arena[read+recordHeader:]
		length, labels := measure(name)
		name = name[:length]
		read += recordHeader + len(name)
		h := hashName(name)
		slot := d.free(h, suffix, name)
		if slot < 0 {
			continue
		}
		d.slots[slot] = uint64(slotTag(h, suffix))<<32 | uint64(write)
		binary.LittleEndian.PutUint32(b.arena[write:], uint32(len(d.offsets))<<1|suffix)
		copy(b.arena[write+recordHeader:], name)
		d.offsets = append(d.offsets, uint32(write))
		write += recordHeader + len(name)
		d.addToFilter(h, suffix != 0, labels)
	}
	d.offsets = append(d.offsets, uint32(write))
	d.arena = b.arena[:min(write, len(b.arena))]
	return d
}

// free returns the slot for a new entry, or -1 if there is one like it. Unlike
// find it may look at records only in front of the one that is being moved.
func (d *Dictionary) free(h uint64, suffix uint32, name []byte) int {
	tag := slotTag(h, suffix)
	mask := uint64(len(d.slots) - 1)
	for i := d.firstSlot(h); ; i = (i + 1) & mask {
		slot := d.slots[i]
		if slot == 0 {
			return int(i)
		}
		if uint32(slot>>32) != tag {
			continue
		}
		at := int(uint32(slot)) + recordHeader
		if at+len(name) <= len(d.arena) && string(d.arena[at:at+len(name)]) == string(name) {
			return -1
		}
	}
}

// makeFilter makes what Lookup asks before it looks into the table: 8 to 16 bits
// an entry, of which one is set, so one name in 8 gets through wrongly at worst.
func (d *Dictionary) makeFilter(entries int) {
	width := max(6, bits.Len(uint(8*entries)))
	d.filter = make([]uint64, 1<<(width-6))
	d.filterShift = uint(64 - width)
	d.suffixMin = maxLabels + 1 // more labels than any suffix has
}

func (d *Dictionary) addToFilter(h uint64, suffix bool, labels int) {
	if suffix {
		h = ^h
		least, most := labels, labels
		if d.suffixMin <= maxLabels {
			least, most = min(least, d.suffixMin), max(most, d.suffixMin+int(d.suffixSpan))
		}
		d.suffixMin, d.suffixSpan = least, uint(most-least)
	}
	bit := h >> d.filterShift
	d.filter[bit>>6] |= 1 << (bit & 63)
}

// measure returns the length and the number of labels of the well-formed name
// that b begins with.
func measure(b []byte) (length, labels int) {
	for b[length] != 0 {
		length += 1 + int(b[length])
		labels++
	}
	return length + 1, labels
}
