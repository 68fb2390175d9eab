package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The Helm chart has each key of the configuration file below `config`. Both files are written by
// hand but for that part, which -update writes.
const (
	chartValues = "../../../deploy/chart/appbridge/values.yaml"
	chartSchema = "../../../deploy/chart/appbridge/values.schema.json"

	chartBegin = "  # Generated from the options: go test ./cmd/appbridge/config -update\n"
	chartEnd   = "  # End of the generated part.\n"
)

// chartDefaults are the values that differ from the program's own defaults, which are for a single
// process at a terminal.
var chartDefaults = map[string]string{
	"nats-url":             "",
	"nats-embedded-dir":    "/var/lib/appbridge/store",
	"nats-embedded-listen": ":4222",
	"leader-elect":         "true",
	"http-listen":          ":8080",
	"log-format":           LogFormatJSON,
}

// chartNotes go on where the usage of an option ends.
var chartNotes = map[string]string{
	"kubeconfig":  "a file of one of secrets",
	"default-env": "not secret ones: the ConfigMap has them",
	"nats-url":    "none: nats://nats.nats.svc:4222, the server of the NATS chart in the namespace nats; without a password, which belongs in a file",
	"namespaces":  "not that of the release",
}

// chartOptions are the options that the file of serve takes.
func chartOptions() []option {
	return slices.DeleteFunc(documented(Serve), func(o option) bool { return o.notInFile })
}

func chartDefault(o option) string {
	if text, ok := chartDefaults[o.name]; ok {
		return text
	}
	return o.text()
}

// TestChartValues: values.yaml has every option with its default.
func TestChartValues(t *testing.T) {
	text, err := os.ReadFile(chartValues)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), chartBegin)
	_, after, ends := strings.Cut(rest, chartEnd)
	if !begins || !ends {
		t.Fatalf("%s has no lines\n%s%s", chartValues, chartBegin, chartEnd)
	}
	want := before + chartBegin + renderChartValues(chartOptions()) + chartEnd + after
	if *updateDocs {
		if err := os.WriteFile(chartValues, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s differs from the options; `go test ./cmd/appbridge/config -update` writes it again, got:\n%s\nwant:\n%s", chartValues, text, want)
	}
}

func renderChartValues(options []option) string {
	var b strings.Builder
	section := ""
	for _, o := range options {
		if o.section != section {
			section = o.section
			fmt.Fprintf(&b, "\n  # ## %s\n", section)
		}
		usage := o.usage
		if note := chartNotes[o.name]; note != "" {
			usage += "; " + note
		}
		b.WriteString("\n")
		for _, line := range strings.Split(fold(usage+". Allowed: "+o.want, 94), "\n") {
			fmt.Fprintf(&b, "  # %s\n", line)
		}
		fmt.Fprintf(&b, "  %s: %s\n", o.name, chartYAML(o))
	}
	b.WriteString("\n")
	return b.String()
}

func chartYAML(o option) string {
	text := chartDefault(o)
	switch {
	case o.list && text == "":
		return "[]"
	case o.list:
		return "[" + strings.Join(strings.Split(text, ","), ", ") + "]"
	case o.kind == "", o.kind == "number":
		return text
	default:
		return strconv.Quote(text)
	}
}

// fold breaks a text into lines of at most width bytes.
func fold(text string, width int) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

// TestChartSchema: values.schema.json has every option with its type, and no other key.
func TestChartSchema(t *testing.T) {
	text, err := os.ReadFile(chartSchema)
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	properties := schema["properties"].(map[string]any)
	want := asJSON(t, chartSchemaOf(chartOptions()))
	if *updateDocs {
		properties["config"] = want
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(schema); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(chartSchema, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := properties["config"]; !reflect.DeepEqual(got, want) {
		t.Errorf("%s differs from the options; `go test ./cmd/appbridge/config -update` writes it again, got:\n%v\nwant:\n%v", chartSchema, got, want)
	}
}

// asJSON is a value as the decoder would make it.
func asJSON(t *testing.T, value any) (decoded any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func chartSchemaOf(options []option) map[string]any {
	properties := map[string]any{}
	var names []string
	for _, o := range options {
		property := chartType(o)
		property["description"] = o.usage + ". Allowed: " + o.want
		maps.Copy(property, chartLimits[o.name])
		properties[o.name] = property
		names = append(names, o.name)
	}
	slices.Sort(names)
	return map[string]any{
		"type": "object", "additionalProperties": false, "required": names, "properties": properties,
		"description": "The configuration file of appbridge serve: each option by its key.",
	}
}

const (
	durationPattern = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`
	bytesPattern    = `^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$`
	secretPattern   = `^(|/etc/appbridge/secrets/[^/]+/.+)$`
)

// chartLimits are the limits that a pod has beyond those of the program.
var chartLimits = map[string]map[string]any{
	// The ConfigMap would show a password.
	"nats-url":   {"items": map[string]any{"type": "string", "pattern": `^[^@]+$`}},
	"namespaces": {"minItems": 1, "uniqueItems": true, "items": map[string]any{"type": "string", "pattern": `^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$`}},
	"lease-name": {"minLength": 1},
	// Probes and metrics come from outside of the pod.
	"http-listen":          {"pattern": `^(|0\.0\.0\.0|\[::\]):[1-9][0-9]{0,4}$`},
	"nats-embedded-listen": {"pattern": `^[^:]*(\[[^]]*\])?:[1-9][0-9]{0,4}$`},
	// Its parent is the volume, whose own folder belongs to root.
	"nats-embedded-dir": {"pattern": `^(/[^/]+){2,}$`},
}

func chartType(o option) map[string]any {
	switch {
	case o.list:
		return map[string]any{"type": "array", "items": map[string]any{"type": "string", "minLength": 1}}
	case o.kind == "":
		return map[string]any{"type": "boolean"}
	case strings.Contains(o.kind, "|"):
		return map[string]any{"type": "string", "enum": strings.Split(o.kind, "|")}
	case o.kind == "number":
		var low, high int
		if n, err := fmt.Sscanf(o.want, "a whole number from %d to %d", &low, &high); n != 2 {
			panic(fmt.Sprintf("%s: %q: %v", o.name, o.want, err))
		}
		return map[string]any{"type": "integer", "minimum": low, "maximum": high}
	case o.kind == "duration":
		return map[string]any{"type": "string", "pattern": durationPattern}
	case o.kind == "bytes":
		return map[string]any{"anyOf": []any{
			map[string]any{"type": "string", "pattern": bytesPattern},
			map[string]any{"type": "integer", "minimum": 0},
		}}
	case o.kind == "file":
		return map[string]any{"type": "string", "pattern": secretPattern}
	default:
		return map[string]any{"type": "string"}
	}
}
