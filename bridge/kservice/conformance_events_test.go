package kservice_test

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

// defaultBuffer is what a subscriber of the corpus holds when a case does not
// say it.
const defaultBuffer = 100

type eventCase struct {
	Name      string            `json:"name"`
	Config    corpus.Config     `json:"config"`
	Revisions []json.RawMessage `json:"revisions"`
	Subscribe []string          `json:"subscribe"`
	Buffer    *int              `json:"buffer"`
	Steps     []struct {
		Op       string          `json:"op"`
		KService json.RawMessage `json:"kservice"`
	} `json:"steps"`
	Expect corpus.Strict[[]struct {
		Subscription string `json:"subscription"`
		Responses    []struct {
			WatchResponse json.RawMessage `json:"watchResponse"`
			Proto         string          `json:"protoBase64"`
		} `json:"responses"`
	}] `json:"expect"`
}

// told is an event and the object that it was made from.
type told struct {
	event  *appv1.WatchResponse
	object json.RawMessage
}

func runEvents(t *testing.T, path string) int {
	cases := corpus.ReadList[eventCase](t, path)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			want := c.Expect.Value
			if len(want) != len(c.Subscribe) {
				t.Fatalf("%d subscriptions, but %d expectations", len(c.Subscribe), len(want))
			}
			events := playSteps(t, c)
			buffer := defaultBuffer
			if c.Buffer != nil {
				buffer = *c.Buffer
			}
			for i, subscription := range want {
				if subscription.Subscription != c.Subscribe[i] {
					t.Fatalf("subscription %d: got %q, want %q", i, subscription.Subscription, c.Subscribe[i])
				}
				got := received(events, c.Subscribe[i], buffer)
				if len(got) != len(subscription.Responses) {
					t.Errorf("subscription %q: got %d events, want %d", c.Subscribe[i], len(got), len(subscription.Responses))
					continue
				}
				for j, response := range subscription.Responses {
					event := withoutOldApp(got[j].event)
					checkJSON(t, event, &appv1.WatchResponse{}, response.WatchResponse, got[j].object)
					checkBinary(t, event, &appv1.WatchResponse{}, response.Proto, hasNow(response.WatchResponse))
				}
			}
		})
	}
	return len(cases)
}

// playSteps turns informer callbacks into events.
func playSteps(t *testing.T, c eventCase) []told {
	t.Helper()
	revisions := decodeAll[*kservice.Revision](t, c.Revisions)
	last := map[string]*appv1.App{}
	var events []told
	for _, step := range c.Steps {
		svc := decode[*kservice.Service](t, step.KService)
		key := svc.Namespace + "/" + svc.Name
		gone := step.Op == "delete" || step.Op == "tombstone"
		if !gone && svc.Labels[kservice.LabelManaged] != "true" {
			continue
		}
		app, err := kservice.Convert(svc, latestReady(svc, revisions), c.Config.KService())
		if err != nil {
			continue
		}
		var event *appv1.WatchResponse
		switch step.Op {
		case "add":
			event = apptest.Created(app)
		case "update":
			old := last[key]
			event = apptest.Updated(app, old)
			if got := event.GetUpdateEvent().GetOldApp(); !proto.Equal(got, old) {
				t.Errorf("old app:\n got %v\nwant %v", got, old)
			}
		case "delete", "tombstone":
			event = apptest.Deleted(app)
		default:
			t.Fatalf("step %q: not one that this test knows", step.Op)
		}
		last[key] = app
		if gone {
			delete(last, key)
		}
		events = append(events, told{event: event, object: step.KService})
	}
	return events
}

// received is what lies in the buffer of a subscriber that does not read: the
// events of the apps of that name, the first ones when there are too many.
func received(events []told, name string, buffer int) []told {
	var out []told
	for _, e := range events {
		if eventApp(e.event).GetMetadata().GetId().GetName() == name && len(out) < buffer {
			out = append(out, e)
		}
	}
	return out
}

func eventApp(event *appv1.WatchResponse) *appv1.App {
	switch {
	case event.GetCreateEvent() != nil:
		return event.GetCreateEvent().GetApp()
	case event.GetUpdateEvent() != nil:
		return event.GetUpdateEvent().GetUpdatedApp()
	default:
		return event.GetDeleteEvent().GetApp()
	}
}

// withoutOldApp is the event as Flyte tells it.
func withoutOldApp(event *appv1.WatchResponse) *appv1.WatchResponse {
	out := proto.CloneOf(event)
	if update := out.GetUpdateEvent(); update != nil {
		update.OldApp = nil
	}
	return out
}
