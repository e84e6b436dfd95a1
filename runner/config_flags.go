package runner

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// A CommandLine is what the arguments of the process ask for.
type CommandLine struct {
	ConfigPath    string // "" if every setting is a flag
	Help          bool
	Version       bool
	Check         bool
	CheckSettings bool
	Replay        bool
	Files         []string // to replay

	settings []flagSetting // in the order given; the last of one key counts
}

// A flagSetting is a setting given as a flag.
type flagSetting struct {
	setting
	text string
}

// ParseCommandLine reads arguments, without the program's name. The error joins
// every problem, one line each. Whether the value of a setting is good is found
// by LoadConfig.
//
// A flag is -name=value or -name value, with one dash or two. A setting that is
// true or false is set by -name alone, and takes a value only behind a =.
// Capture files follow -replay; flags may stand among them and behind them. What
// follows -- is a file, whatever it looks like.
func ParseCommandLine(args []string) (*CommandLine, error) {
	p := argumentParser{rest: args}
	for len(p.rest) > 0 {
		arg := p.next()
		switch {
		case arg == "--":
			p.files = append(p.files, p.rest...)
			p.rest = nil
		case !strings.HasPrefix(arg, "-") || arg == "-":
			p.files = append(p.files, arg)
		default:
			p.flag(arg)
		}
	}
	switch {
	case p.cl.Help || p.cl.Version:
	case p.cl.Replay && len(p.files) == 0:
		p.problem("-replay: no capture file is named")
	case p.cl.Replay:
		p.cl.Files = p.files
	case len(p.files) > 0:
		p.strayArguments()
	}
	return &p.cl, errors.Join(p.errs...)
}

type argumentParser struct {
	cl    CommandLine
	rest  []string // not read yet
	files []string
	errs  []error
}

func (p *argumentParser) next() string {
	arg := p.rest[0]
	p.rest = p.rest[1:]
	return arg
}

func (p *argumentParser) problem(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

// flag reads one flag, and its value from the next argument if it is there.
func (p *argumentParser) flag(arg string) {
	name, value, hasValue := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
	if does := p.cl.switchNamed(name); does != nil {
		*does = true
		if hasValue {
			p.problem("-%s takes no value", name)
		}
		return
	}
	s, isSetting := settingOfFlag(name)
	if !isSetting && name != "config" {
		p.unknown(name, hasValue)
		return
	}
	if !hasValue {
		switch {
		case isSetting && s.field(new(Config)).Kind() == reflect.Bool:
			value = "true"
		case len(p.rest) == 0:
			p.problem("-%s needs a value", name)
			return
		default:
			value = p.next()
		}
	}
	switch {
	case isSetting:
		p.cl.settings = append(p.cl.settings, flagSetting{s, value})
	case value == "":
		p.problem("-config: no file is named")
	default:
		p.cl.ConfigPath = value
	}
}

// unknown tells of a flag that does not exist.
func (p *argumentParser) unknown(name string, hasValue bool) {
	if !hasValue && len(p.rest) > 0 && !strings.HasPrefix(p.rest[0], "-") {
		p.next() // most likely its value; not to be told as a problem of its own
	}
	text := "unknown flag -" + quoteKey(name)
	if near := nearest(name, flagNames()); near != "" {
		text += ", did you mean -" + near
	}
	p.problem("%s", text)
}

// strayArguments tells of files where none are expected. They are not shown if
// they may be the rest of a secret that was not quoted for the shell.
func (p *argumentParser) strayArguments() {
	for _, arg := range p.files {
		what := quote(arg)
		if slices.ContainsFunc(p.cl.settings, func(f flagSetting) bool { return f.secret }) {
			what = "an argument"
		}
		p.problem("%s is neither a flag nor the value of one", what)
	}
}

// switches are the flags that are not settings and take no value.
var switches = []struct {
	name, help string
	field      func(*CommandLine) *bool
}{
	{"check", "read the settings and all they name, print every problem, exit 0 or 1", func(cl *CommandLine) *bool { return &cl.Check }},
	{"check-settings", "the same, opening no file but the configuration", func(cl *CommandLine) *bool { return &cl.CheckSettings }},
	{"replay", "put the capture files that follow through, write everything out, exit", func(cl *CommandLine) *bool { return &cl.Replay }},
	{"version", "print the version and exit", func(cl *CommandLine) *bool { return &cl.Version }},
	{"help", "print this and exit", func(cl *CommandLine) *bool { return &cl.Help }},
}

// switchNamed returns what the flag sets, nil if there is no such flag.
func (cl *CommandLine) switchNamed(name string) *bool {
	if name == "h" {
		name = "help"
	}
	for _, s := range switches {
		if s.name == name {
			return s.field(cl)
		}
	}
	return nil
}

// flagName is the setting's name on the command line, without the dash.
func (s setting) flagName() string { return strings.ReplaceAll(s.key, "_", "-") }

// settingOfFlag finds the setting of a flag, exactly as written.
func settingOfFlag(name string) (setting, bool) {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.flagName() == name })
	if i < 0 {
		return setting{}, false
	}
	return settings[i], true
}

func flagNames() []string {
	names := []string{"config"}
	for _, s := range switches {
		names = append(names, s.name)
	}
	for _, s := range settings {
		names = append(names, s.flagName())
	}
	return names
}

// PrintUsage writes what -help shows.
func PrintUsage(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`edm reads dnstap and writes histograms and pseudonymised sessions.

  edm -config edm.toml                 run until SIGTERM or SIGINT
  edm -config edm.toml -check          print every problem, run nothing
  edm -config edm.toml -replay FILE...

  -config FILE
        configuration file
`)
	for _, s := range switches {
		fmt.Fprintf(&b, "  -%s\n        %s\n", s.name, s.help)
	}
	b.WriteString("\nSettings. Each is a key of the configuration file too, with _ for -; a flag wins.\n\n")
	for _, s := range settings {
		fmt.Fprintf(&b, "  -%s", s.flagName())
		if s.def != "" {
			fmt.Fprintf(&b, " (default %s)", s.def)
		}
		fmt.Fprintf(&b, "\n        %s\n", s.help)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
