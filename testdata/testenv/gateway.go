package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// What etcd's JSON gateway speaks: protobuf's JSON, in which 64-bit integers
// are strings and bytes are base64.
type (
	etcdHeader struct {
		Revision int64 `json:"revision,string"`
	}
	etcdValue struct {
		Key         []byte `json:"key"`
		Value       []byte `json:"value"`
		ModRevision int64  `json:"mod_revision,string"`
	}
	etcdRange struct {
		Header etcdHeader  `json:"header"`
		Kvs    []etcdValue `json:"kvs"`
	}
	etcdWatch struct {
		Result struct {
			Canceled        bool   `json:"canceled"`
			CancelReason    string `json:"cancel_reason"`
			CompactRevision int64  `json:"compact_revision,string"`
			Events          []struct {
				Type string    `json:"type"` // left out: PUT
				Kv   etcdValue `json:"kv"`
			} `json:"events"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
)

// etcd calls a method of etcd's gateway, past the API server.
func (c *Cluster) etcd(ctx context.Context, path string, request, response any) error {
	if err := callJSON(ctx, http.MethodPost, c.etcdURL(path), request, response); err != nil {
		return fmt.Errorf("etcd %s: %w", path, err)
	}
	return nil
}

func (c *Cluster) etcdURL(path string) string {
	return c.env.ControlPlane.Etcd.URL.JoinPath(path).String()
}

// callJSON sends a request, with a body unless that is nil, and decodes the answer.
func callJSON(ctx context.Context, method, url string, body, into any) error {
	resp, err := openJSON(ctx, method, url, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// openJSON sends a request and leaves the answer, a good one, to be read.
func openJSON(ctx context.Context, method, url string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return nil, err
	}
	req.Close = true // no idle connection stays behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
}
