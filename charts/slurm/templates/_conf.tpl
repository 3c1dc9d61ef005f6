{{/*
Slurm's configuration text from maps.
*/}}

{{/*
Prints a map as lines `Key=value`, sorted by key and without empty values. YAML reads an unquoted YES as true, so booleans become YES
and NO.
*/}}
{{- define "slurm.settings" -}}
{{- $settings := list -}}
{{- range $key, $value := . | default dict -}}
  {{- $words := list -}}
  {{- range kindIs "slice" $value | ternary $value (list $value) -}}
    {{- if kindIs "bool" . -}}
      {{- $words = append $words (ternary "YES" "NO" .) -}}
    {{- else if kindIs "string" . -}}
      {{- $words = append $words . -}}
    {{- else if not (kindIs "invalid" .) -}}
      {{- $words = append $words (toJson .) -}}
    {{- end -}}
  {{- end -}}
  {{- with join "," $words -}}
    {{- $settings = append $settings (printf "%s=%s" $key .) -}}
  {{- end -}}
{{- end -}}
{{- join "\n" $settings -}}
{{- end -}}

{{/* The same on one line. The raw line takes precedence over the map. (list raw map) */}}
{{- define "slurm.settingsLine" -}}
{{- first . | default (include "slurm.settings" (last .) | replace "\n" " ") -}}
{{- end -}}

{{/*
The enabled entries of `partitions` as a JSON map by name, with their NodeSets sorted and without duplicates. An external slurmctld has
its own slurm.conf, so for it only entries with `object` count.
*/}}
{{- define "slurm.partitions" -}}
{{- $known := include "slurm.nodesets" . | fromJson | keys | sortAlpha -}}
{{- $partitions := dict -}}
{{- range $name, $partition := .Values.partitions -}}
  {{- $partition = $partition | default dict -}}
  {{- if and $partition.enabled (or $partition.object (not $.Values.controller.external)) -}}
    {{- $nodesets := $partition.nodesets | default list | uniq | sortAlpha -}}
    {{- $others := pick ($partition.spec | default dict) "nodes" "nodeSets" "nodeSetSelector" -}}
    {{- if not (or $nodesets (and $partition.object $others)) -}}
      {{- fail (printf "partitions.%s.nodesets is empty: list entries of nodesets, or ALL" $name) -}}
    {{- end -}}
    {{- range $nodesets -}}
      {{- if not (has . (prepend $known "ALL")) -}}
        {{- $enabled := join ", " $known | default "none" -}}
        {{- fail (printf "partitions.%s: NodeSet %q does not exist or is not enabled; enabled NodeSets: %s" $name . $enabled) -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $partitions $name (set (deepCopy $partition) "nodesets" $nodesets) -}}
  {{- end -}}
{{- end -}}
{{- toJson $partitions -}}
{{- end -}}

{{/* Lines for slurm.conf: extraConf of the controller, then a line for each enabled partition that is not an object. */}}
{{- define "slurm.controllerExtraConf" -}}
{{- $lines := list -}}
{{- with .Values.controller.extraConf | default (include "slurm.settings" .Values.controller.extraConfMap) -}}
  {{- $lines = append $lines . -}}
{{- end -}}
{{- range $name, $partition := include "slurm.partitions" . | fromJson -}}
  {{- if not $partition.object -}}
    {{- $options := include "slurm.settingsLine" (list $partition.config $partition.configMap) -}}
    {{- $lines = append $lines (printf "PartitionName=%s Nodes=%s %s" $name (join "," $partition.nodesets) $options) -}}
  {{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}
