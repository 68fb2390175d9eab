package appwatch_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Entries are written again at the hub, as an upgrade of the bridge does, and have not reached the
// mirror of the bucket at the leafnode yet. The mirror never gets the old ones. A reader of it may not
// report their apps as gone.
func TestMirrorBehind(t *testing.T) {
	t.Parallel()
	const again = "again"
	port := suite.FreePort(t)
	hub := suite.NATS(t, &server.Options{
		ServerName: "hub", JetStream: true, JetStreamDomain: "hub", StoreDir: t.TempDir(), LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: port},
	})
	arrive := make(chan struct{})
	release := sync.OnceFunc(func() { close(arrive) })
	through := suite.Wire(t, fmt.Sprintf("127.0.0.1:%d", port), 0, func(payload []byte) bool {
		if bytes.Contains(payload, []byte(again)) {
			<-arrive
		}
		return false
	})
	t.Cleanup(release)
	remote, err := url.Parse(strings.Replace(through, "nats:", "nats-leaf:", 1))
	if err != nil {
		t.Fatal(err)
	}
	leaf := suite.NATS(t, &server.Options{
		ServerName: "leaf", JetStream: true, JetStreamDomain: "leaf", StoreDir: t.TempDir(), LeafNode: server.LeafNodeOpts{
			Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{remote}, Compression: server.CompressionOpts{Mode: server.CompressionOff}}},
		},
	})
	suite.Eventually(t, patience, "the leafnode", func() error {
		if hub.NumLeafNodes() == 0 {
			return errors.New("it is not connected")
		}
		return nil
	})

	w := newWriter(t, hub.ClientURL())
	apps := []string{"shop/production/a", "shop/production/b", "shop/production/c"}
	for _, app := range apps {
		w.event(app, subjects.Created, "ACTIVE")
	}
	bucket, err := w.js.Stream(t.Context(), subjects.BucketStream(w.bucket))
	if err != nil {
		t.Fatal(err)
	}
	for sequence := range uint64(2) { // a and b
		m, err := bucket.GetMsg(t.Context(), sequence+1)
		if err != nil {
			t.Fatal(err)
		}
		m.Header.Set("Test", again)
		w.publish(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
	}

	_, far := dial(t, leaf.ClientURL())
	near := &writer{t: t, js: far}
	for _, copied := range []struct {
		name     string
		messages uint64
	}{
		{w.stream, 3},
		{subjects.BucketStream(w.bucket), 1}, // nothing comes behind it
	} {
		if _, err := far.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: copied.name, Mirror: &jetstream.StreamSource{Name: copied.name, External: &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"}},
		}); err != nil {
			t.Fatal(err)
		}
		near.holds(copied.name, copied.messages)
	}

	all := []string{"state shop/production/a created 1", "state shop/production/b created 2", "state shop/production/c created 3", "mark 3"}
	r := watch(t, far, appwatch.Options{})
	mark := r.expect(all[2:]...)[1]
	if !mark.Position.Owed {
		t.Errorf("the position %s does not say that a snapshot is owed", mark.Position)
	}
	resumed := watch(t, far, appwatch.Options{From: mark.Position})
	resumed.expect(all[3])
	release()
	for _, r := range []*reader{r, resumed} {
		restart := r.next(1)[0]
		if restart.Type != appwatch.Restart {
			t.Fatalf("got %q, want a restart", line(restart))
		}
	}
	r.expect(all[0]+" changed", all[1]+" changed", all[2], all[3])
	resumed.expect(all...)
	watch(t, far, appwatch.Options{}).expect(all...)
}
