package testenv

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// Where the API server keeps Knative's resources: below historyRoot,
// <resource>/<namespace>/<name>. One watch from the revisions to the services
// gives the order of both; it also shows the routes, which lie between, and
// the mark that lies there for WaitFor.
const (
	historyRoot  = "/registry/serving.knative.dev/"
	historyFrom  = historyRoot + "revisions/"
	historyMark  = historyRoot + "seen"
	historyUntil = historyRoot + "services0" // the first key behind services/
)

// place is where the API server keeps what a history is of.
type place struct {
	root, from, mark, until string
	kinds                   map[string]string // by resource
	decode                  func([]byte) (*unstructured.Unstructured, error)
}

var knativePlace = place{
	root: historyRoot, from: historyFrom, mark: historyMark, until: historyUntil,
	kinds: map[string]string{"services": "Service", "revisions": "Revision"},
	decode: func(value []byte) (*unstructured.Unstructured, error) {
		obj := &unstructured.Unstructured{}
		return obj, obj.UnmarshalJSON(value)
	},
}

// podPlace is that of pods. The mark lies behind them, where the API server has nothing.
var podPlace = place{
	root: "/registry/", from: "/registry/pods/", mark: "/registry/pods0", until: "/registry/pods1",
	kinds: map[string]string{"pods": "Pod"},
	decode: func(value []byte) (*unstructured.Unstructured, error) {
		pod, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil) // protobuf
		if err != nil {
			return nil, err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
		return &unstructured.Unstructured{Object: content}, err
	},
}

// Change is one version of a Knative Service or Revision that etcd held.
type Change struct {
	Kind            string // Service or Revision; of a PodHistory Pod
	Namespace, Name string
	UID             types.UID
	// ResourceVersion is etcd's revision; of a deletion, that of the deletion.
	ResourceVersion string
	Deleted         bool
	// Object as it was stored, and its resourceVersion, which is not stored. Of a
	// deletion: the last version. It is shared: do not change it.
	Object *unstructured.Unstructured
	// At is when it was seen here.
	At time.Time
}

// History notes every version of the Knative Services and Revisions of a
// namespace, managed by Flyte or not, straight from etcd: what an API server
// forgets, hides or is not there to show is in it, too. It ends with etcd.
type History struct {
	place
	cluster   *Cluster
	namespace string
	cancel    context.CancelFunc
	done      chan struct{} // closed when it has ended

	mu       sync.Mutex
	changes  []Change
	seen     int64
	err      error
	progress chan struct{} // closed and replaced with every step of seen

	// Of the reading goroutine alone.
	last map[string]*unstructured.Unstructured
}

// History notes what exists, in order of the versions, and everything from
// there on until the context ends or Stop is called.
func (c *Cluster) History(ctx context.Context, namespace string) (*History, error) {
	return c.historyOf(ctx, knativePlace, namespace)
}

// PodHistory is History of the pods.
func (c *Cluster) PodHistory(ctx context.Context, namespace string) (*History, error) {
	return c.historyOf(ctx, podPlace, namespace)
}

func (c *Cluster) historyOf(ctx context.Context, of place, namespace string) (*History, error) {
	ctx, cancel := context.WithCancel(ctx)
	h := &History{
		place: of, cluster: c, namespace: namespace, cancel: cancel,
		done: make(chan struct{}), progress: make(chan struct{}),
		last: map[string]*unstructured.Unstructured{},
	}
	body, err := h.open(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("history: %w", err)
	}
	go h.run(ctx, body)
	return h, nil
}

// open notes what exists and begins the watch from there.
func (h *History) open(ctx context.Context) (io.ReadCloser, error) {
	exists := etcdRange{}
	keys := map[string]any{"key": []byte(h.from), "range_end": []byte(h.until)}
	if err := h.cluster.etcd(ctx, "/v3/kv/range", keys, &exists); err != nil {
		return nil, err
	}
	slices.SortFunc(exists.Kvs, func(a, b etcdValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) })
	for _, kv := range exists.Kvs {
		if err := h.note(kv, false); err != nil {
			return nil, err
		}
	}
	h.step(exists.Header.Revision)
	keys["start_revision"] = strconv.FormatInt(exists.Header.Revision+1, 10)
	resp, err := openJSON(ctx, http.MethodPost, h.cluster.etcdURL("/v3/watch"), map[string]any{"create_request": keys})
	if err != nil {
		return nil, fmt.Errorf("etcd /v3/watch: %w", err)
	}
	return resp.Body, nil
}

func (h *History) run(ctx context.Context, body io.ReadCloser) {
	defer close(h.done)
	defer body.Close()
	if err := h.read(json.NewDecoder(body)); ctx.Err() == nil {
		h.err = fmt.Errorf("history: the watch ended: %w", err)
	}
}

// read notes what etcd sends, one JSON object after the other.
func (h *History) read(decoder *json.Decoder) error {
	for {
		answer := etcdWatch{}
		if err := decoder.Decode(&answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return fmt.Errorf("etcd: %s", answer.Error)
		}
		if answer.Result.Canceled {
			return fmt.Errorf("etcd: %s (compacted up to %d)", answer.Result.CancelReason, answer.Result.CompactRevision)
		}
		for _, event := range answer.Result.Events {
			if err := h.note(event.Kv, event.Type == "DELETE"); err != nil {
				return err
			}
			h.step(event.Kv.ModRevision)
		}
	}
}

// note keeps one version, if it is one of the namespace's.
func (h *History) note(kv etcdValue, deleted bool) error {
	key := string(kv.Key)
	resource, rest, _ := strings.Cut(strings.TrimPrefix(key, h.root), "/")
	namespace, name, _ := strings.Cut(rest, "/")
	kind := h.kinds[resource]
	if kind == "" || namespace != h.namespace {
		return nil
	}
	version := strconv.FormatInt(kv.ModRevision, 10)
	obj := h.last[key]
	if deleted {
		if obj == nil {
			return fmt.Errorf("%s was deleted at %s and had never been there", key, version)
		}
		delete(h.last, key)
	} else {
		var err error
		if obj, err = h.decode(kv.Value); err != nil {
			return fmt.Errorf("decode %s at %s: %w", key, version, err)
		}
		obj.SetResourceVersion(version)
		h.last[key] = obj
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, Change{
		Kind: kind, Namespace: namespace, Name: name, UID: obj.GetUID(),
		ResourceVersion: version, Deleted: deleted, Object: obj, At: time.Now(),
	})
	return nil
}

func (h *History) step(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = max(h.seen, revision)
	close(h.progress)
	h.progress = make(chan struct{})
}

// Changes are all that were noted so far, in order of their versions.
func (h *History) Changes() []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.changes)
}

// ChangesFrom are those of Changes from the n-th on.
func (h *History) ChangesFrom(n int) []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.changes[min(n, len(h.changes)):])
}

// Seen is the newest revision of etcd up to which every change has been noted.
// It moves with what happens to Knative's resources, and with WaitFor.
func (h *History) Seen() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

// WaitFor returns when every change up to a revision of etcd, which may be one
// to come, has been noted. Any resourceVersion is a revision.
func (h *History) WaitFor(ctx context.Context, revision int64) error {
	for h.Seen() < revision {
		// etcd tells of its progress when there is any: a key of our own makes some.
		mark, err := h.cluster.mark(ctx, h.mark)
		if err != nil {
			return fmt.Errorf("history: wait for %d: %w", revision, err)
		}
		if err := h.reach(ctx, mark); err != nil {
			return fmt.Errorf("history: wait for %d: %w", revision, err)
		}
		if mark >= revision {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("history: wait for %d, etcd is at %d: %w", revision, mark, err)
		}
	}
	return nil
}

// reach waits until a revision has been seen that the watch will show.
func (h *History) reach(ctx context.Context, revision int64) error {
	for {
		h.mu.Lock()
		seen, progress := h.seen, h.progress
		h.mu.Unlock()
		if seen >= revision {
			return nil
		}
		select {
		case <-progress:
		case <-h.done:
			return errors.Join(errors.New("it has ended"), h.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Stop ends it. The error says why it could not go on, if it could not.
func (h *History) Stop() error {
	h.cancel()
	<-h.done
	return h.err
}
