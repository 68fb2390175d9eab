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
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// maxLogLines is how many lines Flyte has in one LogLines message at most.
const maxLogLines = 100

// encoder encodes lines and notes as the bodies of messages. It is for one goroutine.
type encoder struct {
	format subjects.LogFormat
	app    *appv1.Identifier
	prefix string          // the part that the names of all replicas share
	known  map[string]bool // replicas of this stream so far
}

func newEncoder(r *logRequest, org string) *encoder {
	app := r.query.App
	return &encoder{
		format: r.format,
		app:    &appv1.Identifier{Org: org, Project: app.Project, Domain: app.Domain, Name: app.Name},
		prefix: kservice.Name(app) + "-",
		known:  map[string]bool{},
	}
}

// addReplicas adds replicas to those that the stream has or has had. When there are several, lines
// in the text format begin with the name of their replica.
func (e *encoder) addReplicas(replicas ...string) {
	for _, r := range replicas {
		e.known[r] = true
	}
}

func (e *encoder) short(replica string) string {
	return strings.ToValidUTF8(strings.TrimPrefix(replica, e.prefix), "\uFFFD")
}

// body returns the body of a message with the lines of batches. That of a single batch may share
// its memory.
func (e *encoder) body(batches ...*batch) ([]byte, error) {
	if e.format.Structured() {
		var logs []*appv1.LogLines
		for _, b := range batches {
			logs = append(logs, e.logLines(b)...)
		}
		return e.batches(logs)
	}
	var out []byte
	for _, b := range batches {
		text := b.text
		if e.format == subjects.LogFormatText && len(e.known) > 1 {
			text = prefixed(text, e.short(b.replica)+" ", b.lines)
		}
		if len(batches) == 1 {
			return text, nil
		}
		out = append(out, text...)
	}
	return out, nil
}

// shares reports whether a body has the memory of its batch.
func shares(body []byte, b *batch) bool {
	return len(body) > 0 && len(b.text) > 0 && &body[0] == &b.text[0]
}

// parts returns the bodies for a batch, each of at most so many bytes, and how many lines each has.
func (e *encoder) parts(b *batch, most int) (bodies [][]byte, lines []int, err error) {
	body, err := e.body(b)
	switch {
	case err != nil:
		return nil, nil, err
	case len(body) <= most:
		return [][]byte{body}, []int{b.lines}, nil
	case b.lines > 1:
		for _, half := range b.halves() {
			more, counts, err := e.parts(half, most)
			if err != nil {
				return nil, nil, err
			}
			bodies, lines = append(bodies, more...), append(lines, counts...)
		}
		return bodies, lines, nil
	default:
		// How many bytes a byte of the line takes differs along the line.
		for keep := len(b.text); len(body) > most; {
			keep = keep*most/len(body) - 128 // room for the note of appendCut
			if keep < 0 {
				return nil, nil, fmt.Errorf("a message of at most %d bytes holds no line", most)
			}
			if body, err = e.body(b.cutTo(keep)); err != nil {
				return nil, nil, err
			}
		}
		return [][]byte{body}, []int{1}, nil
	}
}

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
	for chunk := range slices.Chunk(lines, maxLogLines) {
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

// fitting returns as many of the names as fit into so many bytes, in a header and in the body, and
// how many more there are.
func (e *encoder) fitting(names []string, most int) (fit []string, more int) {
	each := len(", ")
	if e.format.Structured() {
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

// replicas returns the body of a message with the names of replicas, and the number of those that
// did not fit.
func (e *encoder) replicas(names []string, more int) ([]byte, error) {
	if !e.format.Structured() {
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

// note returns the body of a message with a note about replicas, or about the app.
func (e *encoder) note(replicas []string, text string) ([]byte, error) {
	worded := collectedNote{text: text, replicas: replicas}.String()
	if !e.format.Structured() {
		return noteLine(worded), nil
	}
	line := &appv1.LogLine{Message: strings.ToValidUTF8(worded, "\uFFFD"), Originator: appv1.LogLineOriginator_SYSTEM}
	logs := &appv1.LogLines{StructuredLines: []*appv1.LogLine{line}}
	if len(replicas) == 1 { // whose name has a field
		line.Message, line.ShortPodName = strings.ToValidUTF8(text, "\uFFFD"), e.short(replicas[0])
		logs.ReplicaId = e.replica(replicas[0])
	}
	return e.batches([]*appv1.LogLines{logs})
}

func (e *encoder) batches(logs []*appv1.LogLines) ([]byte, error) {
	return e.message(&appv1.TailLogsResponse{Resp: &appv1.TailLogsResponse_Batches{Batches: &appv1.LogLinesBatch{Logs: logs}}})
}

func noteLine(text string) []byte {
	return []byte(subjects.LogNotePrefix + request.OneLine(text) + "\n")
}

// message encodes one of Flyte's messages. JSON is one line, so that the output of a client can be
// read line by line.
func (e *encoder) message(m *appv1.TailLogsResponse) ([]byte, error) {
	if e.format == subjects.LogFormatProto {
		return proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	// protojson adds random spaces.
	var out bytes.Buffer
	out.Grow(len(text) + 1)
	if err := json.Compact(&out, text); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func prefixed(text []byte, prefix string, lines int) []byte {
	out := make([]byte, 0, len(text)+lines*len(prefix))
	for line := range bytes.Lines(text) {
		out = append(append(out, prefix...), line...)
	}
	return out
}
