// Package watch is the Kubernetes side of the bridge: a Cluster with informers for Knative Services
// and Revisions, the Source that turns what they observe into states of apps and emits each change
// of a state into a sink, consistent lists, and the Pods.
//
//	API server ──► ListerWatcher ──► informer ──► Source ──► sink: (app, change)
//	    │                                           │
//	    └──► Cluster.List ──► Source.Shown.Reach ◄──┘   the informers have caught up with a list
//
// The Source decides which Knative Service an id belongs to (claims.go), which Revision gives the
// replica count during a rollout (standin.go), and when the lists of the kinds are complete
// (join.go). Its handlers update maps and never wait. Connect lets changes flow into the sink of a
// session; Read gives a consistent view of the states.
//
// The rest of this page is about the ListerWatcher under each informer. It notices lists and
// watches without any message or error, for which client-go waits without a limit.
//
//	reflector ──► ListerWatcher ──► decoder ──► transport ──► API server
//	   (410,          │  announces lists, watches the silence     │
//	 plain list)      └───────────── bytes of lists ◄─────────────┘
//
// Package decoder makes the requests and reads the objects. Pods have client-go's client there.
//
// # Lists
//
// client-go lists by a watch that begins with everything that exists (sendInitialEvents), and waits
// for the bookmark that ends it. A list by watch that makes no progress is ended: the reflector
// gets an error and falls back to a plain list. Progress is an addition. After any other event the
// objects of the list were all received and the bookmark is due, however busy the watch is.
//
// A Group remembers that its API server did not end a list, for ten minutes: lists are rare, and
// without that each informer and each relist waits again. It does not remember longer, because a
// list by watch costs the API server much less. The plain list in place of the first list by watch
// is as consistent as that: it asks for no resourceVersion, where client-go would take what any
// cache has.
//
// A plain list of which no byte comes is cancelled and requested again.
//
// Behind each list comes a mark, through the informer's queue: the deletion of an object that does
// not exist. When a handler receives it, the informer has delivered the whole list.
//
// # Watches
//
// API servers send a bookmark a minute. A watch without any message for three minutes is closed,
// and the reflector opens it again from its last version. An event counts as well as a bookmark:
// servers need not send bookmarks. kube-apiserver sends none for a resource until it has seen a
// change of it, or a progress notification of etcd, since its start. So only a watch that fell
// silent after bookmarks is suspect; the others are opened again as a precaution, which costs one
// request.
//
// Silence is counted in steps of a ticker, not by a clock: a process that was stopped for an hour
// finds one step gone, and reads what waits for it first.
//
// # Relist
//
// Relist ends a watch with 410 Gone, and the list that follows is consistent (resourceVersion
// unset). client-go itself would list at its last version, which the cache of an API server that
// stands still satisfies. The informer then emits the differences, deletes included.
package watch
