package store

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

var (
	errNoName     = errors.New("no name")
	errEmptyLabel = errors.New("empty label")
	errEscape     = errors.New(`a backslash is followed by neither a character nor \000 to \255`)
	errNotUTF8    = errors.New(`not UTF-8: a byte above 127 is written \DDD`)
	errMixed      = errors.New("a name in UTF-8 cannot have escapes")
)

// toASCII maps and checks names as browsers do (UTS 46, non-transitional), but
// takes "_" and "--" where they stand: the DNS is full of both.
var toASCII = idna.New(idna.MapForLookup(), idna.StrictDomainName(false), idna.CheckHyphens(false))

// appendTextEntry appends the name of an entry in a text file to dst and says
// whether it is Exact or Suffix.
func appendTextEntry(dst, text []byte) ([]byte, Match, error) {
	above, ok := bytes.CutPrefix(text, []byte("*."))
	if !ok {
		return appendDAWGEntry(dst, text)
	}
	if len(above) == 0 { // everything below the root
		return append(dst, 0), Suffix, nil
	}
	return appendSuffix(dst, above)
}

// appendDAWGEntry does the same for a word of a DAWG, where an asterisk is a
// label like any other.
func appendDAWGEntry(dst, word []byte) ([]byte, Match, error) {
	if len(word) > 1 && word[0] == '.' {
		return appendSuffix(dst, word[1:])
	}
	dst, err := appendName(dst, word)
	return dst, Exact, err
}

func appendSuffix(dst, above []byte) ([]byte, Match, error) {
	if len(above) == 1 && above[0] == '.' {
		return dst, Suffix, errEmptyLabel
	}
	dst, err := appendName(dst, above)
	return dst, Suffix, err
}

// appendName appends the wire form, in lower case, of a name in presentation
// form with or without its final dot. After an error dst is as it was.
func appendName(dst, text []byte) ([]byte, error) {
	if len(text) == 1 && text[0] == '.' {
		return append(dst, 0), nil
	}
	for _, c := range text {
		if c >= utf8.RuneSelf {
			return appendUnicodeName(dst, text)
		}
	}
	return appendASCIIName(dst, text)
}

func appendUnicodeName(dst, text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return dst, errNotUTF8
	}
	if bytes.IndexByte(text, '\\') >= 0 {
		return dst, errMixed
	}
	ascii, err := toASCII.ToASCII(string(text))
	if err != nil {
		return dst, fmt.Errorf("no A-labels for this name: %w", err)
	}
	if ascii == "." {
		return dst, errEmptyLabel // an ideographic full stop and nothing else
	}
	return appendASCIIName(dst, []byte(ascii))
}

func appendASCIIName(dst, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return dst, errNoName
	}
	begin := len(dst)
	label := begin // where the length byte of the label at hand is
	dst = append(dst, 0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch c {
		case '.':
			if err := checkLabel(len(dst) - label - 1); err != nil {
				return dst[:begin], err
			}
			dst[label] = byte(len(dst) - label - 1)
			label = len(dst)
			dst = append(dst, 0)
			continue
		case '\\':
			var n int
			if c, n = unescape(text[i+1:]); n == 0 {
				return dst[:begin], errEscape
			}
			i += n
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	// After a final dot, the empty label at hand is the root.
	if last := len(dst) - label - 1; last > 0 {
		if err := checkLabel(last); err != nil {
			return dst[:begin], err
		}
		dst[label] = byte(last)
		dst = append(dst, 0)
	}
	if length := len(dst) - begin; length > maxName {
		return dst[:begin], fmt.Errorf("a name of %d bytes, more than 255", length)
	}
	return dst, nil
}

func checkLabel(length int) error {
	if length == 0 {
		return errEmptyLabel
	}
	if length > 63 {
		return fmt.Errorf("a label of %d bytes, more than 63", length)
	}
	return nil
}

// unescape returns the byte that stands behind a backslash and the length of
// its text, 0 if it is none: three digits up to 255, or any other character.
func unescape(text []byte) (c byte, n int) {
	if len(text) == 0 {
		return 0, 0
	}
	if text[0] < '0' || text[0] > '9' {
		return text[0], 1
	}
	if len(text) < 3 {
		return 0, 0
	}
	value := 0
	for _, digit := range text[:3] {
		if digit < '0' || digit > '9' {
			return 0, 0
		}
		value = value*10 + int(digit-'0')
	}
	if value > 255 {
		return 0, 0
	}
	return byte(value), 3
}
