package player

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// serverTimeout is generous: the machine may be busy.
const serverTimeout = time.Minute

// box is a JetStream server in this process, with its storage in a folder, and the address that
// readers know. The server can be restarted and its storage put back to an earlier copy.
type box struct {
	dir  string // storage is in dir/store
	gate *gate
	conn *nats.Conn // of the player, to the present server
	js   jetstream.JetStream

	mu  sync.Mutex
	srv *server.Server // nil: stopped
}

// newBox starts a server with its storage below dir.
func newBox(dir string) (b *box, err error) {
	b = &box{dir: dir}
	if b.gate, err = newGate(b.dial); err != nil {
		return nil, err
	}
	if err := b.start(); err != nil {
		b.gate.close()
		return nil, err
	}
	return b, nil
}

func (b *box) store() string { return filepath.Join(b.dir, "store") }

func (b *box) dial() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.srv == nil {
		return nil, errors.New("the server is stopped")
	}
	return b.srv.InProcessConn()
}

func (b *box) start() error {
	// SyncInterval: what a power failure would take is not at stake here, a copy put back is.
	srv, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: b.store(), NoLog: true, NoSigs: true, SyncInterval: time.Hour,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 1 << 30,
	})
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(serverTimeout) {
		return errors.New("start the server: it does not serve")
	}
	if b.conn, err = nats.Connect("", nats.InProcessServer(srv), nats.NoReconnect(), nats.Timeout(serverTimeout)); err != nil {
		return err
	}
	if b.js, err = jetstream.New(b.conn, jetstream.WithDefaultTimeout(serverTimeout)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.srv = srv
	return nil
}

func (b *box) stop() {
	b.mu.Lock()
	srv := b.srv
	b.srv = nil
	b.mu.Unlock()
	if srv == nil {
		return
	}
	b.conn.Close()
	srv.Shutdown()
	srv.WaitForShutdown()
}

// silent describes a server that does not answer. It runs in this process, so the goroutines, which go
// to a file, show what it waits for.
func (b *box) silent() error {
	file, err := os.CreateTemp("", "histories-goroutines-")
	if err != nil {
		return err
	}
	err = errors.Join(pprof.Lookup("goroutine").WriteTo(file, 2), file.Close())
	last := fmt.Sprint(b.conn.LastError()) // there may be none
	return errors.Join(fmt.Errorf("the server does not answer: connection %s, last error %s, goroutines in %s", b.conn.Status(), last, file.Name()), err)
}

// save copies the storage to a folder. The server must be stopped.
func (b *box) save(name string) error {
	for to := filepath.Join(b.dir, name); ; {
		err := os.CopyFS(to, os.DirFS(b.store()))
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// A stopped server may still remove what a deleted stream left.
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
}

// restore puts streams back to a saved copy. The server must be stopped.
func (b *box) restore(name string, streams ...string) error {
	for _, stream := range streams {
		folder := filepath.Join("jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream)
		from, to := filepath.Join(b.dir, name, folder), filepath.Join(b.store(), folder)
		if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
			return fmt.Errorf("restore %s: %w", stream, err)
		}
	}
	return nil
}

func (b *box) close() {
	b.gate.close()
	b.stop()
}
