{{/*
Slurm's configuration text from maps.
*/}}

{{/*
The settings of a map as `Key=value`, one per line, in the order of the keys; what has no value is left out. YAML reads
an unquoted YES as true, so booleans are written the way Slurm spells them.
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

{{/* The same on one line. (list raw map), raw wins */}}
{{- define "slurm.settingsLine" -}}
{{- first . | default (include "slurm.settings" (last .) | replace "\n" " ") -}}
{{- end -}}

{{/*
The enabled entries of `partitions` as a JSON map by name. They name enabled NodeSets, each once, sorted. An external slurmctld has
lines of its own, so there are only objects for it.
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
      {{- fail (printf "partitions.%s.nodesets is empty: name NodeSets, or ALL" $name) -}}
    {{- end -}}
    {{- range $nodesets -}}
      {{- if not (has . (prepend $known "ALL")) -}}
        {{- $enabled := join ", " $known | default "none" -}}
        {{- fail (printf "partitions.%s names NodeSet %q, which is not there or not enabled; enabled NodeSets: %s" $name . $enabled) -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $partitions $name (set (deepCopy $partition) "nodesets" $nodesets) -}}
  {{- end -}}
{{- end -}}
{{- toJson $partitions -}}
{{- end -}}

{{/* slurm.conf's own lines: what the controller says, then a line for each enabled partition that is no object. */}}
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
