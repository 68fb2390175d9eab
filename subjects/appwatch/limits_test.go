package appwatch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A server may limit how many messages a request asks for. The configuration of the consumer names the
// limit, and so does the refusal.
func TestMaxRequestBatch(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 50, 256} {
		for _, named := range []bool{true, false} {
			t.Run(fmt.Sprintf("limit %d, named %v", limit, named), func(t *testing.T) {
				t.Parallel()
				s := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), JetStreamLimits: server.JSLimitOpts{MaxRequestBatch: limit}})
				w := newWriter(t, s.ClientURL())
				const events = 300
				w.event("shop/production/a", subjects.Created, "ACTIVE")
				for range events - 1 {
					w.event("shop/production/a", subjects.Updated, "ACTIVE")
				}
				relay := newRelay(t, s.ClientURL())
				if !named {
					relay.set(func(api string, _, reply []byte) []byte {
						if !strings.HasPrefix(api, apiCreate) {
							return reply
						}
						return edit(reply, func(answer map[string]any) {
							delete(answer["config"].(map[string]any), "max_batch")
						})
					})
				}
				r := watch(t, relay.js, appwatch.Options{From: appwatch.Position{StreamID: streamID}})
				items := r.next(events + 1)
				for i, it := range items[:events] {
					if it.Type != appwatch.Event || it.Sequence != uint64(i)+1 {
						t.Fatalf("item %d is %s", i, line(it))
					}
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				if len(r.reason) > 0 {
					t.Errorf("it retried: %v", r.reason)
				}
			})
		}
	}
}

// A stream may limit how long its consumers are kept while nothing is requested from them.
func TestInactiveThreshold(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	stream, bucket := streamConfig(), bucketConfig()
	stream.ConsumerLimits.InactiveThreshold, bucket.ConsumerLimits.InactiveThreshold = 10*time.Second, 10*time.Second
	if _, err := w.js.UpdateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.UpdateStream(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/a created 1", "mark 1")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a updated 2")
}
