package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/appbridge/appbridge/bridge/natsconn"
)

// hidden stands for a value that may be a secret.
const hidden = "(hidden)"

type form struct {
	kind   string                   // stands for the value in the help text, empty for a switch
	want   string                   // what is allowed, to follow "want"
	list   bool                     // the text is a comma-separated list
	item   func(item string) string // puts an item of a YAML list into the text; nil: as it is
	quoted bool                     // the help text quotes a default, which could be any text
	show   func(text string) string // for errors; nil: quoted
}

// codec turns the text of a flag, a variable or a key into a value and back.
type codec[T any] struct {
	form
	parse  func(text string) (T, error)
	format func(value T) string
}

// errForm is the error of a value when the text of what is allowed explains enough.
var errForm = errors.New("wrong form")

// orForm drops an error's reason, which repeats the value and what is allowed.
func orForm[T any](value T, err error) (T, error) {
	if err != nil {
		return value, errForm
	}
	return value, nil
}

// text is any text that check accepts; check returns the reason.
func text(kind, want string, check func(string) error) codec[string] {
	return codec[string]{
		form:   form{kind: kind, want: want, quoted: true},
		parse:  func(s string) (string, error) { return s, check(s) },
		format: func(s string) string { return s },
	}
}

func word[T ~string](words ...T) codec[T] {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	want := strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
	return codec[T]{
		form: form{kind: strings.Join(names, "|"), want: want},
		parse: func(s string) (T, error) {
			if !slices.Contains(words, T(s)) {
				return "", errForm
			}
			return T(s), nil
		},
		format: func(v T) string { return string(v) },
	}
}

func toggle() codec[bool] {
	return codec[bool]{
		form:   form{kind: "", want: "true or false"},
		parse:  func(s string) (bool, error) { return orForm(strconv.ParseBool(s)) },
		format: strconv.FormatBool,
	}
}

func number(low, high int) codec[int] {
	return codec[int]{
		form: form{kind: "number", want: fmt.Sprintf("a whole number from %d to %d", low, high)},
		parse: func(s string) (int, error) {
			v, err := strconv.Atoi(s)
			if err != nil || v < low || v > high {
				return 0, errForm
			}
			return v, nil
		},
		format: strconv.Itoa,
	}
}

// duration is a Go duration, at least low; when zero is true 0 is allowed too.
func duration(low time.Duration, zero bool) codec[time.Duration] {
	want := "a duration of at least " + shortDuration(low) + ", for example 10s or 1h30m"
	if zero {
		want = "0 or " + want
	}
	return codec[time.Duration]{
		form: form{kind: "duration", want: want},
		parse: func(s string) (time.Duration, error) {
			v, err := time.ParseDuration(s)
			if err != nil || v < low && (!zero || v != 0) {
				return 0, errForm
			}
			return v, nil
		},
		format: shortDuration,
	}
}

// pointInTime is a time, or empty for none.
func pointInTime() codec[time.Time] {
	return codec[time.Time]{
		form: form{kind: "time", want: "a time like 2026-11-21T08:51:07Z (RFC 3339)", quoted: true},
		parse: func(s string) (time.Time, error) {
			if s == "" {
				return time.Time{}, nil
			}
			return orForm(time.Parse(time.RFC3339Nano, s))
		},
		format: func(t time.Time) string {
			if t.IsZero() {
				return ""
			}
			return t.Format(time.RFC3339Nano)
		},
	}
}

// shortDuration writes 24h rather than 24h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// size is a number of bytes, at least low: a plain number or a Kubernetes quantity.
func size(low int64) codec[int64] {
	return codec[int64]{
		form: form{kind: "bytes", want: fmt.Sprintf("a number of bytes of at least %d, for example 1048576 or 64Mi", low)},
		parse: func(s string) (int64, error) {
			q, err := resource.ParseQuantity(s)
			if err != nil {
				return 0, errForm
			}
			// A quantity rounds fractions up and clips what does not fit:
			// neither is what was written.
			v := q.Value()
			if resource.NewQuantity(v, resource.BinarySI).Cmp(q) != 0 || v < low || v == math.MaxInt64 {
				return 0, errForm
			}
			return v, nil
		},
		format: func(v int64) string { return resource.NewQuantity(v, resource.BinarySI).String() },
	}
}

// list is one or more texts that check accepts, in the order given, each once.
func list(kind, want string, check func(string) error) codec[[]string] {
	return codec[[]string]{
		form: form{kind: kind, want: want, list: true, quoted: true},
		parse: func(s string) ([]string, error) {
			var items []string
			for item := range strings.SplitSeq(s, ",") {
				item = strings.TrimSpace(item)
				if err := check(item); err != nil {
					return nil, err
				}
				if !slices.Contains(items, item) {
					items = append(items, item)
				}
			}
			return items, nil
		},
		format: func(items []string) string { return strings.Join(items, ",") },
	}
}

// optional allows the empty text for no items in addition.
func optional(items codec[[]string]) codec[[]string] {
	parse := items.parse
	items.parse = func(s string) ([]string, error) {
		if strings.TrimSpace(s) == "" {
			return nil, nil
		}
		return parse(s)
	}
	return items
}

// file is the name of a file that check can read, or empty for none.
func file(want string, check func(path string) error) codec[string] {
	c := text("file", want, func(path string) error {
		if path == "" {
			return nil
		}
		if _, err := os.ReadFile(path); err != nil {
			return withoutPath(err)
		}
		return check(path)
	})
	c.show = showPath
	return c
}

// secretFile is the name of a file with a password or a token, or empty for none. What is neither a
// file nor a path may be the secret itself.
func secretFile() codec[string] {
	c := file("a readable file with one line", func(path string) error {
		_, err := natsconn.ReadSecret(path)
		return err
	})
	c.show = func(text string) string {
		if _, err := os.Stat(text); err != nil && !strings.ContainsRune(text, filepath.Separator) {
			return hidden
		}
		return showPath(text)
	}
	return c
}

// withoutPath removes the operation and the path from an error of package os: the line that
// reports it names the path, or hides it.
func withoutPath(err error) error {
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// showPath prints the name of a file that holds a secret, and nothing when the text looks like
// the secret itself.
func showPath(text string) string {
	// An nkey seed is base32 that starts with S, a JWT base64 that starts with a brace.
	if regexp.MustCompile(`[\n\r]|-----|^\s*(S[A-Z2-7]{50,}|eyJ[A-Za-z0-9_.-]+)\s*$`).MatchString(text) {
		return hidden
	}
	return strconv.Quote(text)
}
