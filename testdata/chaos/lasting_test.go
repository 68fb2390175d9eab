package main

import (
	"regexp"
	"testing"
	"time"
)

func TestLastingCourse(t *testing.T) {
	names := regexp.MustCompile(`transform`)
	type look struct {
		concerned, answered, ready bool
		why                        string
	}
	leads := func(ready bool, why string) look { return look{true, true, ready, why} }
	for _, tt := range []struct {
		name   string
		looks  []look // one a second, with a patience of three
		named  bool
		failed bool
	}{
		{"it names the fault", []look{leads(true, ""), leads(false, "a transform"), leads(false, "a transform")}, true, false},
		{"it is ready all the time", []look{leads(true, ""), leads(true, ""), leads(true, ""), leads(true, ""), leads(true, "")}, false, true},
		{"it gives another reason", []look{leads(false, "x"), leads(false, "x"), leads(false, "x"), leads(false, "x"), leads(false, "x")}, false, true},
		{"it forgets the fault", []look{leads(false, "transform"), leads(true, ""), leads(true, ""), leads(true, ""), leads(true, "")}, true, true},
		{"nobody leads for a while", []look{leads(true, ""), leads(true, ""), {false, true, true, ""}, leads(true, ""), leads(true, ""), leads(false, "transform")}, true, false},
		{"it does not answer for a while", []look{leads(true, ""), leads(true, ""), {true, false, false, "it does not answer"}, leads(true, ""), leads(false, "transform")}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := time.Unix(0, 0)
			c := lastingCourse{patience: 3 * time.Second, since: at}
			for _, l := range tt.looks {
				at = at.Add(time.Second)
				c.see(at, l.concerned, l.answered, l.ready, l.why, names)
			}
			if got := !c.named.IsZero(); got != tt.named {
				t.Errorf("named: got %t, want %t", got, tt.named)
			}
			if got := c.failed != ""; got != tt.failed {
				t.Errorf("unnoticed: got %q, want %t", c.failed, tt.failed)
			}
		})
	}
}
