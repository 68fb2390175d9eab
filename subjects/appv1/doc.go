// Package appv1 holds the messages that events and bucket entries carry.
//
// They are wire-compatible with the messages of the same name in Flyte v2: the field numbers, JSON
// names, oneofs and enum values are the same, so bytes and JSON pass between the two. Only the
// protobuf package differs (appbridge.v1), so that a program can link Flyte's generated code beside
// this one. Flyte has two messages called LogLines; the one of its dataplane is [DataplaneLogLines]
// here.
//
// An event is a [WatchResponse], a bucket entry an [App].
package appv1
