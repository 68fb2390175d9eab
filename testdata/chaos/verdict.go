package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

const (
	settlePatience = 2 * time.Minute
	verifyPatience = time.Minute
	shownProblems  = 50
)

// outcome is what was found, in one run or in several.
type outcome struct {
	audit.Report
	faults    int
	unnoticed []string // losses that no bridge named
	unseen    []string // losses that nothing which survived knew of
	failures  []string
	// Differences that an audit found and that no fault made.
	falseFindings []string
	// What a scenario says beside this, and whether it failed.
	last []string
	bad  bool
}

func (o *outcome) add(other outcome) {
	o.Report = o.Plus(other.Report)
	o.faults += other.faults
	o.unnoticed = append(o.unnoticed, other.unnoticed...)
	o.unseen = append(o.unseen, other.unseen...)
	o.failures = append(o.failures, other.failures...)
	o.last = append(o.last, other.last...)
	o.bad = o.bad || other.bad
	o.falseFindings = append(o.falseFindings, other.falseFindings...)
}

func (o outcome) ok() bool {
	return o.OK() && !o.bad && len(o.unnoticed)+len(o.failures)+len(o.falseFindings) == 0
}

// line is the outcome in one line.
func (o outcome) line(seed uint64) string {
	text := fmt.Sprintf("chaos: seed=%d faults=%d %s unnoticed=%d false=%d", seed, o.faults, o.Report, len(o.unnoticed), len(o.falseFindings))
	if len(o.failures) > 0 {
		text += fmt.Sprintf(" failures=%d", len(o.failures))
	}
	return text
}

// verdict ends the load, lets everything settle, and compares what the stream
// and the bucket say with what was.
func (w *world) verdict(ctx context.Context) (outcome, error) {
	w.out.heading("Letting everything settle")
	if err := w.plants.wait(ctx); err != nil {
		return outcome{}, err
	}
	w.load.stop()
	began := time.Now()
	err := w.settled(ctx, settlePatience)
	if err == nil {
		err = w.quiet(ctx, settlePatience)
	}
	switch {
	case ctx.Err() != nil:
		return outcome{}, ctx.Err()
	case err != nil:
		w.fail("not settled after %s: %v", settlePatience, err)
	default:
		w.out.now("settled after %s", show(time.Since(began)))
	}
	w.out.heading("Comparing")
	entries, err := w.events.entries(ctx)
	if err != nil {
		w.fail("%v", err)
	}
	in := audit.Input{
		Changes: w.changes(), Pods: w.podChanges(), PodConditions: w.pods,
		Entries: w.withoutPlanted(entries),
		Gaps:    w.gaps.list(), Comparisons: w.comparisons.list(), Swallowed: w.swallowed(),
		Subjects: w.names, Bucket: subjects.DefaultBucket, ClusterName: clusterName,
		App: kservice.Config{BaseDomain: baseDomain},
	}
	if w.rivals {
		// Each session of one publishes the net difference to what the other one has published, which
		// may have more on its way.
		in.Gaps = []audit.Gap{{To: time.Now(), Why: "the bridges elect no leader"}}
	}
	if err := w.auditLosses(&in); err != nil {
		w.fail("%v", err)
	}
	events, renamed := w.unrenamed(w.events.messages())
	in.Events, in.Removed = events, append(in.Removed, renamed...)
	report := audit.Check(in)
	if err := w.verify(ctx); err != nil {
		return outcome{}, err
	}
	w.judgeWatchers(ctx)
	strange, err := w.falseFindings()
	if err != nil {
		w.fail("%v", err)
	}
	w.mu.Lock()
	found := outcome{
		Report: report, faults: w.faults, failures: slices.Clone(w.failures),
		unnoticed: append(slices.Clone(w.losses.unnoticed), w.plants.unnoticed()...), unseen: slices.Clone(w.losses.unseen),
		falseFindings: strange,
	}
	rollbacks := len(w.rollbacks)
	w.mu.Unlock()
	w.conclude(&found)
	w.summarize(in, found, rollbacks)
	return found, nil
}

// conclude adds what the scenario is about.
func (w *world) conclude(found *outcome) {
	var line string
	var ok bool
	switch w.cfg.scenario {
	case scenarioMute:
		line, ok = muteLine(w.mute, w.kinds, len(found.falseFindings))
	case "quiet", "load":
		line, ok = steadyLine(w.cfg.scenario, w.steadySeconds, w.steadyRounds, w.cfg.audit, len(found.falseFindings))
	default:
		return
	}
	found.last, found.bad = []string{line}, !ok
}

// withoutPlanted leaves out the keys that a fault put into the bucket and that
// are still as it put them.
func (w *world) withoutPlanted(entries []audit.Message) []audit.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(entries, func(m audit.Message) bool {
		key, err := subjects.ParseBucketSubject(subjects.DefaultBucket, m.Subject)
		return err == nil && w.planted[key]
	})
}

// summarize prints figures and problems, and keeps what was compared when
// there is something to look into.
func (w *world) summarize(in audit.Input, found outcome, rollbacks int) {
	w.out.line("   changes written      %d tried, %d of them refused", w.load.attempts.Load(), w.load.refused.Load())
	w.out.line("   versions in etcd     %d, of them %d states of apps", len(in.Changes), found.Changes)
	w.out.line("   events in the stream %d, standing for %d merged ones; %d foreign messages", found.Events, found.Merged, found.Foreign)
	if w.pods {
		withReason := 0
		for i := range in.Events {
			if in.Events[i].Header.Get(subjects.HeaderReason) != "" {
				withReason++
			}
		}
		w.out.line("   versions of pods     %d; %d messages with a reason", len(in.Pods), withReason)
	}
	w.out.line("   gaps                 %s; %d states came and went in them", w.gaps, found.Excused)
	w.out.line("   rollbacks            %d, unseen=%d; %d states were in what they took, and came again or were no longer so", rollbacks, len(found.unseen), found.Taken)
	w.out.line("   mute faults          %s", w.plants.summary())
	for _, text := range found.unnoticed {
		w.out.line("   unnoticed: %s", text)
	}
	for _, text := range found.falseFindings[:min(len(found.falseFindings), shownProblems)] {
		w.out.line("   a difference that no fault made: %s", text)
	}
	problems := found.Problems()
	for _, p := range problems[:min(len(problems), shownProblems)] {
		w.out.line("   %s", p)
	}
	if more := len(problems) - shownProblems; more > 0 {
		w.out.line("   and %d more", more)
	}
	if found.ok() && !w.cfg.keep {
		return
	}
	if err := w.dump(in, found); err != nil {
		w.out.line("   %v", err)
	}
}

// verify has appbridge itself compare cluster, stream and bucket. What a fault
// planted it has to find and repair.
func (w *world) verify(ctx context.Context) error {
	w.mu.Lock()
	planted := len(w.planted) > 0
	w.mu.Unlock()
	if planted {
		if err := w.appbridgeVerify(ctx, "--repair"); err != nil {
			return err
		}
	}
	return w.appbridgeVerify(ctx)
}

func (w *world) appbridgeVerify(ctx context.Context, more ...string) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	kubeconfig := filepath.Join(w.dir, "kubeconfig")
	if err := w.cluster.Kubeconfig(kubeconfig); err != nil {
		return err
	}
	args := append([]string{"verify", "--json"}, w.commonArgs(kubeconfig, w.nats.URL())...)
	cmd := exec.CommandContext(ctx, w.cfg.bin, append(args, more...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if ctx.Err() == nil && err == nil {
		w.out.line("   appbridge %s: no difference", strings.Join(append([]string{"verify"}, more...), " "))
		return nil
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("appbridge verify: %w", err)
	}
	w.fail("appbridge %s: %v\n%s", strings.Join(append([]string{"verify"}, more...), " "), err, lastLines(output.String(), 20))
	return nil
}
