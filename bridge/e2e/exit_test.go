package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// exits waits for the end of a replica and checks its exit code and the error that it printed.
func exits(t *testing.T, r *replica, code int, text string) {
	t.Helper()
	select {
	case <-r.Done():
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	got := 0
	if err := r.Exit(); err != nil {
		_, err := fmt.Sscanf(err.Error(), "exit status %d", &got)
		must[any](t)(nil, err)
	}
	log := must[[]byte](t)(os.ReadFile(r.LogPath()))
	if got != code || !strings.Contains(string(log), text) {
		t.Errorf("got exit code %d, want %d and %q in\n%s", got, code, text, log)
	}
}

// The exit code of a stopped bridge depends on whether another one has to publish what is left.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	t.Run("everything is flushed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		r := w.serve(w.built(), w.options(w.server.ClientURL())...)
		w.create(w.app("one"))
		w.waitFor(0, "created one")
		must[any](t)(nil, r.Signal(syscall.SIGTERM))
		exits(t, r, 0, `"msg":"flushed"`)
	})
	t.Run("a change is left", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		port, options := w.port(), w.options(w.server.ClientURL())
		r := w.serve(w.built(), append(options, "--flush-timeout", "1s")...)
		w.server.Shutdown()
		w.server.WaitForShutdown()
		w.create(w.app("one"))
		eventually(t, "the change waits", func() error {
			if r.Metric(t, "appbridge_oldest_pending_seconds") == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		must[any](t)(nil, r.Signal(syscall.SIGTERM))
		exits(t, r, 1, "stopped with 1 changes unpublished; the next start publishes them")
		w.startNATS(port)
		must[any](t)(nil, w.serve(w.built(), options...).Stop(patience))
		w.waitFor(0, "created one")
	})
	t.Run("a change is left while no session runs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		options := w.options(w.server.ClientURL())
		r := w.serve(w.built(), options...)
		w.create(w.app("one"))
		w.waitFor(0, "created one")
		before := w.stream(subjects.DefaultStream).CachedInfo().Config
		w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.NoAck = true })
		waitUnready(t, r, "no_ack")
		w.create(w.app("two"))
		eventually(t, "the change waits", func() error {
			if r.Metric(t, "appbridge_oldest_pending_seconds") == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		must[any](t)(nil, r.Signal(syscall.SIGTERM))
		exits(t, r, 1, "stopped with 1 changes unpublished; the next start publishes them")
		must[jetstream.Stream](t)(w.js.UpdateStream(t.Context(), before))
		must[any](t)(nil, w.serve(w.built(), options...).Stop(patience))
		w.waitFor(0, "created one", "created two")
	})
	t.Run("the Lease is lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		p := w.newPlugin()
		elected := []string{"--leader-elect", "--lease-namespace", w.namespace, "--flush-timeout", "1s"}
		r := w.serve(w.built(), p.options(w, elected...)...)
		w.waitLeads(r)
		w.create(w.app("one"))
		w.waitFor(0, "created one")
		p.hang()
		waitUnready(t, r, "waiting for the Lease")
		must[any](t)(nil, r.Signal(syscall.SIGTERM))
		exits(t, r, 0, `"msg":"lost the Lease"`)
	})
	t.Run("a configuration that does not fit", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		log := filepath.Join(t.TempDir(), "log")
		args := append([]string{"serve", "--http-listen", "127.0.0.1:0", "--stream-replicas", "3"}, w.options(w.server.ClientURL())...)
		process := must[*testenv.Process](t)(w.Run("appbridge-refused-"+w.namespace, log, w.built().path, args...))
		exits(t, &replica{Instance: &kubesuite.Instance{Process: process}}, 1, "ask for no more replicas than there are JetStream servers")
	})
}
