package runner

import (
	"os"
	"sync"

	golangdnstap "github.com/dnstap/golang-dnstap"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// A dump appends every frame as it came to debug_dnstap_filename, a line of
// JSON each. It holds the addresses of clients, and is slow: for a look at what
// a resolver sends, not for service.
type dump struct {
	log  *zap.Logger
	once sync.Once // for the first failure

	mu   sync.Mutex
	file *os.File // guarded by mu
}

// openDump opens the file. Its mode is 0600, also if it exists.
func openDump(path string, log *zap.Logger) (*dump, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil {
		f.Close()
		return nil, err
	}
	log.Warn("every frame is written with the client's real address: debug_dnstap_filename is set, unset it when you are done", zap.String("file", path))
	return &dump{file: f, log: log}, nil
}

// frame appends a frame. One that is not dnstap is left out, and so is an
// address of a length that none has.
func (d *dump) frame(frame []byte) {
	var m golangdnstap.Dnstap
	if (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(frame, &m) != nil {
		return
	}
	if m.Message == nil {
		m.Message = new(golangdnstap.Message) // JSONFormat takes it for granted
	}
	for _, address := range []*[]byte{&m.Message.QueryAddress, &m.Message.ResponseAddress} {
		if n := len(*address); n != 4 && n != 16 {
			*address = nil
		}
	}
	line, ok := golangdnstap.JSONFormat(&m)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.file.Write(line); err != nil {
		d.once.Do(func() { d.log.Error("writing debug_dnstap_filename failed", zap.Error(err)) })
	}
}
