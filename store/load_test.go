package store

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The forms in which lists are published, from their first lines.
var samples = []struct {
	name, text string
	want       []string
}{
	{"plain", "# well known\nexample.com\n\n  www.example.com  \n*.example.org\n.example.net # all of it\n#end\n",
		[]string{"example.com.", "www.example.com.", "*.example.org.", "*.example.net."}},
	{"plain, one name", "se\n", []string{"se."}},
	{"plain, root", ".\n*.\n", []string{".", "*."}},
	{"plain, comment with a comma", "example.com # this, that\nexample.org # \"that\", this\n",
		[]string{"example.com.", "example.org."}},
	{"plain, escapes", "a\\.b.example\nc\\044d.example\ne\\,f.example\n\\ g\\ \n",
		[]string{`a\.b.example.`, "c,d.example.", "e,f.example.", `\ g\ .`}},
	{"plain, origins", "https://example.com/\nhttp://www.example.com:8080\n", []string{"example.com.", "www.example.com."}},
	{"tranco", "1,google.com\n2,amazonaws.com\n3,facebook.com\n4,1.1.1.1\n",
		[]string{"google.com.", "amazonaws.com.", "facebook.com.", "1.1.1.1."}},
	{"umbrella", "1,com\n2,net\n3,_ldap._tcp.dc.example\n4,domain\n", []string{"com.", "net.", "_ldap._tcp.dc.example.", "domain."}},
	{"umbrella, domain first", "1,domain\n2,net\n", []string{"domain.", "net."}},
	{"digits first", "1,123\n2,net\n", []string{"123.", "net."}},
	{"name first", "domain,1\nexample.com,2\n", []string{"domain.", "example.com."}},
	{"domcop", "\"Rank\",\"Domain\",\"Open Page Rank\"\n\"1\",\"www.facebook.com\",\"10.00\"\n\"2\",\"fonts.googleapis.com\",\"10.00\"\n",
		[]string{"www.facebook.com.", "fonts.googleapis.com."}},
	{"domcop, headerless", "\"1\",\"www.facebook.com\",\"10.00\"\n\"2\",\"fonts.googleapis.com\",\"10.00\"\n",
		[]string{"www.facebook.com.", "fonts.googleapis.com."}},
	{"majestic", "GlobalRank,TldRank,Domain,TLD,RefSubNets,RefIPs,IDN_Domain,IDN_TLD,PrevGlobalRank,PrevTldRank,PrevRefSubNets,PrevRefIPs\n" +
		"1,1,google.com,com,477553,2320014,google.com,com,1,1,476963,2321345\n" +
		"2,2,xn--bcher-kva.example,example,4,7,bücher.example,example,2,2,1,3\n",
		[]string{"google.com.", "xn--bcher-kva.example."}},
	{"majestic, headerless", "1,1,google.com,com,477553,2320014,google.com,com,1,1,476963,2321345\n2,2,facebook.com,com,1,1,facebook.com,com,2,2,1,1\n",
		[]string{"google.com.", "facebook.com."}},
	{"radar", "domain\ngoogle.com\napple.com\n", []string{"google.com.", "apple.com."}},
	{"radar, headerless", "google.com\ndomain\napple.com\n", []string{"google.com.", "domain.", "apple.com."}},
	{"radar, top 100", "rank,domain,categories\n1,google.com,Search Engines;Technology\n2,apple.com,\"Technology, and more\"\n",
		[]string{"google.com.", "apple.com."}},
	{"crux", "origin,rank\nhttps://www.youtube.com,1000\nhttps://m.youtube.com:8443,1000\nhttp://www.youtube.com,5000\n",
		[]string{"www.youtube.com.", "m.youtube.com."}},
	{"urls", "rank,host\n1,ftp://user@ftp.example.com:21/pub?a#b\n2,\"https://example.com\"\n", []string{"ftp.example.com.", "example.com."}},
	{"quotes in quotes", "note,domain\n\"a \"\"site\"\", and more\",example.com\n", []string{"example.com."}},
	{"crux, headerless", "https://www.x.com,1000\nhttps://m.x.com,1000\n", []string{"www.x.com.", "m.x.com."}},
	{"a header with a dot", "rank,domain,avg.rank\n1,example.com,2.5\n", []string{"example.com."}},
	{"utf-8, case, twice", "BÜCHER.example\nxn--bcher-kva.example.\nExample.COM\nexample.com.\n*.example.com\n.EXAMPLE.com.\n",
		[]string{"xn--bcher-kva.example.", "example.com.", "*.example.com."}},
	{"only comments", "# nothing\n\n", nil},
	{"nothing", "", nil},
}

func TestLoadText(t *testing.T) {
	f := func(name, text string, want []string) {
		t.Helper()
		d, err := LoadDictionary(write(t, "list", text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if got := entries(t, d); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, want)
		}
	}
	for _, s := range samples {
		f(s.name, s.text, s.want)
		f(s.name+", CR", strings.ReplaceAll(s.text, "\n", "\r\n"), s.want)
		f(s.name+", BOM", "\xef\xbb\xbf"+s.text, s.want)
		f(s.name+", no last newline", strings.TrimSuffix(s.text, "\n"), s.want)
		f(s.name+", blanks", "\n \t\n"+strings.ReplaceAll(s.text, "\n", " \t\n\n"), s.want)
	}
}

// Quotes around every field change nothing.
func TestLoadQuoted(t *testing.T) {
	for _, s := range samples {
		if strings.ContainsAny(s.text, "\"#\\") {
			continue
		}
		var quoted strings.Builder
		for line := range strings.Lines(s.text) {
			fields := strings.Split(strings.TrimSpace(line), ",")
			quoted.WriteString(`"` + strings.Join(fields, `","`) + "\"\n")
		}
		if got := entries(t, loadString(t, quoted.String())); !slices.Equal(got, s.want) {
			t.Errorf("%s:\n got %q\nwant %q", s.name, got, s.want)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		path := write(t, "list", text)
		_, err := LoadDictionary(path)
		if err == nil {
			t.Errorf("%.60q: no error", text)
			return
		}
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], "list:", path+":")
		}
		if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
			t.Errorf("%.60q:\n got %q\nwant %q", text, got, want)
		}
	}
	f("example.com\n\nexa..mple\nok.se\n", `list:3: "exa..mple": empty label`)
	f("\xef\xbb\xbf\r\nexample.com\r\nb ad\r\n", `list:3: ' ' in the name "b ad"`)
	f("1,example.com\n2\n3,example.org\n4,\n", `list:2: no column 2, where the names are: "2"`, "list:4: no name")
	f("example.com\n5,example.org\n", `list:2: a comma (in a name it is written \044): "5,example.org"`)
	f("rank,site\n1,example.com\n", "list:1: no column is called domain and none of this line holds a name")
	f("1,\"example.com\n", `list:1: a quote that is not closed: "\"example.com"`)
	f("1,a.se\n2,\"b.se\n3,c.se\n", `list:2: a quote that is not closed: "\"b.se"`)
	f("a\n"+strings.Repeat("b.", 200)+"\n", `list:2: "`+strings.Repeat("b.", 40)+`"…: a name of 401 bytes, more than 255`)
	f("1,\"example\".com\n", `list:1: text behind a closing quote: "\"example\".com"`)
	f("https://[2001:db8::1]/,1\n", `list:1: '[' in the name "[2001:db8::1]"`)
	f("a\nb\\\n", `list:2: "b\\": a backslash is followed by neither a character nor \000 to \255`)
	f("a\n"+strings.Repeat("b", 64)+".se\n", `list:2: "`+strings.Repeat("b", 64)+`.se": a label of 64 bytes, more than 63`)
	f("a\nb\xff\n", `list:2: "b\xff": not UTF-8: a byte above 127 is written \DDD`)
	f("a\nb\n"+strings.Repeat("c", maxLine)+"\nd\n", "list:3: a line of more than 65536 bytes")
	f("*..\n", `list:1: "*..": empty label`)
	f("*\n.*.\n..\n", `list:3: "..": empty label`)
	f("PK\x03\x04\x14\x00", "list: a zip archive: unpack it first")
	f("\x1f\x8b\x08\x00", "list: compressed with gzip: unpack it first")
	f("\xff\xfea\x00.\x00s\x00e\x00", "list: UTF-16 text: UTF-8 is needed")

	var many []string
	for range maxProblems {
		many = append(many, "list:"+string(rune('1'+len(many)))+": no name")
	}
	many[9] = "list:10: no name"
	f(strings.Repeat("\"\"\n", 13), append(many, "list: 3 more like these")...)
}

func TestLoadUnreadable(t *testing.T) {
	folder := t.TempDir()
	f := func(path, want string) {
		t.Helper()
		if _, err := LoadDictionary(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	f(filepath.Join(folder, "none"), "no such file")
	f(folder, "is a directory")
}

// A file that is written to while it is read is read again, not half.
func TestReadListChanged(t *testing.T) {
	path := write(t, "list", "example.com\n")
	_, err := LoadDictionary(path)
	if err != nil {
		t.Fatal(err)
	}
	f := func(change func(file *os.File) error) {
		t.Helper()
		path := write(t, "list", "example.com\n")
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		err = readList(path, func(io.Reader, int64) error { return change(file) })
		if err == nil || !strings.HasSuffix(err.Error(), "list: changed while it was read") {
			t.Errorf("error %v", err)
		}
	}
	f(func(file *os.File) error { return file.Truncate(3) })
	f(func(file *os.File) error { _, err := file.WriteAt([]byte("longer than before\n"), 0); return err })
	f(func(file *os.File) error { return os.Chtimes(file.Name(), time.Time{}, time.Unix(1, 0)) })
}

// A pipe is refused: nobody may ever write to it, and a reload would wait.
func TestLoadFromPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadDictionary(path); err == nil {
		t.Error("a dictionary was read")
	}
	if _, err := LoadClients(path); err == nil {
		t.Error("clients were read")
	}
}

// Any text: the same entries each time, and an error with a line or good names.
func FuzzLoadText(f *testing.F) {
	for _, s := range samples {
		f.Add(s.text)
	}
	path := filepath.Join(f.TempDir(), "list")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := loadText(path, strings.NewReader(text), int64(len(text)))
		if err != nil {
			if !strings.HasPrefix(err.Error(), path+":") {
				t.Fatalf("an error without a path: %v", err)
			}
			return
		}
		var again strings.Builder
		for id := range d.Len() {
			again.WriteString(escapedEntry(d, uint32(id)) + "\n")
		}
		back, err := loadText(path, strings.NewReader(again.String()), 0)
		if err != nil {
			t.Fatalf("%q was written as %q: %v", text, again.String(), err)
		}
		if got, want := entries(t, back), entries(t, d); !slices.Equal(got, want) {
			t.Fatalf("%q was written as %q and read as %q", text, want, got)
		}
	})
}

// entries returns the entries of a Dictionary in the plain text form, in order.
func entries(t testing.TB, d *Dictionary) []string {
	t.Helper()
	var list []string
	for id := range d.Len() {
		name, m := d.Entry(uint32(id))
		text, _, err := dns.UnpackDomainName(name, 0)
		if err != nil {
			t.Fatalf("entry %d is %q: %v", id, name, err)
		}
		if found, as := d.Lookup(name); m == Exact && (found != uint32(id) || as != Exact) {
			t.Fatalf("entry %d, %s, is looked up as %d, %d", id, text, found, as)
		}
		if m == Suffix {
			text = "*." + strings.TrimPrefix(text, ".")
		}
		list = append(list, text)
	}
	return list
}

// escapedEntry writes an entry so that no byte of a label means anything: each is
// \DDD, and each label has a dot behind it.
func escapedEntry(d *Dictionary, id uint32) string {
	name, m := d.Entry(id)
	var text strings.Builder
	if m == Suffix {
		text.WriteString("*.")
	}
	for ; name[0] != 0; name = name[1+name[0]:] {
		for _, c := range name[1 : 1+name[0]] {
			fmt.Fprintf(&text, `\%03d`, c)
		}
		text.WriteByte('.')
	}
	if text.Len() == 0 {
		return "."
	}
	return text.String()
}

func loadString(t testing.TB, text string) *Dictionary {
	t.Helper()
	d, err := LoadDictionary(write(t, "list", text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t testing.TB, name, contents string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
