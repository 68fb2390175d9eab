// Package retention measures how much of the stream's retention is left for each durable consumer.
//
//	first              oldest unread                                last
//	  ├───────────────────────┼───────────────────────────────────────┤
//	  └ removed next          └ what the consumer has not acknowledged ┘
//
// A stream with a limit removes its oldest messages, whether a consumer has read them or not. While
// a session runs, a [Watch] reads the stream's durable consumers every 15 seconds, and of each the
// oldest message that is not acknowledged. Its gauge is 1 for a consumer that has read everything,
// and near 0 when retention is about to remove that message. Of the limits of age, bytes and
// messages the nearest counts. There are no values of a stream that removes nothing, while the
// measurement fails, and on a replica that does not publish.
package retention
