package logline_test

import (
	"bytes"
	"encoding/base64"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/appbridge/appbridge/logsvc/logline"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

// The lines of the corpus are read as Flyte reads them.
func TestConformanceLines(t *testing.T) {
	type lineCase struct {
		Name      string `json:"name"`
		Raw       string `json:"raw"`
		RawBase64 string `json:"rawBase64"`
		Expect    corpus.Strict[struct {
			Timestamp       string `json:"timestamp"`
			Seconds         int64  `json:"seconds"`
			Nanos           int    `json:"nanos"`
			Message         string `json:"message"`
			MessageBase64   string `json:"messageBase64"`
			NotMarshallable bool   `json:"notMarshallable"`
		}] `json:"expect"`
	}
	cases := corpus.ReadList[corpus.Strict[lineCase]](t, filepath.Join(corpus.Dir("../.."), "loglines.json"))
	for _, strictCase := range cases {
		c := strictCase.Value
		t.Run(c.Name, func(t *testing.T) {
			line := plainOrBase64(t, c.Raw, c.RawBase64)
			want := c.Expect.Value
			at, message := logline.Parse(line)
			if wantMessage := plainOrBase64(t, want.Message, want.MessageBase64); string(message) != string(wantMessage) {
				t.Errorf("message: got %q, want %q", message, wantMessage)
			}
			if utf8.Valid(message) == want.NotMarshallable {
				t.Errorf("message %q: valid UTF-8 is %t, want %t", message, !want.NotMarshallable, want.NotMarshallable)
			}
			if timed := len(message) < len(line); timed != (want.Timestamp != "") {
				t.Fatalf("a time was found: %t, want %q", timed, want.Timestamp)
			}
			if want.Timestamp == "" {
				if !at.IsZero() {
					t.Errorf("time: got %s, want none", at)
				}
				return
			}
			if at.Unix() != want.Seconds || at.Nanosecond() != want.Nanos {
				t.Errorf("time: got %d s %d ns, want %d s %d ns", at.Unix(), at.Nanosecond(), want.Seconds, want.Nanos)
			}
			if got := at.Format(time.RFC3339Nano); got != want.Timestamp {
				t.Errorf("time: got %s, want %s", got, want.Timestamp)
			}
		})
	}
	if len(cases) == 0 {
		t.Error("the corpus has no cases")
	}
}

// The streams of the corpus have the messages that Flyte sends, whatever their batches.
func TestConformanceStreams(t *testing.T) {
	type streamCase struct {
		Name          string     `json:"name"`
		Input         string     `json:"input"`
		BatchSize     int        `json:"batchSize"`
		ExpectBatches [][]string `json:"expectBatches"`
	}
	cases := corpus.ReadList[corpus.Strict[streamCase]](t, filepath.Join(corpus.Dir("../.."), "logstreams.json"))
	for _, strictCase := range cases {
		c := strictCase.Value
		t.Run(c.Name, func(t *testing.T) {
			var messages []string
			add := func(line []byte) {
				_, message := logline.Parse(bytes.TrimRight(line, "\r"))
				messages = append(messages, string(message))
			}
			scanner := logline.NewScanner(len(c.Input))
			for chunk := range slices.Chunk([]byte(c.Input), 7) {
				scanner.Feed(chunk)
				for scanner.Next() {
					add(scanner.Line())
				}
			}
			if scanner.Rest() {
				add(scanner.Line())
			}
			if want := slices.Concat(c.ExpectBatches...); !slices.Equal(messages, want) {
				t.Errorf("\n got %q\nwant %q", messages, want)
			}
		})
	}
	if len(cases) == 0 {
		t.Error("the corpus has no cases")
	}
}

// plainOrBase64 is what a case writes as text, or as base64 where it is not
// UTF-8.
func plainOrBase64(t *testing.T, plain, encoded string) []byte {
	t.Helper()
	if encoded == "" {
		return []byte(plain)
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
