// Package decoder reads what the API server sends of Knative Services and Revisions, under the
// reflector of an informer: lists and watches, with the fields that package kservice keeps.
//
//	reflector ──► ListWatch ──► rest client ──► API server
//	    ▲             │                             │ bytes
//	    │             ▼                             ▼
//	    │         List: item by item ◄───────── line by line: Watch
//	    │             └─────────► scanner ◄─────────┘
//	    │                            │ anything unusual
//	    └── objects, errors ◄── client-go's decoder
//
// client-go reads an event again and again: for the frame, the envelope, the kind, the object and, as
// JSON of its own, the status. Here one scan does all of it: a frame is a line, and in the line
// the scanner reads the fields of interest and skips the others.
//
// Labels, annotations and managed fields are read as kservice.Trim leaves them; the informer's
// transform does the rest. Strings that
// repeat from object to object (keys, namespaces, labels, types and reasons of conditions) are in
// memory once for each list and each watch.
//
// # What is unusual
//
// The scanner only knows the shape that API servers write. All else it leaves to client-go's
// decoder, which gets the same bytes, so that strictness, tolerance and error texts are those of
// client-go and package kservice: bookmarks and errors, other kinds, null or a value of another
// type in a field that is read, a name twice, escapes in names, invalid UTF-8, times and numbers
// out of the ordinary, syntax errors. An event or an item is decoded so by itself; a watch whose
// events are not one to a line is for the rest of its time; a list that is none, such as a Table,
// is requested once more.
//
// FuzzEvent and FuzzList hold both decoders against each other.
package decoder
