{{/*
Brings the values into one form: maps and lists, today's names and older ones, defaults and entries.
*/}}

{{/*
Writes one map over another: maps are merged, everything else is replaced, null takes the key away.
Sprig's mergeOverwrite lets neither null nor false win. Changes the first map, prints nothing.
(list base over)
*/}}
{{- define "slurm.merge" -}}
{{- $base := first . -}}
{{- range $key, $value := last . -}}
  {{- if kindIs "invalid" $value -}}
    {{- $_ := unset $base $key -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
    {{- include "slurm.merge" (list (get $base $key) $value) -}}
  {{- else -}}
    {{- $_ := set $base $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/*
The entries of one or more values, each a map by name or a list of items with `name`. Prints one JSON map by name.
(dict "values" .Values "keys" (list "nodesets" "nodeSets"))
*/}}
{{- define "slurm.entries" -}}
{{- $entries := dict -}}
{{- range $source := .keys -}}
  {{- $given := get $.values $source | default dict -}}
  {{- $named := $given -}}
  {{- if kindIs "slice" $given -}}
    {{- $named = dict -}}
    {{- range $given -}}
      {{- if hasKey $named .name -}}
        {{- fail (printf "%s: the list has two items of the name %q" $source .name) -}}
      {{- end -}}
      {{- $_ := set $named .name (omit . "name") -}}
    {{- end -}}
  {{- end -}}
  {{- range $name, $entry := $named -}}
    {{- if hasKey $entries $name -}}
      {{- fail (printf "%q is given both in %s" $name (join " and in " $.keys)) -}}
    {{- end -}}
    {{- if not (kindIs "invalid" $entry) -}}
      {{- $_ := set $entries $name $entry -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toJson $entries -}}
{{- end -}}

{{/*
An entry whose `image`, `resources` and `securityContext` stand beside the container they are meant for, instead of in it. Charts before
1.0 had them there, and examples in guides still do.
(list entry "slurmd")
*/}}
{{- define "slurm.fold" -}}
{{- $entry := first . | default dict -}}
{{- $container := last . -}}
{{- $beside := pick $entry "image" "resources" "securityContext" | deepCopy -}}
{{- if $beside -}}
  {{- include "slurm.merge" (list $beside (get $entry $container | default dict)) -}}
  {{- $entry = set (omit $entry "image" "resources" "securityContext") $container $beside -}}
{{- end -}}
{{- toJson $entry -}}
{{- end -}}

{{/*
The enabled entries of one kind, each merged over its defaults, as a JSON map by name.
(dict "values" .Values "keys" (list …) "defaults" .Values.nodesetDefaults "container" "slurmd")
*/}}
{{- define "slurm.enabled" -}}
{{- $enabled := dict -}}
{{- range $name, $entry := include "slurm.entries" . | fromJson -}}
  {{- $set := include "slurm.fold" (list $.defaults $.container) | fromJson -}}
  {{- include "slurm.merge" (list $set (include "slurm.fold" (list $entry $.container) | fromJson)) -}}
  {{- if $set.enabled -}}
    {{- $_ := set $enabled $name $set -}}
  {{- end -}}
{{- end -}}
{{- toJson $enabled -}}
{{- end -}}

{{- define "slurm.nodesets" -}}
{{- $nodesets := include "slurm.enabled" (dict "values" .Values "keys" (list "nodesets" "nodeSets") "defaults" .Values.nodesetDefaults "container" "slurmd") | fromJson -}}
{{- range $name, $set := $nodesets -}}
  {{- include "slurm.vendor" (list $ $name $set) -}}
{{- end -}}
{{- toJson $nodesets -}}
{{- end -}}

{{- define "slurm.loginsets" -}}
{{- include "slurm.enabled" (dict "values" .Values "keys" (list "loginsets" "loginSets") "defaults" .Values.loginsetDefaults "container" "login") -}}
{{- end -}}
