package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	clientauthentication "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd/api"
)

// plugin is the credential plugin of a bridge: a script that hangs while a file is there. Its
// credentials expire soon, so that client-go runs it again and again.
type plugin struct{ script, hung string }

const (
	pluginExpiry = 5 // of credentials, in seconds
	pluginToken  = "administrator"
)

// newPlugin writes the script.
func newPlugin(dir, bridge string) (*plugin, error) {
	p := &plugin{script: filepath.Join(dir, "credentials-"+bridge+".sh"), hung: filepath.Join(dir, "credentials-"+bridge+".hang")}
	text := fmt.Sprintf(`#!/bin/sh
while [ -e '%s' ]; do sleep 0.2; done
expires=$(date -u -d '+%d seconds' +%%Y-%%m-%%dT%%H:%%M:%%SZ)
printf '{"apiVersion":"%s","kind":"ExecCredential","status":{"token":"%s","expirationTimestamp":"%%s"}}\n' "$expires"
`, p.hung, pluginExpiry, clientauthentication.SchemeGroupVersion, pluginToken)
	return p, os.WriteFile(p.script, []byte(text), 0o700)
}

// user is the user of a kubeconfig that has the plugin's credentials.
func (p *plugin) user() *api.AuthInfo {
	return &api.AuthInfo{Exec: &api.ExecConfig{
		Command: p.script, APIVersion: clientauthentication.SchemeGroupVersion.String(), InteractiveMode: api.NeverExecInteractiveMode,
	}}
}

func (p *plugin) hang() error { return os.WriteFile(p.hung, nil, 0o600) }

func (p *plugin) release() error {
	if err := os.Remove(p.hung); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
