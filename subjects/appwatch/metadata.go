package appwatch

import (
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

// lostRanges are the ranges that a stream is known to have lost. What cannot be parsed is not known.
func lostRanges(info *jetapi.StreamInfo) []subjects.LostRange {
	ranges, err := subjects.ParseLostRanges(info.Config.Metadata[subjects.MetadataLostRanges])
	if err != nil {
		ranges = nil
	}
	if pending, err := subjects.ParseLostRange(info.Config.Metadata[subjects.MetadataLostPending]); err == nil {
		ranges = append(ranges, pending)
	}
	return ranges
}

// lossPending reports whether a loss is being repaired, so that a notice follows.
func lossPending(info *jetapi.StreamInfo) bool {
	return info.Config.Metadata[subjects.MetadataLostPending] != ""
}
