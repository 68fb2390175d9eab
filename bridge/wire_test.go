package bridge

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// through is the rig seen through a wire (suite.Wire).
func (r *rig) through(delay time.Duration, lose func([]byte) bool) *rig {
	r.t.Helper()
	url := suite.Wire(r.t, strings.TrimPrefix(r.nc.ConnectedUrl(), "nats://"), delay, lose)
	opts := append(natsconn.Options("slow", zap.NewNop()), nats.IgnoreDiscoveredServers())
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncTimeout(store.JetStreamTimeout)) // as New does
	if err != nil {
		r.t.Fatal(err)
	}
	stage := *r.stage
	far := *r
	far.stage = &stage
	far.nc, far.js = nc, js
	if far.stream, err = js.Stream(r.t.Context(), subjects.DefaultStream); err != nil {
		r.t.Fatal(err)
	}
	store := *r.storage
	store.JS = js
	far.storage = &store
	return &far
}
