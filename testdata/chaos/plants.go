package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// plant is a mute fault that was planted: something is wrong, and no part reports it.
type plant struct {
	name, what string
	in         *injection
	// bridge is the one whose view of Kubernetes stands still, nil for a hand in the storage.
	bridge   *bridge
	messages []string // beside the audit's, those that name it
	names    []string // of the app and of its objects; nil: any
	offsets  map[string]int64
	wrong    func(context.Context) string
	whole    func() bool   // nil: when a bridge leads
	longer   time.Duration // the patience, beyond that of other faults
	cause    *cause

	mu     sync.Mutex
	course course
	over   chan struct{}
}

// now is the course so far.
func (p *plant) now() course {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.course
}

// plants are the mute faults of a run, and what explains the audit's findings.
type plants struct {
	w *world

	mu      sync.Mutex
	all     []*plant
	causes  []*cause
	playing map[*injection]bool
}

// begin notes that a fault is being played, and returns what ends it.
func (l *plants) begin(in *injection) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.playing == nil {
		l.playing = map[*injection]bool{}
	}
	l.playing[in] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.playing, in)
	}
}

// alone reports whether no fault but the given one is being played.
func (l *plants) alone(in *injection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.playing) == 0 || len(l.playing) == 1 && l.playing[in]
}

// explain notes that the audit may find differences of a fault from now on. What it
// returns ends that, a while later.
func (l *plants) explain(c *cause) (over func()) {
	c.from = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.causes = append(l.causes, c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.to.IsZero() {
			c.to = time.Now().Add(aftermathTime)
		}
	}
}

// differs notes that a fault makes a side differ until what it returns is called: of
// the named apps, or of all.
func (i *injection) differs(why string, sides []string, names ...string) (over func()) {
	return i.plants.explain(&cause{why: why, sides: sides, names: names})
}

// anyLeads reports whether some bridge leads, as far as was seen last.
func (w *world) anyLeads() bool {
	return slices.ContainsFunc(w.bridges, func(b *bridge) bool { return b.lastSeen().leads() })
}

// plant begins to watch over a mute fault that was planted at a time.
func (i *injection) plant(p *plant, at time.Time) {
	p.in, p.over = i, make(chan struct{})
	p.course = newCourse(at, i.cfg.audit+findPatience+p.longer)
	if p.cause == nil {
		p.cause = &cause{why: p.name, names: p.names}
		if p.bridge != nil {
			p.cause.bridge = p.bridge.name
		}
	}
	over := i.plants.explain(p.cause)
	p.cause.from = at
	i.plants.mu.Lock()
	i.plants.all = append(i.plants.all, p)
	i.plants.mu.Unlock()
	i.spawn(func(ctx context.Context) {
		defer close(p.over)
		for {
			done := p.look(ctx)
			if done || ctx.Err() != nil {
				break
			}
			_ = testenv.Pause(ctx, sampleInterval)
		}
		if c := p.now(); ctx.Err() == nil && !c.healed.IsZero() {
			over()
		}
	})
}

// look takes the next sighting.
func (p *plant) look(ctx context.Context) (over bool) {
	s := sighting{wrong: p.wrong(ctx), named: p.naming(), at: time.Now()}
	if p.whole != nil {
		s.whole = p.whole() && p.in.plants.alone(p.in)
	} else {
		s.whole = p.in.anyLeads() && p.in.plants.alone(p.in)
	}
	if ctx.Err() != nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.course.see(s)
}

// naming is what a bridge said that names the fault.
func (p *plant) naming() string {
	for _, b := range p.in.bridges {
		if p.bridge != nil && p.bridge != b {
			continue
		}
		log, err := readFrom(b.log, p.offsets[b.log])
		if err != nil {
			continue
		}
		if by := naming(log, p.messages, p.names); by != "" {
			return fmt.Sprintf("bridge %s: %s", b.name, by)
		}
	}
	return ""
}

// wait returns when the course is over.
func (p *plant) wait(ctx context.Context) error {
	select {
	case <-p.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns when all courses are over.
func (l *plants) wait(ctx context.Context) error {
	for _, p := range l.list() {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *plants) list() []*plant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// unnoticed are the mute faults that were not found, or not healed.
func (l *plants) unnoticed() []string {
	var all []string
	for _, p := range l.list() {
		c := p.now()
		if why := c.unnoticed(); why != "" {
			all = append(all, p.what+": "+why)
		}
	}
	return all
}

// summary counts the mute faults: planted, with an effect, named by a bridge, healed.
func (l *plants) summary() string {
	var effect, found, healed int
	all := l.list()
	for _, p := range all {
		c := p.now()
		if !c.effect {
			continue
		}
		effect++
		if !c.found.IsZero() {
			found++
		}
		if !c.healed.IsZero() {
			healed++
		}
	}
	return fmt.Sprintf("%d planted, %d had an effect; %d named by a bridge, %d healed", len(all), effect, found, healed)
}

// found are the differences that the audits of all bridges found.
func (w *world) differences() ([]difference, error) {
	var all []difference
	for _, b := range w.bridges {
		log, err := readFrom(b.log, 0)
		if err != nil {
			return nil, fmt.Errorf("read the log of bridge %s: %w", b.name, err)
		}
		all = append(all, differences(b.name, log)...)
	}
	return all, nil
}

// falseFindings are the differences that an audit found and no fault made.
func (w *world) falseFindings() ([]string, error) {
	all, err := w.differences()
	if err != nil {
		return nil, err
	}
	w.plants.mu.Lock()
	defer w.plants.mu.Unlock()
	var texts []string
	for _, d := range falseFindings(all, w.plants.causes) {
		texts = append(texts, d.String())
	}
	return texts, nil
}

// follow opens a gap when a bridge's informer lists again by itself: what came and
// went since its watch ended, nobody saw. It opens one also when the bridge loses the Lease, as on a
// machine that is too busy, or starts again in its process: of what had waited for the stream, the net
// difference is published.
func (w *world) follow(ctx context.Context, b *bridge) {
	var offset int64
	var looks []status
	for testenv.Pause(ctx, sampleInterval) == nil {
		looks = append(looks[max(0, len(looks)-keptLooks+1):], b.lastSeen())
		log, err := readFrom(b.log, offset)
		if err != nil {
			continue
		}
		end := strings.LastIndexByte(string(log), '\n') + 1
		offset += int64(end)
		for _, l := range logLines(log[:end]) {
			at, err := time.Parse(time.RFC3339Nano, l.Time)
			at = at.Add(-time.Second)
			switch {
			case err != nil:
			case slices.Contains([]string{logRelist, logPlainList, logNoBookmark}, l.Msg):
				w.gaps.openSince(at, "bridge "+b.name+" listed again").heal()
			case l.Msg == logLostLease:
				w.gaps.openSince(waitedSince(at, looks), "bridge "+b.name+" lost the Lease").heal()
			case l.Msg == logNewBridge:
				w.gaps.openSince(waitedSince(at, looks), "bridge "+b.name+" started again in its process").heal()
			}
		}
	}
}

// keptLooks is how many looks at a bridge are older than the line of its log that is read.
const keptLooks = 20

// waitedSince is when the oldest change was observed that waited at any of the looks, at most at.
func waitedSince(at time.Time, looks []status) time.Time {
	for _, s := range looks {
		if oldest := s.oldest(); s.metrics[metricPending] > 0 && oldest.Before(at) {
			at = oldest
		}
	}
	return at
}

// names are the ways in which a bridge may name an app and its objects.
func namesOf(key string, objects ...string) []string {
	names := []string{key}
	if id, err := subjects.ParseKey(key); err == nil {
		names = append(names, id.String())
	}
	return append(names, objects...)
}

// swallowed are the versions that some bridge was not shown.
func (w *world) swallowed() []audit.Swallowed {
	var all []audit.Swallowed
	for _, b := range w.bridges {
		for _, e := range b.mute.Swallowed() {
			all = append(all, audit.Swallowed{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name, ResourceVersion: e.ResourceVersion})
		}
	}
	return all
}
