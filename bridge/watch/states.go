package watch

import (
	"context"
	"maps"
	"slices"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// View is what a source knows at one instant. It is valid during the call that receives it.
type View struct{ source *Source }

// States are the states of all apps. The map must not be changed.
func (v View) States() map[subjects.AppID]app.State { return v.source.current }

// Awaits reports whether the Revision of an app is awaited: its count may change soon.
func (v View) Awaits(id subjects.AppID) bool { return v.source.standIns.awaits(id) }

// StandIn makes rev stand in for the Revision of an app that is awaited since this process started:
// only what was published has a count then. rev may be nil.
func (v View) StandIn(id subjects.AppID, rev *kservice.Revision) {
	if now, there := v.source.current[id]; there && rev != nil && v.Awaits(id) && !now.StandsIn() {
		now.Revision = rev
		v.source.current[id] = now
	}
}

// NewestRevision is the newest version of the Revision that gives an app's count. The app's state
// has it only if it has another count than the version before.
func (v View) NewestRevision(id subjects.AppID, now app.State) *kservice.Revision {
	if v.Awaits(id) && now.StandsIn() {
		return now.Revision
	}
	return v.source.Shown.revisionOf(now.Service)
}

// Read calls do with what the source knows. do must be quick and must not call the source.
func (s *Source) Read(do func(View)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(View{s})
}

// States returns a copy of the states of all apps.
func (s *Source) States() (states map[subjects.AppID]app.State) {
	s.Read(func(v View) { states = maps.Clone(v.States()) })
	return states
}

// State is what an app is now. It has no Service if there is no such app.
func (s *Source) State(id subjects.AppID) (now app.State) {
	s.Read(func(v View) { now = v.States()[id] })
	return now
}

// Present are the apps that the cluster has.
func (s *Source) Present() (ids []subjects.AppID) {
	s.Read(func(v View) { ids = slices.Collect(maps.Keys(v.States())) })
	return ids
}

// Connect lets changes flow into the sink that start returns. start reads the state before the
// first of them. reset is called if an object's version steps back.
func (s *Source) Connect(start func(View) Sink, reset context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shown.forgetDeletes()
	s.sink, s.reset = start(View{s}), reset
}

// Disconnect stops the flow of changes into the sink.
func (s *Source) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shown.forgetDeletes()
	s.sink, s.reset = nil, nil
}

// Release detaches the source from an ended session. The next one takes the changes from its sink.
func (s *Source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shown.forgetDeletes()
	s.reset = nil
}
