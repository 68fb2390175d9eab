package e2e_test

import (
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A bridge connects to a leafnode that has a JetStream domain of its own, and keeps stream and
// bucket in the domain of the hub. Consumers, `verify`, its repair and `logs` work from the leaf.
func TestJetStreamDomain(t *testing.T) {
	t.Parallel()
	const domain, namespace = "hub", "leaf"
	port := suite.FreePort(t)
	hub := suite.NATS(t, &server.Options{
		ServerName: domain, JetStream: true, JetStreamDomain: domain, StoreDir: t.TempDir(), LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: port},
	})
	remote := &server.RemoteLeafOpts{URLs: []*url.URL{{Scheme: "nats-leaf", Host: fmt.Sprintf("127.0.0.1:%d", port)}}}
	leaf := suite.NATS(t, &server.Options{
		ServerName: "leaf", JetStream: true, JetStreamDomain: "leaf", StoreDir: t.TempDir(), LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{remote}},
	})
	eventually(t, "the leafnode is connected", func() error {
		if hub.NumLeafNodes() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	w := &world{World: sharedWorld(t).Beside()}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	w.NATS = leaf.ClientURL()
	bridge, err := w.Serve(t.Context(), services(), "--namespaces", namespace, "--nats-jetstream-domain", domain)
	if err != nil {
		t.Fatal(err)
	}

	app := testenv.App{Namespace: namespace, Project: "shop", Domain: "production", Name: "far"}
	svc, err := w.Create(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := w.Kubelet.RunPod(t.Context(), testenv.PodOptions{Namespace: namespace, Name: "far-1", Service: svc.Name})
	if err != nil {
		t.Fatal(err)
	}
	connect := func(s *server.Server) *nats.Conn {
		nc, err := nats.Connect(s.ClientURL(), nats.Timeout(suite.Patience))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	far := connect(leaf)
	js, err := jetstream.NewWithDomain(far, domain)
	if err != nil {
		t.Fatal(err)
	}
	local, err := jetstream.New(far)
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
		if _, err := local.Stream(t.Context(), stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("got %v, want no stream %s in the domain of the leaf", err, stream)
		}
	}

	// A durable consumer of the hub, used at the leaf.
	consumer, err := js.CreateConsumer(t.Context(), subjects.DefaultStream, jetstream.ConsumerConfig{Durable: "far", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want string) {
		t.Helper()
		eventually(t, "the event "+want, func() error {
			msg, err := consumer.Next(jetstream.FetchMaxWait(time.Second))
			if err != nil {
				return err
			}
			if got := msg.Headers().Get(subjects.CEType); got != want {
				return fmt.Errorf("got %s: %w", got, suite.ErrFatal)
			}
			return msg.DoubleAck(t.Context())
		})
	}
	next(subjects.Created.Type())
	key, err := app.ID().Key()
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := js.KeyValue(t.Context(), subjects.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	holds := func(want error) {
		t.Helper()
		eventually(t, "the entry", func() error {
			if _, err := snapshot.Get(t.Context(), key); !errors.Is(err, want) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
	holds(nil)

	if !pod.Write("hello from far") {
		t.Fatal("the pod does not run")
	}
	command := func(args ...string) (string, error) {
		out, err := w.Prepare(exec.CommandContext(t.Context(), "appbridge", args...)).CombinedOutput()
		return string(out), err
	}
	eventually(t, "logs prints the line", func() error {
		out, err := command("logs", app.ID().String())
		if err == nil && !strings.Contains(out, "hello from far\n") {
			err = errors.New("it does not")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})

	verify := func(more ...string) error {
		out, err := command(append([]string{
			"verify", "--kubeconfig", w.KubeconfigPath, "--cluster-name", "test", "--namespaces", namespace, "--nats-jetstream-domain", domain,
		}, more...)...)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	eventually(t, "verify finds no difference", func() error { return verify() })
	if err := verify("--nats-jetstream-domain="); err == nil || !strings.Contains(err.Error(), "difference") {
		t.Errorf("got %v in the domain of the leaf, want differences", err)
	}
	if err := w.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	next(subjects.Deleted.Type())
	holds(jetstream.ErrKeyNotFound)
	if _, err := w.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	next(subjects.Created.Type())
	holds(nil)

	// Without a bridge, verify repairs the bucket.
	if err := bridge.Stop(suite.Patience); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Purge(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if err := verify(); err == nil || !strings.Contains(err.Error(), "1 difference") {
		t.Errorf("got %v, want one difference", err)
	}
	if err := verify("--repair"); err != nil {
		t.Error(err)
	}
	holds(nil)
}
