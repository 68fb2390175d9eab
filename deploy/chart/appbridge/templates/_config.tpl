{{- define "appbridge.secretsFolder" -}}
/etc/appbridge/secrets
{{- end -}}

{{/* The NATS servers, as a list in JSON. */}}
{{- define "appbridge.natsURLs" -}}
{{- $urls := index .Values.config "nats-url" -}}
{{- if index .Values.config "nats-embedded" -}}
{{- $urls = list -}}
{{- else if not $urls -}}
{{- $urls = list "nats://nats.nats.svc:4222" -}}
{{- end -}}
{{- toJson $urls -}}
{{- end -}}

{{/* The configuration file: config without what is not set. */}}
{{- define "appbridge.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "nats-url" (include "appbridge.natsURLs" . | fromJsonArray) -}}
{{- range $key := keys $config | sortAlpha -}}
{{- $value := index $config $key -}}
{{- if not (or (eq (toJson $value) "\"\"") (eq (toJson $value) "[]")) }}
{{ dict $key $value | toYaml }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The port of an address host:port. */}}
{{- define "appbridge.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* A duration in whole seconds, rounded up. */}}
{{- define "appbridge.seconds" -}}
{{- $unit := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range $part := regexFindAll "[0-9.]+[a-zµ]+" . -1 -}}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" $part | float64) (index $unit (regexFind "[a-zµ]+$" $part))) -}}
{{- end -}}
{{- ceil $sum | int64 -}}
{{- end -}}

{{/* A pod ends by itself three seconds after flush-timeout at the latest. */}}
{{- define "appbridge.gracePeriod" -}}
{{- add (include "appbridge.seconds" (index .Values.config "flush-timeout") | int64) 15 -}}
{{- end -}}

{{/* Nine tenths of the memory limit, in bytes. */}}
{{- define "appbridge.goMemoryLimit" -}}
{{- $bytes := dict "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $limit := .Values.resources.limits.memory -}}
{{- $whole := mul (regexFind "^[0-9]+" $limit | int64) (index $bytes (regexFind "[kMGTi]+$" $limit)) -}}
{{- div (mul $whole 9) 10 -}}
{{- end -}}
