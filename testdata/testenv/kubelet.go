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
	"sync"
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
// that the test wrote to a [Pod], and it answers them as a kubelet with
// containerd does, down to its oddities:
//
//   - A line longer than 16 KiB lies in the log as several records, each with
//     its own time. They are joined when read; tailLines counts records, and
//     sinceTime drops single ones. Only a line's start has a timestamp, and
//     the place where a reading begins.
//   - Only the current file can be read. A follow that has come to the end of a
//     rotated file goes on with the file that is then the current one.
//   - A container that does not run answers with its last log, and the follow
//     of such a log ends at once.
//
// Its methods and those of its pods may be called from several goroutines.
type Kubelet struct {
	name   string
	client client.Client
	server *http.Server
	served chan error // what Serve returned, once

	conns   sync.WaitGroup // one per connection, until its last request has returned
	closing sync.Once
	closed  error

	mu   sync.Mutex
	open map[net.Conn]struct{}
	pods map[types.NamespacedName]*Pod
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
	// The API server speaks HTTP/1.1 with kubelets.
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{certificate},
		NextProtos:   []string{"http/1.1"},
		MinVersion:   tls.VersionTLS13,
	})
	if err != nil {
		return nil, fmt.Errorf("start kubelet %s: %w", name, err)
	}
	k := &Kubelet{
		name: name, client: c.Client,
		served: make(chan error, 1),
		open:   make(map[net.Conn]struct{}),
		pods:   make(map[types.NamespacedName]*Pod),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	k.server = &http.Server{
		Handler:           mux,
		ConnState:         k.connState,
		ReadHeaderTimeout: serverTimeout,
		ErrorLog:          log.New(io.Discard, "", 0), // connections that break are what tests are about
	}
	go func() { k.served <- k.server.Serve(listener) }()
	port := listener.Addr().(*net.TCPAddr).Port
	if err := k.createNode(ctx, int32(port)); err != nil {
		return nil, errors.Join(fmt.Errorf("start kubelet %s: %w", name, err), k.Close())
	}
	c.logf("cluster: kubelet of node %s at port %d", name, port)
	return k, nil
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
		err := k.server.Close()
		if served := <-k.served; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		k.conns.Wait()
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

// Hang has new requests wait before anything of their answer is sent, until it
// is taken back; those that wait are then served. Open follows are not touched.
func (k *Kubelet) Hang(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hang(on)
}

// Refuse answers new requests with an HTTP status, until it is taken back with 0.
func (k *Kubelet) Refuse(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = status
}

// Followers is the number of open log requests of any kind, those that hang
// included.
func (k *Kubelet) Followers() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.followers
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

// obstacle is what stands between a request and its answer. Whoever has one
// guards it with a mutex.
type obstacle struct {
	hung   chan struct{} // closed when requests no longer hang; nil: they do not
	refuse int           // HTTP status; 0: none
}

func (o *obstacle) hang(on bool) {
	switch {
	case on && o.hung == nil:
		o.hung = make(chan struct{})
	case !on && o.hung != nil:
		close(o.hung)
		o.hung = nil
	}
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
