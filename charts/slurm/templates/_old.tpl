{{/*
Values of older charts that are set, one line each with what to use now. NOTES print them.
*/}}
{{- define "slurm.oldValues" -}}
{{- if .Values.priorityClassName }}
  priorityClassName: write priorityClass.enabled and priorityClass.name. It is still honoured.
{{- end }}
{{- if .Values.slurmKeyRef }}
  slurmKeyRef: write slurmKey.create: false and slurmKey.secretRef. It is still honoured.
{{- end }}
{{- if .Values.jwtHs256KeyRef }}
  jwtHs256KeyRef: write jwtKey.create: false and jwtKey.secretRef. It is still honoured.
{{- end }}
{{- range $name, $set := include "slurm.nodesets" . | fromJson }}
{{- if ne (toJson $set.networkPolicy) (toJson $.Values.nodesetDefaults.networkPolicy) }}
  nodesets.{{ $name }}.networkPolicy: has no effect. Write nodesetDefaults.networkPolicy, which is for all workers.
{{- end }}
{{- if hasKey $set "taintKubeNodes" }}
  nodesets.{{ $name }}.taintKubeNodes: has no effect. Taint the nodes and give podSpec.tolerations.
{{- end }}
{{- if hasKey $set "useResourceLimits" }}
  nodesets.{{ $name }}.useResourceLimits: has no effect. The limits of slurmd always are the size of the node.
{{- end }}
{{- if hasKey $set "lockNodes" }}
  nodesets.{{ $name }}.lockNodes: has no effect. Write pinToNode.
{{- end }}
{{- if hasKey $set "lockNodeLifetime" }}
  nodesets.{{ $name }}.lockNodeLifetime: has no effect. pinToNode has no end.
{{- end }}
{{- end }}
{{- range $name, $set := include "slurm.loginsets" . | fromJson }}
{{- if $set.sssdConf }}
  loginsets.{{ $name }}.sssdConf: write sssd.conf or sssd.secretRef. It is still honoured.
{{- end }}
{{- if hasKey $set "workloadDisruptionProtection" }}
  loginsets.{{ $name }}.workloadDisruptionProtection: has no effect.
{{- end }}
{{- end }}
{{- end -}}
