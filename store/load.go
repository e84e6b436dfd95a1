package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// LoadDictionary reads a list of names: a DAWG, plain text or CSV, told apart by
// content. All of it or an error, which has the path, and the number of each bad
// line (the first ten).
//
// An empty text file, or a DAWG without words, is a Dictionary with Len 0: the
// caller knows whether that is an error.
func LoadDictionary(path string) (*Dictionary, error) {
	var d *Dictionary
	err := readList(path, func(file io.Reader, size int64) error {
		head := make([]byte, dawgHead)
		n, err := io.ReadFull(file, head)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		head = head[:n]
		file = io.MultiReader(bytes.NewReader(head), file)
		if isDAWG(path, head, size) {
			d, err = loadDAWG(path, file, head, size)
			return err
		}
		if err := foreignForm(head); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		d, err = loadText(path, file, size)
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// readList opens a list and lets read read it, with its size or 0. Somebody may
// write to the file meanwhile. Then what was read may be of two files, right or
// wrong, so all that can be said is that it has to be read again.
func readList(path string, read func(file io.Reader, size int64) error) error {
	// To open a pipe can take for ever.
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		return fmt.Errorf("%s: it is not a file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	before, err := file.Stat()
	if err != nil {
		return err
	}
	regular := before.Mode().IsRegular()
	size := int64(0)
	if regular {
		size = before.Size()
	}
	err = read(file, size)
	after, statErr := file.Stat()
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	if regular && (after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime())) {
		return fmt.Errorf("%s: changed while it was read", path)
	}
	return err
}

// isDAWG tells a DAWG, damaged or not, from text by the first bytes. It begins
// with its size, so with a zero byte below 16 MiB, and then a number of bits, 7
// if its words are ASCII: no text has any of these. The path only says what a
// file with nothing in it is: a DAWG that was cut, or an empty list.
func isDAWG(path string, head []byte, size int64) bool {
	if len(head) == 0 {
		return strings.EqualFold(filepath.Ext(path), ".dawg")
	}
	if len(head) == dawgHead && int64(dawgSize(head)) == size {
		return true
	}
	if foreignForm(head) != nil {
		return false
	}
	for _, c := range head {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return true
		}
	}
	return false
}

// foreignForm returns an error for what lists come as, but cannot be read.
func foreignForm(head []byte) error {
	for _, form := range []struct{ magic, text string }{
		{"PK\x03\x04", "a zip archive: unpack it first"},
		{"\x1f\x8b", "compressed with gzip: unpack it first"},
		{"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"},
		{"\xff\xfe", "UTF-16 text: UTF-8 is needed"},
		{"\xfe\xff", "UTF-16 text: UTF-8 is needed"},
	} {
		if bytes.HasPrefix(head, []byte(form.magic)) {
			return errors.New(form.text)
		}
	}
	return nil
}

// loadText reads plain text and CSV.
func loadText(path string, file io.Reader, size int64) (*Dictionary, error) {
	var b builder
	var names column
	bad := problems{path: path}
	text := newLines(file)
	scratch := make([]byte, 0, maxName+1)
	for {
		line, err := text.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			bad.add(text.number, err)
			return nil, bad.err()
		}
		name, err := names.name(line)
		if errors.Is(err, errColumn) {
			bad.add(text.number, err)
			return nil, bad.err()
		}
		if err == nil && name == nil {
			continue // the header
		}
		var m Match
		if err == nil {
			if scratch, m, err = appendTextEntry(scratch[:0], name); err != nil {
				err = fmt.Errorf("%s: %w", quote(name), err)
			}
		}
		if err != nil {
			bad.add(text.number, err)
			continue
		}
		b.predict(text.read, size)
		if err := b.add(scratch, m); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return b.finish(), nil
}
