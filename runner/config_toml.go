package runner

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
)

// An entry is one key at the top of a TOML file.
type entry struct {
	key   string
	value any // string, int64, float64, bool, time.Time, []any, map[string]any, []map[string]any
	line  int // the first on which the key or a part of it stands, from 1
}

// parseTOML reads a file's keys in their order. The error is of the form
// "3: what is wrong", so that the file's name and a colon fit in front.
//
// The library decodes a struct until the first value that does not fit, so it
// only parses here, and what a value means is up to the caller.
func parseTOML(data []byte) (entries []entry, err error) {
	text := strings.ReplaceAll(strings.TrimPrefix(string(data), "\ufeff"), "\r\n", "\n")
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
		return nil, errors.New("1: the file is UTF-16, it must be UTF-8")
	}
	var doc map[string]toml.Primitive
	md, err := toml.Decode(text, &doc)
	if err != nil {
		pe, ok := errors.AsType[toml.ParseError](err)
		if !ok {
			panic("BUG: not a parse error: " + err.Error())
		}
		return nil, syntaxError(text, pe)
	}
	for key, primitive := range doc {
		value, line := locate(text, &md, primitive)
		entries = append(entries, entry{key: key, value: value, line: line})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(a.line-b.line, strings.Compare(a.key, b.key))
	})
	return entries, nil
}

// A located takes any value and reports an error, to which the library adds
// where the value is: it tells positions in no other way.
type located struct{ value any }

var errLocated = errors.New("located")

func (l *located) UnmarshalTOML(value any) error {
	l.value = value
	return errLocated
}

// locate returns what a primitive holds and the line it is first mentioned on.
// A key stands on the line on which its value starts. A table that only
// exists because of a key in it (a.b = 1) has no place of its own, and one with
// a header may have had keys before it, so the first line of all counts.
func locate(text string, md *toml.MetaData, primitive toml.Primitive) (any, int) {
	var l located
	pe, ok := errors.AsType[toml.ParseError](md.PrimitiveDecode(primitive, &l))
	if !ok {
		panic("BUG: a value without a position")
	}
	line := 0
	if pe.Position.Line > 0 {
		// Its Line is that of the value's end.
		line = 1 + strings.Count(text[:pe.Position.Start], "\n")
	}
	if _, ok := l.value.(map[string]any); !ok {
		return l.value, line
	}
	var table map[string]toml.Primitive
	if err := md.PrimitiveDecode(primitive, &table); err != nil {
		panic("BUG: a table that is none: " + err.Error())
	}
	for _, p := range table {
		if _, n := locate(text, md, p); n > 0 && (line == 0 || n < line) {
			line = n
		}
	}
	return l.value, line
}

// syntaxError words an error of the parser as "line: key: message".
//
// The message may quote the value, and the key may be a secret or a misspelt
// one: only what was read for a key that is known and not secret is passed on.
// A key within a table is not shown, for no setting is one.
func syntaxError(text string, pe toml.ParseError) error {
	root, _, _ := strings.Cut(pe.LastKey, ".")
	s, known := lookupSetting(root)
	key, message := "", pe.Message
	if root != "" {
		key = quoteKey(root) + ": "
	}
	switch {
	case root == "": // the rest is the character that was met, perhaps of a secret
		message, _, _ = strings.Cut(message, ", but got")
	case strings.HasSuffix(message, "has already been defined."):
		message = "already set above"
	case !known || s.secret:
		message = "the value is not valid TOML; a string needs quotes"
	case strings.Contains(message, "hexadecimal digits"):
		message, _, _ = strings.Cut(message, ", but got") // the whole string up to here
	}
	return fmt.Errorf("%d: %s%s", lineOf(text, pe), key, oneLine(message))
}

// lineOf returns the line of the last character that the parser read before it
// gave up. Its own Line is sometimes that of the character behind.
func lineOf(text string, pe toml.ParseError) int {
	last := pe.Position.Start + pe.Position.Len - 1
	if strings.Contains(pe.Message, "control characters") || strings.Contains(pe.Message, "UTF-8 byte") {
		last++ // it did not read the one that it complains of
	}
	return 1 + strings.Count(text[:min(max(last, 0), len(text))], "\n")
}

// oneLine makes a message of the library look like ours. It may quote a value
// of any length.
func oneLine(s string) string {
	const longest = 120
	if len(s) > longest {
		s = s[:longest] + "…"
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.TrimSuffix(s, "."))
	if s != "" && !strings.HasPrefix(s, "TOML") {
		s = strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

// unknownKey says that there is no such key, and which was perhaps meant.
func unknownKey(e entry) string {
	text := "unknown key " + quoteKey(e.key)
	switch e.value.(type) {
	case map[string]any, []map[string]any:
		text += " (a table; the settings stand in none)"
	}
	var keys []string
	for _, s := range settings {
		keys = append(keys, s.key)
	}
	if near := nearest(e.key, keys); near != "" {
		text += ", did you mean " + near
	}
	return text
}

// quoteKey quotes a key that would be hard to read without.
func quoteKey(key string) string {
	plain := key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return !unicode.IsPrint(r) || unicode.IsSpace(r) || r == '"' || r == ','
	})
	if plain && len(key) <= 80 {
		return key
	}
	return quote(key)
}

// nearest returns the candidate that word was most likely meant to be, or "" if
// none is near. Case, and _ for -, make no difference.
func nearest(word string, candidates []string) string {
	fold := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
	if len(word) > 80 {
		return "" // longer than any, and the distance costs its square
	}
	best, bestDistance := "", 1+min(len(word)/3, 3)
	for _, c := range candidates {
		if d := editDistance(fold(word), fold(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance counts the bytes to insert, delete or replace to make a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
