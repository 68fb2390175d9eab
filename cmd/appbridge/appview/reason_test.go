package appview_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// withReasons is an active app and what keeps its pods from serving, before and after an event.
func withReasons(before, after appv1.Status_Substate, revision string) *appview.App {
	a := app("shop", "production", "search", "ACTIVE", 2, time.Minute)
	a.PreviousStatus = "ACTIVE"
	if after != appv1.Status_SUBSTATE_UNSPECIFIED {
		a.PodReason, a.ReasonRevision = subjects.Reason(after.String()), revision
	}
	of := func(substate appv1.Status_Substate) func() *appv1.App {
		return func() *appv1.App {
			out := body(a, 2, "registry.example.com/shop/search:1.5.0")
			out.Status.Conditions[0].Substate = substate
			return out
		}
	}
	a.Body, a.Old = of(after), of(before)
	return a
}

func TestReasonOfPods(t *testing.T) {
	const none = appv1.Status_SUBSTATE_UNSPECIFIED
	tests := []struct {
		name          string
		before, after appv1.Status_Substate
		revision      string
		event, cell   string
	}{
		{"crash", none, appv1.Status_CRASH_LOOP, "search-00003", "reason CRASH_LOOP", "ACTIVE (CRASH_LOOP)"},
		{"rollout", none, appv1.Status_IMAGE_PULL_ERROR, "search-00004", "reason IMAGE_PULL_ERROR of search-00004", "ACTIVE (IMAGE_PULL_ERROR)"},
		{"another", appv1.Status_CRASH_LOOP, appv1.Status_OOM_KILLED, "search-00003", "reason CRASH_LOOP -> OOM_KILLED", "ACTIVE (OOM_KILLED)"},
		{"recovered", appv1.Status_CRASH_LOOP, none, "", "reason CRASH_LOOP -> none", "ACTIVE "},
		{"unchanged", appv1.Status_CRASH_LOOP, appv1.Status_CRASH_LOOP, "search-00003", "status ACTIVE", "ACTIVE (CRASH_LOOP)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := withReasons(tt.before, tt.after, tt.revision)
			if got := appview.Event(a, appview.Style{Now: now}); !strings.HasSuffix(got, "  updated  "+tt.event) {
				t.Errorf("event: got %q, want it to end in %q", got, tt.event)
			}
			if got := appview.Table([]*appview.App{a}, appview.Style{Now: now})[1]; !strings.Contains(got, "  search  "+tt.cell) {
				t.Errorf("table: got %q, want a cell %q", got, tt.cell)
			}
			text, err := appview.JSON(appview.FieldsOf(a))
			if err != nil {
				t.Fatal(err)
			}
			var got struct{ PodReason, PodReasonRevision string }
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			want := ""
			if tt.after != none {
				want = tt.after.String()
			}
			if got.PodReason != want || got.PodReasonRevision != tt.revision {
				t.Errorf("document: got %+v, want %q of %q", got, want, tt.revision)
			}
		})
	}
	crashing := withReasons(none, appv1.Status_CRASH_LOOP, "search-00003")
	if got, want := appview.Reason(crashing), "shop/production/search is ACTIVE (CRASH_LOOP)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := appview.Table([]*appview.App{crashing}, appview.Style{Now: now, Color: true})[1]; !strings.Contains(got, "\x1b[31mACTIVE (CRASH_LOOP)\x1b[0m") {
		t.Errorf("got %q, want the status in red", got)
	}
}
