package bridge

import "github.com/appbridge/appbridge/subjects"

// keyState is what the projector knows of one app's key in the bucket.
type keyState struct {
	known   bool
	exists  bool   // it is no delete marker
	event   uint64 // the stream sequence that it reflects, 0 if that is not known
	entry   uint64 // its sequence in the bucket's stream, 0 if that is not known
	touched uint64 // the sequence of an event of the app that the session has not judged yet
}

// keyStates returns what is known of the keys of apps, and up to which sequence the bucket reflects
// the stream.
func (p *projector) keyStates(ids []subjects.AppID) (states map[subjects.AppID]keyState, written uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states = make(map[subjects.AppID]keyState, len(ids))
	for _, id := range ids {
		k, ok := p.keys[id]
		states[id] = keyState{known: ok, exists: k.exists, event: k.event, entry: k.at.Sequence, touched: p.touched[id]}
	}
	return states, p.written.Load()
}
