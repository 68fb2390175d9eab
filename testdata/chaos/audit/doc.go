// Package audit holds what a bridge published against what its cluster went
// through: every state once and in order in the stream, the bucket at the last
// one. It does no I/O and knows nothing of the bridge but its wire contract and
// the conversion, so that it can be trusted beside it.
//
// # What a rollback took
//
// A NATS server that comes back with an earlier copy of its storage has lost
// messages that it acknowledged. The Input keeps them all, by epoch: how often
// the stream had been rolled back when a message was read.
//
//   - A message in a range that a bridge named (Input.Losses) counts as not
//     published. The app goes on from its newest event that survived, and may
//     publish again what the lost ones said, under the same ids, and the App of
//     the surviving event, to which the lost ones may have been the way back.
//   - The end of a range may be messages that were acknowledged and lost before
//     the reader had them: as many of an app's next states are excused, also of an
//     app of which no other event is lost.
//   - Of an app of which nothing survived the bucket may still show a lost event.
//     If the cluster does not have the app, a delete may follow that event.
//   - States that a lost event stood for are excused and counted as Taken. The
//     last state of an app is owed all the same, and so is the delete between
//     two objects.
//   - The bridge then compares the apps that lost events with the cluster. Until
//     it has (Input.Comparisons), only the net difference is owed of them, as in
//     a gap; of all other apps every state.
//   - Lost messages that no bridge named count as published. So what is then
//     published again, or refers to the event before them, is wrong.
//   - A sequence with two meanings is always wrong (Reused), and so is a new
//     message inside a named range, but for a filler. Ranges of which nothing
//     that survived knew (Loss.Unseen) are the one exception: their sequences
//     are given out again.
//
// # What was removed
//
// Events that a purge or retention removed were published all the same: the
// Input has them too, from a reader that no purge outruns. A removal before the
// event was projected has to be named (Input.Removed). Only then the app may go
// on from the event before it, and so publish the same state again, at the
// sequence of either. Input.Comparisons has the time of that, too.
//
// # What a watch did not show
//
// A version whose watch event never reached some bridge (Input.Swallowed) may have
// no event of its own: what came and went is excused. The app's last state is owed
// all the same, and so is the delete between two objects.
//
// # What was left out
//
// An event or an entry shows the fields of its App that Flyte-Truncated does not
// name, and none that it names. An event after it, and the bucket's entry, show
// the whole App or what was published. What an entry leaves out is what its own
// header names.
package audit
