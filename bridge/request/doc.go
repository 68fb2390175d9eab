// Package request holds what the two request services, logs and app operations, share: the
// service itself, the limits of what runs at one time, and answers with errors.
//
// [Serve] runs a NATS micro service. Its endpoints queue, check and admit requests:
//
//	             endpoint                     goroutine of the request
//	request ──► reply subject ──► Begin ──────────► serve ──► answer
//	 (NATS)          │    body      │ error
//	                 ▼              ▼
//	              Ignore         Refuse ──► answer with an error
//
// At shutdown, Serve refuses the requests that are queued, interrupts those that run, and returns
// when each has its answer.
//
// A [Limiter] shares a limit among projects:
//
//	claim ──► Acquire ──► free, and within the project's half ────────► slot ──► Release
//	             │                                                        ▲
//	             ├── below its fair share: the newest claims of another ──┤
//	             │   project are revoked until units are free             │
//	             ├── pending: a place in its project's queue ─────────────┘
//	             └── error 429, which names the limit
package request
