package model

import "sort"

// Messages are messages with ascending sequences.
type Messages []*Message

// At is the message of a sequence, nil if there was none.
func (ms Messages) At(sequence uint64) *Message {
	i := ms.search(sequence)
	if i < len(ms) && ms[i].Sequence == sequence {
		return ms[i]
	}
	return nil
}

func (ms Messages) search(sequence uint64) int {
	return sort.Search(len(ms), func(i int) bool { return ms[i].Sequence >= sequence })
}

// Between are the messages with sequences in (after, before).
func (ms Messages) Between(after, before uint64) Messages {
	from, to := ms.search(after+1), ms.search(before)
	if from >= to {
		return nil
	}
	return ms[from:to]
}

// Last is the highest sequence, 0 without one.
func (ms Messages) Last() uint64 {
	if len(ms) == 0 {
		return 0
	}
	return ms[len(ms)-1].Sequence
}

// Former is a stream that another one replaced: its sequences are given again.
type Former struct {
	Messages Messages
	Base     uint64 // up to here the next stream has the same messages
	Other    bool   // the next stream has another id
}

// Replace notes that the stream is another one, or was put back to base without a notice, so that
// sequences above base are given again.
func (m *Model) Replace(base uint64, other bool) {
	m.moment++
	for _, message := range m.messages {
		if message.Sequence > base && message.LostAt == 0 {
			message.LostAt = m.moment
		}
	}
	m.former = append(m.former, Former{Messages: m.messages, Base: base, Other: other})
	m.messages = append(Messages(nil), m.messages.Between(0, base+1)...)
}

// Former are the streams before the present one, oldest first.
func (m *Model) Former() []Former { return m.former }
