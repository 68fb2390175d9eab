package e2e_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// The newest message of the stream is on a subject that it does not hold any more. A bridge that has
// to write the whole bucket skips it as any message that is no event.
func TestNewestMessageOnAnotherSubject(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"without events": false, "the bucket is deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			w.create(w.app("one"))
			if before {
				r := w.start(cfg)
				w.waitFor(0, "created one")
				must[any](t)(nil, r.stop())
				must[any](t)(nil, w.js.DeleteStream(t.Context(), subjects.BucketStream(cfg.Bucket)))
			} else {
				must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: cfg.Stream, Subjects: []string{"flyte.apps.events.>"}}))
			}
			w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other.>") })
			must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), "other.x", nil))
			w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[:1] })

			r := w.launch(cfg, nil)
			r.waitReady()
			eventually(t, "the bucket has the app", func() error {
				if w.entries()[w.app("one").ID()] == nil {
					return errors.New("it does not have it")
				}
				return nil
			})
			if n := r.metric("appbridge_snapshot_restarts_total"); n > 0 {
				t.Errorf("the projection started over %v times", n)
			}
		})
	}
}
