package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// A reader of package appwatch that breaks its promise is found.
func TestWatcher(t *testing.T) {
	t.Parallel()
	at := func(sequence uint64) appwatch.Position { return appwatch.Position{StreamID: "one", Sequence: sequence} }
	item := func(kind appwatch.Type, sequence uint64) appwatch.Item {
		it := appwatch.Item{Type: kind, Kind: subjects.Updated, ID: subjects.AppID{Project: "shop", Domain: "production", Name: "a"}, Sequence: sequence}
		if kind != appwatch.State && kind != appwatch.Restart {
			it.Position = at(sequence)
		}
		return it
	}
	state := item(appwatch.State, 5)
	mark := item(appwatch.Mark, 5)
	event := func(sequence uint64) appwatch.Item { return item(appwatch.Event, sequence) }
	restart := func(reason error, from, to uint64) appwatch.Item {
		it := item(appwatch.Restart, 0)
		it.Reason, it.Lost = reason, subjects.LostRange{From: from, To: to}
		return it
	}
	loss := func(reason error, from, to uint64) appwatch.Item {
		it := item(appwatch.Loss, to)
		it.Reason, it.Lost = reason, subjects.LostRange{From: from, To: to}
		return it
	}
	for _, tt := range []struct {
		name  string
		opts  appwatch.Options
		items []appwatch.Item
		want  string // of what it is accused, empty: of nothing
		// missed are the events 6, 7 and 8 of the stream that it lacks.
		missed string
	}{
		{"right", appwatch.Options{}, []appwatch.Item{event(6), event(7), event(8)}, "", ""},
		{"a gap", appwatch.Options{}, []appwatch.Item{event(6), event(8)}, "", "7"},
		{"a gap that is reported", appwatch.Options{}, []appwatch.Item{event(6), loss(appwatch.ErrRemoved, 7, 7), event(8)}, "", ""},
		{"twice", appwatch.Options{}, []appwatch.Item{event(6), event(7), event(7), event(8)}, "got event 7 twice", ""},
		{"twice, behind a restart", appwatch.Options{}, []appwatch.Item{event(6), restart(appwatch.ErrRemoved, 7, 7), state, mark, event(6), event(7), event(8)}, "got event 6 twice", ""},
		{"disorder", appwatch.Options{}, []appwatch.Item{event(7), event(6), event(8)}, "was at sequence 7 and got sequence 6", ""},
		{"disorder of the newest states", appwatch.Options{Latest: true}, []appwatch.Item{event(7), event(6), event(8)}, "", ""},
		{"a restart without a cause", appwatch.Options{}, []appwatch.Item{event(6), restart(appwatch.ErrRemoved, 0, 0), state, item(appwatch.Mark, 8)}, "names nothing that is gone", ""},
		{"a restart after a notice skips nothing", appwatch.Options{}, []appwatch.Item{event(6), restart(appwatch.ErrNotice, 3, 3), state, item(appwatch.Mark, 8)}, "", "7,8"},
		{"a restart of a bucket skips nothing", appwatch.Options{}, []appwatch.Item{event(6), restart(appwatch.ErrBucket, 0, 0), state, item(appwatch.Mark, 8)}, "", "7,8"},
		{"another stream", appwatch.Options{}, []appwatch.Item{event(6), event(7), restart(appwatch.ErrOtherStream, 0, 0), state, mark, event(6), event(7), event(8)}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var failures []string
			w := unreadWatcher("test", tt.opts, func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) })
			w.begin()
			for _, it := range slices.Concat([]appwatch.Item{state, mark}, tt.items) {
				w.take(it)
			}
			got := strings.Join(failures, "; ")
			if got == "" != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if got := strings.Join(w.missed([]uint64{6, 7, 8}), ","); got != tt.missed {
				t.Errorf("missed %q, want %q", got, tt.missed)
			}
		})
	}
}
