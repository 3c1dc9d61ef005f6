{{/*
A line for each value of an older chart that is set, with its replacement. NOTES.txt prints them.
*/}}
{{- define "slurm.oldValues" -}}
{{- if .Values.priorityClassName }}
  priorityClassName: still works; use priorityClass.enabled and priorityClass.name.
{{- end }}
{{- if .Values.slurmKeyRef }}
  slurmKeyRef: still works; use slurmKey.create: false and slurmKey.secretRef.
{{- end }}
{{- if .Values.jwtHs256KeyRef }}
  jwtHs256KeyRef: still works; use jwtKey.create: false and jwtKey.secretRef.
{{- end }}
{{- range $name, $set := include "slurm.nodesets" . | fromJson }}
{{- if ne (toJson $set.networkPolicy) (toJson $.Values.nodesetDefaults.networkPolicy) }}
  nodesets.{{ $name }}.networkPolicy: has no effect; use nodesetDefaults.networkPolicy, which applies to all workers.
{{- end }}
{{- if hasKey $set "taintKubeNodes" }}
  nodesets.{{ $name }}.taintKubeNodes: has no effect; taint the Kubernetes nodes and set podSpec.tolerations.
{{- end }}
{{- if hasKey $set "useResourceLimits" }}
  nodesets.{{ $name }}.useResourceLimits: has no effect; the limits of slurmd are always the size of the Slurm node.
{{- end }}
{{- if hasKey $set "lockNodes" }}
  nodesets.{{ $name }}.lockNodes: has no effect; use pinToNode.
{{- end }}
{{- if hasKey $set "lockNodeLifetime" }}
  nodesets.{{ $name }}.lockNodeLifetime: has no effect; pinToNode does not expire.
{{- end }}
{{- end }}
{{- range $name, $set := include "slurm.loginsets" . | fromJson }}
{{- if $set.sssdConf }}
  loginsets.{{ $name }}.sssdConf: still works; use sssd.conf or sssd.secretRef.
{{- end }}
{{- if hasKey $set "workloadDisruptionProtection" }}
  loginsets.{{ $name }}.workloadDisruptionProtection: has no effect.
{{- end }}
{{- end }}
{{- end -}}
