package pods_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// answering returns a Source whose requests for the logs of a pod have answers of the test.
func (p *place) answering(pod *testenv.Pod, answer func(http.ResponseWriter)) *pods.Source {
	p.t.Helper()
	return p.through(func(w http.ResponseWriter, r *http.Request) bool {
		of := strings.HasSuffix(r.URL.Path, "/pods/"+pod.Name()+"/log")
		if of {
			answer(w)
		}
		return of
	})
}

// through returns a Source whose requests are answered by the API server, but for those that the test
// answers.
func (p *place) through(answer func(http.ResponseWriter, *http.Request) bool) *pods.Source {
	p.t.Helper()
	api, err := url.Parse(p.Config.Host)
	if err != nil {
		p.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(api)
	if proxy.Transport, err = rest.TransportFor(p.Config); err != nil {
		p.t.Fatal(err)
	}
	proxy.FlushInterval, proxy.ErrorLog = -1, log.New(io.Discard, "", 0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	p.t.Cleanup(server.Close)
	return p.kubernetes(func(c *pods.Config) { c.REST = &rest.Config{Host: server.URL} })
}

// What a kubelet answers in the place of lines, or breaks off again and again, is a note about that
// replica: a stream that does not follow ends, and one that follows goes on.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	line := func() string { return time.Now().UTC().Format(time.RFC3339Nano) + " one\n" }
	broken := func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, line()+line()[:30])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter)
		note   string
	}{
		"lines of text":          {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "no such\nlog\n") }, "its kubelet answers: no such"},
		"what is not text":       {func(w http.ResponseWriter) { _, _ = w.Write(bytes.Repeat([]byte("\x1b[31m"), 50_000)) }, "its kubelet answers:  [31m [31m"},
		"a connection that ends": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "open the log: the connection ended without an answer"},
		"broken off in a line":   {broken, "unexpected EOF"},
	} {
		for _, follow := range []logsvc.Follow{logsvc.FollowNever, logsvc.FollowAlways} {
			t.Run(fmt.Sprint(name, follow), func(t *testing.T) {
				t.Parallel()
				a := p.newApp(strings.ReplaceAll(fmt.Sprint(name, follow), " ", "-"))
				good, bad := a.run("00001"), a.run("00001")
				good.Write("good")
				bad.Write("unread")
				q := all(a)
				q.Follow = follow
				r := read(t, p.answering(bad, test.answer), q)
				soon(t, "the cause is noted", func() error { return r.noted(bad.Name() + " replica: cannot be read: " + test.note) })
				if follow == logsvc.FollowNever {
					r.end()
				}
				r.wait(good, "good")
				r.mu.Lock()
				defer r.mu.Unlock()
				for _, note := range r.notes {
					if len(note) > 2<<10 {
						t.Errorf("a note has %d bytes", len(note))
					}
				}
			})
		}
	}
}

// A node that hangs once its logs are followed does not hold up requests for other logs.
func TestNodeHangsInFollow(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.newApp("hanging")
	b := p.create(testenv.App{Project: "other", Domain: "production", Name: "fine"})
	b.run("00001").Write("fine")
	const replicas = 10
	for range replicas {
		a.run("00001")
	}
	var hang atomic.Int64
	k := p.through(func(w http.ResponseWriter, r *http.Request) bool {
		switch query := r.URL.Query(); {
		case !strings.Contains(r.URL.Path, "/pods/"+a.service):
			return false
		case query.Get("follow") == "true":
			_ = http.NewResponseController(w).Flush()
		case query.Get("limitBytes") == "":
			return false
		default:
			hang.Add(1)
		}
		<-r.Context().Done()
		return true
	})
	q := all(a)
	q.Follow = logsvc.FollowAlways
	read(t, k, q)
	soon(t, "it looks for the end of each log", func() error {
		if n := hang.Load(); n < replicas {
			return fmt.Errorf("%d requests hang", n)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), request.AnswerTime)
	defer cancel()
	stream, err := k.Open(ctx, all(b))
	if err != nil {
		t.Fatalf("the other app: %v", err)
	}
	stream.Close()
}

// A kubelet that sends more than it was asked for takes no memory with it.
func TestKubeletIgnoresLimit(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.newApp("endless")
	a.run("00001")
	const most = 256 << 20
	line := []byte(time.Now().UTC().Format(time.RFC3339Nano) + strings.Repeat(" ", 32<<10) + "\n")
	sent := make(chan int, 100)
	k := p.through(func(w http.ResponseWriter, r *http.Request) bool {
		switch query := r.URL.Query(); {
		case !strings.Contains(r.URL.Path, "/pods/"+a.service):
			return false
		case query.Get("follow") == "true":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		case query.Get("limitBytes") == "":
			return false
		}
		total := 0
		for total < most {
			n, err := w.Write(line)
			if total += n; err != nil {
				break
			}
		}
		sent <- total
		return true
	})
	q := all(a)
	q.Follow = logsvc.FollowAlways
	read(t, k, q)
	select {
	case n := <-sent:
		if n >= most {
			t.Errorf("%d MiB were read", n>>20)
		}
	case <-time.After(suite.Patience):
		t.Error("the end of the log is not looked for")
	}
}

// A follow that cannot look for new replicas any more says so, and reads them once it can.
func TestNewReplicasUnseen(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.newApp("unseen")
	first := a.run("00001")
	first.Write("one")
	var opened, denied atomic.Bool
	denied.Store(true)
	k := p.through(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/pods") || !opened.Swap(true) || !denied.Load() {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	q := all(a)
	q.Follow = logsvc.FollowAlways
	r := read(t, k, q)
	r.wait(first, "one")
	second := a.run("00001")
	second.Write("two")
	soon(t, "the cause is noted", func() error {
		return r.noted("waiting: new replicas may be missing: kubernetes: the log service lacks the right list on pods in namespace " + p.namespace + "; trying again")
	})
	denied.Store(false)
	r.wait(second, "two")
}
