package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

func (f figures) units() []string { return slices.Sorted(maps.Keys(f)) }

// rounds are the figures of each round, by variant.
type rounds []map[variant]figures

// run measures, prints the table of each number of apps, and writes the lines for benchstat.
func run(ctx context.Context, cfg settings, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	messages := filepath.Join(dir, "messages.json")
	for _, apps := range cfg.apps {
		var all rounds
		for n := range cfg.rounds {
			found := map[variant]figures{}
			for _, v := range order(cfg.only, n) {
				if v == variantLimit && found[variantExternal] == nil {
					return errors.New("--only: limit needs external, whose messages it publishes")
				}
				f, err := measure(ctx, cfg, v, apps, messages)
				if err != nil {
					return fmt.Errorf("%d apps, round %d, %s: %w", apps, n+1, v, err)
				}
				if cfg.verbose {
					f.note(stdout, v, apps, n+1)
				}
				found[v] = f
			}
			all = append(all, found)
		}
		if err := all.table(stdout, apps, cfg); err != nil {
			return err
		}
		if err := all.write(cfg, apps); err != nil {
			return err
		}
	}
	return nil
}

// order is that of a round: every other one is reversed, apart from limit, which comes last.
func order(variants []variant, round int) []variant {
	sorted := slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return v == variantLimit })
	if round%2 == 1 {
		slices.Reverse(sorted)
	}
	if slices.Contains(variants, variantLimit) {
		sorted = append(sorted, variantLimit)
	}
	return sorted
}

// row is a line of the table: a figure of a variant, compared with the plain informer's or by
// itself.
type row struct {
	name   string
	of     variant
	figure string
	scale  float64 // of the figure, as it is shown
	aim    float64 // of the ratio, else of the figure; 0: none
	least  bool    // the aim is the least value, not the highest
	alone  bool    // there is no plain figure to compare with
}

const (
	micro = 1e-3 // of ns
	milli = 1e-6
	kib   = 1.0 / 1024
	mib   = kib / 1024
)

var rows = []row{
	{name: "updates/s into the stream", of: variantExternal, figure: figureRate, scale: 1, aim: 1.2, least: true},
	{name: "updates/s, embedded server", of: variantEmbedded, figure: figureRate, scale: 1, aim: 1.2, least: true},
	{name: "processor time an update, µs", of: variantExternal, figure: figureCPU, scale: micro, aim: 0.7},
	{name: "nats-server's, µs", of: variantExternal, figure: figureNATS, scale: micro, aim: 80, alone: true},
	{name: "unchanged start until ready, s", of: variantExternal, figure: figureStart, scale: 1, aim: 1.3},
	{name: "first start until ready, s", of: variantExternal, figure: figureFirst, scale: 1, aim: 2},
	{name: "resident memory an app, KiB", of: variantExternal, figure: figureResident, scale: kib, aim: 1},
	{name: "  without Revisions", of: variantBare, figure: figureResident, scale: kib, aim: 0.7},
	{name: "live heap an app, KiB", of: variantExternal, figure: figureHeap, scale: kib, aim: 0.7},
	{name: "  without Revisions", of: variantBare, figure: figureHeap, scale: kib, aim: 0.5},
	{name: "peak while starting, MiB", of: variantExternal, figure: figurePeak, scale: mib, aim: 1},
	{name: "added to a raw watch, p50, ms", of: variantExternal, figure: figureMedian, scale: milli, aim: 0.5, alone: true},
	{name: "added to a raw watch, p99, ms", of: variantExternal, figure: figureTail, scale: milli, aim: 2, alone: true},
	{name: "limit: events/s", of: variantLimit, figure: figureEvents, scale: 1, alone: true},
	{name: "limit: events and entries/s", of: variantLimit, figure: figureEntries, scale: 1, alone: true},
	{name: "limit: fenced/s", of: variantLimit, figure: figureFenced, scale: 1, alone: true},
	{name: "nats-server at the fenced limit, µs", of: variantLimit, figure: figureLimitNATS, scale: micro, alone: true},
}

// table prints medians, and the medians of the ratios within each round.
func (all rounds) table(w io.Writer, apps int, cfg settings) error {
	fmt.Fprintf(w, "\n%d apps, %d updates, rounds: %d\n\n", apps, cfg.updates, len(all))
	tab := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tab, "| measure\t| plain\t| appbridge\t| ratio\t| aim\t| met\t|")
	fmt.Fprintln(tab, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|")
	for _, r := range rows {
		ours, ok := all.median(r.of, r.figure)
		if !ok {
			continue
		}
		plain, ratio, aim, met := "", "", "", ""
		compared := ours * r.scale
		if theirs, ok := all.median(variantPlain, r.figure); ok && !r.alone {
			plain, compared = show(theirs*r.scale), all.ratio(r.of, r.figure)
			ratio = fmt.Sprintf("%.2f", compared)
		}
		if r.aim != 0 && (r.alone || ratio != "") {
			sign := "≤"
			if r.least {
				sign = "≥"
			}
			aim, met = fmt.Sprintf("%s %g", sign, r.aim), "no"
			if r.least == (compared > r.aim) || compared == r.aim {
				met = "yes"
			}
		}
		fmt.Fprintf(tab, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n", r.name, plain, show(ours*r.scale), ratio, aim, met)
	}
	return tab.Flush()
}

// show prints three digits.
func show(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// median is that of a figure over all rounds; ok is false if it was not measured.
func (all rounds) median(v variant, figure string) (_ float64, ok bool) {
	var values []float64
	for _, r := range all {
		if value, ok := r[v][figure]; ok {
			values = append(values, value)
		}
	}
	return median(values), len(values) > 0
}

// ratio is the median of the ratios to the plain informer within each round.
func (all rounds) ratio(v variant, figure string) float64 {
	var ratios []float64
	for _, r := range all {
		ratios = append(ratios, r[v][figure]/r[variantPlain][figure])
	}
	return median(ratios)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	half := len(values) / 2
	if len(values)%2 == 1 {
		return values[half]
	}
	return (values[half-1] + values[half]) / 2
}

// write appends a line for each round and variant to new.txt. What --base measured goes to base.txt
// under the name of what it is compared with.
func (all rounds) write(cfg settings, apps int) error {
	if cfg.out == "" {
		return nil
	}
	lines := map[string][]byte{}
	for _, r := range all {
		for _, v := range cfg.only {
			file, name := "new.txt", v
			if v == variantBase {
				file, name = "base.txt", variantExternal
			}
			lines[file] = fmt.Appendf(lines[file], "BenchmarkBridge/apps=%d/%s %d", apps, name, cfg.updates)
			for _, unit := range r[v].units() {
				lines[file] = fmt.Appendf(lines[file], " %g %s", r[v][unit], unit)
			}
			lines[file] = append(lines[file], '\n')
		}
	}
	for name, text := range lines {
		file, err := os.OpenFile(filepath.Join(cfg.out, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = file.Write(text)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}
