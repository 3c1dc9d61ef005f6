{{/*
What Helm needs to know about the live objects: to keep the number of replicas that others set and the name of an adopted NodeSet, and
to remove fields in a way that the API server accepts. All of it depends on how Helm applies objects, so the operator cannot do it.
*/}}

{{/*
The live object as JSON; {} without a cluster (`helm template`), without the CRD or without the object.
(list root "NodeSet" name)
*/}}
{{- define "slurm.live" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- if $root.Capabilities.APIVersions.Has (printf "slinky.slurm.net/v1beta1/%s" $kind) -}}
{{- lookup "slinky.slurm.net/v1beta1" $kind (include "slurm.namespace" $root) (index . 2) | default dict | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/*
The name of a NodeSet: the entry's `fullnameOverride`; else the key, if a NodeSet of that name has the annotations of this release
because Helm is to adopt it; else `<fullname>-worker-<key>`.
(list root key entry)
*/}}
{{- define "slurm.nodesetName" -}}
{{- $root := index . 0 -}}
{{- $key := index . 1 -}}
{{- $entry := index . 2 -}}
{{- $annotations := include "slurm.live" (list $root "NodeSet" $key) | fromJson | dig "metadata" "annotations" dict -}}
{{- if $entry.fullnameOverride -}}
{{- $entry.fullnameOverride -}}
{{- else if and (eq (get $annotations "meta.helm.sh/release-name") $root.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $root.Release.Namespace) -}}
{{- $key -}}
{{- else -}}
{{- printf "%s-worker-%s" (include "slurm.fullname" $root) $key -}}
{{- end -}}
{{- end -}}

{{/*
The number of replicas to render, or nothing. The live number is kept until the number in the values differs from the one in the last
release, which an annotation records: after `kubectl scale`, another manager owns spec.replicas, and the API server would reject a
server-side apply of a different number. Without a number in the values the field is left out, unless Helm itself still owns it:
leaving it out would then reset it to the CRD's default of 1.
(list asked live)
*/}}
{{- define "slurm.replicas" -}}
{{- $asked := first . -}}
{{- $live := last . -}}
{{- $running := dig "spec" "replicas" nil $live -}}
{{- $before := dig "metadata" "annotations" "slinky.slurm.net/chart-replicas" "" $live -}}
{{- if kindIs "invalid" $running -}}
  {{- if not (kindIs "invalid" $asked) }}{{ int64 $asked }}{{ end -}}
{{- else if kindIs "invalid" $asked -}}
  {{- $letGo := false -}}
  {{- range dig "metadata" "managedFields" list $live -}}
    {{- $spec := dig "fieldsV1" "f:spec" dict . -}}
    {{- if and (eq .operation "Apply") (hasKey $spec "f:controllerRef") (not (hasKey $spec "f:replicas")) -}}
      {{- $letGo = true -}}
    {{- end -}}
  {{- end -}}
  {{- if not $letGo }}{{ int64 $running }}{{ end -}}
{{- else if or (empty $before) (eq $before (include "slurm.askedReplicas" $asked)) -}}
  {{- int64 $running -}}
{{- else -}}
  {{- int64 $asked -}}
{{- end -}}
{{- end -}}

{{/* The number in the values, as the annotation `slinky.slurm.net/chart-replicas` records it. */}}
{{- define "slurm.askedReplicas" -}}
{{- if kindIs "invalid" . }}none{{ else }}{{ int64 . }}{{ end -}}
{{- end -}}

{{/*
A part of a spec as JSON, without the maps that are empty now and were not when Helm last applied them. A server-side apply of an empty
map removes the fields that the map had, and the API server rejects the null that remains. If the map is left out, the API server
removes all of it, and the next upgrade writes the empty map again.
(list root "NodeSet" name "updateStrategy" value)
*/}}
{{- define "slurm.withoutEmptied" -}}
{{- $live := include "slurm.live" . | fromJson -}}
{{- $field := printf "f:%s" (index . 3) -}}
{{- $value := index . 4 | default dict | deepCopy -}}
{{- range dig "metadata" "managedFields" list $live -}}
  {{- if eq .operation "Apply" -}}
    {{- include "slurm.dropEmptied" (list $value (dig "fieldsV1" "f:spec" $field dict .)) -}}
  {{- end -}}
{{- end -}}
{{- toJson $value -}}
{{- end -}}

{{/* Changes the map, prints nothing. (list map fieldsV1) */}}
{{- define "slurm.dropEmptied" -}}
{{- $map := first . -}}
{{- $fields := last . -}}
{{- range $key, $value := $map -}}
  {{- $applied := omit (get $fields (printf "f:%s" $key) | default dict) "." -}}
  {{- if and $applied (kindIs "map" $value) -}}
    {{- include "slurm.dropEmptied" (list $value $applied) -}}
    {{- if not $value }}{{ $_ := unset $map $key }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
