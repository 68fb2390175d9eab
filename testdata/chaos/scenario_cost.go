package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// ticks is the unit of /proc/<pid>/stat: USER_HZ is 100 on every Linux.
const ticks = 100

// playCost measures the processor time of one interval of the audit: of a bridge that
// has nothing else to do, with the audit on and with it off.
func playCost(ctx context.Context, w *world) error {
	if !w.audits {
		return errors.New("this appbridge has no --audit-interval")
	}
	w.out.heading("Creating %d apps", w.cfg.apps)
	if err := w.load.createAll(ctx); err != nil {
		return err
	}
	b := w.bridges[0]
	length := w.cfg.length
	if length == 0 {
		length = 3 * w.cfg.audit // rounds are spread: not each interval has the end of one
	}
	// What the creation cost goes with the process.
	on, err := w.idleCost(ctx, b, length, w.cfg.audit)
	if err != nil {
		return err
	}
	off, err := w.idleCost(ctx, b, length, 0)
	if err != nil {
		return err
	}
	if on.rounds == 0 {
		w.fail("no round of the audit was complete within %s", length)
	}
	round := (on.cpu - off.cpu).Seconds() / max(on.rounds, 1)
	w.out.line("   with the audit      %s in %s at --audit-interval %s: %.0f rounds, which took %.1f s by the bridge's count", show(on.cpu), length, w.cfg.audit, on.rounds, on.spent)
	w.out.line("   without             %s", show(off.cpu))
	w.out.line("   the difference      %s, %.2f s a round: %.2f %% of a core at an interval of 10 minutes", show(on.cpu-off.cpu), round, 100*round/(10*time.Minute).Seconds())
	w.out.line("   resident memory     %s with, %s at most; %s without", on.memory.resident, on.memory.peak, off.memory.resident)
	return nil
}

// idle is what a bridge used while nothing changed.
type idle struct {
	cpu           time.Duration
	rounds, spent float64
	memory        memory
}

// idleCost starts the bridge again with an interval, waits until its first round is
// over, and measures.
func (w *world) idleCost(ctx context.Context, b *bridge, length, interval time.Duration) (idle, error) {
	var found idle
	b.stop()
	for i, arg := range b.args {
		if arg == "--audit-interval" {
			b.args[i+1] = interval.String()
		}
	}
	if err := b.start(); err != nil {
		return found, err
	}
	first := func(ctx context.Context) string {
		if why := w.led(ctx); why != "" {
			return why
		}
		if interval > 0 && b.lastSeen().metrics[metricRounds] == 0 {
			return "no round of the audit is complete"
		}
		return ""
	}
	if err := poll(ctx, startPatience+2*interval, first); err != nil {
		return found, err
	}
	w.out.now("measuring for %s at --audit-interval %s", length, interval)
	before, s := b.processorTime()
	beforeAudit := b.look(ctx)
	if s != nil {
		return found, s
	}
	if err := testenv.Pause(ctx, length); err != nil {
		return found, err
	}
	after, err := b.processorTime()
	if err != nil {
		return found, err
	}
	now := b.look(ctx)
	if found.memory, err = memoryOf(b); err != nil {
		return found, err
	}
	found.cpu = after - before
	found.rounds = now.metrics[metricRounds] - beforeAudit.metrics[metricRounds]
	found.spent = now.metrics[metricAuditTime] - beforeAudit.metrics[metricAuditTime]
	return found, nil
}

// processorTime is what the process has used, of user and system time.
func (b *bridge) processorTime() (time.Duration, error) {
	p := b.running()
	if p == nil {
		return 0, errors.New("read a bridge's processor time: it is down")
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("read a bridge's processor time: %w", err)
	}
	return parseProcessorTime(string(text))
}

// parseProcessorTime reads the form of /proc/<pid>/stat: what stands in brackets may
// have any character; user and system time are the 14th and 15th field.
func parseProcessorTime(text string) (time.Duration, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("read a bridge's processor time: %q", text)
	}
	var all int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read a bridge's processor time: %w", err)
		}
		all += n
	}
	return time.Duration(all) * time.Second / ticks, nil
}
