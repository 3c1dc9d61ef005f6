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

{{/* slurm.conf's own lines: what the controller says, then a line for each enabled partition. */}}
{{- define "slurm.controllerExtraConf" -}}
{{- $lines := list -}}
{{- with .Values.controller.extraConf | default (include "slurm.settings" .Values.controller.extraConfMap) -}}
  {{- $lines = append $lines . -}}
{{- end -}}
{{- $known := include "slurm.nodesets" . | fromJson | keys | sortAlpha -}}
{{- range $name, $partition := .Values.partitions -}}
  {{- if dig "enabled" false ($partition | default dict) -}}
    {{- $nodesets := $partition.nodesets | default list | uniq | sortAlpha -}}
    {{- if not $nodesets -}}
      {{- fail (printf "partitions.%s.nodesets is empty: name NodeSets, or ALL" $name) -}}
    {{- end -}}
    {{- range $nodesets -}}
      {{- if not (has . (prepend $known "ALL")) -}}
        {{- fail (printf "partitions.%s names NodeSet %q, which is not there or not enabled; enabled NodeSets: %s" $name . (join ", " $known | default "none")) -}}
      {{- end -}}
    {{- end -}}
    {{- $lines = append $lines (printf "PartitionName=%s Nodes=%s %s" $name (join "," $nodesets) (include "slurm.settingsLine" (list $partition.config $partition.configMap))) -}}
  {{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}
