// Package kservice turns the Knative Services that Flyte manages into Flyte's
// App messages, and knows what else can be told from such a Service: the id of
// its app, its name, its public address, its replicas.
//
// Everything here is a pure function: no I/O, no clock, no randomness, and no
// argument is changed (Trim is the one exception, and says so). The same input
// always gives the same App. All functions are safe for concurrent use as long
// as nobody writes to their arguments meanwhile.
//
// The App is the one that Flyte v2 would make, field by field, but for one
// point: where Flyte takes the time of conversion (a stopped app, a condition
// without transition time) the App here takes a time of the object itself: the
// transition time of its Ready condition, else its creation time.
package kservice
