package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/appbridge/appbridge/bridge/natsconn"
)

// fileKeys are the keys of a configuration file in their order, repeated ones included. The
// decoder's own check (KnownFields) stops at repeated keys and would hide what else is wrong.
type fileKeys []struct{ key, value *yaml.Node }

// UnmarshalYAML implements yaml.Unmarshaler.
func (k *fileKeys) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want a mapping of keys to values", node.Line)
	}
	*k = make(fileKeys, len(node.Content)/2)
	for i := range *k {
		(*k)[i].key, (*k)[i].value = node.Content[2*i], node.Content[2*i+1]
	}
	return nil
}

// readConfigFile takes the settings from a YAML file: one mapping of the options' names to
// scalars or, for a list, lists of scalars. A key without a value counts as not set.
func readConfigFile(options []option, path string, found *problems) settings {
	keys, err := parseYAML(path)
	if err != nil {
		found.add("config: %s: %s", path, err)
		return nil
	}
	known := optionsBy(func(o option) string { return o.name }, options)
	maps.DeleteFunc(known, func(_ string, o option) bool { return o.notInFile })
	set := settings{}
	firstLine := map[string]int{}
	for _, entry := range keys {
		key := entry.key
		where := fmt.Sprintf("%s:%s (line %d)", path, natsconn.RedactURLs(key.Value), key.Line)
		o, ok := known[key.Value]
		first, repeated := firstLine[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			found.add("config: %s: line %d: want the name of an option as the key", path, key.Line)
			continue
		case !ok:
			found.add("%s: unknown key%s", where, didYouMean(strings.ToLower(strings.ReplaceAll(key.Value, "_", "-")), maps.Keys(known)))
			continue
		case repeated:
			found.add("%s: duplicate key, the first is on line %d", where, first)
			continue
		}
		firstLine[key.Value] = key.Line
		text, err := o.textOf(entry.value)
		switch {
		case err != nil:
			found.add("%s: %s from %s: want %s", o.name, err, where, o.want)
		case text != nil:
			set[o.name] = setting{text: *text, source: where}
		}
	}
	return set
}

// parseYAML reads the file's only document. A file without one has no keys.
func parseYAML(path string) (fileKeys, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var keys fileKeys
	if err := decoder.Decode(&keys); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return nil, fmt.Errorf("line %d: want one YAML document, found another", second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return keys, nil
}

// textOf is a value of the file in the form of a flag, nil for a null. An error names what
// is there instead.
func (o option) textOf(value *yaml.Node) (*string, error) {
	var text *string
	var nodes []yaml.Node
	switch {
	case value.Decode(&text) == nil:
		return text, nil
	case value.Decode(&nodes) != nil:
		return nil, errors.New("a mapping")
	case !o.list:
		return nil, errors.New("a list")
	}
	texts := make([]string, len(nodes))
	for i := range nodes {
		var item *string
		if nodes[i].Decode(&item) != nil || item == nil {
			return nil, fmt.Errorf("a list with an item that is not a text (line %d)", nodes[i].Line)
		}
		texts[i] = *item
		if o.item != nil {
			texts[i] = o.item(*item)
		}
	}
	return new(strings.Join(texts, ",")), nil
}
