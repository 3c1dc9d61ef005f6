{{/*
Normalizes values: maps and lists, current and older names, defaults and entries.
*/}}

{{/*
Merges a map into another: maps are merged, everything else is replaced, null removes the key. Sprig's mergeOverwrite would ignore null
and false. Changes the first map, prints nothing.
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
        {{- fail (printf "%s has two items named %q" $source .name) -}}
      {{- end -}}
      {{- $_ := set $named .name (omit . "name") -}}
    {{- end -}}
  {{- end -}}
  {{- range $name, $entry := $named -}}
    {{- if hasKey $entries $name -}}
      {{- fail (printf "%q is in both %s" $name (join " and " $.keys)) -}}
    {{- end -}}
    {{- if not (kindIs "invalid" $entry) -}}
      {{- $_ := set $entries $name $entry -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toJson $entries -}}
{{- end -}}

{{/*
Moves `image`, `resources` and `securityContext` of an entry into the container they are for. Charts before 1.0 had them beside the
container, and examples of upstream still do.
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
