// Package appview renders apps and their events: tables, lines, the screen of a live table, and
// documents of JSON and YAML. It does no I/O: the caller reads the stream, package watch, and writes.
//
//	App ──► Table  ──► lines of a table, as wide as its cells or as a terminal
//	    ──► Screen ──► lines of a screen: titles, the apps that fit, a footer ──► Paint ──► ANSI
//	    ──► Event  ──► a line of an event
//	    ──► FieldsOf ──► Document, List ──► JSON, YAML
//
// Users choose the names of apps, and what an app reports is text as well. Nothing of either reaches
// a terminal as it is: see [Safe]. Only the apps that are shown are decoded, so that the first screen
// of 20,000 apps costs as much as that of 30.
package appview
