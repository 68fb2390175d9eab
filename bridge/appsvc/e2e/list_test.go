package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

func deployBody(image string) string {
	return fmt.Sprintf(`{"app": {"spec": {"container": {"image": "registry.example.com/%s", "ports": [{"containerPort": 8080}]}}}}`, image)
}

// 250 apps, page by page with the stock client: each comes once, in whichever list
// it belongs.
func TestListPages(t *testing.T) {
	t.Parallel()
	const all = 250
	w := sharedWorld(t)
	nc := w.connect(t)
	wanted := map[string][]string{}
	var deploys errgroup.Group
	deploys.SetLimit(8)
	for i := range all {
		id := subjects.AppID{Project: []string{"pages-a", "pages-b"}[i%2], Domain: []string{"one", "two", "three"}[i%3], Name: fmt.Sprintf("app%03d", i)}
		for _, list := range []string{"", "." + id.Project, "." + id.Project + "." + id.Domain} {
			wanted[list] = append(wanted[list], id.String())
		}
		subject := subjectOf(t, subjects.APIDeploy, id)
		deploys.Go(func() error {
			a, err := asks(t.Context(), nc, subject, deployBody("page:1"))
			if err == nil && a.outcome() != subjects.OutcomeCreated {
				err = fmt.Errorf("%s: got outcome %q and %q", subject, a.outcome(), a.refused())
			}
			return err
		})
	}
	if err := deploys.Wait(); err != nil {
		t.Fatal(err)
	}
	for list := range wanted {
		slices.Sort(wanted[list])
	}
	eventually(t, "every app is listed", func() error {
		n := 0
		for _, project := range []string{"pages-a", "pages-b"} {
			a, err := asks(t.Context(), nc, "flyte.apps.api.list."+project, `{"request": {"limit": 1}, "includeTotalCount": true}`)
			if err != nil {
				return err
			}
			var page appv1.ListResponse
			a.message(t, &page)
			n += int(page.GetTotalCount())
		}
		if n != all {
			return fmt.Errorf("%d of %d", n, all)
		}
		return nil
	})
	for list, want := range wanted {
		var got []string
		token, pages := "", 0
		for first := true; first || token != ""; first = false {
			a := w.types(t, "flyte.apps.api.list"+list, fmt.Sprintf(`{"request": {"limit": 40, "token": %q}}`, token))
			var page appv1.ListResponse
			a.message(t, &page)
			if n := len(page.GetApps()); n > 40 || n < 40 && page.GetToken() != "" {
				t.Errorf("list%s: page %d has %d apps", list, pages, n)
			}
			if n, err := strconv.Atoi(a.header.Get(subjects.HeaderEventSequence)); err != nil || n < 1 {
				t.Errorf("list%s: page %d reflects %q", list, pages, a.header.Get(subjects.HeaderEventSequence))
			}
			for _, app := range page.GetApps() {
				if id := idOf(app); id.Project == "pages-a" || id.Project == "pages-b" || list != "" {
					got = append(got, id.String()) // other tests have apps, too
				}
			}
			token, pages = page.GetToken(), pages+1
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("list%s: got %d apps, want %d, on %d pages: %s", list, len(got), len(want), pages, got)
		}
	}
}

func idOf(app *appv1.App) subjects.AppID {
	id := app.GetMetadata().GetId()
	return subjects.AppID{Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName()}
}

// state is what somebody knows of the apps, in the form of the bucket.
type state map[subjects.AppID]string

func (s state) set(t *testing.T, id subjects.AppID, app *appv1.App) {
	t.Helper()
	text, _, err := appv1.Encode(app, subjects.ContentTypeJSON)
	if err != nil {
		t.Fatal(err)
	}
	s[id] = string(text)
}

// differs says where two states do.
func (s state) differs(from state) error {
	for _, both := range []state{s, from} {
		for id := range both {
			if s[id] != from[id] {
				return fmt.Errorf("%s: got %s, want %s", id, s[id], from[id])
			}
		}
	}
	return nil
}

// request is one that a writer may make.
type request struct{ subject, body string }

// start is where somebody begins: with lists, and with the stream's events after
// a sequence.
type start struct {
	apps     state
	sequence uint64
}

// lists reads all pages. Several bridges may share them.
func (w *world) lists(t *testing.T, nc *nats.Conn) start {
	t.Helper()
	from := start{apps: state{}}
	token := ""
	for first := true; first || token != ""; first = false {
		a, err := asks(t.Context(), nc, "flyte.apps.api.list", fmt.Sprintf(`{"request": {"limit": 7, "token": %q}}`, token))
		if err != nil {
			t.Fatal(err)
		}
		var page appv1.ListResponse
		a.message(t, &page)
		for _, app := range page.GetApps() {
			from.apps.set(t, idOf(app), app)
		}
		sequence, err := strconv.ParseUint(a.header.Get(subjects.HeaderEventSequence), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if first || sequence < from.sequence {
			from.sequence = sequence
		}
		token = page.GetToken()
	}
	return from
}

// Whoever lists the apps and goes on with the stream behind the sequence that the
// list names comes to what the bucket says; while apps change all the time, and
// with a bridge that leads and one that stands by.
func TestListThenStream(t *testing.T) {
	t.Parallel()
	const apps, writers, starts = 30, 4, 10
	server, err := testenv.StartNATS(t.Context(), testenv.NATSOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	w := ownWorld(t, testenv.Options{}, server.URL(), 2, "--enable-writes", "--leader-elect", "--lease-namespace", testenv.DefaultNamespace)
	nc := w.connect(t)
	ids := make([]subjects.AppID, apps)
	for i := range ids {
		ids[i] = subjects.AppID{Project: fmt.Sprintf("p%d", i%3), Domain: "production", Name: fmt.Sprintf("app%02d", i)}
	}
	var requests []request
	for _, id := range ids {
		requests = append(requests, request{subjectOf(t, subjects.APIStop, id), ""}, request{subjectOf(t, subjects.APIDelete, id), ""})
		for version := range 4 {
			requests = append(requests, request{subjectOf(t, subjects.APIDeploy, id), deployBody(fmt.Sprintf("app:%d", version))})
		}
	}
	writing, end := context.WithCancel(t.Context())
	defer end()
	var writes errgroup.Group
	for range writers {
		writes.Go(func() error {
			for writing.Err() == nil {
				r := requests[rand.IntN(len(requests))]
				a, err := asks(t.Context(), nc, r.subject, r.body)
				if err == nil && a.outcome() == "" {
					err = fmt.Errorf("%s: got %s", r.subject, a.refused())
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	eventually(t, "lists tell what they reflect", func() error {
		if from := w.lists(t, nc); from.sequence == 0 {
			return fmt.Errorf("%d apps, and no sequence", len(from.apps))
		}
		return nil
	})
	var begun []start
	// A list goes wrong when a bridge is behind by milliseconds, so there are many.
	for began := time.Now(); len(begun) < starts || time.Since(began) < 5*time.Second; {
		begun = append(begun, w.lists(t, nc))
	}
	end()
	if err := writes.Wait(); err != nil {
		t.Fatal(err)
	}

	want := w.settled(t, nc, ids)
	events := w.allEvents(t, nc)
	newest := events[len(events)-1].sequence
	eventually(t, "lists of both reflect everything", func() error {
		begun = append(begun, w.lists(t, nc))
		if got := begun[len(begun)-1].sequence; got != newest {
			return fmt.Errorf("got %d, want %d", got, newest)
		}
		return nil
	})
	after := map[uint64]state{} // by sequence, encoded once
	for _, e := range events {
		after[e.sequence] = state{}
		after[e.sequence].set(t, e.id, e.app)
	}
	for _, from := range begun {
		if from.sequence == 0 {
			t.Error("a list does not tell what it reflects any more")
			continue
		}
		applied := 0
		got := maps.Clone(from.apps)
		for _, e := range events {
			if e.sequence <= from.sequence {
				continue
			}
			if applied++; e.kind == subjects.Deleted {
				delete(got, e.id)
			} else {
				got[e.id] = after[e.sequence][e.id]
			}
		}
		if err := got.differs(want); err != nil {
			t.Errorf("from sequence %d on, %d events later: %v", from.sequence, applied, err)
		}
	}
	t.Logf("%d starts, from sequence %d to %d", len(begun), begun[0].sequence, newest)
	for i, bridge := range w.bridges {
		n := bridge.Metric(t, `appbridge_api_requests_total{op="list",result="ok"}`)
		t.Logf("bridge %d has answered %v lists", i, n)
		if n == 0 {
			t.Errorf("bridge %d has answered no list: this test tests nothing", i)
		}
	}
}

// settled waits until the bucket says of each app what is in Kubernetes, and is
// what it says.
func (w *world) settled(t *testing.T, nc *nats.Conn, ids []subjects.AppID) state {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := js.Stream(t.Context(), subjects.BucketStream(bucket))
	if err != nil {
		t.Fatal(err)
	}
	var now state
	eventually(t, "the bucket is as Kubernetes is", func() error {
		var list servingv1.ServiceList
		if err := w.Client.List(t.Context(), &list, client.InNamespace(testenv.DefaultNamespace)); err != nil {
			return err
		}
		versions := map[string]string{}
		for _, svc := range list.Items {
			versions[svc.Name] = svc.ResourceVersion
		}
		now = state{}
		for _, id := range ids {
			key, err := id.Key()
			if err != nil {
				return err
			}
			entry, err := entries.GetLastMsgForSubject(t.Context(), subjects.BucketSubject(bucket, key))
			if errors.Is(err, jetstream.ErrMsgNotFound) { // the app never was
				entry, err = &jetstream.RawStreamMsg{Header: nats.Header{subjects.HeaderKVOperation: {subjects.KVDelete}}}, nil
			}
			if err != nil {
				return err
			}
			version := ""
			if entry.Header.Get(subjects.HeaderKVOperation) == "" {
				version = entry.Header.Get(subjects.HeaderResourceVersion)
				now[id] = string(entry.Data)
			}
			if want := versions[kservice.Name(id)]; version != want {
				return fmt.Errorf("%s: got version %q, want %q", id, version, want)
			}
		}
		return nil
	})
	return now
}

// allEvents are those that the stream holds.
func (w *world) allEvents(t *testing.T, nc *nats.Conn) []event {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	info, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	reader := w.follow(t, names(t).Events())
	var all []event
	for last := info.CachedInfo().State.LastSeq; len(all) == 0 || all[len(all)-1].sequence < last; {
		all = append(all, reader.next())
	}
	return all
}
