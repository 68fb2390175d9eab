package appwatch

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// watchLatest reads in a goroutine of its own into a backlog, which keeps the newest item of each
// app, and yields from there.
func watchLatest(ctx context.Context, js jetstream.JetStream, p *prepared, yield func(Item) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	b := newBacklog()
	var err error
	go func() {
		defer close(b.ended)
		err = newWatcher(js, p, func(it *Item) bool {
			b.push(it)
			return ctx.Err() == nil
		}).run(ctx)
	}()
	defer func() {
		cancel()
		<-b.ended
	}()
	for {
		for it := b.pop(); it != nil; it = b.pop() {
			if p.wants(it) && !yield(*it) || ctx.Err() != nil {
				return nil
			}
		}
		select {
		case <-b.ready:
		case <-b.ended:
			if b.empty() {
				return err
			}
		}
	}
}

// backlog holds what waits for the loop: at most one state and one event of each app, a Loss for
// each range that waits, and one snapshot.
type backlog struct {
	ready chan struct{} // has room for one: something is there
	ended chan struct{} // closed once nothing more is pushed

	mu sync.Mutex
	// queue has the items in the order in which their apps began to wait.
	queue *list.List // of *waiting
	// newest has the same items, without marks and restarts, in the order of their sequences.
	newest *list.List // of *waiting
	// apps are those that wait behind the newest Mark.
	apps map[subjects.AppID]*waiting
	// dropped are the statuses before what a Restart dropped: the loop does not have it.
	dropped map[subjects.AppID]string

	last uint64 // the highest position of an item that was handed out
	read uint64 // the position of the newest item that has one
}

// waiting is an item in a backlog.
type waiting struct {
	item    Item
	inOrder *list.Element // of newest, nil for an item that is not there
	before  uint64        // the highest position at which the item is not missed
}

func newBacklog() *backlog {
	return &backlog{ready: make(chan struct{}, 1), ended: make(chan struct{}), queue: list.New(), newest: list.New(), apps: map[subjects.AppID]*waiting{}, dropped: map[subjects.AppID]string{}}
}

// push adds an item, in place of an older one of the same app.
func (b *backlog) push(it *Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.read
	if !it.Position.IsZero() {
		b.read = it.Position.Sequence
	}
	switch it.Type {
	case Event, State:
		if old := b.apps[it.ID]; old != nil && it.Type == Event {
			b.replace(old, it)
			return
		}
		w := &waiting{item: *it, before: max(it.Sequence, 1) - 1}
		if status, ok := b.dropped[it.ID]; ok && it.Type == State {
			w.item.Changed, w.item.before, w.item.override = true, status, true
		}
		w.inOrder = b.newest.PushBack(w)
		b.queue.PushBack(w)
		b.apps[it.ID] = w
	case Loss:
		if usedAgain(it) {
			clear(b.apps) // events stay before the Loss that ends their history
		}
		w := &waiting{item: *it, before: min(before, it.Position.Sequence)}
		w.inOrder = b.newest.PushBack(w)
		b.queue.PushBack(w)
	case Restart:
		b.restart()
		b.queue.PushBack(&waiting{item: *it})
	default:
		if it.Type == Mark {
			clear(b.apps) // states stay before their Mark
			clear(b.dropped)
		}
		b.queue.PushBack(&waiting{item: *it})
	}
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// usedAgain reports whether sequences that were yielded before an item may follow it again.
func usedAgain(it *Item) bool {
	return errors.Is(it.Reason, ErrRolledBack) || errors.Is(it.Reason, ErrOtherStream)
}

// replace puts a newer event in the place of what waits of its app.
func (b *backlog) replace(old *waiting, it *Item) {
	next := *it
	next.Skipped = old.item.Skipped + 1
	next.before, next.override = old.item.PreviousStatus(), true
	old.item, old.before = next, it.Sequence-1
	b.newest.MoveToBack(old.inOrder)
}

// restart drops what a snapshot replaces: all but what was lost. States of an earlier one, and
// events, are in the new one.
func (b *backlog) restart() {
	for e := b.queue.Front(); e != nil; {
		next := e.Next()
		switch w := e.Value.(*waiting); w.item.Type {
		case Loss:
			w.inOrder = nil // a Restart follows: it is at a position of its own
		case Event, State:
			if _, ok := b.dropped[w.item.ID]; !ok {
				b.dropped[w.item.ID] = w.item.before
				if w.item.Type == Event {
					b.dropped[w.item.ID] = w.item.PreviousStatus()
				}
			}
			fallthrough
		default:
			b.queue.Remove(e)
		}
		e = next
	}
	b.newest.Init()
	clear(b.apps)
}

// pop takes the first item. Its position is one at which no newer item is missed that still waits.
func (b *backlog) pop() *Item {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.queue.Front()
	if e == nil {
		return nil
	}
	w := b.queue.Remove(e).(*waiting)
	if w.item.Type == Restart || usedAgain(&w.item) {
		b.last = 0 // the stream may be another one
	}
	if w.inOrder != nil {
		b.newest.Remove(w.inOrder)
		if b.apps[w.item.ID] == w {
			delete(b.apps, w.item.ID)
		}
	}
	if w.item.Position.IsZero() {
		return &w.item
	}
	// Everything up to the highest position was handed out, or a newer event of its app waits.
	b.last = max(b.last, w.item.Position.Sequence)
	at := b.last
	if first := b.newest.Front(); first != nil {
		if oldest := first.Value.(*waiting); oldest.item.Type != State {
			at = min(at, oldest.before)
		}
	}
	if at != w.item.Position.Sequence {
		w.item.Position = w.item.Position.at(at)
		w.item.Position.Check = 0 // another event's
	}
	return &w.item
}

func (b *backlog) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.Len() == 0
}
