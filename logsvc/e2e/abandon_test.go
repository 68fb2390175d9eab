package e2e_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// 10,000 follows are asked for by somebody who is gone before the answer. All are
// opened, and of none anything is left: no slot, no request at the kubelet, no
// goroutine, no subscription.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	const all, wave = 10_000, 500 // what a busy machine can open within the 10 s that a request waits for Kubernetes
	w := ownWorld(t, "--max-log-streams", strconv.Itoa(wave), "--max-pod-streams", strconv.Itoa(wave))
	id, service := w.app(t)
	pod := w.pod(t, service, service+"-1")
	pod.Write("hello")
	nc, err := nats.Connect(w.NATS)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	subject := subjectOf(t, subjects.LogTail, id)
	began := time.Now()
	goroutines := 0.0
	for sent := 0; sent < all; sent += wave {
		for range wave {
			if err := nc.PublishRequest(subject, nc.NewInbox(), []byte(`{"follow": true}`)); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the wave is over", func() error {
			if n := w.bridge.Metric(t, "appbridge_log_requests_total"); int(n) != sent+wave {
				return fmt.Errorf("%v of %d requests have ended", n, sent+wave)
			}
			if n := w.bridge.Metric(t, "appbridge_log_streams") + w.bridge.Metric(t, "appbridge_log_pod_streams"); n != 0 {
				return fmt.Errorf("%v are taken", n)
			}
			return nil
		})
		if sent == 0 {
			goroutines = w.bridge.Metric(t, "go_goroutines") // everything has been used once
		}
	}
	t.Logf("%d requests in %s", all, time.Since(began).Round(time.Millisecond))
	if n := w.bridge.Metric(t, `appbridge_log_requests_total{op="tail",result="gone"}`); n != all {
		for _, result := range []string{"Unavailable", "DeadlineExceeded", "ResourceExhausted", "Internal", "NotFound", "eof", "error", "limit"} {
			t.Logf("%s: %v", result, w.bridge.Metric(t, `appbridge_log_requests_total{op="tail",result="`+result+`"}`))
		}
		t.Errorf("%v ended because nobody listened", n)
	}
	eventually(t, "the kubelet hears of every end", func() error {
		if n := pod.Followers(); n != 0 {
			return fmt.Errorf("%d requests are open", n)
		}
		return nil
	})
	eventually(t, "the goroutines end", func() error {
		if n := w.bridge.Metric(t, "go_goroutines"); n > goroutines+50 {
			return fmt.Errorf("%v, and %v after the first wave", n, goroutines)
		}
		return nil
	})
}
