package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A late answer, a failure and none at all are broken; so is an event that is late or missing.
func TestHostileVerdict(t *testing.T) {
	of := func(answers ...error) *latencies {
		l := &latencies{}
		for _, err := range answers {
			l.measure(func() error { return err })
		}
		return l
	}
	late := of(nil)
	late.took[0], late.late = answerLimit+time.Second, 1
	began := time.Now()
	events := func(change func(*eventDelays)) *eventDelays {
		e := &eventDelays{written: map[uint64]time.Time{}}
		e.wrote(7, began)
		change(e)
		return e
	}
	for _, test := range []struct {
		name string
		got  interface{ broken() string }
		want string // "" for nothing
	}{
		{"answered", of(nil, nil), ""},
		{"nothing was sent", of(), "none was sent"},
		{"a failure", of(nil, errors.New("429")), "1 of 2 failed, the first with 429"},
		{"a late answer", late, "took longer than 2s, 3000ms at most"},
		{"an event", events(func(e *eventDelays) { e.came(7, began.Add(time.Second)) }), ""},
		{"an event before its write returns", events(func(e *eventDelays) { e.came(9, began); e.wrote(8, began) }), ""},
		{"an event that stands for several", events(func(e *eventDelays) { e.wrote(8, began); e.came(8, began) }), ""},
		{"an event that is missing", events(func(e *eventDelays) { e.came(6, began) }), "1 changes have no event"},
		{"a late event", events(func(e *eventDelays) { e.came(7, began.Add(eventLimit+time.Second)) }), "one came after 31s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.got.broken(); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// What is held for requests is known by its metric, whatever its labels.
func TestHeldMetrics(t *testing.T) {
	for name, want := range map[string]bool{
		"appbridge_log_streams": true, "appbridge_log_pod_streams": true, "appbridge_api_active_writes": true,
		"appbridge_api_active_reads": true, "appbridge_api_pending_reads": true, `appbridge_api_pending{kind="reads"}`: true,
		"appbridge_log_requests_total": false, "appbridge_changes_pending": false, "appbridge_api_request_seconds_sum": false,
	} {
		if got := heldMetrics.MatchString(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}
