package kservice

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	kjson "sigs.k8s.io/json"
)

// Time is a time that is zero, rather than an error, when it cannot be parsed.
type Time struct {
	time.Time
}

// UnmarshalJSON reads an RFC 3339 time, with or without a fraction, as UTC.
// Anything else is the zero time. It never returns an error.
func (t *Time) UnmarshalJSON(data []byte) error {
	var text string
	_ = json.Unmarshal(data, &text) // what is no string is no time
	parsed, _ := time.Parse(time.RFC3339, text)
	t.Time = parsed.UTC()
	return nil
}

// UnmarshalJSON skips values of the wrong type.
func (s *ServiceStatus) UnmarshalJSON(data []byte) error {
	type plain ServiceStatus // without this method
	return decodeTolerant(data, (*plain)(s))
}

// UnmarshalJSON skips values of the wrong type.
func (s *RevisionStatus) UnmarshalJSON(data []byte) error {
	var raw struct {
		ActualReplicas json.RawMessage `json:"actualReplicas"`
		Conditions     []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	}
	if err := decodeTolerant(data, &raw); err != nil {
		return err
	}
	s.ActualReplicas, s.NotReady = nil, false
	for _, c := range raw.Conditions {
		if c.Type == conditionReady {
			s.NotReady = c.Status != conditionTrue
			break
		}
	}
	// The decoder would leave a zero behind where a number does not fit.
	if n, err := strconv.ParseInt(string(raw.ActualReplicas), 10, 32); err == nil {
		s.ActualReplicas = new(int32(n))
	}
	return nil
}

// decodeTolerant decodes like client-go, but a value of the wrong type becomes the zero value: the
// decoder continues after it and reports it at the end.
func decodeTolerant(data []byte, into any) error {
	err := kjson.UnmarshalCaseSensitivePreserveInts(data, into)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return nil
	}
	return err
}
