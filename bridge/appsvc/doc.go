// Package appsvc serves app operations over NATS: those of Flyte's app client, for programs that
// only speak NATS.
//
// A [Service] is a NATS micro service with an endpoint per operation. Package subjects has the
// contract, docs/apps.md describes it for users. All replicas of appbridge share the requests as
// one queue group, whether they lead or not.
//
//	get, list, ─────► turn of the project ─────► Cache of the informers ─────► answer
//	replicas, ingress
//
//	deploy, stop, ──► lock of the app ──► turn of the project ──► read from Kubernetes, ──► write ──► answer
//	delete, delete-replica                                        check the owner
//
// Package request runs the endpoints and shares the turns among projects: while other projects have
// requests, one project has at most half of the reads and of the writes. A request waits at most 2
// s for its turn, and is answered within 4 s of its arrival, whatever it waits for.
//
// Reads send nothing to Kubernetes. A read ends when its requester disconnects. A list reads the
// labels of every Service, and converts and encodes only the apps of its page.
//
// # Writes
//
// Writes are off by default. A write is validated before the first request to Kubernetes: 400 for
// what cannot be an app, 403 by the policy, then 400 for what Knative's validation refuses. What the
// cluster's settings forbid, Knative's webhook refuses, which is a 400 as well. Names of Knative
// Services fold case and hyphens, so the Service of a name may be another app's: each write
// first reads the object, consistently, and continues only if its annotation has the id of the
// request. Each write carries the version (or the uid) that was read. If the object has changed in
// between, the write fails and is tried again with the new version. A deploy waits for the end of a
// Service that is being deleted without the lock of the app, so that stop and delete go on.
package appsvc
