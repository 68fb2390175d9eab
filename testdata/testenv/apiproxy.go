package testenv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// APIProxy is an HTTPS reverse proxy before an API server. It makes watches
// mute in ways that no error shows. Each switch is on until Heal. Its methods
// may be called from several goroutines.
//
// A request with a bearer token keeps it; any other has the identity of the
// cluster's administrator.
type APIProxy struct {
	target    *url.URL
	admin     *http.Transport
	bearer    *http.Transport
	forward   *httputil.ReverseProxy
	listener  *gateListener
	server    *http.Server
	authority []byte // PEM
	token     string // of the administrator
	serving   sync.WaitGroup
	handlers  sync.WaitGroup

	mu        sync.Mutex
	streams   map[*apiStream]struct{}
	freeze    bool
	dropEnd   bool
	swallow   *swallowing
	swallowed []SwallowedEvent
	stale     *staleCache
	gate      ListGate
	hang      *hanging
	closed    bool
}

// APIProxyOptions of an APIProxy.
type APIProxyOptions struct {
	// HTTP1 keeps clients from HTTP/2. client-go pings HTTP/2 connections and
	// closes one that is half open after 45 s; of HTTP/1.1 it notices nothing.
	HTTP1 bool
	// Token is a bearer token of the administrator. Requests with another one are sent with that;
	// those with none are the administrator's.
	Token string
}

// SwallowedEvent is a watch event that never reached the client.
type SwallowedEvent struct {
	Kind, Namespace, Name, UID, ResourceVersion string
	Type                                        string // ADDED, MODIFIED or DELETED
}

type swallowing struct {
	left  int
	match func(kind, name, eventType string) bool
}

// APIProxy starts a proxy before the cluster's API server, which may restart
// behind it. Close ends it.
func (c *Cluster) APIProxy(opts APIProxyOptions) (*APIProxy, error) {
	p, err := NewAPIProxy(c.Config, opts)
	if err != nil {
		return nil, fmt.Errorf("start the proxy before the API server: %w", err)
	}
	return p, nil
}

// NewAPIProxy starts a proxy before the API server that target reaches as an
// administrator. Close ends it.
func NewAPIProxy(target *rest.Config, opts APIProxyOptions) (*APIProxy, error) {
	p := &APIProxy{streams: map[*apiStream]struct{}{}, token: opts.Token}
	var err error
	if p.target, _, err = rest.DefaultServerUrlFor(target); err != nil {
		return nil, err
	}
	if p.admin, err = transportTo(target); err != nil {
		return nil, err
	}
	if p.bearer, err = transportTo(rest.AnonymousClientConfig(target)); err != nil {
		return nil, err
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(p.target) },
		Transport:     p,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	certificate, err := p.certify()
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.listener = &gateListener{Listener: listener, open: map[*gateConn]struct{}{}}
	p.server = &http.Server{
		Handler:   http.HandlerFunc(p.serve),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	if opts.HTTP1 {
		p.server.Protocols = new(http.Protocols)
		p.server.Protocols.SetHTTP1(true)
	}
	p.serving.Go(func() { _ = p.server.ServeTLS(p.listener, "", "") })
	return p, nil
}

func transportTo(cfg *rest.Config) (*http.Transport, error) {
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}, nil
}

// certify makes a certificate for the loopback address, signed by itself.
func (p *APIProxy) certify() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "appbridge test proxy"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	p.authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Config reaches the API server through the proxy, as an administrator, without
// a client-side rate limit. Each call returns a copy of its own.
func (p *APIProxy) Config() *rest.Config {
	return &rest.Config{
		Host: p.url(), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: slices.Clone(p.authority)},
	}
}

// Kubeconfig writes a kubeconfig that goes through the proxy.
func (p *APIProxy) Kubeconfig(path string) error {
	const name = "proxy"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: p.url(), CertificateAuthorityData: p.authority}
	cfg.AuthInfos[name] = clientcmdapi.NewAuthInfo()
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	text, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("encode the proxy's kubeconfig: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write the proxy's kubeconfig: %w", err)
	}
	return nil
}

func (p *APIProxy) url() string { return "https://" + p.listener.Addr().String() }

// Close ends every connection and the proxy. It may be called twice.
func (p *APIProxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	// First the connections, for the server would write to one that is half open.
	err := p.listener.Close()
	p.listener.closeAll()
	err = errors.Join(err, p.server.Close())
	p.serving.Wait()
	p.handlers.Wait()
	p.admin.CloseIdleConnections()
	p.bearer.CloseIdleConnections()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// SwallowEvents keeps the next n watch events that match from the client:
// additions, updates and deletions, not the objects that a watch begins with.
// It replaces an earlier call's match. Swallowed reports them.
func (p *APIProxy) SwallowEvents(n int, match func(kind, name string, eventType string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = &swallowing{left: n, match: match}
}

// Swallowed are the events that were swallowed since the proxy started.
func (p *APIProxy) Swallowed() []SwallowedEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.swallowed)
}

// FreezeWatches keeps open watches open and delivers nothing on them, bookmarks
// included. New watches are accepted and frozen too, until Heal. A frozen watch
// stays so, also after Heal, until its client closes it.
func (p *APIProxy) FreezeWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeze = true
	p.freezeOpen()
}

// FreezeOpenWatches is FreezeWatches for the watches that are open now; new
// ones work.
func (p *APIProxy) FreezeOpenWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freezeOpen()
}

// freezeOpen freezes the open watches. mu must be held.
func (p *APIProxy) freezeOpen() {
	for s := range p.streams {
		s.frozen = true
	}
}

// DropEndBookmark keeps from watches that begin with a list the bookmark that
// marks the list's end. Everything else passes.
func (p *APIProxy) DropEndBookmark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropEnd = true
}

// HalfOpen keeps the connections that are open now, and lets no byte pass on
// them in either direction, not even their end. New connections work. Heal
// closes them.
func (p *APIProxy) HalfOpen() { p.listener.halfOpen() }

// Heal undoes every switch for what comes after it. Watches that are frozen
// stay so, and so do those that were served from a stale cache: what a client
// has not noticed by then it must still notice.
func (p *APIProxy) Heal() {
	p.mu.Lock()
	p.freeze, p.dropEnd, p.swallow, p.stale, p.gate = false, false, nil, nil, nil
	if p.hang != nil {
		close(p.hang.healed)
		p.hang = nil
	}
	p.mu.Unlock()
	p.listener.heal()
}

// Watches is how many watches are open.
func (p *APIProxy) Watches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

func (p *APIProxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.handlers.Add(1)
	p.mu.Unlock()
	defer p.handlers.Done()
	if isWatchRequest(r) {
		p.watch(w, r)
		return
	}
	if p.answerStale(w, r) {
		return
	}
	p.forward.ServeHTTP(w, r)
}

// RoundTrip sends a request to the API server.
func (p *APIProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	resource, lists := listed(r)
	if lists {
		p.pass(r, resource, false)
	}
	resp, err := p.hung(r)
	if lists && !isWatchRequest(r) {
		p.pass(r, resource, true)
	}
	return resp, err
}

func (p *APIProxy) send(r *http.Request) (*http.Response, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return p.admin.RoundTrip(r)
	case "Bearer " + p.token:
		r = r.Clone(r.Context())
		r.Header.Del("Authorization")
		return p.admin.RoundTrip(r)
	default:
		return p.bearer.RoundTrip(r)
	}
}

func isWatchRequest(r *http.Request) bool {
	v := r.URL.Query().Get("watch")
	return r.Method == http.MethodGet && (v == "true" || v == "1")
}
