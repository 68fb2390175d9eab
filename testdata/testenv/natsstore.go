package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// SavedStore is a copy of the JetStream storage of all servers at one moment.
type SavedStore struct {
	dir    string
	groups map[string][]string // the Raft groups of a stream, by name of the stream
}

// Remove deletes the copy.
func (s *SavedStore) Remove() error { return os.RemoveAll(s.dir) }

// SaveStore copies the storage of all servers, which have to run. They are stopped with SIGSTOP
// meanwhile, all at once: the copy is what a crash at this moment would leave on disk, and no
// server has a message that another one sent after it. While they stand still, frozen is called,
// if it is not nil.
func (n *NATS) SaveStore(ctx context.Context, frozen func()) (*SavedStore, error) {
	saved, err := n.newSavedStore(ctx)
	if err != nil {
		return nil, fmt.Errorf("save the storage of NATS: %w", err)
	}
	err = n.freeze(ctx)
	if err == nil {
		for _, s := range n.servers {
			err = errors.Join(err, os.CopyFS(filepath.Join(saved.dir, s.name), os.DirFS(s.data)))
		}
		if frozen != nil {
			frozen()
		}
	}
	if err = errors.Join(err, n.signalAll(syscall.SIGCONT)); err != nil {
		return nil, errors.Join(fmt.Errorf("save the storage of NATS: %w", err), saved.Remove())
	}
	return saved, nil
}

// newSavedStore is an empty copy that knows which Raft groups there are.
func (n *NATS) newSavedStore(ctx context.Context) (*SavedStore, error) {
	groups := map[string][]string{}
	for _, s := range n.servers {
		if s.running() == nil {
			return nil, fmt.Errorf("%s does not run", s.name)
		}
		info, err := s.jetStream(ctx)
		if err != nil {
			return nil, err
		}
		for _, stream := range details(info) {
			groups[stream.Name] = append(groups[stream.Name], stream.RaftGroup)
			for _, consumer := range stream.ConsumerRaftGroups {
				groups[stream.Name] = append(groups[stream.Name], consumer.RaftGroup)
			}
		}
	}
	dir, err := os.MkdirTemp(n.guard.dir, "saved-")
	return &SavedStore{dir: dir, groups: groups}, err
}

// Pause stops a server as a machine that stands still; Resume has it go on.
func (n *NATS) Pause(i int) error { return n.signal(i, syscall.SIGSTOP) }

// Resume has a server go on that Pause stopped.
func (n *NATS) Resume(i int) error { return n.signal(i, syscall.SIGCONT) }

func (n *NATS) signal(i int, sig syscall.Signal) error {
	if process := n.servers[i].running(); process != nil {
		return process.Signal(sig)
	}
	return nil
}

// freeze returns when no thread of any server runs.
func (n *NATS) freeze(ctx context.Context) error {
	if err := n.signalAll(syscall.SIGSTOP); err != nil {
		return err
	}
	for _, s := range n.servers {
		process := s.running()
		for process != nil && !stopped(process.PID()) {
			if err := pause(ctx); err != nil {
				return fmt.Errorf("wait until %s stands still: %w", s.name, err)
			}
		}
	}
	return nil
}

// stopped reports whether all threads of a process are stopped by a signal.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		// "<id> (<name>) <state> ...", and the name may contain anything.
		if err == nil && !bytes.HasPrefix(text[bytes.LastIndexByte(text, ')')+1:], []byte(" T")) {
			return false
		}
	}
	return true
}

func (n *NATS) signalAll(sig syscall.Signal) error {
	var errs []error
	for i := range n.servers {
		errs = append(errs, n.signal(i, sig))
	}
	return errors.Join(errs...)
}

// RestoreStore puts back the copy: of the named streams and their Raft groups, or of everything
// without a name. No server may run.
func (n *NATS) RestoreStore(saved *SavedStore, streams ...string) error {
	for _, s := range n.servers {
		if s.running() != nil {
			return fmt.Errorf("restore the storage of NATS: %s runs", s.name)
		}
		copied := filepath.Join(saved.dir, s.name)
		folders := []string{"."}
		if len(streams) > 0 {
			var err error
			if folders, err = saved.folders(copied, streams); err != nil {
				return fmt.Errorf("restore the storage of NATS: %w", err)
			}
		}
		for _, folder := range folders {
			from, to := filepath.Join(copied, folder), filepath.Join(s.data, folder)
			if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
				return fmt.Errorf("restore the storage of NATS: %w", err)
			}
		}
	}
	return nil
}

// folders are those of streams in one server's storage: <account>/streams/<stream> and, in a
// cluster, <system account>/_js_/<Raft group>.
func (s *SavedStore) folders(copied string, streams []string) ([]string, error) {
	var all []string
	for _, stream := range streams {
		patterns := []string{filepath.Join("jetstream", "*", "streams", stream)}
		for _, group := range s.groups[stream] {
			if group != "" {
				patterns = append(patterns, filepath.Join("jetstream", "*", "_js_", group))
			}
		}
		found := 0
		for _, pattern := range patterns {
			paths, err := filepath.Glob(filepath.Join(copied, pattern))
			if err != nil {
				return nil, err
			}
			for _, path := range paths {
				folder, err := filepath.Rel(copied, path)
				if err != nil {
					return nil, err
				}
				all = append(all, folder)
				found++
			}
		}
		if found == 0 {
			return nil, fmt.Errorf("the copy has no stream %s", stream)
		}
	}
	return all, nil
}
