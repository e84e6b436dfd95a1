package output

import "edm/dnstap"

// numLabels is the number of label columns, label0 to label9.
const numLabels = 10

// appendLabels appends to dst the text of the label columns of a name in wire
// form, one after the other, and returns how many columns it has: column i
// ends at ends[i], and the others are NULL.
//
// label0 is the top level. The last column holds the tenth label and all below
// it, joined by dots in that same order, top to bottom: for
// a.b.c.d.e.f.g.h.i.j.example. label0 is "example" and label9 is "b.a". (A dot
// inside a label is escaped.) The root has no column.
func appendLabels(dst, name []byte, ends *[numLabels]int32) ([]byte, int) {
	// Where the labels start: at most 127 in the 255 octets of a name.
	var starts [127]uint8
	n := 0
	for i := 0; name[i] != 0; i += 1 + int(name[i]) {
		starts[n] = uint8(i)
		n++
	}
	for i := range n {
		at := int(starts[n-1-i])
		label := name[at+1 : at+1+int(name[at])]
		if i >= numLabels {
			dst = append(dst, '.')
		}
		dst = dnstap.AppendLabel(dst, label)
		ends[min(i, numLabels-1)] = int32(len(dst))
	}
	return dst, min(n, numLabels)
}

// appendSuffixLabels does the same for an entry that stands for all names
// below a name: it has an empty label where theirs go on. So the entry differs
// from the name itself by an empty column, or by a final dot in label9.
func appendSuffixLabels(dst, name []byte, ends *[numLabels]int32) ([]byte, int) {
	dst, n := appendLabels(dst, name, ends)
	if n == numLabels {
		dst = append(dst, '.')
		ends[n-1] = int32(len(dst))
		return dst, n
	}
	ends[n] = int32(len(dst))
	return dst, n + 1
}
