{{/*
What the operator may do, in three parts by where it may do it. A right stands here only if code uses it; the comment
says what for.
*/}}

{{/* In the namespaces it works in: all of them (ClusterRole), or those of operator.namespaces (a Role in each). */}}
{{- define "operator.rbac.work" -}}
# What users ask for. The operator never makes, deletes or changes the spec of these; patch is for finalizers.
- apiGroups: [slinky.slurm.net]
  resources: [accountings, controllers, loginsets, nodesets, restapis, tokens]
  verbs: [get, list, patch, watch]
# How it stands.
- apiGroups: [slinky.slurm.net]
  resources: [accountings/status, controllers/status, loginsets/status, nodesets/status, restapis/status, tokens/status]
  verbs: [get, patch, update]
# Children block the deletion of their owner, which needs this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [slinky.slurm.net]
  resources: [accountings/finalizers, controllers/finalizers, loginsets/finalizers, nodesets/finalizers, restapis/finalizers, tokens/finalizers]
  verbs: [update]
# Workers are pods of ours; the rest belongs to StatefulSets and Deployments and is watched.
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, get, list, patch, watch]
# Slurm's state of a worker, as conditions of its pod.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch, update]
# Configuration, and the users' files and scripts it refers to.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, delete, get, list, patch, watch]
# Keys, tokens, host keys, slurmdbd.conf.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, delete, get, list, patch, watch]
# Addresses of slurmctld, slurmdbd, slurmrestd, login pods and workers.
- apiGroups: [""]
  resources: [services]
  verbs: [create, delete, get, list, patch, watch]
# Volumes from a NodeSet's volumeClaimTemplates.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, delete, get, list, patch, watch]
# slurmctld and slurmdbd; slurmrestd and login pods; revisions of NodeSets.
- apiGroups: [apps]
  resources: [statefulsets, deployments, controllerrevisions]
  verbs: [create, delete, get, list, patch, watch]
# Workers with jobs are not evicted.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, delete, get, list, patch, watch]
# controller.metrics.serviceMonitor
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors]
  verbs: [create, delete, get, list, patch, watch]
# What happened and why.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* In the whole cluster, always. */}}
{{- define "operator.rbac.cluster" -}}
# Cordons, taints, topology and features of the machines under the workers; whether a machine is gone.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# Which kinds are there, and which revision of their schema. One by one, by field selector.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
    - accountings.slinky.slurm.net
    - controllers.slinky.slurm.net
    - loginsets.slinky.slurm.net
    - nodesets.slinky.slurm.net
    - restapis.slinky.slurm.net
    - tokens.slinky.slurm.net
  verbs: [get, list, watch]
{{- if .Values.operator.metricsSecure }}
# Who asks for metrics, and whether they may have them.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- end -}}

{{/* In its own namespace. */}}
{{- define "operator.rbac.own" -}}
# One of several replicas works, the others wait.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, list, patch, update, watch]
{{- end -}}

{{/* The webhook's, in the whole cluster. */}}
{{- define "operator.rbac.webhook" -}}
# Whether what a Controller refers to is there, and a standby's volume can be shared.
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [get]
{{- if .Values.webhook.podsBinding }}
# A worker learns its place in the topology before it starts.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
{{- end }}
{{- if .Values.webhook.metricsSecure }}
# Who asks for metrics, and whether they may have them.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- end -}}
