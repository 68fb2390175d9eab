package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// shopApp is the app whose log is shown, with so many replicas.
const (
	shopApp      = "storefront"
	shopReplicas = 2
)

// shopLog is what storefront's replicas write: pods whose kubelet this process
// stands in for.
type shopLog struct {
	id      subjects.AppID
	common  string // what the names of the pods begin with
	pods    []*testenv.Pod
	written []string // lines as a reader is to see them, oldest first
}

// startShop waits until the replicas of the app run.
func (t *tour) startShop(ctx context.Context) (*shopLog, error) {
	shop := &shopLog{id: t.ids[shopApp], common: t.current[shopApp].Name + "-"}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		if err := t.findShop(ctx, shop); err != nil || len(shop.pods) == shopReplicas {
			return shop, err
		}
		if err := testenv.Pause(ctx, bucketPoll); err != nil {
			return nil, fmt.Errorf("%d replicas of %s run, want %d: %w", len(shop.pods), shopApp, shopReplicas, err)
		}
	}
}

// findShop finds the replicas that run now.
func (t *tour) findShop(ctx context.Context, shop *shopLog) (err error) {
	svc := t.current[shopApp]
	if err := t.cluster.Client.Get(ctx, client.ObjectKeyFromObject(svc), svc); err != nil {
		return fmt.Errorf("read %s: %w", svc.Name, err)
	}
	shop.pods, err = t.stage.replicas(ctx, svc)
	return err
}

// serveShop adds a line to the log, if there is a replica.
func (t *tour) serveShop(ctx context.Context, shop *shopLog) error {
	if err := t.findShop(ctx, shop); err != nil || len(shop.pods) == 0 {
		return err
	}
	return shop.write()
}

// write adds a line to the log of one of the replicas, turn by turn.
func (s *shopLog) write() error {
	n := len(s.written)
	line := shopRequest(n)
	pod := s.pods[n%len(s.pods)]
	if !pod.Write(line) {
		return fmt.Errorf("pod %s does not run", pod.Name())
	}
	s.written = append(s.written, strings.TrimPrefix(pod.Name(), s.common)+" "+line)
	return nil
}

// shopRequest is the n-th request that the shop served.
func shopRequest(n int) string {
	requests := []string{
		"GET /products?category=tea 200", "GET /products/1042 200", "POST /cart 201", "GET /images/1042.webp 304",
		"GET /cart 200", "POST /checkout 202", "GET /products/9999 404", "GET /orders/58213 200", "POST /payments 502", "POST /payments 201",
	}
	line := fmt.Sprintf("%s %dms", requests[n%len(requests)], 3+n*37%180)
	if strings.Contains(line, " 502 ") {
		line += " error: payment provider did not answer, trying again"
	}
	return line
}

// show writes some lines, asks for the log as any NATS client would, and prints
// it. What comes has to be what was written.
func (s *shopLog) show(ctx context.Context, conn *nats.Conn, out *screen) error {
	for range 10 {
		if err := s.write(); err != nil {
			return err
		}
	}
	subject, err := s.subject(subjects.LogGet)
	if err != nil {
		return err
	}
	out.action("request to " + subject)
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	msg, err := conn.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return fmt.Errorf("ask for the log on %s: %w", subject, err)
	}
	if text := msg.Header.Get(subjects.HeaderServiceError); text != "" {
		return fmt.Errorf("ask for the log on %s: %s", subject, text)
	}
	got := string(msg.Data)
	out.line(strings.TrimSuffix(got, "\n"))
	if want := strings.Join(s.written, "\n") + "\n"; got != want {
		return errors.New("the log is not what was written:\n" + want)
	}
	return nil
}

func (s *shopLog) subject(op subjects.LogOp) (string, error) {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return "", err
	}
	return names.Logs(op, s.id)
}
