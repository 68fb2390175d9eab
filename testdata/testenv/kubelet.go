package testenv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kubelet stands in for the kubelet of one node: the API server proxies
// requests for the logs of the node's pods to it. What it answers are lines
// that the test wrote to a [Pod]. They lie in memory, or in files as containerd or
// CRI-O writes them, see [LogForm], and the kubelet's own code reads those. Some of
// what follows from that:
//
//   - A long line lies in the log as several records, each with its own time.
//     They are joined when read; tailLines counts records, and sinceTime drops
//     single ones. Only a line's start has a timestamp, and the place where a
//     reading begins.
//   - Only the current file can be read. A follow goes on with the file that
//     takes its place.
//   - A container that does not run answers with its last log, and the follow
//     of such a log ends at once. The end of a container is noticed within a
//     second.
//   - The header is sent before the reader begins. An error of the reader, such
//     as that of a log whose file is gone, is text in the body.
//
// Each open follow takes one of the system's inotify instances, of which a user
// has 128 by default.
//
// Its methods and those of its pods may be called from several goroutines.
type Kubelet struct {
	name        string
	dir         string // of the logs
	client      client.Client
	certificate tls.Certificate
	clock       atomic.Pointer[func() time.Time] // nil: the machine's

	conns   sync.WaitGroup // one per connection, until its last request has returned
	closing sync.Once
	closed  error

	mu     sync.Mutex
	server *http.Server // nil: connections are refused
	served chan error   // what the server's Serve returned, once
	open   map[net.Conn]struct{}
	pods   map[types.NamespacedName]*Pod
	errs   []error // of files
	obstacle
	followers int
}

// StartKubelet creates the node of that name and serves the logs of its pods,
// of which there are none yet. A cluster may have several kubelets. Whoever
// starts one has to Close it, before the cluster stops.
func (c *Cluster) StartKubelet(ctx context.Context, name string) (*Kubelet, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("start kubelet %s: make a certificate: %w", name, err)
	}
	dir, err := os.MkdirTemp(c.guard.dir, "node-")
	if err != nil {
		return nil, fmt.Errorf("start kubelet %s: %w", name, err)
	}
	k := &Kubelet{
		name: name, dir: dir, client: c.Client, certificate: certificate,
		open: make(map[net.Conn]struct{}),
		pods: make(map[types.NamespacedName]*Pod),
	}
	if err := k.serve(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start kubelet %s: %w", name, err), k.Close())
	}
	c.logf("cluster: kubelet of node %s", name)
	return k, nil
}

// serve listens at another port each time, and writes that to the node.
func (k *Kubelet) serve(ctx context.Context) error {
	// The API server speaks HTTP/1.1 with kubelets.
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{k.certificate},
		NextProtos:   []string{"http/1.1"},
		MinVersion:   tls.VersionTLS13,
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	server := &http.Server{
		Handler:           mux,
		ConnState:         k.connState,
		ReadHeaderTimeout: serverTimeout,
		ErrorLog:          log.New(io.Discard, "", 0), // connections that break are what tests are about
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	k.mu.Lock()
	k.server, k.served = server, served
	k.mu.Unlock()
	return k.createNode(ctx, int32(listener.Addr().(*net.TCPAddr).Port))
}

// stop ends every request and the server, if there is one.
func (k *Kubelet) stop() error {
	k.mu.Lock()
	server, served := k.server, k.served
	k.server = nil
	k.mu.Unlock()
	if server == nil {
		return nil
	}
	err := server.Close()
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	k.conns.Wait()
	return err
}

// connState counts a connection before it is served and after all of it, the
// request included, is over.
func (k *Kubelet) connState(conn net.Conn, state http.ConnState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch state {
	case http.StateNew:
		k.conns.Add(1)
		k.open[conn] = struct{}{}
	case http.StateClosed:
		delete(k.open, conn)
		k.conns.Done()
	}
}

// createNode creates the node, or takes over one that is there.
func (k *Kubelet) createNode(ctx context.Context, port int32) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.name}}
	if err := k.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node: %w", err)
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := k.client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		now := metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}}
		return k.client.Status().Update(ctx, node)
	})
	if err != nil {
		return fmt.Errorf("write the status of node %s: %w", k.name, err)
	}
	return nil
}

// Close ends every request and the server, and returns when nothing of them is
// left. The node is deleted if the API server can be reached; the pods stay.
// It may be called twice.
func (k *Kubelet) Close() error {
	k.closing.Do(func() {
		err := k.stop()
		for _, p := range k.allPods() {
			p.closeLogs()
		}
		k.mu.Lock()
		err = errors.Join(err, errors.Join(k.errs...), os.RemoveAll(k.dir))
		k.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = k.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.name}})
		if err != nil {
			k.closed = fmt.Errorf("close kubelet %s: %w", k.name, err)
		}
	})
	return k.closed
}

// EOF ends all open follows cleanly, as a kubelet does by itself after four
// hours: with what is sent so far, whether there is more to read or not.
func (k *Kubelet) EOF() {
	for _, p := range k.allPods() {
		p.EOF()
	}
}

// Cut closes all connections without a word. One that is sending breaks off
// anywhere, also inside a line; see [Pod.CutLine] for a place that is certain.
// The API server keeps that from its client, for whom the stream ends as if the
// log did. New connections are served.
func (k *Kubelet) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for conn := range k.open {
		// Past TLS, which would say goodbye, and with a reset.
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}

// Followers is the number of open log requests of any kind, those that hang
// included.
func (k *Kubelet) Followers() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.followers
}

// SetClock sets the node's clock: the times of lines, of containers' starts and ends, and what
// sinceSeconds counts from. The zone of its times is that of the node. Nil: the machine's clock, in UTC.
func (k *Kubelet) SetClock(clock func() time.Time) {
	if clock == nil {
		k.clock.Store(nil)
		return
	}
	k.clock.Store(&clock)
}

// now is the node's time.
func (k *Kubelet) now() time.Time {
	if clock := k.clock.Load(); clock != nil {
		return (*clock)()
	}
	return time.Now().UTC()
}

// note keeps an error of a file for Close.
func (k *Kubelet) note(err error) {
	if err == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.errs = append(k.errs, err)
}

// podDir is where the logs of a pod lie.
func (k *Kubelet) podDir(pod *corev1.Pod) string {
	return filepath.Join(k.dir, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

func (k *Kubelet) allPods() []*Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	pods := make([]*Pod, 0, len(k.pods))
	for _, p := range k.pods {
		pods = append(pods, p)
	}
	return pods
}

// selfSigned makes a certificate that nobody verifies: the API server has no
// authority configured for kubelets.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
