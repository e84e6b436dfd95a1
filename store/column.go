package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// A column knows where the names stand in the lines of one file. The first line
// decides, and has to be shown first.
type column struct {
	decided bool
	index   int  // of the field that holds the name, from 0
	plain   bool // one field a line
}

// headers are the names that a column of names has in a header, best first.
var headers = []string{"domain", "origin", "host", "hostname"}

// errColumn ends the reading of a file: no later line can be understood either.
var errColumn = errors.New("no column is called domain and none of this line holds a name")

// name returns the name in a line, in presentation form, or nil if the line is a
// header. The name is part of the line.
func (c *column) name(line []byte) ([]byte, error) {
	line = cutComment(line)
	if !c.decided {
		header, err := c.decide(line)
		if header || err != nil {
			return nil, err
		}
	}
	var field []byte
	rest, more := line, true
	for i := 0; i <= c.index; i++ {
		if !more {
			return nil, fmt.Errorf("no column %d, where the names are: %s", c.index+1, quote(line))
		}
		var err error
		if field, rest, more, err = cutField(rest); err != nil {
			return nil, err
		}
	}
	if c.plain && more {
		return nil, fmt.Errorf(`a comma (in a name it is written \044): %s`, quote(line))
	}
	if i := bytes.Index(field, []byte("://")); i >= 0 {
		return checkName(host(field[i+3:]))
	}
	return checkName(field)
}

// decide finds the column of the names and says whether the first line is a
// header: one of a single field that says "domain", or one with a known name and
// no number in it. A first row always has a rank or a name with a dot.
func (c *column) decide(line []byte) (header bool, err error) {
	var fields []string
	for rest, more := line, true; more; {
		var field []byte
		if field, rest, more, err = cutField(rest); err != nil {
			return false, err
		}
		fields = append(fields, string(field))
	}
	c.decided = true
	if len(fields) == 1 {
		c.plain = true
		return strings.EqualFold(fields[0], headers[0]), nil
	}

	numbers, word, dotted := 0, -1, -1
	for i := len(fields) - 1; i >= 0; i-- {
		switch {
		case isNumber(fields[i]):
			numbers++
		case fields[i] != "":
			word = i
			if strings.Contains(fields[i], ".") {
				dotted = i
			}
		}
	}
	if numbers == 0 {
		for _, h := range headers {
			for i, field := range fields {
				if strings.EqualFold(field, h) {
					c.index = i
					return true, nil
				}
			}
		}
	}
	switch {
	case dotted >= 0:
		c.index = dotted
	case numbers > 0 && word >= 0:
		c.index = word // a rank and a top level domain
	case numbers == 2 && len(fields) == 2:
		c.index = 1 // a rank and a label of digits
	default:
		return false, errColumn
	}
	return false, nil
}

func isNumber(s string) bool {
	dots := 0
	for i := range len(s) {
		switch {
		case s[i] == '.':
			dots++
		case s[i] < '0' || s[i] > '9':
			return false
		}
	}
	return s != "" && dots <= 1 && s != "."
}

// cutField returns the first field of a row without blanks and quotes, and what
// stands behind its comma, if there is one. A backslash takes a comma its
// meaning.
func cutField(row []byte) (field, rest []byte, more bool, err error) {
	if row = trimBlanks(row); len(row) > 0 && row[0] == '"' {
		return cutQuoted(row)
	}
	for i := 0; i < len(row); i++ {
		switch row[i] {
		case '\\':
			i++
		case ',':
			return trimBlanks(row[:i]), row[i+1:], true, nil
		}
	}
	return trimBlanks(row), nil, false, nil
}

// cutQuoted does that for a row that begins with a quote. Two quotes inside stay
// two: no name has any.
func cutQuoted(row []byte) (field, rest []byte, more bool, err error) {
	for i := 1; i < len(row); i++ {
		if row[i] != '"' {
			continue
		}
		if i+1 < len(row) && row[i+1] == '"' {
			i++
			continue
		}
		field, rest = row[1:i], trimBlanks(row[i+1:])
		if len(rest) == 0 {
			return field, nil, false, nil
		}
		if rest[0] != ',' {
			return nil, nil, false, fmt.Errorf("text behind a closing quote: %s", quote(row))
		}
		return field, rest[1:], true, nil
	}
	return nil, nil, false, fmt.Errorf("a quote that is not closed: %s", quote(row))
}

// cutComment cuts off a comment behind the contents of a line: a blank and "#".
// Where there are quotes, "#" is text.
func cutComment(line []byte) []byte {
	for i := 1; i < len(line); i++ {
		switch {
		case line[i] == '"':
			return line
		case line[i] == '#' && isBlank(line[i-1]) && !escaped(line, i-1):
			return trimBlanks(line[:i])
		}
	}
	return line
}

// host returns the host of an origin or URL without its scheme.
func host(authority []byte) []byte {
	if i := bytes.IndexAny(authority, "/?#"); i >= 0 {
		authority = authority[:i]
	}
	if i := bytes.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	if i := bytes.LastIndexByte(authority, ':'); i >= 0 && isNumber(string(authority[i+1:])) {
		authority = authority[:i]
	}
	return authority
}

// checkName refuses what a DNS name can hold, but what in a list of names means
// that this is no name or another kind of file: blanks, control characters,
// separators, brackets and quotes. Escaped, each of them is taken.
func checkName(name []byte) ([]byte, error) {
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '\\':
			i++
		case c <= ' ' || c == 0x7f, c == '"', c == ',', c == ';', c == '[', c == ']':
			return nil, fmt.Errorf("%q in the name %s", c, quote(name))
		}
	}
	if len(name) == 0 {
		return nil, errNoName
	}
	return name, nil
}
