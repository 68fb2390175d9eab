package logsvc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/logline"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// encoder turns lines and notes into the bodies of messages. It is used by one
// goroutine.
type encoder struct {
	format format
	app    *appv1.Identifier
	prefix string          // the part that the names of all replicas share
	seen   map[string]bool // replicas of this stream so far
}

func newEncoder(r *logRequest, org string) *encoder {
	app := r.query.App
	return &encoder{
		format: r.format,
		app:    &appv1.Identifier{Org: org, Project: app.Project, Domain: app.Domain, Name: app.Name},
		prefix: kservice.Name(app) + "-",
		seen:   map[string]bool{},
	}
}

// saw notes the replicas that a stream has or has had. As soon as they are
// more than one, every line for people says whose it is.
func (e *encoder) saw(replicas ...string) {
	for _, r := range replicas {
		e.seen[r] = true
	}
}

func (e *encoder) short(replica string) string {
	return strings.ToValidUTF8(strings.TrimPrefix(replica, e.prefix), "\uFFFD")
}

// body is the body of a message with the lines of a batch.
func (e *encoder) body(b *batch) ([]byte, error) {
	switch {
	case e.format.structured():
		return e.message(&appv1.TailLogsResponse{Resp: &appv1.TailLogsResponse_Batches{
			Batches: &appv1.LogLinesBatch{Logs: e.logLines(b)},
		}})
	case e.format == formatText && len(e.seen) > 1:
		return prefixed(b.text, e.short(b.replica)+" ", b.lines), nil
	default:
		return b.text, nil
	}
}

// same tells whether a body lies in the memory of its batch.
func (e *encoder) same(body []byte, b *batch) bool {
	return len(body) > 0 && len(b.text) > 0 && &body[0] == &b.text[0]
}

// bodies is the one body for several batches.
func (e *encoder) bodies(batches []*batch) ([]byte, error) {
	if e.format.structured() {
		all := &appv1.LogLinesBatch{}
		for _, b := range batches {
			all.Logs = append(all.Logs, e.logLines(b)...)
		}
		return e.message(&appv1.TailLogsResponse{Resp: &appv1.TailLogsResponse_Batches{Batches: all}})
	}
	var out []byte
	for _, b := range batches {
		body, err := e.body(b)
		if err != nil {
			return nil, err
		}
		out = append(out, body...)
	}
	return out, nil
}

// parts are the bodies that a batch needs so that none is longer than most, and
// how many lines each has.
func (e *encoder) parts(b *batch, most int) (bodies [][]byte, lines []int, err error) {
	body, err := e.body(b)
	switch {
	case err != nil:
		return nil, nil, err
	case len(body) <= most:
		return [][]byte{body}, []int{b.lines}, nil
	case b.lines > 1:
		first, second := b.halves()
		for _, half := range []*batch{first, second} {
			more, counts, err := e.parts(half, most)
			if err != nil {
				return nil, nil, err
			}
			bodies, lines = append(bodies, more...), append(lines, counts...)
		}
		return bodies, lines, nil
	default:
		over := len(body) - most
		keep := len(b.text) - over - 128 // room for saying what is missing
		if keep < 0 || e.format.structured() {
			keep = most/8 - 128 // a byte may need six in JSON
		}
		if keep < 0 {
			return nil, nil, fmt.Errorf("a message of at most %d bytes holds no line", most)
		}
		body, err := e.body(b.cutTo(keep))
		return [][]byte{body}, []int{1}, err
	}
}

// logLines are the lines of a batch as Flyte's messages have them.
func (e *encoder) logLines(b *batch) []*appv1.LogLines {
	lines := make([]*appv1.LogLine, 0, b.lines)
	start, short := 0, e.short(b.replica)
	for _, m := range b.marks {
		line := &appv1.LogLine{
			Message:      strings.ToValidUTF8(string(b.text[start:m.end-1]), "\uFFFD"),
			Originator:   appv1.LogLineOriginator_USER,
			ShortPodName: short,
		}
		if !m.time.IsZero() {
			line.Timestamp = timestamppb.New(m.time)
		}
		lines = append(lines, line)
		start = m.end
	}
	var logs []*appv1.LogLines
	for chunk := range slices.Chunk(lines, logline.MaxBatch) {
		logs = append(logs, &appv1.LogLines{
			ReplicaId:       e.replica(b.replica),
			StructuredLines: chunk,
			Source:          appv1.LogLineSource_LOG_LINE_SOURCE_LIVE,
		})
	}
	return logs
}

func (e *encoder) replica(name string) *appv1.ReplicaIdentifier {
	return &appv1.ReplicaIdentifier{AppId: e.app, Name: strings.ToValidUTF8(name, "\uFFFD")}
}

// fitting is as many of the names as go into so many bytes, in a header and in
// the body, and how many more there are.
func (e *encoder) fitting(names []string, most int) (fit []string, more int) {
	each := len(", ")
	if e.format.structured() {
		// Each comes with the app; a byte may need six in JSON.
		each += 6*(len(e.app.GetOrg())+len(e.app.GetProject())+len(e.app.GetDomain())+len(e.app.GetName())) + 80
	}
	for i, name := range names {
		if most -= len(name) + each; most < 0 {
			return names[:i], len(names) - i
		}
	}
	return names, 0
}

// replicas is the body of the message that tells which replicas there are: those
// names, and more that did not fit.
func (e *encoder) replicas(names []string, more int) ([]byte, error) {
	if !e.format.structured() {
		list := strings.Join(names, ", ")
		switch {
		case len(names) == 0:
			list = "none"
		case more > 0:
			list += fmt.Sprintf(" and %d more", more)
		}
		return []byte(subjects.LogNotePrefix + "replicas: " + list + "\n"), nil
	}
	list := &appv1.ReplicaIdentifierList{}
	for _, name := range names {
		list.Replicas = append(list.Replicas, e.replica(name))
	}
	return e.message(&appv1.TailLogsResponse{Resp: &appv1.TailLogsResponse_Replicas{Replicas: list}})
}

// note is the body of a message that tells something else.
func (e *encoder) note(replica, text string) ([]byte, error) {
	if !e.format.structured() {
		if replica != "" {
			text = "replica " + replica + ": " + text
		}
		return noteLine(text), nil
	}
	logs := &appv1.LogLines{StructuredLines: []*appv1.LogLine{{
		Message: strings.ToValidUTF8(text, "\uFFFD"), Originator: appv1.LogLineOriginator_SYSTEM, ShortPodName: e.short(replica),
	}}}
	if replica != "" {
		logs.ReplicaId = e.replica(replica)
	}
	return e.message(&appv1.TailLogsResponse{Resp: &appv1.TailLogsResponse_Batches{
		Batches: &appv1.LogLinesBatch{Logs: []*appv1.LogLines{logs}},
	}})
}

func noteLine(text string) []byte {
	return []byte(subjects.LogNotePrefix + request.OneLine(text) + "\n")
}

// message encodes one of Flyte's messages. JSON is one line with its end, so
// that what a client prints can be read line by line.
func (e *encoder) message(m *appv1.TailLogsResponse) ([]byte, error) {
	if e.format == formatProto {
		return proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	// protojson puts spaces in at random.
	var out bytes.Buffer
	out.Grow(len(text) + 1)
	if err := json.Compact(&out, text); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// prefixed puts prefix before every line of text.
func prefixed(text []byte, prefix string, lines int) []byte {
	out := make([]byte, 0, len(text)+lines*len(prefix))
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n') + 1
		out = append(append(out, prefix...), text[:end]...)
		text = text[end:]
	}
	return out
}
