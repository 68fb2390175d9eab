package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// shutdownGrace is how long a stopping API server may go on serving the watches
// it has; it takes no new requests. Left alone it takes a minute, which is its
// request timeout.
const shutdownGrace = 2 * time.Second

// StopAPIServer ends the API server in good order; etcd and its content stay.
func (c *Cluster) StopAPIServer(ctx context.Context) error {
	began := time.Now()
	pid, err := c.guard.pid(apiServerName)
	if err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	if err := signal(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, shutdownGrace, true, func(context.Context) (bool, error) {
		return !runs(pid), nil
	})
	if err != nil && !wait.Interrupted(err) {
		return fmt.Errorf("stop the API server: %w", err)
	}
	if err := c.KillAPIServer(); err != nil {
		return err
	}
	c.logf("cluster: API server stopped after %s", since(began))
	return nil
}

// runs tells whether a process is there. Those of envtest are reaped by it at once.
func runs(pid int) bool { return syscall.Kill(pid, 0) == nil }

// KillAPIServer ends the API server as a crash would: its clients see
// connections break off.
func (c *Cluster) KillAPIServer() error {
	c.up = false
	if err := c.kill(apiServerName, c.env.ControlPlane.APIServer.Stop); err != nil {
		return fmt.Errorf("end the API server: %w", err)
	}
	return nil
}

// kill ends a server of envtest's without asking it. The stop is envtest's own,
// which has to see that the process is gone.
func (c *Cluster) kill(name string, stop func() error) error {
	return errors.Join(c.guard.kill(name), settled(stop), c.guard.ended(name))
}

// settled stops what envtest started and what may have ended by now. envtest
// notes the end of a process a moment after it is gone, and what it does in
// that moment, a signal to the process, fails.
func settled(stop func() error) error {
	var err error
	waited := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, serverTimeout, true,
		func(context.Context) (bool, error) {
			err = stop()
			return !errors.Is(err, syscall.ESRCH), nil
		})
	return errors.Join(err, waited)
}

// StartAPIServer brings a stopped API server back at the same address, with the
// same certificates and the same etcd, and returns when it serves Knative's
// resources again.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if c.up {
		return errors.New("start the API server: it runs")
	}
	began := time.Now()
	if err := c.env.ControlPlane.APIServer.Start(); err != nil {
		return fmt.Errorf("start the API server: %w\n%s", err, c.serverLogs())
	}
	c.up = true
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, serverTimeout, true, func(ctx context.Context) (bool, error) {
		return c.serves(ctx), nil
	})
	if err != nil {
		return fmt.Errorf("start the API server: wait until it serves: %w", err)
	}
	c.logf("cluster: API server back after %s", since(began))
	return nil
}

// RestartAPIServer is StopAPIServer and StartAPIServer.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	if err := c.StopAPIServer(ctx); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// serves asks for what the slowest parts of a starting server answer: the
// defined resources, and the authorizer's own (any read needs it).
func (c *Cluster) serves(ctx context.Context) bool {
	if err := c.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{}); err != nil {
		return false
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(serviceKind.GroupVersion().WithKind("ServiceList"))
	err := c.Client.List(ctx, list, client.Limit(1))
	// A cluster without Knative's definitions answers with no match, which is an answer.
	return err == nil || meta.IsNoMatchError(err) || apierrors.IsNotFound(err)
}

var users sync.Mutex

// User is a configuration for another user: one in no group may do nothing
// until it is given a role.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	users.Lock() // envtest's authority counts serial numbers without a lock
	defer users.Unlock()
	user, err := c.env.AddUser(envtest.User{Name: name, Groups: groups}, rest.CopyConfig(&rest.Config{QPS: -1}))
	if err != nil {
		return nil, fmt.Errorf("add user %s: %w", name, err)
	}
	return user.Config(), nil
}

// Kubeconfig writes an administrator's kubeconfig.
func (c *Cluster) Kubeconfig(path string) error {
	if err := os.WriteFile(path, c.env.KubeConfig, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}
