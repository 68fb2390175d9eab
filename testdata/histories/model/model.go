// Package model is what a stream and its bucket held in the course of a history: the truth that a
// reader's lines are compared with. The player of a history writes it, the judge reads it.
package model

import (
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Moment counts the changes of a model. The beginning is 0.
type Moment uint64

// Event is what an event shows of its app.
type Event struct {
	ID                subjects.AppID
	Kind              subjects.EventKind
	MessageID         string
	UID, Version      string
	Time              string
	Status, Previous  string
	PreviousSequence  uint64
	Merged            int
	Synthesized       bool
	FinalStateUnknown bool
	Truncated         []string
	App, Old          *appv1.App // as in the message
}

// Message is one message that the stream held at some time: an event, a notice of loss, or one that a
// reader does not know. Fillers are not noted: they stand for messages that are.
type Message struct {
	Sequence uint64
	Event    *Event             // nil: no event
	Lost     subjects.LostRange // of a notice; else zero
	Appended time.Time
	Stored   Moment
	// LostAt is when a rollback took the message, RemovedAt when retention or a purge did; 0: never.
	LostAt, RemovedAt Moment
	// RestoredAt is when a rollback brought back the message, which had been removed; 0: never.
	RestoredAt Moment
	// Middle: when it was removed, the stream kept an older message, so that its beginning does not show
	// that.
	Middle bool
	// Skipped: it was removed before the bucket had it, so that the bucket never shows it.
	Skipped bool
	// Expired: the bucket has removed the marker of this delete.
	Expired bool
	// Entry is what the bucket's entry of the event lacks, if that is more than the event does.
	Entry []string
}

// Model is safe for use by several goroutines: the player holds it locked while it changes the
// stream, so that nobody judges a message that is not noted yet.
type Model struct {
	mu       sync.Mutex
	moment   Moment
	messages Messages // of the present stream
	former   []Former
	inexact  []window
}

// window is a time in which the bucket is not what the stream says.
type window struct{ from, to Moment } // to 0: it lasts

// Lock has readers of the model wait until Unlock.
func (m *Model) Lock() { m.mu.Lock() }

// Unlock ends Lock.
func (m *Model) Unlock() { m.mu.Unlock() }

// Now is the present moment. The model must be locked, here and below.
func (m *Model) Now() Moment { return m.moment }

// Append notes a message.
func (m *Model) Append(message *Message) {
	m.moment++
	message.Stored, message.Appended = m.moment, time.Now()
	m.messages = append(m.messages, message)
}

// Remove notes that retention or a purge removed messages.
func (m *Model) Remove(of func(*Message) bool) {
	m.moment++
	for _, message := range m.messages {
		if message.Present() && of(message) {
			message.RemovedAt = m.moment
		}
	}
	kept := false
	for _, message := range m.messages {
		if message.RemovedAt == m.moment {
			message.Middle = kept
		}
		kept = kept || message.Present()
	}
}

// Rollback notes that the stream is as it was when it held just these sequences and ended at last.
func (m *Model) Rollback(held map[uint64]bool, last uint64) {
	m.moment++
	for _, message := range m.messages {
		switch {
		case message.Sequence > last && message.LostAt == 0:
			message.LostAt = m.moment
		case message.Sequence <= last && held[message.Sequence] && message.LostAt == 0:
			if message.RemovedAt != 0 {
				message.RestoredAt = m.moment
			}
			message.RemovedAt, message.Middle, message.Skipped = 0, false, false
		}
	}
}

// Held are the sequences that the stream holds.
func (m *Model) Held() map[uint64]bool {
	held := map[uint64]bool{}
	for _, message := range m.messages {
		if message.Present() {
			held[message.Sequence] = true
		}
	}
	return held
}

// Notice reports whether the message is a notice of loss.
func (m *Message) Notice() bool { return m.Lost.To > 0 }

// Present reports whether the stream holds the message.
func (m *Message) Present() bool { return m.LostAt == 0 && m.RemovedAt == 0 }

// Inexact notes that the bucket is not what the stream says, until Exact.
func (m *Model) Inexact() {
	m.moment++
	if n := len(m.inexact); n > 0 && m.inexact[n-1].to == 0 {
		return
	}
	m.inexact = append(m.inexact, window{from: m.moment})
}

// Exact notes that the bucket is what the stream says up to the bucket's position.
func (m *Model) Exact() {
	m.moment++
	if n := len(m.inexact); n > 0 && m.inexact[n-1].to == 0 {
		m.inexact[n-1].to = m.moment
	}
}

// ExactSince reports whether the bucket was exact at a moment and ever since.
func (m *Model) ExactSince(since Moment) bool {
	return !slices.ContainsFunc(m.inexact, func(w window) bool { return w.to == 0 || w.to >= since })
}

// All are all messages of the present stream, oldest first.
func (m *Model) All() Messages { return m.messages }

// At is Messages.At of the present stream.
func (m *Model) At(sequence uint64) *Message { return m.messages.At(sequence) }

// Between is Messages.Between of the present stream.
func (m *Model) Between(after, before uint64) Messages { return m.messages.Between(after, before) }

// States is the newest event of each app that exists at a sequence, by app. What was lost at the
// moment does not count, nor what the bucket never had.
func (m *Model) States(sequence uint64, at Moment) map[subjects.AppID]*Message {
	states := map[subjects.AppID]*Message{}
	for _, message := range m.messages {
		if message.Sequence > sequence {
			break
		}
		lost := message.LostAt != 0 && message.LostAt <= at
		if message.Event == nil || lost || message.Skipped || message.Stored > at {
			continue
		}
		states[message.Event.ID] = message
	}
	for id, message := range states {
		if message.Event.Kind == subjects.Deleted {
			delete(states, id)
		}
	}
	return states
}

// Losses are the moments since one at which a stream lost messages, oldest first.
func (m *Model) Losses(since Moment) []Moment {
	var moments []Moment
	note := func(messages Messages) {
		for _, message := range messages {
			if message.LostAt >= since && message.LostAt != 0 && !slices.Contains(moments, message.LostAt) {
				moments = append(moments, message.LostAt)
			}
		}
	}
	for _, f := range m.former {
		note(f.Messages)
	}
	note(m.messages)
	slices.Sort(moments)
	return moments
}
