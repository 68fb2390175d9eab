package projector

import "github.com/appbridge/appbridge/subjects"

// KeyState is what the projector knows of one app's key in the bucket.
type KeyState struct {
	Known   bool
	Exists  bool   // it is no delete marker
	Event   uint64 // the stream sequence that it reflects, 0 if that is not known
	Entry   uint64 // its sequence in the bucket's stream, 0 if that is not known
	Touched uint64 // the sequence of an event of the app that the session has not judged yet
}

// KeyStates returns what is known of the keys of apps, and up to which sequence the bucket reflects
// the stream.
func (p *Projector) KeyStates(ids []subjects.AppID) (states map[subjects.AppID]KeyState, written uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states = make(map[subjects.AppID]KeyState, len(ids))
	for _, id := range ids {
		k, ok := p.keys[id]
		states[id] = KeyState{Known: ok, Exists: k.exists, Event: k.event, Entry: k.at.Sequence, Touched: p.touched[id]}
	}
	return states, p.written.Load()
}
