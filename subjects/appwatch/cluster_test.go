package appwatch_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The leaders of the stream and of the bucket change, by order and because a server ends, while
// readers follow. Each event comes once, in order, and nothing is lost.
func TestLeaderChanges(t *testing.T) {
	t.Parallel()
	c := suite.NewNATSCluster(t)
	w := connectWriter(t, c.URL())
	w.again = true
	w.create(3)
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	var readers []*reader
	for _, opts := range []appwatch.Options{{}, {Project: "shop"}} {
		_, js := dial(t, c.URL())
		r := watch(t, js, opts)
		r.expect("state shop/production/a created 1", "mark 1")
		readers = append(readers, r)
	}
	next := 2
	append10 := func() {
		t.Helper()
		for range 10 {
			w.event("shop/production/a", subjects.Updated, "ACTIVE")
			for _, r := range readers {
				r.expect(fmt.Sprintf("event shop/production/a updated %d", next))
			}
			next++
		}
	}
	append10()
	for range 3 {
		for _, stream := range []string{w.stream, subjects.BucketStream(w.bucket)} {
			if _, err := w.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, patience); err != nil {
				t.Fatal(err)
			}
		}
		append10()
	}
	for range 2 {
		var leader int
		suite.Eventually(t, patience, "a leader", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			s, err := w.js.Stream(ctx, w.stream)
			if err != nil {
				return err
			}
			info := s.CachedInfo()
			if info.Cluster == nil || info.Cluster.Leader == "" {
				return fmt.Errorf("%v has no leader", info.Cluster)
			}
			for _, replica := range info.Cluster.Replicas {
				if replica.Offline || !replica.Current {
					return fmt.Errorf("%s is not current", replica.Name)
				}
			}
			leader = c.Index(info.Cluster.Leader)
			return nil
		})
		c.Stop(leader)
		append10()
		c.Start(leader)
		append10()
	}
}
