package main

import (
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The check passes what is right and names what is not.
func TestCheckEvents(t *testing.T) {
	id := subjects.AppID{Project: "p", Domain: "d", Name: "a"}
	well := condition(appv1.Status_DEPLOYMENT_STATUS_ACTIVE, "")
	story := func() []event {
		created, ready := sample("i:1", 0), sample("i:1", 2, well)
		return []event{
			{sequence: 4, id: id, kind: subjects.Created, app: created, header: nats.Header{
				subjects.HeaderUID: {"u1"},
			}},
			{sequence: 7, id: id, kind: subjects.Updated, app: ready, old: created, header: nats.Header{
				subjects.HeaderUID: {"u1"}, subjects.HeaderPreviousSequence: {"4"},
			}},
			{sequence: 8, id: id, kind: subjects.Deleted, app: ready, header: nats.Header{
				subjects.HeaderUID: {"u1"}, subjects.HeaderPreviousSequence: {"7"},
			}},
			{sequence: 9, id: id, kind: subjects.Created, app: created, header: nats.Header{
				subjects.HeaderUID: {"u2"}, subjects.HeaderPreviousSequence: {"8"},
			}},
		}
	}
	for _, tc := range []struct {
		name   string
		change func(seen []event) []event
		want   []string // one per failure, in order
	}{
		{name: "as caused", change: func(seen []event) []event { return seen }},
		{
			name:   "one missing",
			change: func(seen []event) []event { return seen[:3] },
			want:   []string{"event 4: expected created none 0, seen -", "expected 4 events in all, seen 3"},
		},
		{
			name: "one too many",
			change: func(seen []event) []event {
				return append(seen, event{id: id, kind: subjects.Updated, app: sample("i:1", 0)})
			},
			want: []string{"event 5: expected -, seen updated none 0", "expected 4 events in all, seen 5"},
		},
		{
			name: "an app that nobody caused",
			change: func(seen []event) []event {
				return append(seen, event{id: subjects.AppID{Project: "p", Domain: "d", Name: "other"}, app: sample("i:1", 0)})
			},
			want: []string{"expected 4 events in all, seen 5"},
		},
		{
			name:   "another status",
			change: func(seen []event) []event { seen[0].app = sample("i:1", 0, well); return seen },
			want:   []string{"event 1: expected created none 0, seen created ACTIVE 0", "event 2: old_app is not"},
		},
		{
			name:   "another number of replicas",
			change: func(seen []event) []event { seen[2].app = sample("i:1", 1, well); return seen },
			want:   []string{"event 3: expected deleted ACTIVE 2, seen deleted ACTIVE 1"},
		},
		{
			name:   "another image",
			change: func(seen []event) []event { seen[2].app = sample("i:2", 2, well); return seen },
			want:   []string{"event 3: expected image i:1, seen i:2"},
		},
		{
			name:   "no old app",
			change: func(seen []event) []event { seen[1].old = nil; return seen },
			want:   []string{"event 2: old_app is not"},
		},
		{
			name:   "a broken chain",
			change: func(seen []event) []event { seen[2].header.Set(subjects.HeaderPreviousSequence, "4"); return seen },
			want:   []string{`event 3: Flyte-Previous-Sequence "4", expected "7"`},
		},
		{
			name:   "not recreated",
			change: func(seen []event) []event { seen[3].header.Set(subjects.HeaderUID, "u1"); return seen },
			want:   []string{"event 4: uid u1 after u1"},
		},
		{
			name:   "found by a resync",
			change: func(seen []event) []event { seen[1].header.Set(subjects.HeaderSynthesized, "true"); return seen },
			want:   []string{"event 2: Flyte-Synthesized: true"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tour := &tour{
				events:  &watcher{seen: tc.change(story())},
				samples: map[string]*servingv1.Service{"a": testenv.App{Project: "p", Domain: "d", Name: "a", Image: "i:1"}.Service()},
				ids:     map[string]subjects.AppID{"a": id},
				wants: map[string][]want{"a": {
					{kind: subjects.Created, status: none},
					{kind: subjects.Updated, status: active, replicas: 2},
					{kind: subjects.Deleted, status: active, replicas: 2},
					{kind: subjects.Created, status: none},
				}},
			}
			got, err := (&played{}).checkEvents(t.Context(), tour, newScreen(io.Discard))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tc.want) {
				t.Fatalf("failures = %q, want %q", got, tc.want)
			}
			for i := range got {
				if !strings.Contains(got[i], tc.want[i]) {
					t.Errorf("failure %d = %q, want %q in it", i, got[i], tc.want[i])
				}
			}
		})
	}
}
