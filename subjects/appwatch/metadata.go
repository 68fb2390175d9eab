package appwatch

import (
	"slices"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// streamID is the identity of the event stream that a stream carries, empty without one.
func streamID(info *jetapi.StreamInfo) string {
	if id := info.Config.Metadata[subjects.MetadataStreamID]; isStreamID(id) {
		return id
	}
	return ""
}

// farAhead is how far behind the end of a stream a loss may be that is being repaired.
const farAhead = 1_000_000

// lostRanges are the ranges that a stream is known to have lost. What cannot be parsed is not known, and
// so is what ends behind the stream: a bridge fills a range before it is known as lost.
func lostRanges(info *jetapi.StreamInfo) []subjects.LostRange {
	lost, err := subjects.ParseLostRanges(info.Config.Metadata[subjects.MetadataLostRanges])
	if err != nil {
		lost = nil
	}
	if pending, ok := lostPending(info); ok {
		lost = append(lost, pending)
	}
	return slices.DeleteFunc(lost, func(r subjects.LostRange) bool { return r.To > info.State.LastSeq })
}

// lostPending is the range of a loss that is being repaired, so that a notice follows.
func lostPending(info *jetapi.StreamInfo) (pending subjects.LostRange, ok bool) {
	pending, err := subjects.ParseLostRange(info.Config.Metadata[subjects.MetadataLostPending])
	return pending, err == nil && (pending.To < farAhead || pending.To-farAhead <= info.State.LastSeq)
}
