{{/*
Parts of the pods of operator and webhook.
*/}}

{{/*
An image reference: a string, or a map with repository and digest or tag. The tag defaults to the chart's version. Upstream's repository
is rejected, since it contains another program: `--reuse-values` keeps it when a release of upstream's chart is upgraded.
(list root image "operator")
*/}}
{{- define "operator.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $path := index . 2 -}}
{{- if contains "ghcr.io/slinkyproject/slurm-operator" (toJson $image) -}}
  {{- $remedy := printf "Set the repository of this operator's image: --set %s.image.repository=…" $path -}}
  {{- fail (printf "%s.image is the image of upstream's operator, which is another program; --reuse-values keeps it. %s" $path $remedy) -}}
{{- end -}}
{{- if kindIs "map" $image -}}
  {{- if not $image.repository -}}
    {{- fail (printf "%s.image.repository is missing: set it, or write the image as \"repository:tag\"" $path) -}}
  {{- end -}}
  {{- if $image.digest -}}
    {{- include "operator.imageReference" (list (printf "%s@%s" $image.repository $image.digest) $path) -}}
  {{- else -}}
    {{- $tag := toString ($image.tag | default $root.Chart.Version) -}}
    {{- include "operator.imageReference" (list (printf "%s:%s" $image.repository $tag) $path) -}}
  {{- end -}}
{{- else if $image -}}
  {{- include "operator.imageReference" (list $image $path) -}}
{{- else -}}
  {{- fail (printf "%s.image is missing: write \"repository:tag\", or a map with repository and tag or digest" $path) -}}
{{- end -}}
{{- end -}}

{{/*
Prints the reference if a container runtime can parse it, and fails with what to write otherwise: a pod would only say InvalidImageName.
(list reference "operator")
*/}}
{{- define "operator.imageReference" -}}
{{- $name := "[a-z0-9]+((\\.|__?|-+)[a-z0-9]+)*" -}}
{{- $registry := "([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:]+\\])(:[0-9]+)?" -}}
{{- $end := "(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha(256:[0-9a-f]{64}|512:[0-9a-f]{128}))?" -}}
{{- if not (regexMatch (printf "^(%s/)?%s(/%s)*%s$" $registry $name $name $end) (first .)) -}}
  {{- $forms := "\"repository:tag\" or \"repository@sha256:<64 hexadecimal digits>\", or a map with repository and tag or digest" -}}
  {{- fail (printf "%s.image: %q is not an image reference. Write %s, in which the repository has neither" (last .) (first .) $forms) -}}
{{- end -}}
{{- first . -}}
{{- end -}}

{{/* The operator's image contains the webhook. The image of upstream's webhook, from values of its chart, is ignored. */}}
{{- define "operator.webhookImage" -}}
{{- $image := .Values.webhook.image -}}
{{- if or (not $image) (and (kindIs "map" $image) (not $image.repository)) (contains "ghcr.io/slinkyproject/" (toJson $image)) -}}
  {{- include "operator.image" (list . .Values.operator.image "operator") -}}
{{- else -}}
  {{- include "operator.image" (list . $image "webhook") -}}
{{- end -}}
{{- end -}}

{{/*
Address of the metrics: ":<port>", or "0" for none.
(list component "operator")
*/}}
{{- define "operator.metricsAddress" -}}
{{- $component := first . -}}
{{- $port := $component.metricsPort | default 0 | int -}}
{{- if and $component.metricsSecure (not $port) -}}
  {{- fail (printf "%s.metricsSecure needs %s.metricsPort: with 0, no metrics are served" (last .) (last .)) -}}
{{- end -}}
{{- if $port }}:{{ $port }}{{ else }}0{{ end -}}
{{- end -}}

{{/*
Ports and probes of a container.
(list component "operator")
*/}}
{{- define "operator.healthAndMetrics" -}}
{{- $component := first . -}}
ports:
  - name: health
    containerPort: {{ int $component.healthPort }}
{{- with $component.metricsPort | default 0 | int }}
  - name: metrics
    containerPort: {{ . }}
{{- end }}
{{- with $component.serverPort }}
  - name: https
    containerPort: {{ int . }}
{{- end }}
livenessProbe:
  httpGet:
    path: /healthz
    port: health
  initialDelaySeconds: 5
  periodSeconds: 20
readinessProbe:
  httpGet:
    path: /readyz
    port: health
  periodSeconds: 5
{{- end -}}

{{/*
Scheduling of pods.
(list root component)
*/}}
{{- define "operator.scheduling" -}}
{{- $root := first . -}}
{{- $component := last . -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ quote . }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" }}
{{- with get $component $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- $own := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- include "operator.securityContext" (list $own $component.podSecurityContext) }}
{{- end -}}

{{/*
The security context of a container.
*/}}
{{- define "operator.containerSecurityContext" -}}
{{- $own := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- include "operator.securityContext" (list $own .securityContext) }}
{{- end -}}

{{/*
A security context: the chart's own, overridden by the values; none if the value is null. Values of upstream's chart are empty maps.
(list own values)
*/}}
{{- define "operator.securityContext" -}}
{{- if kindIs "map" (index . 1) }}
securityContext:
  {{- mergeOverwrite (index . 0) (index . 1) | toYaml | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
A PodDisruptionBudget, if there is more than one replica.
(list root component name)
*/}}
{{- define "operator.pdb" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $name := index . 2 -}}
{{- if and $component.enabled $component.pdb.enabled (gt (int $component.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name | quote }}
  namespace: {{ include "operator.namespace" $root | quote }}
  labels:
    {{- include "operator.labels" (list $root $name) | nindent 4 }}
spec:
  {{- if kindIs "invalid" $component.pdb.maxUnavailable }}
  minAvailable: {{ kindIs "invalid" $component.pdb.minAvailable | ternary 1 $component.pdb.minAvailable }}
  {{- else }}
  maxUnavailable: {{ $component.pdb.maxUnavailable }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "operator.selector" (list $root $name) | nindent 6 }}
{{- end }}
{{- end -}}

{{/*
Annotations of an object that exists only while the chart is uninstalled. It is deleted on success, and kept for inspection after a
failure until the next attempt. The argument is the hook's weight.
*/}}
{{- define "operator.releaseHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
