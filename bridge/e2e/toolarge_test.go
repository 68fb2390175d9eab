package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// restartNATS has the world's server come back with other options.
func (w *world) restartNATS(change func(*server.Options)) {
	w.t.Helper()
	opts := &server.Options{Host: "127.0.0.1", Port: w.port(), JetStream: true, StoreDir: w.dir, NoSigs: true, NoLog: true}
	change(opts)
	w.server.Shutdown()
	w.server.WaitForShutdown()
	s := must[*server.Server](w.t)(server.NewServer(opts))
	s.Start()
	if !s.ReadyForConnections(patience) {
		w.t.Fatal("nats-server does not come up")
	}
	w.server = s
	w.t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	eventually(w.t, "the test is connected", func() error { return w.nc.FlushTimeout(patience) })
}

// A state that does not fit into a message, whoever sets the limit: it is
// reported and left out, the other apps go on, and so does this one once it
// fits. Its delete fits always.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	for name, restrict := range map[string]func(*world){
		"for the server": func(w *world) {
			w.restartNATS(func(opts *server.Options) { opts.MaxPayload = limit })
		},
		"for the stream": func(w *world) {
			must[jetstream.Stream](w.t)(w.js.CreateStream(w.t.Context(), jetstream.StreamConfig{
				Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage, MaxMsgSize: limit,
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			restrict(w)
			ctx, service := t.Context(), must[*servingv1.Service](t)
			text := func(i int) string { return fmt.Sprintf("%d: %s", i, strings.Repeat("long ", limit/4)) }
			fat := w.create(w.app("fat"))
			born := w.create(w.app("born"))
			service(w.Failed(ctx, born, "Broken", text(0)))

			r := w.start(w.config())
			w.waitFor(0, "created fat")
			left := func(n float64) {
				t.Helper()
				eventually(t, "the app is reported", func() error {
					if got := r.metric("appbridge_objects_left_out_total"); got != n {
						return fmt.Errorf("%v are, want %v", got, n)
					}
					return nil
				})
			}
			left(1)
			service(w.Failed(ctx, fat, "Broken", text(1)))
			left(2)
			service(w.Failed(ctx, fat, "Broken", text(2)))
			left(3)
			other := w.create(w.app("other"))
			service(w.Progressing(ctx, other))
			w.waitFor(0, "created fat", "created other", "updated other")
			if n := r.logs.FilterMessage("change rejected").FilterField(zap.Stringer("app", w.app("fat").ID())).Len(); n != 2 {
				t.Errorf("the log names the app %d times, want 2", n)
			}
			for _, entry := range r.logs.FilterMessage("change rejected").All() {
				if !strings.Contains(fmt.Sprint(entry.ContextMap()["error"]), "larger than the server's maximum payload") {
					t.Errorf("the log does not say why: %v", entry.ContextMap())
				}
			}
			r.waitReady()

			service(w.Failed(ctx, fat, "Broken", "briefly"))
			service(w.Failed(ctx, born, "Broken", "briefly"))
			events := w.waitFor(0, "created fat", "created other", "updated other", "updated fat", "created born")
			w.checkHeaders(events)
			w.converged(events)

			service(w.Failed(ctx, fat, "Broken", text(3)))
			left(4)
			must[any](t)(nil, w.Client.Delete(ctx, fat))
			must[any](t)(nil, w.Client.Delete(ctx, born))
			events = w.waitFor(0, "created fat", "created other", "updated other", "updated fat", "created born", "deleted fat", "deleted born")
			w.checkHeaders(events)
			w.converged(events)
			allSynthesized(t, events[1:], false)
			if got := r.metric("appbridge_resyncs_total"); got != 1 {
				t.Errorf("%v resyncs for a message that is too large, want none beside the start", got)
			}
		})
	}
}

// A limit so small that the delete of one app does not fit: that app waits, by name, and the others
// go on in the same session. What follows the delete waits behind it. Once the limit is raised all of
// it is published.
func TestDeleteThatDoesNotFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, service := t.Context(), must[*servingv1.Service](t)
	long := w.app(strings.Repeat("n", 600))
	long.ObjectName = "long"
	svc := w.create(long)
	other := w.create(w.app("other"))
	r := w.start(w.audited())
	w.waitFor(0, "created "+long.Name, "created other")

	w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 3000 })
	eventually(t, "the limit is noticed", func() error {
		if r.metric("appbridge_resyncs_total") != 2 {
			return errNotYet
		}
		return r.bridge.Ready()
	})
	must[any](t)(nil, w.Client.Delete(ctx, svc))
	eventually(t, "the app is gone", func() error {
		if _, ok := r.bridge.App(long.ID()); ok {
			return errNotYet
		}
		return nil
	})
	service(w.Create(ctx, long))
	r.notReady("no event of app vision/development/nnn", "max_msg_size of stream FLYTE_APPS is 3000 bytes, at least 3")
	service(w.Progressing(ctx, other))
	w.waitFor(2, "updated other")
	r.completes(2)
	service(w.Failed(ctx, other, "Broken", "it is"))
	w.waitFor(3, "updated other")
	// What waits unchanged is a finding at last, and it names what it waits for.
	want := []string{long.Name + " pending stream"}
	eventually(t, "the audit finds what waits", func() error {
		if got := r.findings(); !slices.Equal(got, want) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	if detail := fmt.Sprint(r.logs.FilterMessage(auditFound).All()[0].ContextMap()["detail"]); !strings.Contains(detail, "max_msg_size of stream FLYTE_APPS is 3000 bytes") {
		t.Errorf("it does not say what for: %s", detail)
	}
	r.completes(2)
	if got := r.metric("appbridge_resyncs_total"); got != 2 {
		t.Errorf("%v sessions, want no other for one app", got)
	}

	w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 20 })
	events := w.waitFor(4, "deleted "+long.Name, "created "+long.Name)
	r.waitReady()
	r.completes(2)
	w.converged(append(w.events(0)[:4:4], events...))
	if got := r.findings(); !slices.Equal(got, want) {
		t.Errorf("the audit found %q, want %q", got, want)
	}
}

// A limit below every event: nothing can be published, and the bridge is not ready, by the name of the
// limit, at a start and later.
func TestNothingFits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const reason = "max_msg_size of stream FLYTE_APPS is 200 bytes, at least "
	limit := func(size int32) {
		t.Helper()
		w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.MaxMsgSize = size })
	}
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage, MaxMsgSize: 200,
	}))
	svc := w.create(w.app("one"))
	r := w.launch(w.config(), nil)
	r.notReady(reason)
	limit(1 << 20)
	w.waitFor(0, "created one")
	r.waitReady()
	limit(200)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	r.notReady(reason)
	limit(1 << 20)
	w.waitFor(0, "created one", "updated one")
	r.waitReady()
}
