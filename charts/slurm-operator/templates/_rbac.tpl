{{/*
Permissions of operator and webhook, by scope. Only permissions that the code uses are listed; comments say what for.
*/}}

{{/* In the namespaces of the operator: all (a ClusterRole), or those in operator.namespaces (a Role in each). */}}
{{- define "operator.rbac.work" -}}
# Objects of users. The operator never creates or deletes them, nor changes their specs.
- apiGroups: [slinky.slurm.net]
  resources: [accountings, controllers, loginsets, nodesets, partitions, restapis, tokens]
  verbs: [list, watch]
# Checks that a Controller does not exist before its workers are given up.
- apiGroups: [slinky.slurm.net]
  resources: [controllers]
  verbs: [get]
# Finalizers.
- apiGroups: [slinky.slurm.net]
  resources: [nodesets, partitions]
  verbs: [patch]
# Status.
- apiGroups: [slinky.slurm.net]
  resources: [accountings/status, controllers/status, loginsets/status, nodesets/status, partitions/status, restapis/status, tokens/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion, if the admission plug-in OwnerReferencesPermissionEnforcement is enabled.
- apiGroups: [slinky.slurm.net]
  resources: [accountings/finalizers, controllers/finalizers, loginsets/finalizers, nodesets/finalizers, restapis/finalizers, tokens/finalizers]
  verbs: [update]
# Workers. Pods of StatefulSets and Deployments are only watched.
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, get, list, patch, watch]
# States of Slurm nodes, as conditions of their pods.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
# Errors of slurmdbd while it does not start, and of login pods.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# Configuration, with the files and scripts of users that it refers to; Services of slurmctld, slurmrestd and workers.
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [create, delete, get, list, patch, watch]
# Keys, which are created once if a Controller refers to none and never changed; slurmdbd.conf, which contains a password; tokens; SSH host
# keys. "get" shows the owner of an existing Secret before it is written.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, delete, get, list, patch, watch]
# Claims of a NodeSet's volumeClaimTemplates. With OwnerReferencesPermissionEnforcement, changing the owner of an object requires the
# permission to delete it.
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
# Protects workers with jobs from eviction.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, get, list, patch, watch]
# controller.metrics.serviceMonitor.
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors]
  verbs: [create, delete, get, list, patch, watch]
# Events.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* In the whole cluster, also with operator.namespaces. */}}
{{- define "operator.rbac.cluster" -}}
# Cordons, taints, topology and features of Kubernetes nodes, and whether a node still exists.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# Whether a namespace is being deleted with its clusters.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
# Which kinds are installed, and the revision of their schema. They are watched one by one, by field selector.
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

{{/* In the operator's own namespace. */}}
{{- define "operator.rbac.own" -}}
# Leader election.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, update]
{{- end -}}

{{/* Of the Job that runs before the operator is uninstalled (release.yaml), in the namespaces of the operator. */}}
{{- define "operator.rbac.release" -}}
# Removes the finalizer.
- apiGroups: [slinky.slurm.net]
  resources: [nodesets, partitions]
  verbs: [list, patch]
{{- end -}}

{{/* Of the same Job, in the operator's own namespace. */}}
{{- define "operator.rbac.releaseOwn" -}}
# Stops the operator first, which would otherwise add its finalizers again.
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "operator.name" . | quote }}]
  verbs: [delete, get]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [slurm-operator.slinky.slurm.net]
  verbs: [delete]
{{- end -}}

{{/* Of the webhook, in its namespaces: all (a ClusterRole), or those in webhook.namespaces (a Role in each). */}}
{{- define "operator.rbac.webhook" -}}
# The inputs of slurmctld's configuration, and whether standbys can share the volume.
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
# Writes a worker's place in the topology before the worker starts.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, patch]
{{- end }}
{{- end -}}

{{/* Of the webhook, in the whole cluster, also with webhook.namespaces. */}}
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

{{/* Of the webhook, in its own namespace. */}}
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
