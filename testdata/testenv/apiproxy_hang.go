package testenv

import (
	"context"
	"io"
	"net/http"
)

// HangPoint is where a request hangs.
type HangPoint int

const (
	// HangNever lets a request pass.
	HangNever HangPoint = iota
	// HangRequest keeps a request from the API server.
	HangRequest
	// HangAnswer keeps the answer back: the API server has done what it was asked for.
	HangAnswer
	// HangBody keeps the body of the answer back, after its header.
	HangBody
)

// hanging is a call of Hang.
type hanging struct {
	at     func(*http.Request) HangPoint
	healed chan struct{} // closed by Heal
}

// Hang has requests hang where at returns, until Heal or the end of the request; those that hang at
// Heal go on. Watches pass without. It replaces an earlier call's function, which is called
// concurrently, but not what hangs by then.
func (p *APIProxy) Hang(at func(*http.Request) HangPoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	healed := make(chan struct{})
	if p.hang != nil {
		healed = p.hang.healed
	}
	p.hang = &hanging{at, healed}
}

// hung sends a request to the API server, as far as it does not hang.
func (p *APIProxy) hung(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	hang := p.hang
	p.mu.Unlock()
	if hang == nil || isWatchRequest(r) {
		return p.send(r)
	}
	point := hang.at(r)
	if point == HangRequest {
		if err := hang.wait(r.Context()); err != nil {
			return nil, err
		}
	}
	resp, err := p.send(r)
	switch {
	case err != nil:
	case point == HangAnswer:
		if err := hang.wait(r.Context()); err != nil {
			_ = resp.Body.Close() // nobody reads it
			return nil, err
		}
	case point == HangBody:
		resp.Body = &hungBody{resp.Body, r.Context().Done(), hang}
	}
	return resp, err
}

func (h *hanging) wait(ctx context.Context) error {
	select {
	case <-h.healed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hungBody is the body of an answer that hangs.
type hungBody struct {
	io.ReadCloser
	ended <-chan struct{} // closed with the request
	hang  *hanging
}

func (b *hungBody) Read(text []byte) (int, error) {
	select {
	case <-b.hang.healed:
		return b.ReadCloser.Read(text)
	case <-b.ended:
		return 0, io.ErrUnexpectedEOF
	}
}
