// Package knative brings Knative Serving itself up beside a cluster of package testenv, for tests
// and for the demo: its reconcilers and its admission webhooks, kube-controller-manager for what
// they build on, and kwok for the pods. Everything is a process of this machine and listens on the
// loopback interface alone.
//
// What is not real: pods run nothing, the ingress and the load that the autoscaler sees are
// stand-ins (see testdata/cluster/knative), and the logs of pods are what a test writes, see
// [Knative.Pod]. What becomes of a pod depends on the name of its image:
//
//	dev.local/crash...  waits in CrashLoopBackOff, ended before with exit code 1
//	dev.local/oom...    the same, ended before as OOMKilled
//	dev.local/pull...   waits in ImagePullBackOff; Knative waits for the progress deadline
//	dev.local/hang...   waits in ContainerCreating
//	any other           runs and is ready
//
// Knative looks up the digest of an image unless its registry is dev.local. At 127.0.0.1:1, where
// nobody listens, it finds none.
package knative
