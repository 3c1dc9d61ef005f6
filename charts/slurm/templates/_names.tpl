{{/*
Names and labels. Scripts of users and other charts depend on them, so they do not change.
*/}}

{{- define "slurm.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "slurm.fullname" -}}
{{- $name := include "slurm.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "slurm.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "slurm.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/part-of: slurm
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/*
Labels and annotations of an object and its pods: the chart's, overridden by the user's.
(list root metadata)
*/}}
{{- define "slurm.metadata" -}}
{{- $root := first . -}}
{{- $metadata := last . | default dict -}}
{{- $labels := include "slurm.labels" $root | fromYaml -}}
{{- include "slurm.merge" (list $labels ($metadata.labels | default dict)) -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $metadata.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
The Secret entries with the key that all daemons share and the key that signs tokens. Chart 1.0 had `slurmKeyRef` and
`jwtHs256KeyRef` for them.
*/}}
{{- define "slurm.slurmKeyRef" -}}
{{- $ref := .Values.slurmKeyRef | default .Values.slurmKey.secretRef | default dict -}}
name: {{ $ref.name | default (printf "%s-auth-slurm" (include "slurm.fullname" .)) | quote }}
key: {{ $ref.key | default "slurm.key" | quote }}
{{- end -}}

{{- define "slurm.jwtKeyRef" -}}
{{- $ref := .Values.jwtHs256KeyRef | default .Values.jwtKey.secretRef | default dict -}}
name: {{ $ref.name | default (printf "%s-auth-jwt" (include "slurm.fullname" .)) | quote }}
key: {{ $ref.key | default (ternary "jwt_hs256.key" "jwt.key" (not (empty .Values.jwtHs256KeyRef))) | quote }}
{{- end -}}

{{- define "slurm.jwksKeyRef" -}}
{{- $ref := .Values.jwksKeys.configMapRef | default dict -}}
name: {{ $ref.name | default (printf "%s-auth-jwks" (include "slurm.fullname" .)) | quote }}
key: {{ $ref.key | default "jwks.json" | quote }}
{{- end -}}

{{- define "slurm.sssdConfRef" -}}
{{- $ref := .Values.sssd.secretRef | default dict -}}
name: {{ $ref.name | default (printf "%s-sssd-conf" (include "slurm.fullname" .)) | quote }}
key: {{ $ref.key | default "sssd.conf" | quote }}
{{- end -}}

{{/*
Whether the cluster has a slurmdbd: `external` implies `enabled`.
*/}}
{{- define "slurm.hasAccounting" -}}
{{- if or .Values.accounting.enabled .Values.accounting.external }}true{{ end -}}
{{- end -}}
