package pods_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// A project that reads all logs that may be read at one time loses its newest stream when
// another project needs one.
func TestKubernetesShares(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes(func(c *pods.Config) { c.MaxPodStreams = 4 })
	evil := p.create(testenv.App{Project: "evil", Domain: "production", Name: "one"})
	shop := p.newApp("two")
	for range 2 {
		evil.run("00001")
		shop.run("00001")
	}
	q := all(evil)
	q.Follow = logsvc.FollowAlways
	oldest, newest := read(t, k, q), read(t, k, q)
	if active, _ := k.PodStreams(); active != 4 {
		t.Fatalf("%d logs are read", active)
	}
	stream, err := k.Open(t.Context(), all(shop))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	refused(t, newest.ended(), subjects.CodeResourceExhausted, `max-pod-streams: project "evil" has more than its share of 4 Kubernetes log streams: another project needs its share of the limit, try again later`)
	if active, _ := k.PodStreams(); active != 4 {
		t.Errorf("%d logs are read, want 4", active)
	}
	_, err = k.Open(t.Context(), q)
	refused(t, err, subjects.CodeResourceExhausted, "max-pod-streams: 4 of 4 Kubernetes log streams are taken, try again later")
	if names := strings.Join(stream.Replicas(), " "); strings.Count(names, shop.service) != 2 {
		t.Errorf("got %s", names)
	}
	oldest.cancel()
	stream.Close()
	soon(t, "the slots come back", func() error {
		if active, _ := k.PodStreams(); active != 0 {
			return fmt.Errorf("%d are taken", active)
		}
		return nil
	})
}
