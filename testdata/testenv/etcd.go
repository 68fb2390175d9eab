package testenv

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Compact has etcd forget every version but the newest of each object, as it
// does by itself after some minutes: who asks for changes since any version up
// to now is told that it is too old, once the API server has been restarted and
// its own memory is gone. A History, unless it is nil, has noted everything
// before that.
func (c *Cluster) Compact(ctx context.Context, h *History) error {
	// Changes since the version before the compacted one are not forgotten, so
	// that one must not be an object's.
	if _, err := c.mark(ctx, historyMark); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	revision, err := c.mark(ctx, historyMark)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if h != nil {
		if err := h.WaitFor(ctx, revision); err != nil {
			return fmt.Errorf("compact: %w", err)
		}
	}
	request := map[string]any{"revision": strconv.FormatInt(revision, 10), "physical": true}
	if err := c.etcd(ctx, "/v3/kv/compaction", request, &etcdRange{}); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

// EtcdCopy is what etcd held at one time. It goes away with its cluster.
type EtcdCopy struct{ dir string }

// SaveEtcd makes a copy of what etcd holds. The API server, which has to run,
// and etcd are stopped for that and started again; a History ends.
func (c *Cluster) SaveEtcd(ctx context.Context) (*EtcdCopy, error) {
	parent, err := c.Dir("etcd-copies")
	if err != nil {
		return nil, fmt.Errorf("save etcd: %w", err)
	}
	dir, err := os.MkdirTemp(parent, "")
	if err != nil {
		return nil, fmt.Errorf("save etcd: %w", err)
	}
	err = c.withoutEtcd(ctx, func() error {
		return os.CopyFS(dir, os.DirFS(c.env.ControlPlane.Etcd.DataDir))
	})
	if err != nil {
		return nil, fmt.Errorf("save etcd: %w", err)
	}
	return &EtcdCopy{dir: dir}, nil
}

// RestoreEtcd takes the cluster back to a copy, as from a backup: whatever came
// after it is gone, and resourceVersions step back. etcd and the API server,
// which has to run, come back at the same addresses with the same
// certificates; a History ends. A copy can be restored more than once.
func (c *Cluster) RestoreEtcd(ctx context.Context, saved *EtcdCopy) error {
	data := c.env.ControlPlane.Etcd.DataDir
	err := c.withoutEtcd(ctx, func() error {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		if err := os.Mkdir(data, 0o700); err != nil {
			return err
		}
		return os.CopyFS(data, os.DirFS(saved.dir))
	})
	if err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return nil
}

// withoutEtcd does something to etcd's files while nobody uses them.
func (c *Cluster) withoutEtcd(ctx context.Context, do func() error) error {
	began := time.Now()
	if err := c.KillAPIServer(); err != nil {
		return err
	}
	etcd := c.env.ControlPlane.Etcd
	// Asked to stop, it would wait seconds for a History; its log is whole either way.
	if err := c.kill(etcdName, etcd.Stop); err != nil {
		return fmt.Errorf("stop etcd: %w", err)
	}
	if err := do(); err != nil {
		return err
	}
	if err := etcd.Start(); err != nil {
		return fmt.Errorf("start etcd: %w\n%s", err, c.serverLogs())
	}
	c.logf("cluster: etcd back after %s", since(began))
	return c.StartAPIServer(ctx)
}

// mark writes a key of no object, and returns the revision of that.
func (c *Cluster) mark(ctx context.Context, key string) (int64, error) {
	written := etcdRange{}
	err := c.etcd(ctx, "/v3/kv/put", map[string]any{"key": []byte(key), "value": []byte{}}, &written)
	return written.Header.Revision, err
}
