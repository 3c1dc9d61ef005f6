{{/*
Names and labels. Names of namespaced objects do not contain the release's, because a Kubernetes cluster has one operator.
*/}}

{{- define "operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.fullname" -}}
{{- $name := include "operator.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "operator.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "operator.webhookName" -}}
{{- include "operator.name" . }}-webhook
{{- end -}}

{{- define "operator.serviceAccountName" -}}
{{- $account := .Values.operator.serviceAccount -}}
{{- $account.name | default (ternary (include "operator.fullname" .) "default" $account.create) -}}
{{- end -}}

{{- define "operator.webhookServiceAccountName" -}}
{{- $account := .Values.webhook.serviceAccount -}}
{{- $account.name | default (ternary (include "operator.webhookName" .) "default" $account.create) -}}
{{- end -}}

{{/* The namespaces whose objects the webhook checks, as a JSON list. Default: those of the operator. */}}
{{- define "operator.webhookNamespaces" -}}
{{- include "operator.namespaces" (.Values.webhook.namespaces | default .Values.operator.namespaces) -}}
{{- end -}}

{{/* (list root name) */}}
{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ last . | quote }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
{{- end -}}

{{/* (list root name) */}}
{{- define "operator.labels" -}}
{{- $root := first . -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/part-of: slurm-operator
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end -}}

{{/* Values of upstream's chart that differ from its defaults and have no effect here, as a JSON list. */}}
{{- define "operator.idleValues" -}}
{{- $idle := list -}}
{{- range $name, $default := dict "accountingWorkers" 4 "controllerWorkers" 4 "loginsetWorkers" 4 "nodesetWorkers" 4 "restapiWorkers" 4 "tokenWorkers" 4 "slurmclientWorkers" 2 "profile" false "profileAddr" "localhost:6060" -}}
  {{- if ne (get $.Values.operator $name | toString) (toString $default) -}}
    {{- $idle = append $idle (printf "operator.%s" $name) -}}
  {{- end -}}
{{- end -}}
{{- toJson $idle -}}
{{- end -}}

{{/* The namespaces of a comma-separated list, as a JSON list. */}}
{{- define "operator.namespaces" -}}
{{- $namespaces := list -}}
{{- range splitList "," (. | default "") -}}
  {{- with trim . }}{{ $namespaces = append $namespaces . }}{{ end -}}
{{- end -}}
{{- toJson ($namespaces | uniq) -}}
{{- end -}}
