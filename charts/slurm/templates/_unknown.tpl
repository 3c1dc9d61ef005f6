{{/*
Unknown keys in entries of `nodesets`, `loginsets` and `partitions`. Upstream's chart ignores such keys, so the schema accepts them, and
NOTES.txt lists them: they may be values of upstream's next release, fields of the pod, or typos.
*/}}

{{/* The known keys as JSON, the same as in the definitions of values.schema.json. */}}
{{- define "slurm.knownKeys" -}}
{{- $entry := list "name" "enabled" "replicas" "image" "resources" "securityContext" "metadata" "podSpec" "networkPolicy"
  "workloadDisruptionProtection" -}}
{{- $partition := list "enabled" "config" "configMap" -}}
{{- dict
  "loginset" (concat $entry (list "strategy" "login" "initconf" "rootSshAuthorizedKeys" "extraSshdConfig" "service" "sssdConf"))
  "nodeset" (concat $entry (list "fullnameOverride" "scalingMode" "pinToNode" "pruneSlurmNodeRecords" "ordinalPadding"
    "oversubscribeNode" "minReadySeconds" "revisionHistoryLimit" "volumeClaimTemplates" "persistentVolumeClaimRetentionPolicy"
    "slurmd" "logfile" "extraConf" "extraConfMap" "partition" "ssh" "drain" "health" "updateStrategy"
    "taintKubeNodes" "useResourceLimits" "lockNodes" "lockNodeLifetime"))
  "nodesetPartition" $partition
  "partition" (concat $partition (list "nodesets" "object" "spec" "metadata"))
| toJson -}}
{{- end -}}

{{- define "slurm.unknownValues" -}}
{{- $known := include "slurm.knownKeys" . | fromJson -}}
{{- range $kind, $keys := dict "nodeset" (list "nodesets" "nodeSets") "loginset" (list "loginsets" "loginSets") -}}
  {{- $maps := dict (printf "%sDefaults" $kind) (get $.Values (printf "%sDefaults" $kind)) -}}
  {{- range $key := $keys -}}
    {{- range $name, $entry := include "slurm.entries" (dict "values" $.Values "keys" (list $key)) | fromJson -}}
      {{- $_ := set $maps (printf "%s.%s" $key $name) $entry -}}
    {{- end -}}
  {{- end -}}
  {{- range $path, $map := $maps -}}
    {{- include "slurm.unknownKeys" (list $path $map (get $known $kind) $kind) -}}
    {{- if eq $kind "nodeset" -}}
      {{- include "slurm.unknownKeys" (list (printf "%s.partition" $path) (get $map "partition") $known.nodesetPartition "") -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $name, $partition := .Values.partitions -}}
  {{- include "slurm.unknownKeys" (list (printf "partitions.%s" $name) $partition $known.partition "") -}}
{{- end -}}
{{- end -}}

{{/*
A line for each unknown key, with the key that was probably meant: a field of the pod or the container, or a known key that differs in
one letter or in case. Every other key of a partition is assumed to be an option of Slurm.
(list "nodesets.a" map known "nodeset"), with "" in place of "nodeset" for entries without pods
*/}}
{{- define "slurm.unknownKeys" -}}
{{- $path := index . 0 -}}
{{- $map := index . 1 | default dict -}}
{{- $known := index . 2 -}}
{{- $kind := index . 3 -}}
{{- $ofPod := list "affinity" "automountServiceAccountToken" "containers" "dnsConfig" "dnsPolicy" "hostAliases" "hostIPC" "hostNetwork"
  "hostPID" "hostUsers" "imagePullSecrets" "initContainers" "nodeSelector" "priorityClassName" "resourceClaims" "runtimeClassName"
  "schedulerName" "serviceAccountName" "shareProcessNamespace" "terminationGracePeriodSeconds" "tolerations"
  "topologySpreadConstraints" "volumes" -}}
{{- $ofContainer := list "args" "command" "env" "envFrom" "imagePullPolicy" "lifecycle" "livenessProbe" "ports" "readinessProbe"
  "startupProbe" "volumeDevices" "volumeMounts" -}}
{{- $container := get (dict "nodeset" "slurmd" "loginset" "login") $kind -}}
{{- range $key, $_ := $map -}}
{{- if not (has $key $known) -}}
  {{- $meant := "" -}}
  {{- if and $kind (has $key $ofPod) -}}
    {{- $meant = printf "podSpec.%s" $key -}}
  {{- else if and $kind (has $key $ofContainer) -}}
    {{- $meant = printf "%s.%s" $container $key -}}
  {{- else -}}
    {{- $words := include "slurm.shortened" $key | splitList " " -}}
    {{- range $candidate := $known -}}
      {{- range include "slurm.shortened" $candidate | splitList " " -}}
        {{- if has . $words }}{{ $meant = $candidate }}{{ end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if not (or $kind $meant) }}{{ $meant = printf "configMap.%s" $key }}{{ end }}
  {{ $path }}.{{ $key }}{{ if $meant }}: did you mean {{ $meant }}?{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A word in lower case, and its variants with one letter removed. Two words that share one of these differ in one letter. */}}
{{- define "slurm.shortened" -}}
{{- $word := lower . -}}
{{- $all := list $word -}}
{{- range $i := until (len $word) -}}
  {{- $all = append $all (printf "%s%s" (substr 0 $i $word) (substr (int (add1 $i)) (len $word) $word)) -}}
{{- end -}}
{{- join " " $all -}}
{{- end -}}
