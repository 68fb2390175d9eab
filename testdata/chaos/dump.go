package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// dump writes what was compared into the run's folder, one JSON object a line,
// for whoever has to find out what happened.
func (w *world) dump(in audit.Input, found outcome) error {
	problems := found.Problems()
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.String()
	}
	err := errors.Join(
		writeLines(filepath.Join(w.dir, "changes.jsonl"), in.Changes),
		writeLines(filepath.Join(w.dir, "pods.jsonl"), in.Pods),
		writeLines(filepath.Join(w.dir, "events.jsonl"), in.Events),
		writeLines(filepath.Join(w.dir, "entries.jsonl"), in.Entries),
		writeLines(filepath.Join(w.dir, "gaps.jsonl"), in.Gaps),
		writeLines(filepath.Join(w.dir, "comparisons.jsonl"), in.Comparisons),
		writeLines(filepath.Join(w.dir, "swallowed.jsonl"), in.Swallowed),
		writeLines(filepath.Join(w.dir, "losses.jsonl"), in.Losses),
		writeLines(filepath.Join(w.dir, "removed.jsonl"), in.Removed),
		writeLines(filepath.Join(w.dir, "problems.jsonl"), append(lines, found.failures...)),
	)
	if err != nil {
		return fmt.Errorf("write what was compared: %w", err)
	}
	return nil
}

func writeLines[T any](path string, all []T) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for _, one := range all {
		if err := encoder.Encode(one); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return errors.Join(out.Flush(), file.Close())
}
