package kservice

import (
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// secretAlphabet is that of base32 in Flyte's annotations.
const secretAlphabet = "abcdefghijklmnopqrstuvwxyz123456"

// addSecrets adds the labels and annotations by which Flyte's webhook mounts secrets into a pod.
func addSecrets(template *servingv1.RevisionTemplateSpec, id subjects.AppID, secrets []*appv1.Secret, policy *policyCheck, found *Problems) {
	if len(secrets) == 0 {
		return
	}
	template.Labels = map[string]string{
		"organization":         defaultOrg,
		"project":              id.Project,
		"domain":               id.Domain,
		"inject-flyte-secrets": labelTrue,
	}
	encoding := base32.NewEncoding(secretAlphabet).WithPadding(base32.NoPadding)
	for i, secret := range secrets {
		field := fmt.Sprintf("app.spec.securityContext.secrets[%d]", i)
		if mount := secret.GetMountRequirement(); appv1.Secret_MountType_name[int32(mount)] == "" {
			found.AddValue(field+".mountRequirement", strconv.Itoa(int(mount)), "ANY, ENV_VAR or FILE")
			continue
		}
		// Without a group the key is one of the project and the domain.
		if secret.GetGroup() != "" {
			policy.group(field, secret)
		}
		annotate(template, "flyte.secrets/s"+strconv.Itoa(i), encoding.EncodeToString([]byte(secretText(secret))))
	}
}

// secretText is a secret in protobuf's text form. Written here because the protobuf library varies
// the spaces in it on purpose, and a template that differs is a new Revision.
func secretText(secret *appv1.Secret) string {
	mount := ""
	if m := secret.GetMountRequirement(); m != appv1.Secret_ANY {
		mount = m.String()
	}
	var out strings.Builder
	for _, field := range [][2]string{
		{"group", textString(secret.GetGroup())},
		{"group_version", textString(secret.GetGroupVersion())},
		{"key", textString(secret.GetKey())},
		{"mount_requirement", mount},
		{"env_var", textString(secret.GetEnvVar())},
	} {
		if name, value := field[0], field[1]; value != "" {
			out.WriteString(name + ": " + value + "\n")
		}
	}
	return out.String()
}

// textString is a string in protobuf's text form, in ASCII. The empty string stays empty.
func textString(s string) string {
	if s == "" {
		return ""
	}
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
