package appwatch_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "PENDING")
	w.event("shop/staging/a", subjects.Created, "ACTIVE")
	w.event("bank/production/b.c", subjects.Created, "FAILED")
	readers := map[string]*reader{}
	for _, tc := range []struct {
		name   string
		opts   appwatch.Options
		states string
	}{
		{"project", appwatch.Options{Project: "shop"}, "shop/production/a created 1,shop/staging/a created 2"},
		{"domain", appwatch.Options{Domain: "production"}, "shop/production/a created 1,bank/production/b.c created 3"},
		{"app", appwatch.Options{App: "b.c"}, "bank/production/b.c created 3"},
		{"one app", appwatch.Options{Project: "shop", Domain: "staging", App: "a"}, "shop/staging/a created 2"},
		{"none", appwatch.Options{Project: "*"}, ""},
		{"kind", appwatch.Options{Kinds: []subjects.EventKind{subjects.Deleted}, App: "a"}, "shop/production/a created 1,shop/staging/a created 2"},
		{"status", appwatch.Options{Statuses: []string{"FAILED", "STOPPED"}}, "bank/production/b.c created 3"},
		{"headers", appwatch.Options{HeadersOnly: true, Domain: "staging"}, "shop/staging/a created 2"},
	} {
		r := watch(t, w.js, tc.opts)
		var want []string
		for state := range strings.SplitSeq(tc.states, ",") {
			if state != "" {
				want = append(want, "state "+state)
			}
		}
		items := r.next(len(want) + 1)
		for i, it := range items[:len(want)] {
			if got := line(it); got != want[i] {
				t.Errorf("%s: got %q, want %q", tc.name, got, want[i])
			}
		}
		if it := items[len(want)]; it.Type != appwatch.Mark {
			t.Errorf("%s: got %q, want a mark", tc.name, line(it))
		}
		readers[tc.name] = r
	}
	w.event("shop/production/a", subjects.Updated, "ACTIVE")      // 4
	w.event("bank/production/b.c", subjects.Updated, "PENDING")   // 5: was FAILED
	w.event("bank/production/b.c", subjects.Updated, "ACTIVE")    // 6
	w.event("shop/staging/a", subjects.Updated, "STOPPED")        // 7
	w.event("shop/staging/a", subjects.Deleted, "")               // 8: was STOPPED
	w.event("shop/production/a", subjects.Updated, "HIBERNATING") // 9
	for name, want := range map[string][]string{
		"project": {"shop/production/a updated 4", "shop/staging/a updated 7", "shop/staging/a deleted 8", "shop/production/a updated 9"},
		"domain":  {"shop/production/a updated 4", "bank/production/b.c updated 5", "bank/production/b.c updated 6", "shop/production/a updated 9"},
		"app":     {"bank/production/b.c updated 5", "bank/production/b.c updated 6"},
		"one app": {"shop/staging/a updated 7", "shop/staging/a deleted 8"},
		"kind":    {"shop/staging/a deleted 8"},
		"status":  {"bank/production/b.c updated 5", "shop/staging/a updated 7", "shop/staging/a deleted 8"},
		"headers": {"shop/staging/a updated 7", "shop/staging/a deleted 8"},
	} {
		for i := range want {
			want[i] = "event " + want[i]
		}
		items := readers[name].expect(want...)
		if name == "headers" {
			if _, err := items[0].State(); !errors.Is(err, appwatch.ErrNoBody) || items[0].Status() != "STOPPED" {
				t.Errorf("headers: got %v, %s", err, items[0].Status())
			}
		}
	}
}

// An item says what the message has, and what it lacks.
func TestItems(t *testing.T) {
	t.Parallel()
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t, jetStream(t).ClientURL())
			w.form = form
			r := watch(t, w.js, appwatch.Options{})
			r.expect("mark 0")
			w.event("shop/production/a", subjects.Created, "PENDING")
			w.event("shop/production/a", subjects.Updated, "ACTIVE", func(h nats.Header, app *appv1.App) {
				app.Spec = nil
				h.Set(subjects.HeaderTruncated, "old_app,spec")
				h.Set(subjects.HeaderMergedUpdates, "4")
			})
			w.event("shop/production/a", subjects.Deleted, "", func(h nats.Header, _ *appv1.App) {
				h.Set(subjects.HeaderFinalStateUnknown, "true")
			})
			items := r.expect("event shop/production/a created 1", "event shop/production/a updated 2", "event shop/production/a deleted 3")
			if app, err := items[0].State(); err != nil || app.GetSpec().GetIngress().GetSubdomain() != "PENDING" || items[0].Lacks("spec") {
				t.Errorf("created: got %v, %v", app, err)
			}
			if old, err := items[0].Old(); old != nil || err != nil {
				t.Errorf("created: got the old app %v, %v", old, err)
			}
			updated := items[1]
			if app, err := updated.State(); err != nil || app.GetSpec() != nil || !updated.Lacks(subjects.TruncatedSpec) || !updated.Lacks(subjects.TruncatedOldApp) || updated.Lacks(subjects.TruncatedStatus) {
				t.Errorf("updated: got %v, %v", app, err)
			}
			if updated.Merged() != 4 || updated.MessageID() != "uid-a/2/1" || updated.Time().Unix() != 1795251067 || updated.Stored().IsZero() {
				t.Errorf("updated: got %d merged, id %s, %s, %s", updated.Merged(), updated.MessageID(), updated.Time(), updated.Stored())
			}
			deleted := items[2]
			if old, err := deleted.Old(); err != nil || old.GetMetadata().GetRevision() != 3 || deleted.Exists() || !deleted.FinalStateUnknown() || deleted.Status() != "" {
				t.Errorf("deleted: got %v, %v", old, err)
			}
		})
	}
}

// What is no event of appbridge's is skipped, on any subject, and so is a foreign entry.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	for _, subject := range []string{"$KV.flyte-apps.shop", "$KV.flyte-apps.shop.production.foreign"} {
		w.publish(&nats.Msg{Subject: subject, Data: []byte("{}")})
	}
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/a created 1", "mark 1")
	for _, subject := range []string{"lost", "notice", "else", "shop.production.a.moved", "shop.production.a.updated", "shop.production.=zz.updated", "shop.production.a.b.updated"} {
		w.publish(&nats.Msg{Subject: "flyte.apps.events." + subject, Data: []byte("{}")})
	}
	w.event("shop/production/a", subjects.Updated, "FAILED")
	r.expect("event shop/production/a updated 9")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	_, js := dial(t, jetStream(t).ClientURL())
	for _, tc := range []struct {
		name string
		opts appwatch.Options
		want error
	}{
		{"prefix", appwatch.Options{Prefix: "a..b"}, subjects.ErrEmptyPart},
		{"stream", appwatch.Options{Stream: "a.b"}, subjects.ErrInvalidName},
		{"bucket", appwatch.Options{Bucket: "a b"}, subjects.ErrInvalidName},
		{"bucket's stream", appwatch.Options{BucketStream: "a b"}, subjects.ErrInvalidName},
		{"app", appwatch.Options{App: strings.Repeat("n", subjects.MaxKeyBytes)}, subjects.ErrTooLong},
		{"kind", appwatch.Options{Kinds: []subjects.EventKind{"moved"}}, subjects.ErrInvalidName},
		{"status", appwatch.Options{Statuses: []string{""}}, subjects.ErrEmptyPart},
		{"position", appwatch.Options{From: appwatch.Position{StreamID: "a b", Sequence: 1}}, subjects.ErrMalformed},
	} {
		n := 0
		for _, err := range appwatch.Watch(t.Context(), js, tc.opts) {
			if n++; !errors.Is(err, appwatch.ErrOptions) || !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v", tc.name, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: got %d items", tc.name, n)
		}
	}
}
