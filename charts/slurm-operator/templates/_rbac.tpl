{{/*
Permissions of the operator, by scope. A permission is listed only if code uses it; the comment says what for.
*/}}

{{/* In the operator's namespaces: all (ClusterRole), or those of operator.namespaces (a Role in each). */}}
{{- define "operator.rbac.work" -}}
# Objects of users. The operator never creates, deletes or changes the spec of these.
- apiGroups: [slinky.slurm.net]
  resources: [accountings, controllers, loginsets, nodesets, partitions, restapis, tokens]
  verbs: [list, watch]
# Whether a Controller that the watch does not show exists, before its workers are let go.
- apiGroups: [slinky.slurm.net]
  resources: [controllers]
  verbs: [get]
# The finalizers.
- apiGroups: [slinky.slurm.net]
  resources: [nodesets, partitions]
  verbs: [patch]
# How it stands.
- apiGroups: [slinky.slurm.net]
  resources: [accountings/status, controllers/status, loginsets/status, nodesets/status, partitions/status, restapis/status, tokens/status]
  verbs: [patch]
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
  verbs: [patch]
# What slurmdbd says while it does not come up, and what login pods complain of.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# Configuration, and the users' files and scripts it refers to; addresses of slurmctld, slurmrestd and workers.
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [create, delete, get, list, patch, watch]
# Keys: made once where a Controller names none, and never written again. slurmdbd.conf, which has a password in it; tokens; SSH host keys.
# "get" is to see whose an existing one is before it is written.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, delete, get, list, patch, watch]
# Volumes from a NodeSet's volumeClaimTemplates. Where OwnerReferencesPermissionEnforcement is on, changing an object's
# owner needs the permission to delete the object.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, delete, list, patch, watch]
# slurmctld.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [create, delete, get, list, patch, watch]
# slurmrestd and login pods.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [create, get, list, patch, watch]
# Revisions of NodeSets.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [create, delete, get, list, patch, watch]
# Workers with jobs are not evicted.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, get, list, patch, watch]
# controller.metrics.serviceMonitor.
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors]
  verbs: [create, delete, get, list, patch, watch]
# What happened and why.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* In the whole cluster, always. */}}
{{- define "operator.rbac.cluster" -}}
# Cordons, taints, topology and features of the nodes of workers, and whether a node is gone.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# Whether a namespace is being deleted, and its clusters with it.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
# Which kinds are there, and which revision of their schema. One by one, by field selector.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
    - accountings.slinky.slurm.net
    - controllers.slinky.slurm.net
    - loginsets.slinky.slurm.net
    - nodesets.slinky.slurm.net
    - partitions.slinky.slurm.net
    - restapis.slinky.slurm.net
    - tokens.slinky.slurm.net
    - servicemonitors.monitoring.coreos.com
  verbs: [list, watch]
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
# Election of the leader among several replicas.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, update]
{{- end -}}

{{/* To remove finalizers before the operator is uninstalled, in the operator's namespaces: see release.yaml. */}}
{{- define "operator.rbac.release" -}}
# The finalizer.
- apiGroups: [slinky.slurm.net]
  resources: [nodesets, partitions]
  verbs: [list, patch]
{{- end -}}

{{/* The same, in the operator's own namespace. */}}
{{- define "operator.rbac.releaseOwn" -}}
# The operator is stopped first, or it would add its finalizers again.
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "operator.name" . | quote }}]
  verbs: [delete, get]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [slurm-operator.slinky.slurm.net]
  verbs: [delete]
{{- end -}}

{{/* The webhook's, in its namespaces: all (ClusterRole), or those of webhook.namespaces (a Role in each). */}}
{{- define "operator.rbac.webhook" -}}
# What slurmctld's files are made of, and whether a standby's volume can be shared.
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [get]
- apiGroups: [slinky.slurm.net]
  resources: [accountings, controllers]
  verbs: [get]
- apiGroups: [slinky.slurm.net]
  resources: [nodesets, partitions]
  verbs: [list]
{{- if .Values.webhook.podsBinding }}
# A worker learns its place in the topology before it starts.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, patch]
{{- end }}
{{- end -}}

{{/* The webhook's, in the whole cluster, always. */}}
{{- define "operator.rbac.webhookCluster" -}}
{{- if not .Values.certManager.enabled -}}
# The certificates that API servers trust.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  resourceNames: [{{ include "operator.webhookName" . | quote }}]
  verbs: [list, patch, watch]
{{- end }}
{{- if .Values.webhook.podsBinding }}
# A worker's place in the topology.
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

{{/* The webhook's, in its own namespace. */}}
{{- define "operator.rbac.webhookOwn" -}}
# The certificate.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ .Values.certManager.secretName | quote }}]
  verbs: [list, {{ if not .Values.certManager.enabled }}update, {{ end }}watch]
{{- if not .Values.certManager.enabled }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end }}
{{- end -}}
