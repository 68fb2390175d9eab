package testenv_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// How fast a log of 120-byte lines is read: past the API server, which is the
// kubelet's own speed, and through it.
func BenchmarkKubelet(b *testing.B) {
	c, err := testenv.Start(b.Context(), testenv.Options{NoCRDs: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Stop() })
	k, err := c.StartKubelet(b.Context(), "node-1")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = k.Close() })
	p, err := k.RunPod(b.Context(), testenv.PodOptions{Log: testenv.InMemory})
	if err != nil {
		b.Fatal(err)
	}
	const count, size = 1_000_000, 120
	p.Fill(count, func(i int) string { return fmt.Sprintf("%0*d", size-1, i) })

	cfg := rest.CopyConfig(c.Config)
	cfg.Timeout, cfg.QPS = 0, -1
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	past, err := pastAPIServer(b.Context(), c, p)
	if err != nil {
		b.Fatal(err)
	}
	stamp := len("2006-01-02T15:04:05.000000000Z ")
	for _, run := range []struct {
		name string
		size int
		open func() (io.ReadCloser, error)
	}{
		{"past/plain", size, func() (io.ReadCloser, error) { return past("") }},
		{"past/timestamps", size + stamp, func() (io.ReadCloser, error) { return past("?timestamps=true") }},
		{"through/timestamps", size + stamp, func() (io.ReadCloser, error) {
			opts := &corev1.PodLogOptions{Container: "app", Timestamps: true}
			return set.CoreV1().Pods(p.Namespace()).GetLogs(p.Name(), opts).Stream(b.Context())
		}},
	} {
		b.Run(run.name, func(b *testing.B) {
			b.SetBytes(int64(count * run.size))
			for b.Loop() {
				body, err := run.open()
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, body)
				if err != nil || n != int64(count*run.size) {
					b.Fatalf("got %d bytes and %v", n, err)
				}
				_ = body.Close()
			}
		})
	}
}

// pastAPIServer reads the log of a pod's app from the kubelet itself.
func pastAPIServer(ctx context.Context, c *testenv.Cluster, p *testenv.Pod) (func(query string) (io.ReadCloser, error), error) {
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: "node-1"}, node); err != nil {
		return nil, err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d/containerLogs/%s/%s/app",
		node.Status.DaemonEndpoints.KubeletEndpoint.Port, p.Namespace(), p.Name())
	reader := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as the API server
		DisableKeepAlives: true,
	}}
	return func(query string) (io.ReadCloser, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+query, nil)
		if err != nil {
			return nil, err
		}
		resp, err := reader.Do(req)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}, nil
}
