package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The account has no place for another consumer when a bridge starts: that is why it is not ready.
func TestConsumersLimitedAtStart(t *testing.T) {
	t.Parallel()
	w := newNamespace(t)
	settings := func(limit string) string {
		return fmt.Sprintf(`
jetstream { store_dir: %q }
accounts { A { users: [{user: test, password: test}], jetstream: { %s } } }
no_auth_user: test
`, w.dir, limit)
	}
	file := suite.NATSReloadable(t, settings(""))
	w.server = file.Server
	w.connect()
	r := w.start(w.config())
	w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	must[any](t)(nil, r.stop())
	must[jetstream.Consumer](t)(w.js.CreateConsumer(t.Context(), subjects.DefaultStream, jetstream.ConsumerConfig{Durable: "reader"}))

	file.Reload(t, settings("max_consumers: 1"))
	r = w.launch(w.config(), nil)
	eventually(t, "the limit is why", func() error {
		if err := r.bridge.Ready(); err == nil || !strings.Contains(err.Error(), "maximum consumers limit reached") {
			return fmt.Errorf("got %v", err) //nolint:errorlint // nil as well
		}
		return nil
	})
	file.Reload(t, settings(""))
	r.waitReady()
}
