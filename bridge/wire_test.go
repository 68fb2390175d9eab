package bridge

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// through is the rig seen through a wire (suite.Wire).
func (r *rig) through(delay time.Duration, lose func([]byte) bool) *rig {
	r.t.Helper()
	url := suite.Wire(r.t, strings.TrimPrefix(r.nc.ConnectedUrl(), "nats://"), delay, lose)
	nc := connectTo(r.t, url, nats.IgnoreDiscoveredServers())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncTimeout(store.JetStreamTimeout)) // as New does
	if err != nil {
		r.t.Fatal(err)
	}
	far := *r
	far.nc, far.js = nc, js
	if far.stream, err = js.Stream(r.t.Context(), subjects.DefaultStream); err != nil {
		r.t.Fatal(err)
	}
	store := *r.storage
	store.JS = js
	far.storage = &store
	return &far
}
