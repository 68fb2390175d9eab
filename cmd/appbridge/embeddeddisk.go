package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
)

const (
	// diskCheck is how often the embedded server's store is looked at.
	diskCheck = time.Second
	// restartRoom is how much has to fit onto the disk before the server starts
	// again: some messages of the largest size, and the state that a stop writes.
	restartRoom = 4 << 20
	// restartPause and maxRestartPause bound the time from one start of the server to the next.
	restartPause    = 5 * time.Second
	maxRestartPause = time.Minute
)

// noRoom reports whether the text of an error is about a disk that is full: no space, a quota, a
// limit of the size of files. The server gives out some errors as text alone.
func noRoom(text string) bool {
	return slices.ContainsFunc([]string{"no space left", "disk quota exceeded", "file too large"}, func(reason string) bool {
		return strings.Contains(text, reason)
	})
}

// ready is nil while the server can write, and no server is none that cannot.
func (e *embedded) ready() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.trouble
}

// noteFull is called by the server's log, in the middle of a write: it may not call the server.
func (e *embedded) noteFull(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alarmed = true
	if e.trouble == nil {
		e.trouble = e.cannotWrite(err)
		e.log.Error("disk full: the embedded NATS server cannot write", zap.String("dir", e.dir), zap.Error(err))
	}
}

func (e *embedded) cannotWrite(err error) error {
	if noRoom(err.Error()) {
		return fmt.Errorf("disk full: the embedded NATS server cannot write to %s: %w", e.dir, err)
	}
	return fmt.Errorf("the embedded NATS server cannot write to %s: %w", e.dir, err)
}

// supervise looks after the server until ctx is done. A write error of a stream is final for the
// server, whatever the disk has later: only a server that is started again writes again.
func (e *embedded) supervise(ctx context.Context) {
	pause, started := restartPause, time.Time{}
	for range retry.Ticks(ctx, diskCheck) {
		broken := e.examine()
		if broken == nil || time.Since(started) < pause || checkRoom(e.dir) != nil {
			continue
		}
		if started.IsZero() || time.Since(started) > 2*maxRestartPause {
			pause = restartPause
		} else {
			pause = min(2*pause, maxRestartPause)
		}
		started = time.Now()
		e.restart(ctx, broken)
	}
}

// examine brings up to date whether the server can write. Its result is an error
// that only a restart ends.
func (e *embedded) examine() error {
	e.mu.Lock()
	alarmed := e.alarmed
	e.alarmed = false
	e.mu.Unlock()
	broken := storeError(e.server)
	trouble := broken
	if broken == nil && alarmed {
		trouble = checkRoom(e.dir) // the line may have been about something that is tried again
	}
	if trouble == nil {
		trouble = e.checkLimit()
	} else {
		trouble = e.cannotWrite(trouble)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.alarmed {
		return broken // the disk is full since: look again
	}
	e.alarmed = alarmed && trouble != nil && broken == nil
	switch {
	case trouble != nil && e.trouble == nil:
		e.log.Error("the embedded NATS server cannot write", zap.String("dir", e.dir), zap.Error(trouble))
	case trouble == nil && e.trouble != nil:
		e.log.Info("the embedded NATS server can write again", zap.String("dir", e.dir))
	}
	e.trouble = trouble
	return broken
}

// storeError is the write error that a stream of the server has met, or that the
// server has met for all of them.
func storeError(s *server.Server) error {
	if !s.JetStreamEnabled() {
		return errors.New("JetStream is switched off after an error")
	}
	for _, found := range s.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if found.Type == server.HealthzErrorStream && strings.Contains(found.Error, "write error") {
			return errors.New(found.Error)
		}
	}
	return nil
}

// restart puts another server in the place of this one. What was acknowledged is
// in its files: the server answers after it has written.
func (e *embedded) restart(ctx context.Context, cause error) {
	e.log.Warn("the embedded NATS server starts again: there is room on the disk", zap.String("dir", e.dir), zap.NamedError("cause", cause))
	e.stopServer()
	if err := e.startServer(ctx); err != nil {
		e.log.Error("the embedded NATS server does not start", zap.Error(err))
		return
	}
	_ = e.examine() // what is still wrong is found again at the next look
}

// checkRoom is an error unless restartRoom bytes can be written to dir. A quota
// and a limit of file sizes show in a write alone; that comes after the question
// for what is free, because it takes from others what is left.
func checkRoom(dir string) error {
	if free, known := freeBytes(dir); known && free < restartRoom {
		return syscall.ENOSPC
	}
	file, err := os.CreateTemp(dir, "appbridge-room-")
	if err != nil {
		return rootCause(err)
	}
	_, err = file.Write(make([]byte, restartRoom))
	return rootCause(errors.Join(err, file.Close(), os.Remove(file.Name())))
}

// maxStore is the limit for a server that starts now. Zero: the server's own.
func (e *embedded) maxStore() int64 {
	if e.limit > 0 {
		return e.limit
	}
	free, known := freeBytes(e.dir)
	if !known {
		return 0
	}
	return max((free+sizeOf(e.dir))/4*3, 1)
}

// checkLimit is an error while the streams take more than they may. By default
// the limit follows the disk upwards.
func (e *embedded) checkLimit() error {
	info, err := e.server.Jsz(nil)
	if err != nil || info.Store <= uint64(max(info.Config.MaxStore, 0)) {
		return nil //nolint:nilerr // examine has looked whether there is JetStream
	}
	if limit := e.maxStore(); e.limit == 0 && limit > info.Config.MaxStore {
		options := e.options
		options.JetStreamMaxStore = limit
		if err := e.server.ReloadOptions(&options); err == nil {
			e.options.JetStreamMaxStore = limit
			e.log.Info("the embedded NATS server has another limit for its streams", zap.Int64("maxBytes", limit), zap.String("dir", e.dir))
			if int64(info.Store) <= limit {
				return nil
			}
		} else {
			e.log.Warn("cannot raise the limit of the embedded NATS server", zap.Error(err))
		}
	}
	return fmt.Errorf("the embedded NATS server is full: its streams take %d bytes and may take %d; raise nats-embedded-max-bytes or make room in %s",
		info.Store, info.Config.MaxStore, e.dir)
}

// sizeOf is how many bytes the files below dir have. What vanishes meanwhile has none.
func sizeOf(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it vanished, or it is not ours
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	return total
}

func warnOfReaders(log *zap.Logger, dir string) {
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o007 != 0 {
		log.Warn("every user of this machine has access to the folder of the embedded NATS server; chmod 700 keeps the events private",
			zap.String("dir", dir), zap.Stringer("mode", info.Mode().Perm()))
	}
}
