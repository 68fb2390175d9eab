package e2e_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// 2,000 follows whose requester is gone before the answer leave nothing behind: no slot, no
// request at the kubelet, no goroutine, no subscription.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	const all, wave = 2_000, 500
	w := ownWorld(t, "--max-log-streams", strconv.Itoa(wave), "--max-pod-streams", strconv.Itoa(wave))
	id, service := w.app(t)
	pod := w.podOf(t, service, service+"-1", testenv.InMemory) // there are fewer inotify instances than follows
	pod.Write("hello")
	nc, err := nats.Connect(w.NATS, nats.Timeout(patience))
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
		suite.Progress(t, patience, "requests have ended", int64(sent+wave), func() int64 {
			return int64(w.bridge.Metric(t, "appbridge_log_requests_total"))
		})
		suite.Progress(t, patience, "slots are taken", 0, func() int64 {
			return int64(w.bridge.Metric(t, "appbridge_log_streams") + w.bridge.Metric(t, "appbridge_log_pod_streams"))
		})
		if sent == 0 {
			goroutines = w.bridge.Metric(t, "go_goroutines") // everything has been used once
		}
	}
	t.Logf("%d requests in %s", all, time.Since(began).Round(time.Millisecond))
	// On a busy machine some wait longer for Kubernetes than a request may.
	ended := func(result string) float64 {
		return w.bridge.Metric(t, `appbridge_log_requests_total{op="tail",result="`+result+`"}`)
	}
	if n := ended("gone") + ended("DeadlineExceeded"); n != all {
		for _, result := range []string{"Unavailable", "ResourceExhausted", "Internal", "NotFound", "eof", "error", "limit"} {
			t.Logf("%s: %v", result, ended(result))
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
		if n := w.bridge.Metric(t, "go_goroutines"); n > goroutines+20 {
			return fmt.Errorf("%v, and %v after the first wave", n, goroutines)
		}
		return nil
	})
}
