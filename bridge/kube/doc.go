// Package kube is what every client of the Kubernetes API in appbridge shares: the configuration of
// a client, lists in pages, and the meaning of an error.
//
//	bridge/watch  ─┐                ┌──► client-go: requests, pages
//	bridge/audit  ─┼──► kube ───────┤
//	bridge/appsvc ─┤                └──► Reason, Terminal, RetryNow ◄── errors
//	logsvc        ─┘
//
// What comes in: a rest.Config, a list to be read, an error. What goes out: a configuration whose
// requests end with their context ([Bounded]), the pages of a consistent list, and the [Reason] of
// an error. Each service has its own texts and codes for a Reason. [Explain] has the texts of the
// bridge.
package kube
