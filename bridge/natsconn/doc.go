// Package natsconn makes every connection of appbridge to NATS, with one policy:
//
//   - [Options]: reconnect for ever, with jitter, and buffer no message while disconnected. A
//     publish that timed out must not be sent later.
//   - [Connect]: a server that is not up yet is awaited. A server that refuses the
//     credentials at the start ends the connection; [Conn.Err] has the reason. Once a server has
//     accepted the client, a refusal is tried again for ten minutes: credentials may be replaced at
//     any time.
//   - The files of credentials, keys and certificates are read for each connection. A missing or
//     half-written file fails that try by name.
//   - A server older than 2.11 is refused before anything is sent to it, at the start and at
//     every reconnect. It would accept the headers that appbridge needs and ignore them.
//   - A right to subscribe that the server takes away and gives back is tried every two seconds (that
//     of an inbox; every minute any other), and a new connection is made once it is back: the client
//     does not subscribe again by itself (rights.go).
//   - A connection that the client closes for good over an error of the server is [ErrClosed]. The
//     caller makes another one.
//   - Each reason for a failed try is logged once, then one reminder a minute.
//   - Close and Cut return in bounded time with a server that hangs: the dialer cuts the TCP
//     connection that the client holds its lock for.
//   - No password or token of a URL is logged or returned.
package natsconn
