// Package store holds the lists that decide what becomes of a name and of a
// client: the dictionary of well-known (or ignored) names, and the client
// networks that must not be looked at.
//
// The rule that holds everywhere: a list is read whole, checked whole, and never
// changes after that. What a Load function returns is immutable, has no
// reference to the file it came from, and may be used by any number of
// goroutines; a reload makes a new list and lets go of the old one. A list
// with one bad line is refused, and the error names the file and the line. So
// nobody ever works with half a list, and a file that is overwritten or cut
// while we run changes nothing until it is read again.
//
// # Names
//
// A name is its wire form in lower case, not compressed, with the final zero
// byte: "\x03www\x07example\x03com\x00", and "\x00" for the root. Only A to Z
// are folded. Boundaries are those of labels: a dot inside a label is a byte
// like any other.
//
// An entry is exact (example.com matches that name) or a suffix (*.example.com
// matches every name strictly below example.com, at any depth, and not
// example.com). A name may be in a list as both. Lookup prefers the exact entry,
// then the suffix entry with the most labels.
//
// # Files of names
//
// LoadDictionary tells the form by content:
//
//   - A DAWG as github.com/smhanov/dawg saves it: "example.com." is exact,
//     ".example.com." is a suffix, anything else is taken literally.
//   - Plain text, one name a line: "example.com" is exact, "*.example.com" and
//     ".example.com" are suffixes.
//   - CSV, one row a line, with a header or without: Tranco, Cisco Umbrella,
//     DomCop, Majestic, Cloudflare Radar, CrUX. The column is found once, by its
//     header or by what the first row holds.
//
// In all of them the final dot is optional, "." is the root as an exact entry,
// "\." and "\DDD" are understood, names in UTF-8 become A-labels, and what
// stands twice is kept once. "*." matches everything below the root. In text,
// blank lines, lines that begin with "#", comments after a blank and "#", CR and
// a byte order mark are no names.
//
// # Files of clients
//
// LoadClients reads one address or CIDR a line, both families; "#" begins a
// comment anywhere. Its errors have the line's number and never its text: that
// text is the address of somebody who asked not to be looked at.
package store
