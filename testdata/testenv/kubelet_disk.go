package testenv

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// keptFiles is how many files of a log a kubelet keeps by default, the current one included.
	keptFiles = 5
	// As the kubelet names rotated files, and finer: tests rotate more than once a second.
	rotatedFormat = "20060102-150405.000000000"
	compressed    = ".gz"
)

// diskLog is the log of one instance of a container as a file in the form of the CRI. The pod guards it.
type diskLog struct {
	form    LogForm
	path    string
	file    *os.File
	text    []byte   // added, and not in the file
	rotated []string // the oldest first
}

// newDiskLog creates the file.
func newDiskLog(form LogForm, path string) (*diskLog, error) {
	l := &diskLog{form: form, path: path}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return l, l.reopen()
}

func (l *diskLog) add(at time.Time, partial bool, stream string, text []byte) {
	format := time.RFC3339Nano
	if l.form == CRIO {
		format = "2006-01-02T15:04:05.000000000-07:00"
	}
	tag := " F "
	if partial {
		tag = " P "
	}
	l.text = at.AppendFormat(l.text, format)
	l.text = append(append(append(l.text, ' '), stream...), tag...)
	l.text = append(append(l.text, text...), '\n')
}

func (l *diskLog) commit() error {
	if len(l.text) == 0 {
		return nil
	}
	_, err := l.file.Write(l.text)
	l.text = l.text[:0]
	return err
}

// rotate does what the kubelet's container log manager does.
func (l *diskLog) rotate() error {
	if l.file == nil {
		return nil // it rotates no log of a container that has ended
	}
	for len(l.rotated) > keptFiles-2 {
		if err := os.Remove(l.rotated[0]); err != nil {
			return err
		}
		l.rotated = l.rotated[1:]
	}
	for i, path := range l.rotated {
		if strings.HasSuffix(path, compressed) {
			continue
		}
		if err := compress(path); err != nil {
			return fmt.Errorf("compress a rotated log: %w", err)
		}
		l.rotated[i] = path + compressed
	}
	rotated := l.path + "." + time.Now().Format(rotatedFormat)
	switch err := os.Rename(l.path, rotated); {
	case err == nil:
		l.rotated = append(l.rotated, rotated)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return l.reopen()
}

// compress replaces a file by a compressed one.
func compress(path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	w, _ := gzip.NewWriterLevel(to, gzip.BestSpeed)
	_, err = io.Copy(w, from)
	if err := errors.Join(err, w.Close(), to.Close()); err != nil {
		return err
	}
	if err := os.Rename(to.Name(), path+compressed); err != nil {
		return err
	}
	return os.Remove(path)
}

// reopen creates the current file: CRI-O moves it to its place, containerd creates it there.
func (l *diskLog) reopen() error {
	path := l.path
	if l.form == CRIO {
		path += ".tmp"
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if l.form == CRIO {
		if err := os.Rename(path, l.path); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	err = l.close()
	l.file = file
	return err
}

func (l *diskLog) close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// remove removes the current file. What the container writes from then on nobody can read.
func (l *diskLog) remove() error {
	if err := os.Remove(l.path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// removeAll removes the rotated files as well.
func (l *diskLog) removeAll() error {
	err := l.remove()
	for _, path := range l.rotated {
		err = errors.Join(err, os.Remove(path))
	}
	l.rotated = nil
	return err
}
