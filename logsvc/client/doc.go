// Package client reads the logs of apps from the log service.
//
// A stream is read as fast as its reader takes it: the service sends a window of messages ahead,
// and each is acknowledged when the handler has returned. Messages that are lost, as when the
// connection breaks, are sent again. The handler gets every message once and in order.
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
// that the handler got, without repeats or holes. The service finds the place, by the position that
// comes with each message.
//
// Tail returns when the stream has ended, with an error when it ended early:
// an *Error comes from the service, ErrNoService, ErrNoAnswer, ErrGone and ErrGap from the client.
// It needs a connection and no JetStream.
package client
