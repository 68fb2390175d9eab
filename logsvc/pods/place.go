package pods

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/logsvc"
)

// logPlace is a place in the log of a container: behind a trail, or before the first line.
type logPlace struct {
	instance uint64    // instanceKey of the container's instance
	trail    *position // nil: before the first line
}

// instanceKey stands for the id of an instance, which may have any form. It is 0 for none.
func instanceKey(id string) uint64 {
	if id == "" {
		return 0
	}
	return hashLine(0, []byte(id), 0)
}

// MarshalText returns 11 characters for the instance and, if there is a trail, a dot and its 76.
func (p logPlace) MarshalText() ([]byte, error) {
	text := positionEncoding.AppendEncode(nil, binary.BigEndian.AppendUint64(nil, p.instance))
	if p.trail == nil {
		return text, nil
	}
	trail, err := p.trail.MarshalText()
	return append(append(text, '.'), trail...), err
}

// UnmarshalText accepts what MarshalText returns.
func (p *logPlace) UnmarshalText(text []byte) error {
	instance, trail, found := strings.Cut(string(text), ".")
	raw, err := positionEncoding.DecodeString(instance)
	if err != nil || len(raw) != 8 {
		return errors.New("not a place in a log")
	}
	*p = logPlace{instance: binary.BigEndian.Uint64(raw)}
	if found {
		p.trail = &position{}
		return p.trail.UnmarshalText([]byte(trail))
	}
	return nil
}

// placesOf returns the places of positions that are not zero.
func placesOf(positions map[string]logsvc.Position) (map[string]logPlace, error) {
	places := map[string]logPlace{}
	for _, replica := range slices.Sorted(maps.Keys(positions)) {
		at := positions[replica]
		if at == (logsvc.Position{}) {
			continue
		}
		var p logPlace
		if p.UnmarshalText([]byte(at.Place)) != nil {
			return nil, logsvc.PositionError(replica, at.String())
		}
		places[replica] = p
	}
	return places, nil
}

// resume puts a new tailer behind a place, of which the reader has so many lines more.
func (t *tailer) resume(p logPlace, sent int) {
	c := t.cursor
	c.start()
	if p.trail != nil {
		c.place, c.trail, c.sent = placeTrail, trailAt(*p.trail), sent
	}
	if p.instance == 0 {
		return // the container had not started
	}
	state := stateOf(t.target.pod, t.target.pod.UID, t.target.container)
	id := p.instanceOf(state)
	t.progress.id, t.progress.number, t.resumed = id, state.numberOf(id), true
}

// goneInstance stands for the id of an instance whose log is gone.
const goneInstance = "gone"

// instanceOf returns the id of the place's instance.
func (p logPlace) instanceOf(state containerState) string {
	for _, id := range []string{state.current, state.last} {
		if instanceKey(id) == p.instance {
			return id
		}
	}
	return goneInstance
}

// noteMissing notes the positions behind which lines may be missing: of replicas and of instances that are gone.
func (s *appLog) noteMissing(pods []*corev1.Pod) {
	note := func(replica, text string) { s.noted[text] = append(s.noted[text], replica) }
	for _, name := range slices.Sorted(maps.Keys(s.places)) {
		there := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == name })
		if !there && (s.q.Replica == "" || s.q.Replica == name) {
			note(name, "gone since the interruption; the last lines may be missing")
		}
	}
	for _, target := range s.targets {
		state := stateOf(target.pod, target.pod.UID, target.container)
		if p := s.places[target.pod.Name]; p.instance != 0 && p.instanceOf(state) == goneInstance {
			note(target.pod.Name, "started again more than once since the interruption; lines may be missing")
		}
	}
}

// readOld reads what comes before the instance of the query, in a log that is resumed in another instance and
// not followed: the rest of that one or, if it is gone, all of the one between them.
func (t *tailer) readOld(ctx context.Context, state containerState) error {
	switch {
	case t.q.Previous:
		return t.startAgain(ctx, state, state.last)
	case state.last != "" && t.progress.id != state.last:
		if err := t.startAgain(ctx, state, state.last); err != nil {
			return err
		}
	}
	if state.last != "" {
		err := t.readAll(ctx, readOptions{previous: true, ends: true})
		if t.lost(err) {
			err = t.noteLost(ctx, err)
		}
		if err != nil {
			return err
		}
	}
	return t.startAgain(ctx, state, state.current)
}

// startAgain puts the cursor before the first line of another instance.
func (t *tailer) startAgain(ctx context.Context, state containerState, id string) error {
	skips := t.progress.skips(state, id)
	t.progress.id, t.progress.number = id, state.numberOf(id)
	t.cursor.start()
	return t.noteStart(ctx, skips)
}

// placeNow returns the place behind the last line, for the Sink. It is empty if that is not known, or
// not wanted.
func (t *tailer) placeNow() string {
	switch c := t.cursor; {
	case !t.q.Positions: // a position of a trail takes time
	case c.place == placeStart:
		return t.placeAt(nil)
	case c.place == placeTrail && c.sent == 0 && !c.doubtful:
		p := c.trail.position()
		return t.placeAt(&p)
	}
	return ""
}

func (t *tailer) placeAt(trail *position) string {
	text, _ := logPlace{instanceKey(t.progress.id), trail}.MarshalText() // never fails
	return string(text)
}

// reportPlace hands the place to the Sink, unless it has it.
func (t *tailer) reportPlace(ctx context.Context) error {
	if place := t.placeNow(); place != "" && place != t.reported {
		return t.hand(ctx, nil, false, place)
	}
	return nil
}

// hand hands lines to the Sink, and the place behind them.
func (t *tailer) hand(ctx context.Context, lines []logsvc.Line, live bool, place string) error {
	if err := t.out.Lines(ctx, t.target.pod.Name, lines, live, place); err != nil {
		return sinkError{err}
	}
	t.cursor.placed, t.reported = true, place
	return nil
}
