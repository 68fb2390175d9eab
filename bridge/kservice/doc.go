// Package kservice converts between the Knative Services that Flyte manages and Flyte's App
// messages.
//
//	Service, Revision ──► Convert ──► App
//	pods              ──► Replicas, PodStatus ──► replicas
//	id                ──► Name, PublicURL
//	id, App           ──► Build ──► Manifest, or the problems by field
//
// What a deploy may name is in policy.go (the decision, and the patterns of --allowed-references) and
// policy_fields.go (how far each field of a pod reaches).
//
// All functions are pure: no I/O, no clock, no randomness, and no argument is changed, except by
// Trim. The same input always gives the same output. They are safe for concurrent use as long as
// their arguments are not changed.
//
// The App is the one of Flyte v2, field by field, with one exception: where Flyte takes the time of
// the conversion (a stopped app, a condition without transition time), this package takes a time of
// the object: the transition time of its Ready condition, else its creation time.
package kservice
