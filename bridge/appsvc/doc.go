// Package appsvc answers requests about apps over NATS, and changes apps for
// those who ask: what Flyte's app client does, for programs that speak NATS alone.
//
// A [Service] is a NATS micro service with an endpoint per operation; package
// subjects has the contract, docs/apps.md describes it for its users. All replicas of
// appbridge share the requests as one queue group, whether they lead or not.
//
//	get, list, replicas, ingress ──► [Cache], what the informers show ──► answer
//
//	deploy, stop, delete, ──► checks ──► one at a time per app ──► read from Kubernetes,
//	delete-replica                                                 whose is it?, write
//
// Reads ask Kubernetes nothing. Each endpoint answers its requests one after the
// other, so that many of them take no more memory than one.
//
// # Writes
//
// They are refused unless they are turned on. Everything that can be known to
// be wrong is refused before Kubernetes is asked anything. Names of Knative
// Services fold case and hyphens, so the Service of a name may be another app's: each write
// reads the object first, consistently, and touches it only when its annotation
// has the id that was asked for. Each write carries the version (or the uid) that was
// read, so that what changed in between makes it fail, and it begins anew with what is there now.
package appsvc
