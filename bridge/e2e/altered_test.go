package e2e_test

import (
	"errors"
	"fmt"
	"testing"

	"go.uber.org/zap"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// mapped is a world whose server maps subjects of the account, as its file says.
type mapped struct {
	*world
	file *suite.ReloadableNATS
}

func newMapped(t *testing.T) *mapped {
	t.Helper()
	m := &mapped{world: newNamespace(t)}
	m.file = suite.NATSReloadable(t, m.settings(""))
	m.server = m.file.Server
	m.connect()
	return m
}

func (m *mapped) settings(mappings string) string {
	return fmt.Sprintf(`
jetstream { store_dir: %q }
accounts {
  APPS { jetstream: enabled, users: [{user: apps, password: apps}], mappings: {%s} }
}
no_auth_user: apps
`, m.dir, mappings)
}

// maps reloads the server with other mappings.
func (m *mapped) maps(mappings string) {
	m.t.Helper()
	m.file.Reload(m.t, m.settings(mappings))
}

// An event is acknowledged, and the stream has it under another subject: one that is no app's, or
// that of another app. That is named, and nothing else is published until an event comes back as it
// was sent. Then everything that is owed is published.
func TestAlteredEvents(t *testing.T) {
	t.Parallel()
	const new = "flyte.apps.events.vision.development.new.*"
	for name, mapping := range map[string]string{
		"no app's":      new + `: "flyte.apps.events.renamed.{{wildcard(1)}}"`,
		"another app's": new + `: "flyte.apps.events.vision.development.old.{{wildcard(1)}}"`,
	} {
		for start, live := range map[string]bool{"before the start": false, "live": true} {
			t.Run(name+"/"+start, func(t *testing.T) {
				t.Parallel()
				w := newMapped(t)
				cfg := w.audited()
				w.create(w.app("old"))
				r := w.start(cfg)
				w.waitFor(0, "created old")
				service := must[*servingv1.Service](t)
				if !live {
					must[any](t)(nil, r.stop())
					w.maps(mapping)
					service(w.Create(t.Context(), w.app("new")))
					r = w.launch(cfg, nil)
				} else {
					for i := range 3 { // the session has published, and had its events back
						w.create(w.app(fmt.Sprint("before", i)))
					}
					r.waitReady()
					r.completes(1)
					w.maps(mapping)
					service(w.Create(t.Context(), w.app("new")))
				}
				r.notReady(`on flyte.apps.events.vision.development.new.created was acknowledged at sequence `, "where the stream has message", "vision.development.new")
				if n := r.logs.FilterMessage("an acknowledged event did not come back as it was sent; publishing waits").FilterLevelExact(zap.ErrorLevel).Len(); n == 0 {
					t.Error("it is not logged")
				}
				last := w.lastSequence()
				waits := w.create(w.app("waits"))
				eventually(t, "another event is sent", func() error {
					if r.metric("appbridge_altered_events_total") < 2 {
						return errNotYet
					}
					return nil
				})
				// One event for each time that it is found, and those under way the first time.
				if now := w.lastSequence(); now > last+2 {
					t.Errorf("the stream ends at %d after %d", now, last)
				}
				r.notReady("was acknowledged at sequence")

				w.maps("")
				service(w.Progressing(t.Context(), waits))
				eventually(t, "it is ready", func() error {
					if err := r.bridge.Ready(); err != nil {
						return err
					}
					entries := w.entries()
					for _, name := range []string{"old", "new", "waits"} {
						if entries[w.app(name).ID()] == nil {
							return errors.New("the bucket does not have " + name)
						}
					}
					return nil
				})
				r.completes(2)
				w.findsNothing(cfg, 0)
			})
		}
	}
}
