// Package jetapi is what a reader requests of JetStream: the state of a stream, single messages, and
// the messages of one consumer. It knows nothing of apps and events.
//
//	reader                          JetStream                  reader
//
//	Client.Stream ────────────────► STREAM.INFO ─────────────► StreamInfo
//	Client.MessageAt, … ──────────► STREAM.MSG.GET ──────────► Message or ErrNoMessage
//	Client.Consume ───────────────► CONSUMER.CREATE ─────────► Consumer
//	Consumer.Next ────────────────► CONSUMER.MSG.NEXT ───────► a message with its Delivery
//	Consumer.Close ───────────────► CONSUMER.DELETE
//
// The leader of a stream answers requests for messages. A consumer may be placed on a replica that
// is behind. It delivers messages in order, and ends with an error where one is missing.
//
// A request ends when the connection changes: the answer may have been on its way to the old one.
// Nothing is retried here but requests that a server dropped. The caller retries every error but
// [ErrDenied] and [ErrClosed].
package jetapi
