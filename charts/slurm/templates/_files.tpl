{{/*
The ConfigMaps that the chart creates, and the Controller's references to them and to the user's.
*/}}

{{/* The content of each ConfigMap that is not empty, as a JSON map by the suffix of its name. */}}
{{- define "slurm.files" -}}
{{- $files := dict -}}
{{- with .Values.configFiles }}{{ $_ := set $files "config-extra" . }}{{ end -}}
{{- range $suffix, $from := dict
  "prolog-scripts" (list "prolog" .Values.prologScripts)
  "epilog-scripts" (list "epilog" .Values.epilogScripts)
  "prolog-slurmctld-scripts" (list "prolog-slurmctld" .Values.prologSlurmctldScripts)
  "epilog-slurmctld-scripts" (list "epilog-slurmctld" .Values.epilogSlurmctldScripts) -}}
  {{- $scripts := dict -}}
  {{- range $name, $script := last $from | default dict -}}
    {{- $_ := set $scripts (printf "%s-%s" (first $from) $name) $script -}}
  {{- end -}}
  {{- with $scripts }}{{ $_ := set $files $suffix . }}{{ end -}}
{{- end -}}
{{- if not (hasKey (.Values.configFiles | default dict) "gres.conf") -}}
  {{- range list "a3mega" "a3ultra" -}}
    {{- if get $.Values.vendor.google . -}}
      {{- $_ := set $files (printf "config-%s" .) (dict "gres.conf" "AutoDetect=nvidia\n") -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $dcgm := .Values.vendor.nvidia.dcgm -}}
{{- if $dcgm.enabled -}}
  {{- range list "prolog" "epilog" -}}
    {{- $script := $.Files.Get (printf "files/dcgm/%s.sh" .) | replace "__JOB_MAPPING_DIR__" $dcgm.jobMappingDir -}}
    {{- $_ := set $files (printf "%s-dcgm" .) (dict (printf "%s-%s-dcgm.sh" . (toString $dcgm.scriptPriority)) $script) -}}
  {{- end -}}
{{- end -}}
{{- toJson $files -}}
{{- end -}}

{{/* The Controller's references as a JSON map by field, in the order in which the scripts run. */}}
{{- define "slurm.fileRefs" -}}
{{- $files := include "slurm.files" . | fromJson -}}
{{- $refs := dict -}}
{{- range $field, $sources := dict
  "configFileRefs" (list "config-extra" "config-a3mega" "config-a3ultra")
  "prologScriptRefs" (list "prolog-scripts" .Values.prologScriptRefs "prolog-dcgm")
  "epilogScriptRefs" (list .Values.epilogScriptRefs "epilog-scripts" "epilog-dcgm")
  "prologSlurmctldScriptRefs" (list .Values.prologSlurmctldScriptRefs "prolog-slurmctld-scripts")
  "epilogSlurmctldScriptRefs" (list .Values.epilogSlurmctldScriptRefs "epilog-slurmctld-scripts") -}}
  {{- $list := list -}}
  {{- range $source := $sources -}}
    {{- if kindIs "slice" $source -}}
      {{- $list = concat $list $source -}}
    {{- else if and (kindIs "string" $source) (hasKey $files $source) -}}
      {{- $list = append $list (dict "name" (printf "%s-%s" (include "slurm.fullname" $) $source)) -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := set $refs $field $list -}}
{{- end -}}
{{- toJson $refs -}}
{{- end -}}
