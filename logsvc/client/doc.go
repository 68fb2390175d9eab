// Package client reads the logs of apps from the log service.
//
// A stream is read as fast as its reader takes it: the service sends a window
// of messages ahead, and each is acknowledged when the handler has returned.
// What is lost on the way, as when the connection breaks, is sent again; the
// handler gets every message once and in order.
//
//	app := subjects.AppID{Project: "shop", Domain: "production", Name: "search"}
//	request := client.Request{App: app, Follow: new(true)}
//	end, err := client.Tail(ctx, nc, request, func(m *client.Message) error {
//		if m.Kind != client.Lines {
//			return nil
//		}
//		_, err := os.Stdout.Write(m.Body)
//		return err
//	})
//
// Follow does the same and goes on by itself when a stream breaks: after the last line
// that was handed on, without a repeat and without a hole.
//
// Tail returns when the stream has ended, with an error when it ended early:
// an *Error is what the service said, ErrNoService, ErrNoAnswer, ErrGone and
// ErrGap are what the client found. It needs a connection and no JetStream.
package client
