package watch_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func emptyList() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion("7")
	return list
}

func bookmark(version string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("serving.knative.dev/v1")
	o.SetKind("Service")
	o.SetResourceVersion(version)
	return o
}

// A plain list of which nothing comes is cancelled and requested again.
func TestPlainListWithoutAnswer(t *testing.T) {
	group := watch.NewGroup(watch.Limits{NoProgress: 50 * time.Millisecond}, zap.NewNop())
	var tries atomic.Int64
	lw := group.Add(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			if tries.Add(1) == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return emptyList(), nil
		},
	}, watch.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if _, err := lw.ListWithContext(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	// On a busy machine the second one may take too long, too.
	if got, want := reopened(t, group, watch.CauseInitialList), int(tries.Load())-1; got != want || got == 0 {
		t.Errorf("%d lists were cancelled, want %d", got, want)
	}
}

// A relist while a plain list is read: what was read before it does not count.
func TestRelistDuringAPlainList(t *testing.T) {
	group := watch.NewGroup(watch.Limits{}, zap.NewNop())
	began := make(chan struct{})
	var tries atomic.Int64
	lw := group.Add(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			if tries.Add(1) == 1 {
				close(began)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if opts.ResourceVersion != "" {
				return nil, apierrors.NewBadRequest("the list is at " + opts.ResourceVersion)
			}
			return emptyList(), nil
		},
	}, watch.Options{Kind: "Service"})
	listed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	go func() {
		_, err := lw.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: "5"})
		listed <- err
	}()
	<-began
	group.Relist("Service", "", watch.CauseAudit)
	if err := <-listed; err != nil {
		t.Fatal(err)
	}
	// Between two pages the rest of the list has expired.
	group.Relist("Service", "", watch.CauseAudit)
	if _, err := lw.ListWithContext(ctx, metav1.ListOptions{Continue: "more"}); !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v for the next page of an older list, want that it has expired", err)
	}
	if _, err := lw.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: "5"}); err != nil {
		t.Error(err)
	}
	// That is done: the next list is the informer's own affair.
	if _, err := lw.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: "5"}); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v: a list is consistent that nobody wanted so", err)
	}
}

// A watch that is not answered is given up, and the list plain.
func TestListWithoutAnswer(t *testing.T) {
	group := watch.NewGroup(watch.Limits{NoProgress: 50 * time.Millisecond}, zap.NewNop())
	lw := group.Add(&toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (apiwatch.Interface, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}, watch.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for range 2 { // the second one is not tried
		if _, err := lw.WatchWithContext(ctx, metav1.ListOptions{SendInitialEvents: new(true)}); err == nil || ctx.Err() != nil {
			t.Fatalf("got %v (%v)", err, ctx.Err())
		}
	}
	if got, want := reopened(t, group, watch.CauseInitialList), 1; got != want {
		t.Errorf("%d lists were given up, want %d", got, want)
	}
}

// A list by watch that ends again and again without its bookmark is no better than
// one that stays open.
func TestListThatEndsEarly(t *testing.T) {
	group := watch.NewGroup(watch.Limits{NoProgress: 200 * time.Millisecond}, zap.NewNop())
	i := startInformer(t, group, "", &toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return emptyList(), nil },
		WatchFuncWithContext: func(_ context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			w := apiwatch.NewFakeWithChanSize(1, false)
			if opts.SendInitialEvents != nil {
				w.Add(bookmark("3"))
				w.Stop()
			}
			return w, nil
		},
	})
	i.waitSynced()
}

// A silent watch is suspect until there is a message, if the API server is one
// that sends bookmarks.
func TestSuspect(t *testing.T) {
	for _, bookmarks := range []bool{true, false} {
		t.Run(fmt.Sprint("bookmarks ", bookmarks), func(t *testing.T) {
			const limit = 500 * time.Millisecond
			group := watch.NewGroup(watch.Limits{NoBookmark: limit}, zap.NewNop())
			shows := apiwatch.Added
			if bookmarks {
				shows = apiwatch.Bookmark
			}
			lw := group.Add(&toolscache.ListWatch{
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (apiwatch.Interface, error) {
					w := apiwatch.NewFakeWithChanSize(10, false)
					w.Action(shows, bookmark("8"))
					return w, nil
				},
			}, watch.Options{Kind: "Service", Namespace: "flyte"})
			// open returns a watch that has just shown something.
			open := func() apiwatch.Interface {
				began := time.Now()
				w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(w.Stop)
				if _, ok := <-w.ResultChan(); !ok {
					t.Fatal("the watch shows nothing")
				}
				if _, _, _, suspect := group.Suspect(); suspect && time.Since(began) < limit {
					t.Error("a watch is suspect that has just shown something")
				}
				return w
			}
			w := open()
			if _, more := <-w.ResultChan(); more {
				t.Fatal("the watch shows something")
			}
			kind, namespace, since, suspect := group.Suspect()
			if suspect != bookmarks {
				t.Fatalf("suspect is %t, want %t", suspect, bookmarks)
			}
			if bookmarks && (kind != "Service" || namespace != "flyte" || since.IsZero()) {
				t.Errorf("got %s in %s since %v", kind, namespace, since)
			}
			open()
		})
	}
}

// What an informer does not wait for it is not delayed by: a slow consumer of the
// watch is no silence of the server.
func TestSlowReflectorIsNoSilence(t *testing.T) {
	group := watch.NewGroup(watch.Limits{NoBookmark: 60 * time.Millisecond}, zap.NewNop())
	server := apiwatch.NewFakeWithChanSize(10, false)
	server.Add(bookmark("1"))
	server.Add(bookmark("2"))
	lw := group.Add(&toolscache.ListWatch{
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (apiwatch.Interface, error) { return server, nil },
	}, watch.Options{})
	w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	busy := time.NewTimer(200 * time.Millisecond)
	<-busy.C
	for range 2 {
		if _, ok := <-w.ResultChan(); !ok {
			t.Fatal("the watch was closed while its consumer was busy")
		}
	}
}

// An informer that waits for an API server ends when it is asked to.
func TestEndWhileUnavailable(t *testing.T) {
	group := watch.NewGroup(watch.Limits{}, zap.NewNop())
	retried := make(chan error, 100)
	lw := group.Add(&toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return nil, errors.New("connection refused")
		},
	}, watch.Options{Retried: func(err error) {
		select {
		case retried <- err:
		default:
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := lw.ListWithContext(ctx, metav1.ListOptions{})
		ended <- err
	}()
	if err := <-retried; err == nil {
		t.Error("no failure was reported")
	}
	cancel()
	suite.Eventually(t, waitLimit, "the list ends", func() error {
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				return fmt.Errorf("it ended with %w", errors.Join(suite.ErrFatal, err))
			}
			return nil
		default:
			return errors.New("it does not")
		}
	})
}

// An API server that does not know lists by watch, or refuses one. Once the plain list in its place is
// there, the informer lists no more.
func TestListByWatchRefused(t *testing.T) {
	for name, refusal := range map[string]error{
		"unknown": apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil),
		"refused": apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no watch")),
	} {
		t.Run(name, func(t *testing.T) {
			group := watch.NewGroup(watch.Limits{}, zap.NewNop())
			asked := make(chan struct{}, 10)
			i := startInformer(t, group, "", &toolscache.ListWatch{
				ListWithContextFunc: func(_ context.Context, opts metav1.ListOptions) (runtime.Object, error) {
					list := emptyList()
					if opts.Continue == "" {
						list.SetContinue("more")
					} else if !group.Listing("Service", "") {
						t.Error("between two pages it counts as listed")
					}
					return list, nil
				},
				WatchFuncWithContext: func(_ context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
					if opts.SendInitialEvents != nil {
						return nil, refusal
					}
					asked <- struct{}{}
					return apiwatch.NewFake(), nil
				},
			})
			<-asked // the watch that follows the list
			i.waitSynced()
			if group.Listing("Service", "") {
				t.Error("it counts as listing for ever")
			}
		})
	}
}
