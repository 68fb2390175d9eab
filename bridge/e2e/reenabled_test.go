package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// JetStream is disabled for the account and enabled again. Until the server has recovered the account's
// streams, it answers that a stream does not exist. The bridge waits for its stream, and makes none in
// its place: that would have other settings, and none of the readers' consumers.
func TestJetStreamEnabledAgain(t *testing.T) {
	t.Parallel()
	w := newNamespace(t)
	settings := func(js string) string {
		return fmt.Sprintf(`
jetstream { store_dir: %q }
accounts { A { users: [{user: test, password: test}], jetstream: %s } }
authorization { timeout: 300 }
no_auth_user: test
`, w.dir, js)
	}
	file := suite.NATSReloadable(t, settings("enabled"))
	w.server = file.Server
	w.connect()
	r := w.start(w.config())
	svc := w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	w.changeStream(subjects.DefaultStream, func(cfg *jetstream.StreamConfig) { cfg.MaxAge = time.Hour })
	must[jetstream.Consumer](t)(w.js.CreateConsumer(t.Context(), subjects.DefaultStream, jetstream.ConsumerConfig{Durable: "reader"}))
	// The server recovers streams one after the other, in the order of their names.
	for i := range 1500 {
		must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: fmt.Sprintf("A%d", i), Subjects: []string{fmt.Sprintf("a%d", i)}}))
	}
	made := w.stream(subjects.DefaultStream).CachedInfo().Created
	for round := range 2 {
		file.Reload(t, settings("disabled"))
		svc = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", fmt.Sprint(round)))
		eventually(t, "an append has no answer", func() error {
			if n := r.logs.FilterMessage("appending stopped; reading from the stream's leader what was stored").Len(); n <= round {
				return fmt.Errorf("%d appends", n)
			}
			return nil
		})
		file.Reload(t, settings("enabled"))
		r.waitReady()
		eventually(t, "the change is published", func() error {
			if n := len(w.events(0)); n != round+2 {
				return fmt.Errorf("%d events", n)
			}
			return nil
		})
		if info := w.stream(subjects.DefaultStream).CachedInfo(); !info.Created.Equal(made) || info.Config.MaxAge != time.Hour {
			t.Fatalf("the stream is of %v with max_age %v, it was of %v with 1h", info.Created, info.Config.MaxAge, made)
		}
		must[jetstream.Consumer](t)(w.js.Consumer(t.Context(), subjects.DefaultStream, "reader"))
	}
	w.converged(w.events(0))
}
