package testenv

// RequestEvent is what happens to a request for the logs of a pod.
type RequestEvent struct {
	Step   RequestStep
	Number int    // of the request, among those of its pod
	Query  string // such as "app?follow=true&tailLines=5"
	Follow bool
	Sent   int64 // bytes so far
}

// RequestStep is how far a request is.
type RequestStep string

// The steps of a request. Only a follow of a log on disk has the second.
const (
	RequestOpened RequestStep = "opened"
	// RequestAtEnd: it has come to the end of the file for the first time. From now on it notices when
	// the log is rotated.
	RequestAtEnd RequestStep = "at the end"
	RequestEnded RequestStep = "ended"
)

// Observe has report called for each event of the pod's requests, one at a time and in their order. It must
// not use the pod.
func (p *Pod) Observe(report func(RequestEvent)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe = report
}

// report reports an event of a request. The pod is locked.
func (p *Pod) report(f *follower, step RequestStep) {
	if p.observe != nil {
		p.observe(RequestEvent{Step: step, Number: f.number, Query: f.request, Follow: f.follow, Sent: f.sent.Load()})
	}
}
