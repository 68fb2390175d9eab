package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
)

var errRequestEnded = errors.New("the request has ended")

// read answers a request as the kubelet does after it has found the container: it sends the header
// with an empty write and has its reader do the rest. An error of that comes too late for a status: its
// text is in the body.
func (p *Pod) read(ctx context.Context, w http.ResponseWriter, f *follower, h hindrance) {
	out := &logResponse{
		to: w, flush: http.NewResponseController(w).Flush, follower: f,
		wait: func() bool { return sleep(ctx, h.pause) && ctx.Err() == nil }, left: h.records,
	}
	if _, err := out.Write(nil); err != nil || !h.pass(ctx) {
		return
	}
	err := p.readLogs(ctx, f, out)
	if err == nil || ctx.Err() != nil {
		return
	}
	if strings.Contains(err.Error(), "fsnotify") {
		p.kubelet.note(err) // the test has more follows than the system inotify instances: it needs InMemory
	}
	_, _ = io.WriteString(out, err.Error())
}

func (p *Pod) readLogs(ctx context.Context, f *follower, out io.Writer) error {
	p.mu.Lock()
	id, removed := f.instance.id, f.instance.removed
	p.mu.Unlock()
	if removed {
		return fmt.Errorf("unable to retrieve container logs for %s", id)
	}
	opts := &logs.LogOptions{Since: f.since, Follow: f.follow, Timestamp: f.timestamps}
	if f.tail >= 0 {
		opts.TailLines = &f.tail
	}
	if f.limit >= 0 {
		opts.LimitBytes = &f.limit
	}
	ctx = klog.NewContext(ctx, logr.Discard())
	return logs.ReadLogs(ctx, f.path, id, opts, &containerRuntime{pod: p, follower: f}, out, out)
}

// logResponse sends what the kubelet's reader writes: a record at a time, each flushed.
type logResponse struct {
	to       io.Writer
	flush    func() error
	follower *follower
	wait     func() bool // before each record; false: the request has ended
	left     int         // records until its end; 0: no end
}

func (r *logResponse) Write(text []byte) (int, error) {
	if len(text) > 0 && !r.wait() {
		return 0, errRequestEnded
	}
	if len(text) > 0 && r.left > 0 {
		if r.left--; r.left == 0 {
			defer r.follower.end()
		}
	}
	cut := r.follower.trapped(text)
	if cut {
		text = text[:len(text)/2]
	}
	n, err := r.to.Write(text)
	r.follower.sent.Add(int64(n))
	if err == nil {
		err = r.flush()
	}
	if cut {
		panic(http.ErrAbortHandler) // net/http closes the connection and says nothing
	}
	return n, err
}

// trapped reports whether the request breaks off inside this line.
func (f *follower) trapped(text []byte) bool {
	trap := f.trapLine.Load()
	if trap == nil {
		return false
	}
	if f.timestamps {
		_, text, _ = bytes.Cut(text, []byte(" "))
	}
	return string(bytes.TrimSuffix(text, []byte("\n"))) == *trap
}

// containerRuntime is the container runtime of a node, asked for one instance of a container.
type containerRuntime struct {
	internalapi.RuntimeService // the kubelet's reader calls nothing of the rest
	pod                        *Pod
	follower                   *follower
}

func (r *containerRuntime) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	r.pod.mu.Lock()
	defer r.pod.mu.Unlock()
	if !r.follower.atEnd.Swap(true) { // nothing else makes the reader ask
		r.pod.report(r.follower, RequestAtEnd)
	}
	instance := r.follower.instance
	if instance.removed {
		return nil, fmt.Errorf("rpc error: code = NotFound desc = container %q: not found", id)
	}
	state := runtimeapi.ContainerState_CONTAINER_EXITED
	if instance.running {
		state = runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id, State: state}}, nil
}

// sleep reports whether it could sleep to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	return Pause(ctx, d) == nil
}
