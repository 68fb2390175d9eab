package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// headerStreamSource is nats-server's: the stream that a message was sourced from, and its sequence there.
const headerStreamSource = "Nats-Stream-Source"

// Two clusters with the same apps, each with a bridge, in one central stream, both ways of
// docs/scaling.md. A reader of the central stream sees of each cluster what that has.
func TestCentralStream(t *testing.T) {
	t.Parallel()
	second := must[*testenv.Cluster](t)(testenv.Start(t.Context(), testenv.Options{}))
	t.Cleanup(func() { must[any](t)(nil, second.Stop()) })
	clusters := map[string]*testenv.Cluster{"east": cluster.Get(t), "west": second}

	t.Run("a prefix for each cluster", func(t *testing.T) {
		s := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
		sites, sources := map[string]*site{}, []*jetstream.StreamSource(nil)
		for name, cluster := range clusters {
			site := newSite(t, cluster, s.ClientURL(), name)
			site.cfg.Prefix, site.cfg.Stream, site.cfg.Bucket = site.prefix, strings.ToUpper(name), name
			site.snapshot = subjects.BucketStream(name)
			sites[name] = site
			sources = append(sources, &jetstream.StreamSource{Name: site.cfg.Stream})
		}
		central(t, connected(t, s.ClientURL()), sites, func(jetstream.JetStream) []*jetstream.StreamSource { return sources })
	})

	t.Run("an account for each cluster", func(t *testing.T) {
		s := suite.NATSConfigured(t, fmt.Sprintf(accountsConfig, t.TempDir()))
		url := func(user string) string { return strings.Replace(s.ClientURL(), "://", "://"+user+":pw@", 1) }
		sites := map[string]*site{}
		for name, cluster := range clusters {
			sites[name] = newSite(t, cluster, url(name), name)
		}
		central(t, connected(t, url("central")), sites, func(js jetstream.JetStream) []*jetstream.StreamSource {
			var sources []*jetstream.StreamSource
			for name, site := range sites {
				from := fromAccount(name)
				site.snapshot = name
				must[jetstream.Stream](t)(js.CreateStream(t.Context(), jetstream.StreamConfig{
					Name: name, Mirror: &jetstream.StreamSource{Name: subjects.BucketStream(site.cfg.Bucket), External: from}, AllowDirect: true,
				}))
				sources = append(sources, &jetstream.StreamSource{
					Name: site.cfg.Stream, External: from,
					SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: site.cfg.Prefix + ".events.>", Destination: site.prefix + ".events.>"}},
				})
			}
			return sources
		})
	})
}

// Without the flow control of the origin's consumers a source stops silently after 2 MB.
func TestCentralStreamFlowControl(t *testing.T) {
	t.Parallel()
	const messages = 2000
	s := suite.NATSConfigured(t, fmt.Sprintf(accountsConfig, t.TempDir()))
	url := func(user string) string { return strings.Replace(s.ClientURL(), "://", "://"+user+":pw@", 1) }
	var sources []*jetstream.StreamSource
	for _, name := range []string{"east", "west"} {
		js := connected(t, url(name))
		must[jetstream.Stream](t)(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{name + ".>"}}))
		for range messages {
			must[jetstream.PubAckFuture](t)(js.PublishAsync(name+".event", make([]byte, 4096)))
		}
		<-js.PublishAsyncComplete()
		sources = append(sources, &jetstream.StreamSource{Name: subjects.DefaultStream, External: fromAccount(name)})
	}
	central := must[jetstream.Stream](t)(connected(t, url("central")).CreateStream(t.Context(), jetstream.StreamConfig{Name: "CENTRAL", Sources: sources}))
	eventually(t, "all messages are in the central stream", func() error {
		info, err := central.Info(t.Context())
		if err == nil && info.State.Msgs != 2*messages {
			err = fmt.Errorf("%d of %d", info.State.Msgs, 2*messages)
		}
		return err
	})
}

// fromAccount is how accountsConfig lets the central account reach the streams of a cluster's.
func fromAccount(name string) *jetstream.ExternalStream {
	return &jetstream.ExternalStream{APIPrefix: "$JS." + name + ".API", DeliverPrefix: "deliver." + name}
}

// accountsConfig lets the central account source and mirror from those of two clusters: it may
// make consumers there, gets what they deliver, and answers their flow control.
const accountsConfig = `
jetstream { store_dir: %q }
accounts {
  EAST {
    jetstream: enabled
    users: [ { user: east, password: pw } ]
    exports: [ { service: "$JS.API.CONSUMER.>", accounts: [CENTRAL] }, { service: "$JS.FC.>", accounts: [CENTRAL] }, { stream: "deliver.east.>", accounts: [CENTRAL] } ]
  }
  WEST {
    jetstream: enabled
    users: [ { user: west, password: pw } ]
    exports: [ { service: "$JS.API.CONSUMER.>", accounts: [CENTRAL] }, { service: "$JS.FC.>", accounts: [CENTRAL] }, { stream: "deliver.west.>", accounts: [CENTRAL] } ]
  }
  CENTRAL {
    jetstream: enabled
    users: [ { user: central, password: pw } ]
    imports: [
      { service: { account: EAST, subject: "$JS.API.CONSUMER.>" }, to: "$JS.east.API.CONSUMER.>" }, { service: { account: EAST, subject: "$JS.FC.>" } }, { stream: { account: EAST, subject: "deliver.east.>" } }
      { service: { account: WEST, subject: "$JS.API.CONSUMER.>" }, to: "$JS.west.API.CONSUMER.>" }, { service: { account: WEST, subject: "$JS.FC.>" } }, { stream: { account: WEST, subject: "deliver.west.>" } }
    ]
  }
}
`

// site is one cluster with its bridge, and how the central stream has it.
type site struct {
	*world
	cfg      bridge.Config
	prefix   string // of its events in the central stream
	snapshot string // the stream of its bucket, or the mirror of that, as the central account has it
}

// newSite is a world at an account that is there already.
func newSite(t *testing.T, cluster *testenv.Cluster, url, name string) *site {
	t.Helper()
	w := &world{Cluster: cluster, t: t, namespace: "ns-" + strconv.FormatInt(namespaces.Add(1), 10)}
	must[any](t)(nil, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	w.js = connected(t, url)
	s := &site{world: w, cfg: w.config(), prefix: name + ".apps"}
	s.cfg.ClusterName = name
	return s
}

func connected(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc := must[*nats.Conn](t)(nats.Connect(url, nats.Timeout(patience), nats.MaxReconnects(-1)))
	t.Cleanup(nc.Close)
	return must[jetstream.JetStream](t)(jetstream.New(nc))
}

// projected reports whether the cluster's own bucket has this version of an app.
func (s *site) projected(ctx context.Context, svc *servingv1.Service) error {
	app, err := testenv.AppOf(svc)
	if err != nil {
		return err
	}
	key, err := app.ID().Key()
	if err != nil {
		return err
	}
	stream, err := s.js.Stream(ctx, subjects.BucketStream(s.cfg.Bucket))
	if err != nil {
		return err
	}
	msg, err := stream.GetLastMsgForSubject(ctx, subjects.BucketSubject(s.cfg.Bucket, key))
	if err == nil && msg.Header.Get(subjects.HeaderResourceVersion) != svc.ResourceVersion {
		err = fmt.Errorf("it has version %s, wanted %s", msg.Header.Get(subjects.HeaderResourceVersion), svc.ResourceVersion)
	}
	return err
}

// central runs the bridges of all sites, makes the central stream, and reads it.
func central(t *testing.T, js jetstream.JetStream, sites map[string]*site, sources func(jetstream.JetStream) []*jetstream.StreamSource) {
	t.Helper()
	ctx := t.Context()
	apps := map[string]map[string]*servingv1.Service{}
	for name, s := range sites {
		r := s.launchAt(s.js.Conn().ConnectedUrl(), s.cfg, nil)
		r.waitReady()
		apps[name] = map[string]*servingv1.Service{}
		for _, app := range []string{"stays", "changes", "goes", "returns"} {
			apps[name][app] = s.create(s.app(app))
		}
	}
	// The window of duplicates is as short as it can be: an event that a bridge publishes again after
	// its stream lost it may have the id of the lost one, and must not count as its duplicate here.
	must[jetstream.Stream](t)(js.CreateStream(ctx, jetstream.StreamConfig{Name: "CENTRAL", Sources: sources(js), Duplicates: 100 * time.Millisecond}))

	change := func(text string) {
		for name, s := range sites {
			own := apps[name]
			own["changes"] = must[*servingv1.Service](t)(s.Failed(ctx, own["changes"], "Reason", text+" in "+name))
			if own["goes"] != nil {
				must[any](t)(nil, s.Client.Delete(ctx, own["goes"]))
				own["goes"] = nil
			}
			must[any](t)(nil, s.Client.Delete(ctx, own["returns"]))
			own["returns"] = s.create(s.app("returns"))
		}
	}
	change("before the reader")
	readers := map[string]*centralReader{}
	for name, s := range sites {
		readers[name] = &centralReader{site: s, js: js}
		eventually(t, "a snapshot of "+name, func() error { return readers[name].readSnapshot(ctx) })
	}
	change("after its snapshot")
	for name, r := range readers {
		for _, app := range []string{"changes", "returns"} {
			eventually(t, "the bucket of "+name+" has the last version of "+app, func() error { return r.projected(ctx, apps[name][app]) })
		}
		r.follow(t)
		if r.last == 0 || r.events == 0 {
			t.Errorf("%s: the reader followed %d events to %d: the test shows nothing", name, r.events, r.last)
		}
	}
}

// centralReader follows one cluster in the central stream as docs/scaling.md describes it: the
// snapshot gives the position S, a sequence of the origin; events up to S are skipped.
type centralReader struct {
	*site
	js     jetstream.JetStream
	apps   map[string]centralApp // by key, also those that are gone
	last   uint64                // sequence of the origin
	events int
}

type centralApp struct {
	sequence uint64 // of its last event, in the origin
	app      []byte // empty if the app is gone
}

// readSnapshot takes the newest message of each key, and fails as long as there is none.
func (r *centralReader) readSnapshot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	apps, last, err := snapshotOf(ctx, r.js, r.snapshot, subjects.BucketFilter(r.cfg.Bucket))
	if err == nil && last == 0 {
		err = errors.New("the snapshot is empty")
	}
	r.apps, r.last = apps, last
	return err
}

// snapshotOf reads the newest message of each key of a bucket's stream or of its mirror.
func snapshotOf(ctx context.Context, js jetstream.JetStream, stream, filter string) (apps map[string]centralApp, last uint64, err error) {
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy})
	if err != nil {
		return nil, 0, err
	}
	apps = map[string]centralApp{}
	for pending := consumer.CachedInfo().NumPending; pending > 0; {
		msg, err := consumer.Next(jetstream.FetchContext(ctx))
		if err != nil {
			return nil, 0, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, 0, err
		}
		pending = meta.NumPending // to the end: a message may have taken the place of one
		sequence, err := strconv.ParseUint(msg.Headers().Get(subjects.HeaderEventSequence), 10, 64)
		if err != nil {
			return nil, 0, err
		}
		last = max(last, sequence)
		apps[strings.TrimPrefix(msg.Subject(), strings.TrimSuffix(filter, ">"))] = centralApp{sequence: sequence, app: msg.Data()}
	}
	return apps, last, nil
}

// follow reads the central stream until the view equals the cluster's own bucket.
func (r *centralReader) follow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	consumer := must[jetstream.Consumer](t)(r.js.OrderedConsumer(ctx, "CENTRAL", jetstream.OrderedConsumerConfig{FilterSubjects: []string{r.prefix + ".events.>"}}))
	names := must[subjects.Subjects](t)(subjects.New(r.prefix))
	for r.behind(ctx, t) {
		msg, err := consumer.Next(jetstream.FetchMaxWait(100 * time.Millisecond))
		if errors.Is(err, nats.ErrTimeout) {
			continue
		}
		must[any](t)(nil, err)
		sequence := originSequence(t, msg.Headers())
		if sequence <= r.last {
			continue // the snapshot has it
		}
		id, _, err := names.ParseEvent(msg.Subject())
		must[any](t)(nil, err)
		key := must[string](t)(id.Key())
		previous, _ := strconv.ParseUint(msg.Headers().Get(subjects.HeaderPreviousSequence), 10, 64)
		if known := r.apps[key].sequence; previous != known {
			t.Fatalf("event %d of %s follows %d, the reader has seen %d", sequence, key, previous, known)
		}
		r.apps[key] = centralApp{sequence: sequence, app: decoded(t, msg)}
		r.last = sequence
		r.events++
	}
}

// decoded is the App that an event leaves behind, as the bucket has it, nil after a delete.
func decoded(t *testing.T, msg jetstream.Msg) []byte {
	t.Helper()
	var event struct {
		CreateEvent struct{ App json.RawMessage }        `json:"createEvent"`
		UpdateEvent struct{ UpdatedApp json.RawMessage } `json:"updateEvent"`
	}
	must[any](t)(nil, json.Unmarshal(msg.Data(), &event))
	if app := event.CreateEvent.App; app != nil {
		return app
	}
	return event.UpdateEvent.UpdatedApp
}

// behind reports whether the view differs from the bucket of the cluster's own account.
func (r *centralReader) behind(ctx context.Context, t *testing.T) bool {
	t.Helper()
	want, _, err := snapshotOf(ctx, r.world.js, subjects.BucketStream(r.cfg.Bucket), subjects.BucketFilter(r.cfg.Bucket))
	must[any](t)(nil, err)
	return !maps.EqualFunc(r.apps, want, func(a, b centralApp) bool { return a.sequence == b.sequence && bytes.Equal(a.app, b.app) })
}

// originSequence is the sequence of a sourced message in the stream of its cluster.
func originSequence(t *testing.T, h nats.Header) uint64 {
	t.Helper()
	fields := strings.Fields(h.Get(headerStreamSource))
	if len(fields) < 2 {
		t.Fatalf("%s is %q", headerStreamSource, h.Get(headerStreamSource))
	}
	if slices.ContainsFunc(slices.Collect(maps.Keys(h)), func(name string) bool { return strings.HasPrefix(name, "Nats-Expected-") }) {
		t.Fatalf("a sourced message has the fence's headers: %v", h)
	}
	return must[uint64](t)(strconv.ParseUint(fields[1], 10, 64))
}
