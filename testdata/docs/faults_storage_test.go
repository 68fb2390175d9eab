package docs_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// made is a site whose JetStream has these streams already.
func made(streams ...jetstream.StreamConfig) func(t *testing.T, s *site) {
	return func(t *testing.T, s *site) {
		t.Helper()
		js := jetStream(t, natsOf(t, s, nil))
		for _, cfg := range streams {
			sealed := cfg.Sealed
			cfg.Sealed = false
			if _, err := js.CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			if cfg.Sealed = sealed; sealed {
				if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func jetStream(t *testing.T, n *server.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(n.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// events is an event stream that a bridge can use, bucket such a bucket's stream, with a change.
func events(change func(*jetstream.StreamConfig)) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}}
	change(&cfg)
	return cfg
}

func bucket(change func(*jetstream.StreamConfig)) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{"$KV.flyte-apps.>"},
		MaxMsgsPerSubject: 1, AllowRollup: true, DenyDelete: true, AllowDirect: true, Discard: jetstream.DiscardNew,
	}
	change(&cfg)
	return cfg
}

// of is the metadata of another cluster.
func of(cfg *jetstream.StreamConfig) {
	cfg.Metadata = map[string]string{
		subjects.MetadataClusterUID: "00000000-0000-0000-0000-000000000000", subjects.MetadataClusterName: "staging",
	}
}

// edited are metadata with a first sequence that is none.
func edited(cfg *jetstream.StreamConfig) {
	cfg.Metadata = map[string]string{subjects.MetadataFirstSequence: "many"}
}

// storageFaults are causes in JetStream.
func storageFaults() []fault {
	const (
		other    = "Another cluster's stream or bucket"
		unusable = "Stream that cannot be used"
		first    = "First sequence that cannot be"
		unsafe   = "Stream that can lose events"
		kv       = "Bucket that cannot be used"
		apart    = "Bucket and stream do not belong together"
	)
	source := jetstream.StreamConfig{Name: "SOURCE", Subjects: []string{"source.>"}}
	sources := []*jetstream.StreamSource{{Name: source.Name}}
	stream := func(section, name string, change func(*jetstream.StreamConfig)) fault {
		return fault{name: name, section: section, code: 1, cause: made(source, events(change))}
	}
	entries := func(name string, change func(*jetstream.StreamConfig)) fault {
		return fault{name: name, section: kv, code: 1, cause: made(source, bucket(change))}
	}
	repaired := func(f fault) fault {
		f.repairs, f.again = true, true
		return f
	}
	named := stream(other, "name", of)
	named.args = []string{"serve", "--accept-reset"}
	another := stream(other, "stream", of)
	another.repairs = true
	held := fault{
		name: "held", section: "Subjects held by another stream", code: 1, repairs: true,
		cause: made(jetstream.StreamConfig{Name: "OLD_APPS", Subjects: []string{"flyte.apps.events.>"}}),
	}
	return []fault{
		another, named,
		{name: "bucket", section: other, code: 1, cause: made(bucket(of))},
		repaired(stream("Stream with other subjects", "by hand", func(c *jetstream.StreamConfig) { c.Subjects = []string{"flyte.apps.events.shop.>"} })),
		held,
		stream(unusable, "sealed", func(c *jetstream.StreamConfig) { c.Sealed = true }),
		repaired(stream(unusable, "no ack", func(c *jetstream.StreamConfig) { c.NoAck = true })),
		stream(unusable, "sourced", func(c *jetstream.StreamConfig) { c.Sources = sources }),
		stream(unusable, "work queue", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }),
		repaired(stream(first, "stream", edited)),
		{name: "bucket", section: first, code: 1, cause: made(bucket(edited))},
		stream(unsafe, "interest", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }),
		stream(unsafe, "memory", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }),
		stream(unsafe, "async", func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }),
		repaired(stream(unsafe, "history", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 })),
		repaired(entries("ttl", func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = time.Hour, time.Minute })),
		entries("memory", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }),
		entries("retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }),
		entries("sourced", func(c *jetstream.StreamConfig) { c.Sources = sources }),
		entries("sealed", func(c *jetstream.StreamConfig) { c.Sealed = true }),
		entries("size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 }),
		entries("limit", func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 }),
		entries("of another stream", func(c *jetstream.StreamConfig) { c.Metadata = map[string]string{subjects.MetadataStream: "OTHER_APPS"} }),
		{
			name: "of another program", section: kv, code: 1,
			cause: func(t *testing.T, s *site) {
				js := jetStream(t, natsOf(t, s, nil))
				kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := kv.PutString(t.Context(), "mine", "x"); err != nil {
					t.Fatal(err)
				}
			},
		},
		{name: "id", section: apart, code: 1, cause: replaced(true, false)},
		{name: "event", section: apart, code: 1, cause: replaced(true, true)},
		{name: "end", section: apart, code: 1, cause: replaced(false, false), repairs: true, again: true},
		{
			name: "three", section: "Too many replicas", code: 1, repairs: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				s.options["stream-replicas"] = "3"
			},
		},
	}
}

// replaced has a bridge write stream and bucket, and makes the stream again by hand: with an
// identity or without, and with the one that it had and other messages.
func replaced(marked, same bool) func(t *testing.T, s *site) {
	return func(t *testing.T, s *site) {
		t.Helper()
		js := jetStream(t, natsOf(t, s, nil))
		app := testenv.App{Project: "shop", Domain: "production", Name: "replaced-" + map[bool]string{true: "marked", false: "plain"}[marked] + map[bool]string{true: "-same"}[same]}
		if _, err := s.world.Create(t.Context(), app); err != nil {
			t.Fatal(err)
		}
		first := s.command(t, fault{})
		first.untilReady()
		first.interrupt()
		stream, err := js.Stream(t.Context(), subjects.DefaultStream)
		if err != nil {
			t.Fatal(err)
		}
		info := stream.CachedInfo()
		if info.State.LastSeq == 0 {
			t.Fatal("the stream has no event")
		}
		if err := js.DeleteStream(t.Context(), subjects.DefaultStream); err != nil {
			t.Fatal(err)
		}
		cfg := info.Config
		cfg.FirstSeq = 0
		switch {
		case !marked:
			cfg.Metadata = nil
		case !same:
			cfg.Metadata[subjects.MetadataStreamID] = "another"
		}
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if same {
			for range info.State.LastSeq {
				msg := &nats.Msg{Subject: "flyte.apps.events.shop.production.by-hand.created", Header: nats.Header{subjects.CEID: {"by hand"}}}
				if _, err := js.PublishMsg(t.Context(), msg); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// waitFaults are causes for which the start waits.
func waitFaults() []fault {
	return []fault{
		{
			name: "no server", section: "NATS is not reachable", waits: "NATS is not connected",
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				s.options["nats-url"] = "nats://127.0.0.1:1"
			},
		},
		{
			name: "no server", section: "Kubernetes is not reachable", waits: "kubernetes is not reachable",
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				cfg := *s.world.Config
				cfg.Host = "https://127.0.0.1:1"
				s.kubeconfigOf(t, &cfg)
			},
		},
		{
			name: "off", section: "JetStream does not answer", waits: "JetStream does not answer", repairs: true,
			cause: func(t *testing.T, s *site) { natsOf(t, s, &server.Options{}) },
		},
		{
			name: "full", section: "JetStream has no room", waits: "insufficient storage resources", repairs: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, &server.Options{JetStream: true, JetStreamMaxStore: 64 << 20})
				s.options["stream-max-bytes"] = "1Gi"
			},
		},
		{
			name: "annotation", section: "A recorded sequence that cannot be", waits: "cannot be parsed",
			args: []string{"serve", "--leader-elect", "--lease-namespace", "flyte"}, repairs: true, again: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
					Namespace: "flyte", Name: "appbridge", Annotations: map[string]string{"appbridge.flyte.org/acknowledged": "{"},
				}}
				if err := s.world.Client.Create(t.Context(), lease); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "metadata", section: "A recorded sequence that cannot be", waits: "no sequence",
			cause: made(events(func(c *jetstream.StreamConfig) { c.Metadata = map[string]string{subjects.MetadataResetSequence: "x"} })),
		},
		{
			name: "missing", section: "No namespace", waits: "there is no such namespace", args: []string{"serve", "--namespaces", "nope"},
			cause: func(t *testing.T, s *site) { natsOf(t, s, nil) }, repairs: true,
		},
		{
			name: "no namespace", section: "No Lease", waits: "waiting for the Lease: create", args: []string{"serve", "--leader-elect", "--lease-namespace", "nope"},
			cause: func(t *testing.T, s *site) { natsOf(t, s, nil) }, repairs: true,
		},
	}
}
