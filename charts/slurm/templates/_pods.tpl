{{/*
Containers and pod templates.
*/}}

{{/*
An image reference: a string, or a map with repository and digest or tag.
(list image "controller.slurmctld")
*/}}
{{- define "slurm.image" -}}
{{- $image := first . -}}
{{- $path := last . -}}
{{- if kindIs "map" $image -}}
  {{- if not $image.repository -}}
    {{- fail (printf "%s.image.repository is missing: set it, or write the image as \"repository:tag\"" $path) -}}
  {{- end -}}
  {{- if $image.digest -}}
    {{- include "slurm.imageReference" (list (printf "%s@%s" $image.repository $image.digest) $path) -}}
  {{- else if $image.tag -}}
    {{- include "slurm.imageReference" (list (printf "%s:%s" $image.repository (toString $image.tag)) $path) -}}
  {{- else -}}
    {{- fail (printf "%s.image needs a tag or a digest: set %s.image.tag" $path $path) -}}
  {{- end -}}
{{- else if $image -}}
  {{- include "slurm.imageReference" (list $image $path) -}}
{{- else -}}
  {{- fail (printf "%s.image is missing: write \"repository:tag\", or a map with repository and tag or digest" $path) -}}
{{- end -}}
{{- end -}}

{{/*
Prints the reference if a container runtime can parse it, and fails with what to write otherwise: a pod would only say InvalidImageName.
(list reference "controller.slurmctld")
*/}}
{{- define "slurm.imageReference" -}}
{{- $name := "[a-z0-9]+((\\.|__?|-+)[a-z0-9]+)*" -}}
{{- $registry := "([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:]+\\])(:[0-9]+)?" -}}
{{- $end := "(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha(256:[0-9a-f]{64}|512:[0-9a-f]{128}))?" -}}
{{- if not (regexMatch (printf "^(%s/)?%s(/%s)*%s$" $registry $name $name $end) (first .)) -}}
  {{- $forms := "\"repository:tag\" or \"repository@sha256:<64 hexadecimal digits>\", or a map with repository and tag or digest" -}}
  {{- fail (printf "%s.image: %q is not an image reference. Write %s, in which the repository has neither" (last .) (first .) $forms) -}}
{{- end -}}
{{- first . -}}
{{- end -}}

{{/*
A container of a component for the operator's objects: any field of a Kubernetes container, with the image as a string. The operator's
defaults apply to a container that is null, and to the image of a container that needs only a shell.
(list root component "controller" "slurmctld")
*/}}
{{- define "slurm.container" -}}
{{- $root := index . 0 -}}
{{- $name := index . 3 -}}
{{- with get (index . 1) $name -}}
  {{- $container := deepCopy . -}}
  {{- if or $container.image (not (has $name (list "logfile" "initconf"))) -}}
  {{- $_ := set $container "image" (include "slurm.image" (list $container.image (printf "%s.%s" (index $ 2) $name))) -}}
  {{- else -}}
  {{- $_ := unset $container "image" -}}
  {{- end -}}
  {{- if not $container.imagePullPolicy -}}
    {{- $_ := set $container "imagePullPolicy" $root.Values.imagePullPolicy -}}
  {{- end -}}
{{ $name }}:
  {{- toYaml $container | nindent 2 }}
{{- end -}}
{{- end -}}

{{/*
A pod template, with the values that all pods share where the component sets none.
(list root component), where component is a map with `metadata` and `podSpec`
*/}}
{{- define "slurm.podTemplate" -}}
{{- $root := first . -}}
{{- $component := last . -}}
{{- $spec := deepCopy ($component.podSpec | default dict) -}}
{{- $secrets := concat ($spec.imagePullSecrets | default list) ($root.Values.imagePullSecrets | default list) -}}
{{- $_ := set $spec "imagePullSecrets" ($secrets | default nil) -}}
{{- if not $spec.priorityClassName -}}
  {{- $_ := set $spec "priorityClassName" (include "slurm.priorityClassName" $root) -}}
{{- end -}}
metadata:
  {{- include "slurm.metadata" (list $root $component.metadata) | nindent 2 }}
spec:
  {{- toYaml $spec | nindent 2 }}
{{- end -}}

{{/* Chart 1.0 had `priorityClassName`. */}}
{{- define "slurm.priorityClassName" -}}
{{- if .Values.priorityClass.enabled -}}
{{- .Values.priorityClass.name | default "slurm-priority-critical" -}}
{{- else -}}
{{- .Values.priorityClassName | default "" -}}
{{- end -}}
{{- end -}}

{{/*
Address of a daemon outside Kubernetes.
(list externalConfig 6817)
*/}}
{{- define "slurm.externalConfig" -}}
{{- $config := first . | default dict -}}
host: {{ required "externalConfig.host is missing: set it to the host of the external daemon" $config.host | quote }}
port: {{ $config.port | default (last .) | int }}
{{- end -}}
