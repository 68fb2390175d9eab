{{/* What the schema cannot say: values that contradict each other. */}}
{{- define "appbridge.check" -}}
{{- $config := .Values.config -}}
{{- $embedded := index $config "nats-embedded" -}}
{{- if and (has "*" $config.namespaces) (gt (len $config.namespaces) 1) -}}
{{- fail (printf "config.namespaces: %s: want names of namespaces, or \"*\" alone for all" (toJson $config.namespaces)) -}}
{{- end -}}
{{- if has .Release.Namespace $config.namespaces -}}
{{- fail (printf "config.namespaces: %q is the namespace of this release: apps there could run as the service account of appbridge; want another namespace for the release" .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.rbac.createNamespaces (not (and (has "*" $config.namespaces) (index $config "enable-writes"))) -}}
{{- fail "rbac.createNamespaces: true: want config.enable-writes true and config.namespaces [\"*\"]: a Role of a missing namespace grants nothing" -}}
{{- end -}}
{{- if and $embedded (gt (int .Values.replicas) 1) -}}
{{- fail (printf "replicas: %d contradicts config.nats-embedded: the embedded server is in one pod; want replicas 1" (int .Values.replicas)) -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (not (index $config "leader-elect")) -}}
{{- fail (printf "replicas: %d contradicts config.leader-elect false: one replica publishes; want leader-elect true or replicas 1" (int .Values.replicas)) -}}
{{- end -}}
{{- if and $embedded (index $config "nats-url") -}}
{{- fail (printf "config.nats-url: %s contradicts config.nats-embedded: the embedded server is the only one; leave one of the two out" (index $config "nats-url" | toJson)) -}}
{{- end -}}
{{- range $key, $value := $config -}}
{{- $name := "" -}}
{{- if kindIs "string" $value -}}
{{- $name = regexFind (printf "^%s/[^/]+" (include "appbridge.secretsFolder" $)) $value | base -}}
{{- end -}}
{{- if and $name (ne $name ".") (not (has $name $.Values.secrets)) -}}
{{- fail (printf "config.%s: %q: secrets does not name %q, so the file is not in the pod" $key $value $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
