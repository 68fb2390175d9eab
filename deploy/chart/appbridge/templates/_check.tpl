{{/* What the schema cannot say: values that contradict each other. */}}
{{- define "appbridge.check" -}}
{{- $config := .Values.config -}}
{{- if and (has "*" $config.namespaces) (gt (len $config.namespaces) 1) -}}
{{- fail (printf "config.namespaces: %s: want names of namespaces, or \"*\" alone for all" (toJson $config.namespaces)) -}}
{{- end -}}
{{- if has .Release.Namespace $config.namespaces -}}
{{- fail (printf "config.namespaces: %q is the namespace of this release: apps there could run as the service account of appbridge; want another namespace for the release" .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.rbac.createNamespaces (not (and (has "*" $config.namespaces) (index $config "enable-writes"))) -}}
{{- fail "rbac.createNamespaces: true: want config.enable-writes true and config.namespaces [\"*\"]: a Role of a missing namespace grants nothing" -}}
{{- end -}}
{{- end -}}
