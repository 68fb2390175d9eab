package alerts_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// scrapeInterval is how far apart the scrapes of a run are for promtool. They are taken faster, so
// every state of a run lasts longer for the rules than it did.
const scrapeInterval = 15

// tape holds the scrapes of the bridges of a run, as series.
type tape struct {
	length int // scrapes
	series map[string][]string
	wanted func(metric string) bool
}

func newTape(wanted func(metric string) bool) *tape {
	return &tape{series: map[string][]string{}, wanted: wanted}
}

// add records one scrape: the text that /metrics of each instance returned. An instance that did not
// answer is not in the map, and its series go stale.
func (tp *tape) add(bodies map[string]string) error {
	for instance, body := range bodies {
		for line := range strings.Lines(body) {
			if err := tp.line(instance, strings.TrimSuffix(line, "\n")); err != nil {
				return err
			}
		}
	}
	tp.length++
	for name, samples := range tp.series {
		if len(samples) == tp.length {
			continue
		}
		missing := "stale"
		if last := samples[len(samples)-1]; last == "stale" || last == "_" {
			missing = "_"
		}
		tp.series[name] = append(samples, missing)
	}
	return nil
}

// targetLabel is a label that Prometheus sets for each target. It renames a metric's own.
var targetLabel = regexp.MustCompile(`(^|,)(namespace|job|instance)=`)

// line adds a sample, "<name>[{<labels>}] <value>".
func (tp *tape) line(instance, line string) error {
	if line == "" || line[0] == '#' {
		return nil
	}
	space := strings.LastIndexByte(line, ' ')
	if space < 0 {
		return fmt.Errorf("no sample: %q", line)
	}
	name, labels, _ := strings.Cut(line[:space], "{")
	if !tp.wanted(name) {
		return nil
	}
	labels = targetLabel.ReplaceAllString(strings.TrimSuffix(labels, "}"), `${1}exported_$2=`)
	if labels != "" {
		labels += ","
	}
	series := fmt.Sprintf(`%s{%snamespace="appbridge",job="appbridge",instance=%q}`, name, labels, instance)
	samples := tp.series[series]
	if len(samples) > tp.length {
		return fmt.Errorf("two samples of %s", series)
	}
	for len(samples) < tp.length {
		samples = append(samples, "_")
	}
	tp.series[series] = append(samples, line[space+1:])
	return nil
}

// end is the time of the last scrape, in promtool's notation.
func (tp *tape) end() string { return fmt.Sprintf("%ds", (tp.length-1)*scrapeInterval) }

// input is the tape as promtool reads it.
func (tp *tape) input() []inputSeries {
	var all []inputSeries
	for _, name := range slices.Sorted(maps.Keys(tp.series)) {
		all = append(all, inputSeries{Series: name, Values: strings.Join(tp.series[name], " ")})
	}
	return all
}
