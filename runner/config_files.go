package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Check reads the lists, the keys and the certificates that cfg names, and looks
// at the folders that edm would make files in. It binds and creates nothing. The
// error joins all that is wrong, a line each, with the place of the setting.
func Check(cfg *Config) error {
	_, err := loadView(cfg)
	_, errTLS := loadTLS(cfg, zap.NewNop())
	_, errGroup := lookupGroup(cfg.InputUnixGroup)
	return cfg.placed(errors.Join(err, errTLS,
		about("input_unix", checkSocket(cfg.InputUnix)),
		about("input_unix_group", errGroup),
		about("data_dir", checkDataDir(cfg.DataDir)),
		about("debug_dnstap_filename", checkDump(cfg.DebugDnstapFilename))))
}

// about says which setting an error is about; nil stays nil.
func about(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", key, err)
}

// placed puts the place of a setting in front of each line that begins with its
// key.
func (c *Config) placed(err error) error {
	if err == nil {
		return nil
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		key, _, _ := strings.Cut(line, ": ")
		if place := c.places[key]; place != "" {
			lines[i] = place + line[len(key):]
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// checkSocket says whether a socket can be made at path. One that is there is
// left alone: a daemon may be running. It may also be the service manager's, and
// then the folder is, too.
func checkSocket(path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() == fs.ModeSocket:
		return nil
	case err == nil:
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	return checkFolderOf(path)
}

// checkDataDir says whether data_dir can be written to. If it is not there, edm
// or the service manager makes it.
func checkDataDir(dir string) error {
	made := false
	for _, below := range []string{sessionsDir, outboxDir, seenDir} {
		switch err := canWriteTo(filepath.Join(dir, below)); {
		case err == nil:
			made = true
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return err
		}
	}
	if made {
		return nil // before; data_dir itself may be another's
	}
	if err := canWriteTo(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// checkDump says whether a file can be appended to, or made.
func checkDump(path string) error {
	if path == "" {
		return nil
	}
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a folder", path)
	case err == nil:
		return access(path, unix.W_OK)
	}
	return checkFolderOf(path)
}

func checkFolderOf(path string) error { return canWriteTo(filepath.Dir(path)) }

// canWriteTo says whether files can be made in a folder, as far as that can be
// told without making one.
func canWriteTo(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	return access(dir, unix.W_OK|unix.X_OK)
}

func access(path string, mode uint32) error {
	if err := unix.Access(path, mode); err != nil {
		return &fs.PathError{Op: "write to", Path: path, Err: err}
	}
	return nil
}
