// Package retry repeats what fails while NATS or Kubernetes is unavailable.
//
//	operation ──► Do ──► nil, a permanent error, or the cause of the context's end
//	               └──► report: each failure that is tried again ──► Log: each reason once in 30 s
//
// [Do] waits 50 ms at first and at most 2 s between two tries, with jitter, for as long as its
// context lasts. [NewPause] has the waits of a loop that starts the same thing again, up to 5 s.
// [Wait] is one wait, [Ticks] are the rounds of what is done again and again.
package retry
