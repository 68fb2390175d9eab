// Package kube is what every client of the Kubernetes API in appbridge shares: the configuration of
// a client, lists in pages, and the meaning of an error.
//
//	bridge/watch ─┐
//	bridge/appsvc ├──► kube ──► client-go
//	logsvc ───────┘
//
// A Reason classifies an error. Each service has its own texts and codes for a Reason.
package kube
