{{/*
Names are fixed, not made from the release's: the agents' certificate, the Lease and what people type rely on them, and
one namespace holds one Fathom. Objects of the whole cluster carry the namespace in their name.
*/}}
{{- define "fathom.clusterName" -}}
{{ .name }}-{{ .root.Release.Namespace }}
{{- end }}

{{- define "fathom.selector" -}}
app.kubernetes.io/name: fathom
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "fathom.labels" -}}
{{ include "fathom.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Of pods: nothing that changes without a reason to replace them. */}}
{{- define "fathom.podLabels" -}}
{{ include "fathom.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "fathom.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* The rule for those who may scrape; nothing given means nobody, so no rule. */}}
{{- define "fathom.scrapers" -}}
{{- with .Values.networkPolicy.scrapeFrom }}
{{- if or .namespaceLabels .podLabels }}
- ports: [{port: http, protocol: TCP}]
  from:
    - namespaceSelector:
        matchLabels: {{ toJson .namespaceLabels }}
      {{- with .podLabels }}
      podSelector:
        matchLabels: {{ toJson . }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
