// Package natsconn makes every connection of appbridge to NATS, with one policy:
//
//   - [Options]: reconnect for ever, with jitter, and buffer no message while disconnected. A
//     publish that timed out must not be sent later.
//   - [Connect]: a server that is not up yet is awaited. A server that refuses the
//     credentials ends the connection; [Conn.Err] has the reason.
//   - A server older than 2.11 is refused before anything is sent to it, at the start and at
//     every reconnect. It would accept the headers that appbridge needs and ignore them.
//   - Each reason for a failed try is logged once, then one reminder a minute.
//   - Close and Cut return in bounded time with a server that hangs: the dialer cuts the TCP
//     connection that the client holds its lock for.
//   - No password or token of a URL is logged or returned.
package natsconn
