{{/*
The rules of each role, and why each is needed. A watched namespace has a Role of each of them;
with config.namespaces ["*"] they are ClusterRoles.
*/}}

{{/* Events, the bucket, and the app operations that change nothing. */}}
{{- define "appbridge.rules.events" -}}
# The apps, and how many replicas they have.
- apiGroups: [serving.knative.dev]
  resources: [services, revisions]
  verbs: [list, watch]
# The replicas themselves, for the operation `replicas` and for config.pod-conditions.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- if not (has "*" .Values.config.namespaces) }}
# Whether the namespace itself exists: one that does not looks like one without apps.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* Logs, as docs/logs.md explains. Without these, logs alone are not served. */}}
{{- define "appbridge.rules.logs" -}}
# Which app a Knative Service is.
- apiGroups: [serving.knative.dev]
  resources: [services]
  verbs: [get, list]
# Its replicas. Without watch, new ones and restarts are noticed up to 10 s late.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
{{- end -}}

{{/* deploy, stop, delete and delete-replica. They need none of the rules for logs. */}}
{{- define "appbridge.rules.writes" -}}
# Every write first reads which app the Knative Service is (get). deploy creates or updates it,
# stop patches it, delete deletes it.
- apiGroups: [serving.knative.dev]
  resources: [services]
  verbs: [get, create, update, patch, delete]
# stop deletes the Revision, which ends its pods at once, after it has read which app the Revision
# belongs to.
- apiGroups: [serving.knative.dev]
  resources: [revisions]
  verbs: [get, delete]
# delete-replica reads which app the pod belongs to before it deletes it.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, delete]
{{- end -}}

{{/* The Lease of leader election, in its namespace. */}}
{{- define "appbridge.rules.leader-election" -}}
# create cannot be limited to a name: the API server does not know it yet.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ index .Values.config "lease-name" | quote }}]
  verbs: [get, update]
{{- end -}}

{{/* The uid of the namespace kube-system identifies the cluster in the stream. */}}
{{- define "appbridge.rules.identity" -}}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
{{- end -}}

{{/* deploy creates the namespace of an app that is deployed for the first time. */}}
{{- define "appbridge.rules.namespaces" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [create]
{{- end -}}

{{/*
A role and its binding to the service account.
  root: the chart's context; name: of the rules; namespace: of the Role, empty for a ClusterRole
*/}}
{{- define "appbridge.role" -}}
{{- $prefix := empty .namespace | ternary "Cluster" "" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $prefix }}Role
metadata:
  name: {{ include "appbridge.fullname" .root }}-{{ .name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "appbridge.labels" .root | nindent 4 }}
rules:
{{ include (printf "appbridge.rules.%s" .name) .root }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $prefix }}RoleBinding
metadata:
  name: {{ include "appbridge.fullname" .root }}-{{ .name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "appbridge.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $prefix }}Role
  name: {{ include "appbridge.fullname" .root }}-{{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ include "appbridge.serviceAccountName" .root }}
  namespace: {{ .root.Release.Namespace }}
{{- end -}}
