package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// The options of a Shape, by the names of their flags.
const (
	ShapeBaseDomain    = "base-domain"
	ShapeScheme        = "scheme"
	ShapeIngressPort   = "ingress-port"
	ShapeEncoding      = "encoding"
	ShapePodConditions = "pod-conditions"
)

// Shape is the value of each option that decides how an App looks. Two bridges with different shapes
// would correct each other for ever. An option that is missing has the empty value: a new option
// whose default changes nothing has that as its default.
type Shape map[string]string

// maxShapeBytes bounds what is read from the metadata.
const maxShapeBytes = 4096

// String is the shape as subjects.MetadataShape has it.
func (s Shape) String() string {
	var options []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		options = append(options, name+"="+url.QueryEscape(s[name]))
	}
	return strings.Join(options, ";")
}

// parseShape is the inverse of String. ok is false for a text that no bridge wrote.
func parseShape(text string) (s Shape, ok bool) {
	if text == "" || len(text) > maxShapeBytes {
		return nil, false
	}
	s = Shape{}
	for option := range strings.SplitSeq(text, ";") {
		name, value, found := strings.Cut(option, "=")
		value, err := url.QueryUnescape(value)
		if name == "" || !found || err != nil {
			return nil, false
		}
		s[name] = value
	}
	return s, true
}

// DifferentOption is an option that two shapes have with different values.
type DifferentOption struct{ Name, Here, There string }

// differences returns the options that differ, by name.
func (s Shape) differences(there Shape) (different []DifferentOption) {
	names := maps.Clone(s)
	maps.Copy(names, there)
	if s[ShapeBaseDomain] == "" && there[ShapeBaseDomain] == "" {
		delete(names, ShapeScheme) // apps have no URL
		delete(names, ShapeIngressPort)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if s[name] != there[name] {
			different = append(different, DifferentOption{name, s[name], there[name]})
		}
	}
	return different
}

// Compare returns an *OtherShapeError if the metadata of a stream name another shape. A stream
// without a shape, from an older version, fits any.
func (s Shape) Compare(stream *jetstream.StreamInfo) error {
	there, ok := parseShape(metadataOf(stream, subjects.MetadataShape))
	if !ok {
		return nil
	}
	if different := s.differences(there); len(different) > 0 {
		return &OtherShapeError{Stream: stream.Config.Name, Options: different}
	}
	return nil
}

// OtherShapeError reports that the events of a stream are published with other options.
type OtherShapeError struct {
	Stream  string
	Options []DifferentOption
}

func (e *OtherShapeError) Error() string {
	return fmt.Sprintf("the events of stream %s are published with other options: %s", e.Stream, e.Difference())
}

// Difference names the options and their values.
func (e *OtherShapeError) Difference() string {
	var options []string
	for _, o := range e.Options {
		options = append(options, fmt.Sprintf("--%s is %q here and %q there", Printable(o.Name), o.Here, o.There))
	}
	return strings.Join(options, ", ")
}

// Claim is the claim of one bridge, for one term of leadership, to the shape of a stream's events.
// The bridge that began to lead last wrote the newest claim. A claim has a random token, so that no
// clock decides which of two is newer: a bridge that finds a token that it has not replaced finds a
// newer one. Not safe for concurrent use.
type Claim struct {
	shape Shape
	renew bool      // the next Storage.Claim writes a new token, also where the stream has the same shape
	token string    // of the newest claim with this shape that was found or written
	made  time.Time // when the claimed stream was created; zero: nothing is claimed yet
	// answered is true if the token that Check found last answers an earlier one of this claim.
	answered bool
	earlier  map[string]struct{} // tokens that this claim replaced: a stale answer may still show one
}

// NewClaim returns a claim that is not written yet. renew is as in Renew.
func NewClaim(shape Shape, renew bool) *Claim {
	return &Claim{shape: shape, renew: renew, earlier: map[string]struct{}{}}
}

// Renew makes the next Storage.Claim write a new token also where the stream has the same shape: a
// bridge that leads meanwhile finds out that there is another one, and answers.
func (c *Claim) Renew() { c.renew = true }

// Forget makes the next Storage.Claim write the claim again, unless the stream has the same shape.
// After a loss, the metadata may be those of an earlier time.
func (c *Claim) Forget() { c.made = time.Time{} }

// Check compares the metadata of a stream with the claim. It returns an *OtherShapeError if a bridge
// with another shape has begun to lead later. rival is true if one with the same shape has. Metadata
// that were removed or put back are no newer claim; the next Storage.Claim writes them again.
func (c *Claim) Check(stream *jetstream.StreamInfo) (rival bool, err error) {
	token := metadataOf(stream, subjects.MetadataShapeOf)
	if stream == nil || !c.made.Equal(stream.Created) || token == "" || token == c.token {
		return false, nil
	}
	if _, replaced := c.earlier[token]; replaced {
		return false, nil
	}
	if _, ok := parseShape(metadataOf(stream, subjects.MetadataShape)); !ok {
		return false, nil
	}
	if err := c.shape.Compare(stream); err != nil {
		return false, err
	}
	c.token, c.answered = token, strings.HasPrefix(token, c.token+answerSeparator)
	return true, nil
}

// Claim writes the claim into the metadata of the stream, unless they have it. It returns an
// *OtherShapeError as Check does.
func (s *Storage) Claim(ctx context.Context, c *Claim) error {
	// Read right before it is written: a claim that is replaced has to be known.
	if err := s.ReadStream(ctx); err != nil {
		return err
	}
	if _, err := c.Check(s.Stream); err != nil {
		return err
	}
	text, token := metadataOf(s.Stream, subjects.MetadataShape), metadataOf(s.Stream, subjects.MetadataShapeOf)
	_, readable := parseShape(text)
	same := readable && token != "" && c.shape.Compare(s.Stream) == nil
	if same && !c.renew {
		c.token, c.made = token, s.Stream.Created
		return nil
	}
	if token != "" {
		c.earlier[token] = struct{}{}
	}
	return s.write(ctx, c, rand.Text())
}

// answerSeparator is between the token of a claim and the random text of an answer to it.
const answerSeparator = "-"

// Answer writes the claim again after Check found a rival, unless that has answered this one. By
// that the rival, which began to lead later, finds out that another bridge runs.
func (s *Storage) Answer(ctx context.Context, c *Claim) error {
	if c.answered {
		return nil
	}
	return s.write(ctx, c, c.token+answerSeparator+rand.Text())
}

func (s *Storage) write(ctx context.Context, c *Claim, token string) error {
	c.token = token // before it is written: the server may do so and its answer not come
	stream, err := s.Mark(ctx, "stream", s.Stream, map[string]string{
		subjects.MetadataShape: c.shape.String(), subjects.MetadataShapeOf: c.token,
	})
	if err != nil {
		return err
	}
	s.Stream, c.made, c.renew = stream, stream.Created, false
	return nil
}
