package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	tenantProject  = "honest"
	tenantInterval = time.Second
	tenantLines    = 200
	// answerLimit is within what the honest tenant has to be answered.
	answerLimit = 2 * time.Second
	// answerPatience is how long it waits to know how late an answer is.
	answerPatience = 30 * time.Second
	// eventLimit is --max-delay of the bridge: an older change makes it not ready.
	eventLimit = 30 * time.Second
)

// tenant is honest: each second it reads a log, a list and an app, changes the app, and
// waits for the event.
type tenant struct {
	h    *hostile
	pod  *testenv.Pod
	id   subjects.AppID
	nc   *nats.Conn
	from jetstream.MessagesContext

	logs, list, app latencies
	events          eventDelays
}

func newTenant(ctx context.Context, h *hostile) (*tenant, error) {
	t := &tenant{h: h, id: hostileApp(tenantProject, "shop"), events: eventDelays{written: map[uint64]time.Time{}}}
	var err error
	if t.pod, err = h.replica(ctx, t.id.Project, t.id.Name); err != nil {
		return nil, err
	}
	for i := range tenantLines {
		t.pod.Write(fmt.Sprintf("line %d", i))
	}
	if t.nc, err = nats.Connect(h.w.nats.URL(), nats.MaxReconnects(-1)); err != nil {
		return nil, err
	}
	js, err := jetstream.New(t.nc)
	if err != nil {
		return nil, err
	}
	filter, err := h.w.names.EventFilter(t.id)
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return nil, err
	}
	if t.from, err = consumer.Messages(); err != nil {
		return nil, err
	}
	// At rest it is answered: else there is nothing to compare with.
	return t, poll(ctx, startPatience, func(ctx context.Context) string {
		for _, ask := range []func(context.Context) error{t.getLogs, t.getList, t.getApp} {
			if err := ask(ctx); err != nil {
				return err.Error()
			}
		}
		return ""
	})
}

func (t *tenant) close() {
	t.from.Stop()
	t.nc.Close()
}

// begin has the tenant do its work until ctx is done.
func (t *tenant) begin(ctx context.Context, all *sync.WaitGroup) {
	work := &sync.WaitGroup{}
	each := func(do func()) {
		work.Go(func() {
			tick := time.NewTicker(tenantInterval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					work.Go(do) // one that waits holds no other up
				}
			}
		})
	}
	// A request that has begun is waited for.
	outlasting := context.WithoutCancel(ctx)
	each(func() { t.logs.measure(func() error { return t.getLogs(outlasting) }) })
	each(func() { t.list.measure(func() error { return t.getList(outlasting) }) })
	each(func() { t.app.measure(func() error { return t.getApp(outlasting) }) })
	each(func() { t.change(outlasting) })
	// The events of the last changes come after them.
	reading, stop := context.WithCancel(outlasting)
	all.Go(func() { t.follow(reading) })
	all.Go(func() {
		defer stop()
		work.Wait()
		_ = poll(reading, eventLimit, func(context.Context) string { return t.events.missing() }) // conclude judges
	})
}

// progress is how it goes.
func (t *tenant) progress() string {
	return fmt.Sprintf("honest: get %s, list %s, app %s, events %s", &t.logs, &t.list, &t.app, &t.events)
}

// getLogs has to bring the newest lines.
func (t *tenant) getLogs(ctx context.Context) error {
	subject, err := t.h.w.names.Logs(subjects.LogGet, t.id)
	if err != nil {
		return err
	}
	text, err := t.ask(ctx, subject, `{"tail": 100}`)
	if err == nil && strings.Count(text, "\n") < 100 {
		err = fmt.Errorf("%s brings %.100q", subject, text)
	}
	return err
}

func (t *tenant) getList(ctx context.Context) error {
	subject, err := t.h.w.names.APIList(t.id.Project, "")
	if err != nil {
		return err
	}
	return t.named(ctx, subject)
}

func (t *tenant) getApp(ctx context.Context) error {
	subject, err := t.h.w.names.API(subjects.APIGet, t.id)
	if err != nil {
		return err
	}
	return t.named(ctx, subject)
}

// named wants the app in the answer.
func (t *tenant) named(ctx context.Context, subject string) error {
	text, err := t.ask(ctx, subject, "")
	if err == nil && !strings.Contains(text, t.id.Name) {
		err = fmt.Errorf("%s brings %.100q", subject, text)
	}
	return err
}

func (t *tenant) ask(ctx context.Context, subject, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	msg, err := t.nc.RequestWithContext(ctx, subject, []byte(body))
	if err != nil {
		return "", fmt.Errorf("%s: %w", subject, err)
	}
	if code := msg.Header.Get(subjects.HeaderServiceErrorCode); code != "" {
		return "", fmt.Errorf("%s: %s %s", subject, code, msg.Header.Get(subjects.HeaderServiceError))
	}
	return string(msg.Data), nil
}

// change writes the app and a line of its log.
func (t *tenant) change(ctx context.Context) {
	t.pod.Write("one more line")
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	svc, err := t.h.w.cluster.Patch(ctx, testenv.App{Project: t.id.Project, Domain: t.id.Domain, Name: t.id.Name}.Service(),
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{"chaos/changed": time.Now().Format(time.RFC3339Nano)}}})
	if err != nil {
		return // the API server is not what is tried here
	}
	if version, err := strconv.ParseUint(svc.ResourceVersion, 10, 64); err == nil {
		t.events.wrote(version, time.Now())
	}
}

// follow reads the events of the app.
func (t *tenant) follow(ctx context.Context) {
	for ctx.Err() == nil {
		msg, err := t.from.Next(jetstream.NextContext(ctx))
		if err != nil {
			if testenv.Pause(ctx, sampleInterval) != nil {
				return
			}
			continue
		}
		if version, err := strconv.ParseUint(msg.Headers().Get(subjects.HeaderResourceVersion), 10, 64); err == nil {
			t.events.came(version, time.Now())
		}
	}
}

// latencies are how long one kind of request took.
type latencies struct {
	mu     sync.Mutex
	took   []time.Duration
	late   int
	failed int
	why    error // the first failure
}

func (l *latencies) measure(ask func() error) {
	began := time.Now()
	err := ask()
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, took)
	switch {
	case err != nil:
		l.failed++
		if l.why == nil {
			l.why = err
		}
	case took > answerLimit:
		l.late++
	}
}

// quantile is the time that a part of the requests took at most. The mutex is held.
func (l *latencies) quantile(part float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l.took))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// String has the form answered/late/failed/p99/max.
func (l *latencies) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d/%d/%d/%s/%s", len(l.took)-l.failed, l.late, l.failed, milliseconds(l.quantile(0.99)), milliseconds(l.quantile(1)))
}

// broken is what must not be, "" if nothing is.
func (l *latencies) broken() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	if len(l.took) == 0 {
		all = append(all, "none was sent")
	}
	if l.late > 0 {
		all = append(all, fmt.Sprintf("%d of %d took longer than %s, %s at most", l.late, len(l.took), answerLimit, milliseconds(l.quantile(1))))
	}
	if l.failed > 0 {
		all = append(all, fmt.Sprintf("%d of %d failed, the first with %v", l.failed, len(l.took), l.why))
	}
	return strings.Join(all, "; ")
}

// eventDelays are how long changes took to become events.
type eventDelays struct {
	mu      sync.Mutex
	written map[uint64]time.Time // versions without an event, by when they were written
	newest  uint64               // version of an event
	seen    int
	most    time.Duration
}

// wrote notes a version that was written. Its event may be here already.
func (e *eventDelays) wrote(version uint64, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if version <= e.newest {
		e.seen++
		return
	}
	e.written[version] = at
}

// came notes the event of a version, which stands for those before it.
func (e *eventDelays) came(version uint64, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.newest = max(e.newest, version)
	for v, written := range e.written {
		if v <= version {
			e.seen++
			e.most = max(e.most, at.Sub(written))
			delete(e.written, v)
		}
	}
}

// missing says what has not come, "" if nothing is missing.
func (e *eventDelays) missing() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.written) == 0 {
		return ""
	}
	return fmt.Sprintf("%d changes have no event", len(e.written))
}

// String has the form seen/missing/largest delay.
func (e *eventDelays) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("%d/%d/%s", e.seen, len(e.written), milliseconds(e.most))
}

func (e *eventDelays) broken() string {
	problems := []error{}
	if missing := e.missing(); missing != "" {
		problems = append(problems, errors.New(missing))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == 0 {
		problems = append(problems, errors.New("none came"))
	}
	if e.most > eventLimit {
		problems = append(problems, fmt.Errorf("one came after %s", e.most))
	}
	if err := errors.Join(problems...); err != nil {
		return err.Error()
	}
	return ""
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }
