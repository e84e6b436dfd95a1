package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxLine is how long a line of a list may be. No name needs a thousandth of
// it, but a CSV row may tell a lot about a name.
const maxLine = 64 << 10

// lines reads a text file line by line.
type lines struct {
	r      *bufio.Reader // its buffer has maxLine bytes
	number int           // of the line that next returned last, from 1
	read   int64         // bytes up to the end of that line
}

func newLines(r io.Reader) *lines {
	return &lines{r: bufio.NewReaderSize(r, maxLine)}
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// next returns the next line that is neither blank nor a comment, without the
// blanks around it. The line is valid until the next call. At the end the error
// is io.EOF; any other error is about the line with this number.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.r.ReadSlice('\n')
		l.number++
		l.read += int64(len(line))
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("a line of more than %d bytes", maxLine)
		}
		if err != nil && (err != io.EOF || len(line) == 0) {
			return nil, err
		}
		if l.number == 1 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if line = trimLine(line); len(line) > 0 && line[0] != '#' {
			return line, nil
		}
	}
}

// trimLine cuts off the end of the line and the blanks around it, but not a
// blank that an escape makes part of a name.
func trimLine(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimRight(line, "\r")
	return trimBlanks(line)
}

func trimBlanks(text []byte) []byte {
	for len(text) > 0 && isBlank(text[0]) {
		text = text[1:]
	}
	for len(text) > 0 && isBlank(text[len(text)-1]) && !escaped(text, len(text)-1) {
		text = text[:len(text)-1]
	}
	return text
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// escaped says whether an odd number of backslashes stands in front of text[i].
func escaped(text []byte, i int) bool {
	n := 0
	for n < i && text[i-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// maxProblems is how many bad lines an error tells of.
const maxProblems = 10

// problems collects what is wrong with the lines of one file.
type problems struct {
	path  string
	found []error
	more  int // beyond maxProblems
}

func (p *problems) add(line int, err error) {
	p.addAt(fmt.Sprintf("%s:%d", p.path, line), err)
}

func (p *problems) addAt(place string, err error) {
	if len(p.found) == maxProblems {
		p.more++
		return
	}
	p.found = append(p.found, fmt.Errorf("%s: %w", place, err))
}

// err returns one error, a line for each problem, or nil.
func (p *problems) err() error {
	if p.more > 0 {
		return errors.Join(append(p.found, fmt.Errorf("%s: %d more like these", p.path, p.more))...)
	}
	return errors.Join(p.found...)
}

// quote returns a piece of a list as it may stand in an error.
func quote(text []byte) string {
	const most = 80
	if len(text) > most {
		return fmt.Sprintf("%q…", text[:most])
	}
	return fmt.Sprintf("%q", text)
}
