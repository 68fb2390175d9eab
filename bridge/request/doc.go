// Package request holds what the two request services, logs and app operations,
// share: answers, endpoints, and the limit of what is served at one
// time.
//
//	request ──► Acquire ──► free, and within the project's half ────────► served ──► Release
//	               │                                                        ▲
//	               ├── below its fair share: another project's newest ──────┤
//	               │   claims are revoked until there is room               │
//	               ├── may wait: a place in its project's queue ────────────┘
//	               └── 429, which names the limit
package request
