package kservice

import (
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Labels and annotations by which Flyte's webhook mounts secrets into a pod.
const (
	labelSecretOrg     = "organization"
	labelSecretProject = "project"
	labelSecretDomain  = "domain"
	labelSecrets       = "inject-flyte-secrets"
	annotationSecret   = "flyte.secrets/s" // and its number

	// secretAlphabet is that of base32 in Flyte's annotations.
	secretAlphabet = "abcdefghijklmnopqrstuvwxyz123456"
)

func (t *Template) addSecrets(id subjects.AppID, secrets []*appv1.Secret, fence *fenced, found *Problems) {
	if len(secrets) == 0 {
		return
	}
	t.Labels = map[string]string{
		labelSecretOrg:     defaultOrg,
		labelSecretProject: id.Project,
		labelSecretDomain:  id.Domain,
		labelSecrets:       labelTrue,
	}
	encoding := base32.NewEncoding(secretAlphabet).WithPadding(base32.NoPadding)
	for i, secret := range secrets {
		if mount := secret.GetMountRequirement(); appv1.Secret_MountType_name[int32(mount)] == "" {
			found.AddValue(fmt.Sprintf("app.spec.securityContext.secrets[%d].mountRequirement", i),
				strconv.Itoa(int(mount)), "ANY, ENV_VAR or FILE")
			continue
		}
		// Without a group the key is one of the project and the domain.
		if secret.GetGroup() != "" {
			fence.group(fmt.Sprintf("app.spec.securityContext.secrets[%d]", i), secret)
		}
		t.annotate(annotationSecret+strconv.Itoa(i), encoding.EncodeToString([]byte(secretText(secret))))
	}
}

// secretText is a secret in protobuf's text form. Written here because the protobuf library varies
// the spaces in it on purpose, and a template that differs is a new Revision.
func secretText(secret *appv1.Secret) string {
	var out strings.Builder
	line := func(name, value string) {
		out.WriteString(name + ": " + value + "\n")
	}
	text := func(name, value string) {
		if value != "" {
			line(name, textString(value))
		}
	}
	text("group", secret.GetGroup())
	text("group_version", secret.GetGroupVersion())
	text("key", secret.GetKey())
	if mount := secret.GetMountRequirement(); mount != appv1.Secret_ANY {
		line("mount_requirement", mount.String())
	}
	text("env_var", secret.GetEnvVar())
	return out.String()
}

// textString is a string in protobuf's text form, in ASCII.
func textString(s string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, b := range []byte(s) {
		switch {
		case b == '\n':
			out.WriteString(`\n`)
		case b == '\r':
			out.WriteString(`\r`)
		case b == '\t':
			out.WriteString(`\t`)
		case b == '"' || b == '\\':
			out.WriteByte('\\')
			out.WriteByte(b)
		case b < ' ' || b > '~':
			fmt.Fprintf(&out, `\%03o`, b)
		default:
			out.WriteByte(b)
		}
	}
	out.WriteByte('"')
	return out.String()
}
