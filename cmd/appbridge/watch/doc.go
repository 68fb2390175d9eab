// Package watch is `appbridge watch` without its command line: what it reads comes from package
// appwatch, what it prints is made by package appview.
//
//	appwatch ──items──► lines: a line or a document for each
//	                ──► once, plain: a table of the snapshot
//	                ──► live: model ──► screen, drawn on the Terminal ten times a second at most
//	                ──► wait: waiter ──► the end of a script's waiting
//	           bucket and the events since then ──► instant: what was
//
// [Run] chooses by the options. One goroutine reads the stream. A live table has a second one that
// draws, and one for the keys; all have ended when Run returns.
package watch
