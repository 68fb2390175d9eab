package pods_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// All logs together are read at the rate of the configuration, and come whole.
func TestKubernetesRate(t *testing.T) {
	const perSecond, lines = 128 << 10, 1000
	p := newPlace(t)
	k := p.kubernetes(func(c *pods.Config) { c.MaxBytesPerSecond = perSecond })
	a := p.newApp("rate")
	var want []string
	for i := range lines {
		want = append(want, fmt.Sprintf("%04d %s", i, strings.Repeat("x", 100)))
	}
	replicas := []*testenv.Pod{a.run("00001"), a.run("00001")}
	for _, pod := range replicas {
		pod.Write(want...)
	}
	began := time.Now()
	var reads sync.WaitGroup
	for _, pod := range replicas {
		reads.Go(func() {
			r := read(t, k, logsvc.Query{App: a.id, Tail: -1, Replica: pod.Name(), Follow: logsvc.FollowNever})
			r.end()
			if got := r.of(pod); !slices.Equal(got, want) {
				t.Errorf("%d lines of %s, want %d", len(got), pod.Name(), lines)
			}
		})
	}
	reads.Wait()
	// 64 KiB may come at once. A lower bound holds on any machine.
	if took, least := time.Since(began), time.Duration(2*lines*len(want[0])-(64<<10))*time.Second/perSecond; took < least {
		t.Errorf("%d bytes came within %s, want at least %s", 2*lines*len(want[0]), took, least)
	}
}

// What is being written is not held back: a kubelet whose reader waits rotates the log in silence.
func TestKubernetesRateOfFollow(t *testing.T) {
	t.Parallel()
	const perSecond, lines = 64, 10_000 // it would take hours
	p := newPlace(t)
	k := p.kubernetes(func(c *pods.Config) { c.MaxBytesPerSecond = perSecond })
	a := p.newApp("rate-of-follow")
	pod := a.run("00001")
	pod.Write("first")
	r := read(t, k, all(a))
	r.wait(pod, "first")
	soon(t, "it follows", following(pod))
	pod.Write(numbers(0, lines)...)
	r.wait(pod, append([]string{"first"}, numbers(0, lines)...)...)
	r.noNotes(t)
}
