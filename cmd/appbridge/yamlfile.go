package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readConfigFile takes the settings from a YAML file. It must be one mapping
// of the options' names to scalars or, where the option is a list, lists of
// scalars. A key without a value counts as not set. The decoder's nodes are
// read rather than its values, so that every unknown or repeated key is found
// and a value is judged as it was written.
func readConfigFile(options []option, path string, found *problems) settings {
	root, err := parseYAML(path)
	if err != nil {
		found.add("config: %s: %s", path, err)
		return nil
	}
	if root == nil {
		return nil
	}
	if root.Kind != yaml.MappingNode {
		found.add("config: %s (line %d): want a mapping of keys to values", path, root.Line)
		return nil
	}
	known := map[string]option{}
	for _, o := range options {
		if !o.notInFile {
			known[o.name] = o
		}
	}
	set := settings{}
	firstLine := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		where := fmt.Sprintf("%s:%s (line %d)", path, redactURLs(key.Value), key.Line)
		if key.Kind != yaml.ScalarNode {
			found.add("%s:%d: want the name of an option as the key", path, key.Line)
			continue
		}
		o, ok := known[key.Value]
		if !ok {
			keys := optionNames(options, func(o option) string { return o.name }, func(o option) bool { return !o.notInFile })
			found.add("%s: unknown key%s", where, didYouMean(strings.ToLower(strings.ReplaceAll(key.Value, "_", "-")), keys))
			continue
		}
		if first, repeated := firstLine[key.Value]; repeated {
			found.add("%s: duplicate key, the first is on line %d", where, first)
			continue
		}
		firstLine[key.Value] = key.Line
		text, isSet, err := nodeText(o, value)
		switch {
		case err != nil:
			found.add("%s: %s from %s: want %s", o.name, err, where, o.want)
		case isSet:
			set[o.name] = setting{text: text, source: where}
		}
	}
	return set
}

// parseYAML returns the root node of the file's only document, nil for an
// empty file.
func parseYAML(path string) (*yaml.Node, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&second); err == nil {
		return nil, fmt.Errorf("line %d: want one YAML document, found another", second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	root := resolve(document.Content[0])
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	return root, nil
}

func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// nodeText is a value in the form of a flag. isSet is false for a null. An
// error names what is there in its place.
func nodeText(o option, node *yaml.Node) (text string, isSet bool, err error) {
	node = resolve(node)
	switch {
	case node.Kind == yaml.ScalarNode:
		return node.Value, node.Tag != "!!null", nil
	case node.Kind == yaml.SequenceNode && o.list:
		items := make([]string, 0, len(node.Content))
		for _, item := range node.Content {
			item = resolve(item)
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return "", false, fmt.Errorf("a list with an item that is not a text (line %d)", item.Line)
			}
			text := item.Value
			if o.item != nil {
				text = o.item(text)
			}
			items = append(items, text)
		}
		return strings.Join(items, ","), true, nil
	case node.Kind == yaml.SequenceNode:
		return "", false, errors.New("a list")
	default:
		return "", false, errors.New("a mapping")
	}
}
