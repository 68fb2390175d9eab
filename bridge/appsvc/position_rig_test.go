package appsvc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	positionSoon   = 20 * time.Second
	positionDomain = "production"
)

// positionCache is a cache that shows what it is told to, when it is told to.
// The Knative Service of an app is in the namespace that its domain names.
type positionCache struct {
	mu     sync.Mutex
	synced error
	apps   map[subjects.AppID]Entry
	newest map[string]string
}

func (c *positionCache) Synced() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}

func (c *positionCache) App(id subjects.AppID) (Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.apps[id]
	return e, ok
}

func (c *positionCache) Newest(namespace string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest[namespace]
}

func (c *positionCache) Apps() []Entry { return nil }

func (c *positionCache) Pods(string, string) ([]corev1.Pod, error) {
	return nil, errors.New("there are none")
}

// show puts an app into the cache. revision is "" for none, else its version.
func (c *positionCache) show(id subjects.AppID, uid string, version int, revision string, count int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps[id] = positionEntry(id, uid, version, revision, count)
	c.newest[id.Domain] = strconv.Itoa(version)
}

func (c *positionCache) hide(id subjects.AppID, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.apps, id)
	c.newest[id.Domain] = strconv.Itoa(version)
}

// list takes a list of a namespace, which shows nothing new.
func (c *positionCache) list(namespace string, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest[namespace] = strconv.Itoa(version)
}

func (c *positionCache) sync(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = err
}

func positionEntry(id subjects.AppID, uid string, version int, revision string, count int32) Entry {
	svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
		Name: id.Name, Namespace: id.Domain, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version),
	}}
	e := Entry{ID: id, Service: svc}
	if revision != "" {
		e.Revision = &kservice.Revision{ObjectMeta: metav1.ObjectMeta{ResourceVersion: revision}, Status: kservice.RevisionStatus{ActualReplicas: &count}}
	}
	return e
}

// positionRig is a JetStream server, a position that follows its stream, and
// the cache that the position judges.
type positionRig struct {
	t      *testing.T
	server *testenv.NATS
	js     jetstream.JetStream
	names  subjects.Subjects
	cache  *positionCache
	p      *position
}

func newPositionRig(t *testing.T) *positionRig {
	t.Helper()
	ignored := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignored) })
	server, err := testenv.StartNATS(t.Context(), testenv.NATSOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	nc, err := nats.Connect(server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	cache := &positionCache{apps: map[subjects.AppID]Entry{}, newest: map[string]string{}}
	return &positionRig{
		t: t, server: server, js: js, names: names, cache: cache,
		p: newPosition(js, subjects.DefaultStream, names, cache, nil, zap.NewNop()),
	}
}

// makeStream makes the stream. metadata may be nil.
func (r *positionRig) makeStream(metadata map[string]string) {
	r.t.Helper()
	if _, err := r.js.CreateOrUpdateStream(r.t.Context(), jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{r.names.Events()}, Metadata: metadata,
	}); err != nil {
		r.t.Fatal(err)
	}
}

// follow has the position run until the test is over.
func (r *positionRig) follow() {
	ctx, cancel := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.p.run(ctx) })
	r.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// positionHeader is the header of an event; of an unobserved delete deleted is 0.
func positionHeader(uid string, version int, revision string, deleted int) nats.Header {
	h := nats.Header{}
	h.Set(subjects.HeaderUID, uid)
	h.Set(subjects.HeaderResourceVersion, strconv.Itoa(version))
	if revision != "" {
		h.Set(subjects.HeaderRevisionResourceVersion, revision)
	}
	if deleted != 0 {
		h.Set(subjects.HeaderDeletedResourceVersion, strconv.Itoa(deleted))
	}
	return h
}

func (r *positionRig) publish(id subjects.AppID, kind subjects.EventKind, h nats.Header) uint64 {
	r.t.Helper()
	subject, err := r.names.Event(id, kind)
	if err != nil {
		r.t.Fatal(err)
	}
	if h != nil {
		h.Set(subjects.HeaderNamespace, id.Domain)
	}
	return r.send(&nats.Msg{Subject: subject, Header: h, Data: []byte("x")})
}

func (r *positionRig) send(msg *nats.Msg) uint64 {
	r.t.Helper()
	ack, err := r.js.PublishMsg(r.t.Context(), msg)
	if err != nil {
		r.t.Fatal(err)
	}
	return ack.Sequence
}

func (r *positionRig) created(id subjects.AppID, uid string, version int) uint64 {
	r.t.Helper()
	return r.publish(id, subjects.Created, positionHeader(uid, version, "", 0))
}

func (r *positionRig) updated(id subjects.AppID, uid string, version int) uint64 {
	r.t.Helper()
	return r.publish(id, subjects.Updated, positionHeader(uid, version, "", 0))
}

func (r *positionRig) deleted(id subjects.AppID, uid string, version, deleted int) uint64 {
	r.t.Helper()
	return r.publish(id, subjects.Deleted, positionHeader(uid, version, "", deleted))
}

// followed waits until the stream was judged up to sequence.
func (r *positionRig) followed(sequence uint64) {
	r.t.Helper()
	suite.Eventually(r.t, positionSoon, "the stream is followed", func() error {
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		if !r.p.caughtUp || r.p.followed != sequence {
			return fmt.Errorf("caught up: %v, at sequence %d, want %d", r.p.caughtUp, r.p.followed, sequence)
		}
		return nil
	})
}

// want waits until the stream was judged up to sequence, and says what is
// reflected then.
func (r *positionRig) want(sequence, reflected uint64) {
	r.t.Helper()
	r.followed(sequence)
	r.reflects(reflected)
}

func (r *positionRig) reflects(want uint64) {
	r.t.Helper()
	if got := r.p.reflected(); got != want {
		r.t.Fatalf("reflects %d, want %d", got, want)
	}
}

func positionApp(name string) subjects.AppID {
	return subjects.AppID{Project: "shop", Domain: positionDomain, Name: name}
}
