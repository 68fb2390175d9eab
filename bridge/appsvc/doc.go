// Package appsvc answers requests about apps over NATS, and changes apps on
// request: what Flyte's app client does, for programs that speak NATS alone.
//
// A [Service] is a NATS micro service with an endpoint per operation; package
// subjects has the contract, docs/apps.md describes it for its users. All replicas of
// appbridge share the requests as one queue group, whether they lead or not.
//
//	get, list, ──► the project's turn ──► [Cache], what the informers show ──► answer
//	replicas, ingress
//
//	deploy, stop, delete, ──► one at a time per app ──► the project's turn ──► checks ──► read from
//	delete-replica                                                      Kubernetes, whose is it?, write
//
// The handler of an endpoint reads the subject and queues the request. The limits of
// package request share the turns among projects: while others have requests, one project has
// at most half of the reads and of the writes. A request waits for its turn for 2 s at most.
//
// Reads send nothing to Kubernetes. A read whose requester no longer listens is dropped. A list
// looks at each Service once, then converts and encodes the apps of its page, each once.
//
// # Writes
//
// They are refused unless they are turned on. Everything that can be known to
// be wrong is refused before Kubernetes is asked anything. Names of Knative
// Services fold case and hyphens, so the Service of a name may be another app's: each write
// reads the object first, consistently, and touches it only when its annotation
// has the id that was asked for. Each write carries the version (or the uid) that was
// read, so that what changed in between makes it fail, and is tried again with what is there now.
package appsvc
