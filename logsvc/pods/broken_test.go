package pods_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// answering returns a Source whose requests for the logs of a pod have answers of the test.
func (p *place) answering(pod *testenv.Pod, answer func(http.ResponseWriter)) *pods.Source {
	p.t.Helper()
	api, err := url.Parse(p.Config.Host)
	if err != nil {
		p.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(api)
	if proxy.Transport, err = rest.TransportFor(p.Config); err != nil {
		p.t.Fatal(err)
	}
	proxy.FlushInterval = -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods/"+pod.Name()+"/log") {
			answer(w)
			return
		}
		proxy.ServeHTTP(w, r)
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
				soon(t, "the cause is told", func() error { return r.noted(bad.Name() + " replica: cannot be read: " + test.note) })
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
