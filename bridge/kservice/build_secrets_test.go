package kservice_test

import (
	"encoding/base32"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestBuildSecrets(t *testing.T) {
	var every strings.Builder
	for b := range 0x100 {
		every.WriteRune(rune(b))
	}
	tests := []struct {
		name   string
		secret *appv1.Secret
		want   string
	}{
		{"key", &appv1.Secret{Key: "a"}, "key: \"a\"\n"},
		{"empty", &appv1.Secret{}, ""},
		{
			"every field",
			&appv1.Secret{Group: "g", GroupVersion: "v", Key: "k", MountRequirement: appv1.Secret_FILE, EnvVar: "E"},
			"group: \"g\"\ngroup_version: \"v\"\nkey: \"k\"\nmount_requirement: FILE\nenv_var: \"E\"\n",
		},
		{"quotes", &appv1.Secret{Key: "a\"b'c\\d\n\r\t"}, "key: \"a\\\"b'c\\\\d\\n\\r\\t\"\n"},
		{"other bytes", &appv1.Secret{Key: "\x00\x7fé"}, "key: \"\\000\\177\\303\\251\"\n"},
		{"every byte", &appv1.Secret{Key: every.String(), EnvVar: "\x017"}, ""},
	}
	encoding := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz123456").WithPadding(base32.NoPadding)
	id, app := deployedApp(t, `{"container": {}}`)
	app.Spec.SecurityContext = &appv1.SecurityContext{}
	for _, tt := range tests {
		app.Spec.SecurityContext.Secrets = append(app.Spec.SecurityContext.Secrets, tt.secret)
	}
	cfg := deployDefaults()
	cfg.Policy = allowing(t, nil, "secret/g")
	m, err := build(id, app, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(m.Spec.Template.Annotations), len(tests); got != want {
		t.Errorf("got %d annotations, want %d", got, want)
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text, err := encoding.DecodeString(m.Spec.Template.Annotations["flyte.secrets/s"+strconv.Itoa(i)])
			if err != nil {
				t.Fatal(err)
			}
			if tt.want != "" && string(text) != tt.want {
				t.Errorf("got %q, want %q", text, tt.want)
			}
			var back appv1.Secret
			if err := prototext.Unmarshal(text, &back); err != nil {
				t.Fatalf("read %q: %v", text, err)
			}
			if !proto.Equal(&back, tt.secret) {
				t.Errorf("read back: got %v, want %v", &back, tt.secret)
			}
		})
	}
}
