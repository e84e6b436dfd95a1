package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
)

// A Config holds every setting. The field says it all: its key in the
// configuration file, its default as it would be written there (without
// quotes), and what it means. The key with _ written - is also a flag. To add a
// setting, add a field here and a block to edm.toml.example. Those with reload are
// read again on SIGHUP.
//
// A Config does not change once it is loaded.
type Config struct {
	InputUnix      string   `toml:"input_unix" help:"path of the unix socket to listen on"`
	InputUnixMode  FileMode `toml:"input_unix_mode" default:"0660" help:"octal mode of the unix socket, set before it can be reached"`
	InputUnixGroup string   `toml:"input_unix_group" help:"group of the unix socket, by name or number; empty leaves the group of the process"`

	InputTCP             string `toml:"input_tcp" help:"host:port to listen on for plain TCP"`
	InputTLS             string `toml:"input_tls" help:"host:port to listen on for TLS 1.3"`
	InputTLSCertFile     string `toml:"input_tls_cert_file" reload:"path" help:"certificate of the TLS listener, PEM, the leaf first"`
	InputTLSKeyFile      string `toml:"input_tls_key_file" reload:"path" help:"key of the TLS listener's certificate, PEM"`
	InputTLSClientCAFile string `toml:"input_tls_client_ca_file" reload:"path" help:"certificate authorities, PEM; when given, a TLS client must show a certificate of one of them"`

	MaxConnections int `toml:"max_connections" default:"256" help:"connections served at once, all inputs together, an eighth of them kept for each input; more are refused and counted"`
	MaxFrameSize   int `toml:"max_frame_size" default:"262144" help:"largest dnstap frame in bytes, at most 16 MiB; a larger one is skipped and counted"`

	CryptopanKey            Secret `toml:"cryptopan_key" reload:"yes" help:"secret that pseudonyms are made with; as a flag it shows in the list of processes"`
	CryptopanKeyFile        string `toml:"cryptopan_key_file" reload:"yes" help:"file that holds the secret instead; one line end at its end is not part of it"`
	CryptopanKeySalt        Secret `toml:"cryptopan_key_salt" reload:"yes" default:"edm-kdf-salt-val" help:"salt the key is derived with; another salt gives other pseudonyms"`
	CryptopanAddressEntries int    `toml:"cryptopan_address_entries" default:"1000000" help:"pseudonyms kept in memory, all workers together; 0 = none"`

	WellKnownDomainsFile     string `toml:"well_known_domains_file" reload:"yes" help:"list of well-known names: DAWG, plain text or CSV; empty = no name is well known"`
	IgnoredClientIPsFile     string `toml:"ignored_client_ips_file" reload:"yes" help:"addresses and CIDRs, one a line, of clients whose questions are left out of everything"`
	IgnoredQuestionNamesFile string `toml:"ignored_question_names_file" reload:"yes" help:"list of names, DAWG or plain text, that are left out of everything"`

	DataDir      string `toml:"data_dir" default:"/var/lib/edm" help:"folder that everything is written below"`
	SessionFiles bool   `toml:"session_files" reload:"yes" default:"true" help:"write a pseudonymised row for every name that is not well known"`

	SessionRetention Duration `toml:"session_retention" default:"0s" help:"delete session files that are older; 0s = never"`

	HistogramHLLExplicitThreshold int           `toml:"histogram_hll_explicit_threshold" default:"20" help:"clients up to which a sketch keeps their hashes, 16 to 31"`
	HistogramHash                 HistogramHash `toml:"histogram_hash" default:"pseudonym" help:"what client sketches are made of: pseudonym, or address, so that operators with different keys can merge them"`

	QnameSeenEntries int      `toml:"qname_seen_entries" default:"10000000" help:"names remembered in memory, 6.4 octets each; the rest is on the disk"`
	PebbleSync       bool     `toml:"pebble_sync" default:"false" help:"sync every commit of the seen names before its events are sent"`
	SeenRetention    Duration `toml:"seen_retention" default:"2160h" help:"a name that is not seen for this long, up to twice as long, is new again; 0s = never"`
	SeenMaxBytes     int64    `toml:"seen_max_bytes" default:"10737418240" help:"size of the store of seen names, above which names are forgotten early; 0 = no limit"`
	NewQnameBacklog  int      `toml:"new_qname_backlog" default:"1000000" help:"events kept while the broker is away; above, names are new again when they are seen next"`

	MQTTServer         ServerURL `toml:"mqtt_server" help:"broker, as host, host:port or URL (mqtts, tls, ssl, mqtt, tcp, wss, ws); without a scheme TLS; empty = no events are made"`
	MQTTCAFile         string    `toml:"mqtt_ca_file" reload:"path" help:"certificate authorities of the broker, PEM; empty = those of the system"`
	MQTTClientCertFile string    `toml:"mqtt_client_cert_file" reload:"path" help:"client certificate, PEM, the leaf first"`
	MQTTClientKeyFile  string    `toml:"mqtt_client_key_file" reload:"path" help:"key of the client certificate, PEM"`
	MQTTSigningKeyFile string    `toml:"mqtt_signing_key_file" help:"private key that events are signed with, a JWK of type Ed25519; its kid names the node"`
	MQTTKeepalive      Duration  `toml:"mqtt_keepalive" default:"30s" help:"longest silence towards the broker, whole seconds; 0s = no limit"`
	MQTTQoS            int       `toml:"mqtt_qos" default:"1" help:"1: an event is kept until the broker has taken it; 0: it is sent and forgotten"`

	HTTPURL            string   `toml:"http_url" help:"base URL of the receiver that histograms are uploaded to, https; empty = they stay in the outbox"`
	HTTPCAFile         string   `toml:"http_ca_file" reload:"path" help:"certificate authorities of the receiver, PEM; empty = those of the system"`
	HTTPClientCertFile string   `toml:"http_client_cert_file" reload:"path" help:"client certificate, PEM, the leaf first"`
	HTTPClientKeyFile  string   `toml:"http_client_key_file" reload:"path" help:"key of the client certificate, PEM"`
	HTTPSigningKeyFile string   `toml:"http_signing_key_file" help:"private key that uploads are signed with, a JWK of type Ed25519"`
	SentRetention      Duration `toml:"sent_retention" default:"24h" help:"delete delivered histograms that are older; 0s = never"`
	OutboxMaxBytes     int64    `toml:"outbox_max_bytes" default:"1073741824" help:"size of the outbox, above which the oldest histograms are deleted; 0 = no limit"`

	MinimiserWorkers    int    `toml:"minimiser_workers" default:"0" help:"goroutines that work on frames; 0 = one per CPU"`
	MetricsListen       string `toml:"metrics_listen" default:"127.0.0.1:2112" help:"host:port of /metrics, /healthz and the status page; empty = off"`
	Debug               bool   `toml:"debug" default:"false" help:"debug log, and /debug/pprof on metrics_listen"`
	DebugDnstapFilename string `toml:"debug_dnstap_filename" help:"append every frame as it came to this file, as JSON; holds real client addresses"`

	source *CommandLine      // that it was loaded by, and can be again; nil in tests
	places map[string]string // of each key given, how problems name it: file, line and key, or the flag
}

// A setting is one field of Config, as its tag describes it.
type setting struct {
	key    string // as in the file
	def    string // as it would be written in the file, without quotes
	help   string
	secret bool
	reload string // "yes": on SIGHUP; "path": then, too, but it cannot come or go; "": on restart
	index  int    // of the field
}

// settings describes the fields of Config in their order. It is never changed.
var settings = func() []setting {
	t := reflect.TypeFor[Config]()
	var list []setting
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		list = append(list, setting{
			key:    f.Tag.Get("toml"),
			def:    f.Tag.Get("default"),
			help:   f.Tag.Get("help"),
			secret: f.Type == reflect.TypeFor[Secret](),
			reload: f.Tag.Get("reload"),
			index:  i,
		})
	}
	return list
}()

// lookupSetting finds the setting of a key, exactly as written.
func lookupSetting(key string) (setting, bool) {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.key == key })
	if i < 0 {
		return setting{}, false
	}
	return settings[i], true
}

// field is where c keeps the setting.
func (s setting) field(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().Field(s.index) }

// setDefault gives the setting its default in c.
func (s setting) setDefault(c *Config) {
	field := s.field(c)
	field.SetZero()
	if s.def == "" {
		return
	}
	if err := assign(field, valueOfFlag(field, s.def)); err != nil {
		panic("BUG: default of " + s.key + ": " + err.Error())
	}
}

// DefaultConfig is what an empty file means. It cannot run: it has no input and
// no key.
func DefaultConfig() Config {
	var c Config
	for _, s := range settings {
		s.setDefault(&c)
	}
	return c
}

// LoadConfig reads the configuration file the command line names, if it names
// one, puts the settings given as flags on top, and checks the whole. No other
// file is opened.
//
// The error joins every problem found, one line each, in the order of the file
// and then of the flags. Unless the file could not be read at all there is a
// Config all the same, in which a setting at fault has its default; it is for
// Check, so that the problems of the files it names can be told at once.
func (cl *CommandLine) LoadConfig() (*Config, error) {
	var text []byte
	if cl.ConfigPath != "" {
		var err error
		if text, err = os.ReadFile(cl.ConfigPath); err != nil {
			if pe, ok := errors.AsType[*fs.PathError](err); ok {
				err = pe.Err // the path stands in front already
			}
			return nil, fmt.Errorf("%s: %w", cl.ConfigPath, err)
		}
	} else if len(cl.settings) == 0 {
		return nil, errors.New("no configuration: name a file with -config, or give the settings as flags (-help lists them)")
	}
	return cl.load(text)
}

// load is LoadConfig with the text of the file.
func (cl *CommandLine) load(text []byte) (*Config, error) {
	cfg := DefaultConfig()
	cfg.source = cl
	l := loader{cfg: &cfg, file: cl.ConfigPath, origin: map[string]origin{}, failed: map[string]bool{}}
	if l.file == "" {
		l.file = "command line"
	}
	entries, err := parseTOML(text)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", l.file, err)
	}
	for _, e := range entries {
		l.setFromFile(e)
	}
	for _, f := range cl.settings {
		l.setFromFlag(f)
	}
	l.check(cl.Replay)
	cfg.places = make(map[string]string)
	for key := range l.origin {
		if !l.failed[key] { // else it has its default
			cfg.places[key] = l.place(key)
		}
	}
	return &cfg, l.err()
}

// A loader builds one Config and collects what is wrong with it.
type loader struct {
	cfg      *Config
	file     string            // how problems name the file
	origin   map[string]origin // of each key given, the place that counts
	failed   map[string]bool   // keys with a problem told; they have their default
	problems []problem
}

// An origin is where a setting was given: a line of the file, or a flag.
type origin struct {
	line int
	flag bool
}

// A problem is one line of the error.
type problem struct {
	rank int // 0 in the file, 1 a flag, 2 something that is nowhere
	line int // within the file
	text string
}

func (l *loader) setFromFile(e entry) {
	s, ok := lookupSetting(e.key)
	if !ok {
		l.problems = append(l.problems, problem{0, e.line, fmt.Sprintf("%s:%d: %s", l.file, e.line, unknownKey(e))})
		return
	}
	l.origin[s.key] = origin{line: e.line}
	if err := assign(s.field(l.cfg), e.value); err != nil {
		l.wrong(s.key, err)
	}
}

func (l *loader) setFromFlag(f flagSetting) {
	field := f.field(l.cfg)
	l.origin[f.key] = origin{flag: true}
	if err := assign(field, valueOfFlag(field, f.text)); err != nil {
		l.wrong(f.key, err)
	}
}

// wrong tells what is wrong with the value of a setting.
func (l *loader) wrong(key string, err error) { l.fail(key, ": "+err.Error()) }

// fail tells a problem of a setting that was given. No key fails twice, so a
// value that cannot be read is not also out of range.
func (l *loader) fail(key, text string) {
	if l.failed[key] {
		return
	}
	l.failed[key] = true
	s, ok := lookupSetting(key)
	if !ok {
		panic("BUG: no setting " + key)
	}
	s.setDefault(l.cfg)
	rank := 0
	if l.origin[key].flag {
		rank = 1
	}
	l.problems = append(l.problems, problem{rank, l.origin[key].line, l.place(key) + text})
}

// place is how problems name a setting that was given.
func (l *loader) place(key string) string {
	s, _ := lookupSetting(key)
	if o := l.origin[key]; !o.flag {
		return fmt.Sprintf("%s:%d: %s", l.file, o.line, key)
	}
	return "-" + s.flagName()
}

// inOrder returns two settings in the order in which they were given. One that
// was not is the first.
func (l *loader) inOrder(a, b string) (first, second string) {
	if x, y := l.origin[a], l.origin[b]; x.flag && !y.flag || x.flag == y.flag && x.line > y.line {
		return b, a
	}
	return a, b
}

// missing tells of something that is required and nowhere, so has no line.
func (l *loader) missing(text string) {
	l.problems = append(l.problems, problem{2, 0, l.file + ": " + text})
}

// err joins the problems in order; nil if there are none.
func (l *loader) err() error {
	slices.SortStableFunc(l.problems, func(a, b problem) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return a.line - b.line
	})
	errs := make([]error, len(l.problems))
	for i, p := range l.problems {
		errs[i] = errors.New(p.text)
	}
	return errors.Join(errs...)
}
