// Package kservice converts between the Knative Services that Flyte manages and Flyte's App
// messages.
//
//	Service, Revision ──► Convert ──► App
//	pods              ──► Replicas, PodStatus ──► replicas
//	id                ──► Name, PublicURL
//	id, App           ──► Build ──► Knative's Service, or the problems and denials by field
//	                                  ├──► Check  ──► what Knative's own validation refuses
//	                                  └──► Object ──► what is sent to create it
//	                                       Apply  ──► what is sent to change an existing one
//
// Reads decode trimmed types of this package, since the informers hold every object and one bad
// field must not fail a list. Writes have Knative's types, constants and validation (check.go;
// origins.go finds the field of the app that a refused value is from).
//
// What a deploy may name is in policy.go (the decision, and the patterns of --allowed-references) and
// policy_fields.go (how far each field of a pod reaches).
//
// All functions are pure: no I/O, no clock, no randomness. The same input always gives the same
// output. Only Trim, Apply, Place and DropOverridden change an argument. All are safe for concurrent
// use as long as their arguments are not changed meanwhile.
//
// The App is the one of Flyte v2, field by field, with one exception: where Flyte takes the time of
// the conversion (a stopped app, a condition without transition time), this package takes a time of
// the object: the transition time of its Ready condition, else its creation time.
package kservice
