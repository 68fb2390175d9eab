package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connectTo is a connection, as a bridge makes it, until the test is over.
func connectTo(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(natsconn.Options("test", zap.NewNop()), nats.Timeout(suite.Patience))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// A snapshot is never older than what was acknowledged, also while a replica of
// the bucket that was started again catches up, and may have the consumer.
func TestLoadWhileReplicaCatchesUp(t *testing.T) {
	c := suite.NewNATSCluster(t)
	nc := connectTo(t, c.URL())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(JetStreamTimeout), jetstream.WithPublishAsyncMaxPending(500))
	if err != nil {
		t.Fatal(err)
	}
	name := subjects.BucketStream(subjects.DefaultBucket)
	c.Poll("make the bucket", func() error {
		_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket, History: 1, Replicas: 3, Storage: jetstream.FileStorage})
		return err
	})
	b := &Bucket{Entries: app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON}, JS: js, Log: zap.NewNop()}
	const keys = 1200
	e := encodertest.New()
	write := func(round int) {
		t.Helper()
		var futures []jetstream.PubAckFuture
		for i := range keys {
			id := subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprint("a", i)}
			svc := encodertest.Service(fmt.Sprint("u", i), fmt.Sprint(round*keys+i+1), "True", func(svc *kservice.Service) {
				svc.Status.Conditions[0].Message = strings.Repeat("x", 10000)
			})
			ev, err := e.Encode(id, app.NewUpsert(app.State{Service: svc}, true), nil)
			if err != nil {
				t.Fatal(err)
			}
			ev.Record.Sequence = uint64(round*keys + i + 1)
			msg, err := b.Entry(id, ev.Record, ev.Msg.Header)
			if err != nil {
				t.Fatal(err)
			}
			f, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(suite.Patience), jetstream.WithRetryAttempts(1000))
			if err != nil {
				t.Fatal(err)
			}
			futures = append(futures, f)
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				t.Fatal(err)
			case <-time.After(suite.Patience):
				t.Fatal("no acknowledgement")
			}
		}
	}
	write(0)
	var down int
	c.Poll("all replicas are current", func() error {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			return err
		}
		cluster := stream.CachedInfo().Cluster
		for _, replica := range cluster.Replicas {
			if !replica.Current {
				return fmt.Errorf("%s is not", replica.Name)
			}
		}
		for i, s := range c.Servers {
			if s.Name() != cluster.Leader && s.Name() != nc.ConnectedServerName() {
				down = i
			}
		}
		return nil
	})
	c.Stop(down)
	c.Poll("the bucket has a leader", func() error {
		_, err := js.Stream(t.Context(), name)
		return err
	})
	write(1)
	c.Start(down)
	replica := func() *jetstream.PeerInfo {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			return nil
		}
		for _, peer := range stream.CachedInfo().Cluster.Replicas {
			if peer.Name == c.Servers[down].Name() {
				return peer
			}
		}
		return nil
	}
	loads := 0
	c.Poll("the replica catches up", func() error {
		peer := replica() // before the load, so that one more follows the end
		ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
		defer cancel()
		snap, err := b.Load(ctx)
		if err != nil {
			return err
		}
		loads++
		if want := uint64(2 * keys); snap.Position != want || snap.Last != want || len(snap.Records) != keys {
			t.Fatalf("%d keys up to %d, last sequence %d; want %d keys up to %d", len(snap.Records), snap.Position, snap.Last, keys, want)
		}
		if peer == nil || !peer.Current || peer.Lag > 0 {
			return errors.New("it is behind")
		}
		return nil
	})
	t.Logf("%d snapshots", loads)
}
