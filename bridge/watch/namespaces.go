package watch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
)

// How often the watched namespaces are read, while one does not exist and while all do.
const (
	lookWhileMissing = 10 * time.Second
	lookWhilePresent = time.Minute
)

// existence is whether a namespace exists. One that does not looks like one without apps.
type existence int

const (
	existenceUnread  existence = iota // not read yet
	existenceUnknown                  // the right get on it is missing
	existenceMissing
	existencePresent
)

// exists reads whether a namespace exists.
func (k *Cluster) exists(ctx context.Context, name string) (existence, error) {
	_, err := k.NamespaceUID(ctx, name)
	switch {
	case err == nil:
		return existencePresent, nil
	case apierrors.IsNotFound(err):
		return existenceMissing, nil
	case kubeapi.ReasonOf(err) == kubeapi.Forbidden:
		return existenceUnknown, nil
	default:
		return existenceUnread, kubeapi.Explain(err, "get on namespace "+name)
	}
}

// errNoNamespace is the error for namespaces of which none exists.
func errNoNamespace(names ...string) error {
	return fmt.Errorf("namespaces %q: there is no such namespace", strings.Join(names, ","))
}

// Namespaces watches whether the namespaces of a cluster exist. One goroutine uses it.
type Namespaces struct {
	cluster *Cluster
	known   map[string]existence
}

// NewNamespaces has read nothing yet.
func NewNamespaces(k *Cluster) *Namespaces {
	return &Namespaces{cluster: k, known: map[string]existence{}}
}

// Read reads all namespaces once, and logs what has changed. The first error ends it.
func (n *Namespaces) Read(ctx context.Context) error {
	for _, name := range n.cluster.Namespaces {
		if name == metav1.NamespaceAll {
			continue
		}
		now, err := n.cluster.exists(ctx, name)
		if err != nil {
			return err
		}
		before := n.known[name]
		if n.known[name] = now; now == before {
			continue
		}
		log := n.cluster.Log.With(zap.String("namespace", name))
		switch {
		case now == existenceMissing:
			log.Warn("a watched namespace does not exist")
		case now == existenceUnknown:
			log.Warn("whether a watched namespace exists is not known",
				zap.Error(&kubeapi.DeniedError{Text: "the right get on namespace " + name + " is missing: grant it by RBAC"}))
		case before == existenceMissing:
			log.Info("a watched namespace exists now")
		}
	}
	return nil
}

// Missing returns that none of the namespaces exists; "" if one does, or may.
func (n *Namespaces) Missing() string {
	for _, state := range n.known {
		if state != existenceMissing {
			return ""
		}
	}
	if len(n.known) == 0 {
		return ""
	}
	return errNoNamespace(n.cluster.Namespaces...).Error()
}

// Watch reads the namespaces again and again until ctx is done. report receives the result of Missing
// each time.
func (n *Namespaces) Watch(ctx context.Context, report func(string)) {
	for retry.Wait(ctx, n.interval()) == nil {
		if err := n.Read(ctx); err != nil {
			continue // Kubernetes is unavailable, which readiness reports
		}
		report(n.Missing())
	}
}

func (n *Namespaces) interval() time.Duration {
	for _, state := range n.known {
		if state == existenceMissing {
			return lookWhileMissing
		}
	}
	return lookWhilePresent
}
