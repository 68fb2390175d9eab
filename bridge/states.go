package bridge

import (
	"context"
	"maps"
	"slices"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// view is what a source knows at one instant. It is valid during the call that it is an argument of.
type view struct{ source *source }

// states are the states of all apps. The map must not be changed.
func (v view) states() map[subjects.AppID]app.State { return v.source.current }

// awaits reports whether the Revision of an app is awaited: its count may change soon.
func (v view) awaits(id subjects.AppID) bool { return v.source.standIns.awaits(id) }

// standIn makes rev stand in for the Revision of an app that is awaited since this process started:
// only what was published has a count then. rev may be nil.
func (v view) standIn(id subjects.AppID, rev *kservice.Revision) {
	if now, there := v.source.current[id]; there && rev != nil && v.awaits(id) && !now.StandsIn() {
		now.Revision = rev
		v.source.current[id] = now
	}
}

// newestRevision is the newest version of the Revision that gives an app's count. The app's state
// has it only if it has another count than the version before.
func (v view) newestRevision(id subjects.AppID, now app.State) *kservice.Revision {
	if v.awaits(id) && now.StandsIn() {
		return now.Revision
	}
	return v.source.shown.revisionOf(now.Service)
}

// read calls do with what the source knows now. Until do returns, no change is emitted; it must be
// quick, and must not call the source.
func (s *source) read(do func(view)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(view{s})
}

// states returns a copy of the states of all apps.
func (s *source) states() (states map[subjects.AppID]app.State) {
	s.read(func(v view) { states = maps.Clone(v.states()) })
	return states
}

// present are the apps that the cluster has.
func (s *source) present() (ids []subjects.AppID) {
	s.read(func(v view) { ids = slices.Collect(maps.Keys(v.states())) })
	return ids
}

// connect lets every change from now on flow into the sink that start returns. What start reads of
// the view is the state before the first of them. reset is called if an object's version steps back.
func (s *source) connect(start func(view) sink, reset context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.forgetDeletes()
	s.sink, s.reset = start(view{s}), reset
}

// disconnect stops the flow of changes into the sink.
func (s *source) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.forgetDeletes()
	s.sink, s.reset = nil, nil
}

// release detaches the source from a session that has ended. Changes go on flowing into its sink,
// from which the next session takes them.
func (s *source) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.forgetDeletes()
	s.reset = nil
}
