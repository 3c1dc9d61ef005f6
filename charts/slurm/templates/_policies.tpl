{{/*
NetworkPolicies. They limit who may connect to the pods of the cluster, not where these pods may connect to.
Values of an older release (`--reuse-values`) have no networkPolicy.
*/}}

{{/*
Components without a pod address of their own, unless `networkPolicy.members` lists addresses. Policies would cut them off, so none are
created, and NOTES.txt says so. Prints names, separated by ", ".
*/}}
{{- define "slurm.policies.strangers" -}}
{{- $strangers := list -}}
{{- if not (.Values.networkPolicy | default dict).members -}}
  {{- range $name := list "controller" "accounting" -}}
    {{- if (get $.Values $name).external -}}
      {{- $strangers = append $strangers (printf "%s.external" $name) -}}
    {{- end -}}
  {{- end -}}
  {{- range $name := list "controller" "restapi" "accounting" -}}
    {{- if dig "podSpec" "hostNetwork" false (get $.Values $name) -}}
      {{- $strangers = append $strangers (printf "%s.podSpec.hostNetwork" $name) -}}
    {{- end -}}
  {{- end -}}
  {{- range $kind := list "nodesets" "loginsets" -}}
    {{- range $name, $set := include (printf "slurm.%s" $kind) $ | fromJson -}}
      {{- if dig "hostNetwork" false ($set.podSpec | default dict) -}}
        {{- $strangers = append $strangers (printf "%s.%s.podSpec.hostNetwork" $kind $name) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- join ", " $strangers -}}
{{- end -}}

{{/* Whether the policy of a component is enabled. (list root component) */}}
{{- define "slurm.policies.wanted" -}}
{{- $root := first . -}}
{{- $own := (get $root.Values (last .)).networkPolicy | default dict -}}
{{- $enabled := ($root.Values.networkPolicy | default dict).enabled -}}
{{- if not (kindIs "invalid" $own.enabled) -}}
  {{- $enabled = $own.enabled -}}
{{- end -}}
{{- if $enabled -}}true{{- end -}}
{{- end -}}

{{/* The components whose policies are enabled, separated by ", ". */}}
{{- define "slurm.policies.allWanted" -}}
{{- $wanted := list -}}
{{- range list "controller" "restapi" "accounting" "loginsetDefaults" "nodesetDefaults" -}}
  {{- if include "slurm.policies.wanted" (list $ .) -}}
    {{- $wanted = append $wanted . -}}
  {{- end -}}
{{- end -}}
{{- join ", " $wanted -}}
{{- end -}}

{{/* Whether the policy of a component is created. (list root component) */}}
{{- define "slurm.policies.made" -}}
{{- if not (include "slurm.policies.strangers" (first .)) -}}
{{- include "slurm.policies.wanted" . -}}
{{- end -}}
{{- end -}}

{{/* The pods of a daemon of which a cluster has one object. (list root "slurmctld") */}}
{{- define "slurm.policies.pods" -}}
matchLabels:
  app.kubernetes.io/name: {{ last . }}
  app.kubernetes.io/instance: {{ include "slurm.fullname" (first .) | quote }}
{{- end -}}

{{/* All workers of the cluster, whoever created their NodeSet. */}}
{{- define "slurm.policies.workers" -}}
matchLabels:
  app.kubernetes.io/name: slurmd
  slinky.slurm.net/cluster: {{ include "slurm.fullname" . | quote }}
{{- end -}}

{{/* The login pods of this release; nothing if there are none. */}}
{{- define "slurm.policies.logins" -}}
{{- $names := list -}}
{{- range $key, $set := include "slurm.loginsets" . | fromJson -}}
  {{- $names = append $names (printf "%s-login-%s" (include "slurm.fullname" $) $key) -}}
{{- end -}}
{{- if $names -}}
matchLabels:
  app.kubernetes.io/name: login
matchExpressions:
  - {key: app.kubernetes.io/instance, operator: In, values: {{ $names | toJson }}}
{{- end -}}
{{- end -}}

{{/* All members of the cluster, as peers. */}}
{{- define "slurm.policies.members" -}}
- podSelector:
    {{- include "slurm.policies.workers" . | nindent 4 }}
{{- range list "slurmctld" "slurmrestd" "slurmdbd" }}
- podSelector:
    {{- include "slurm.policies.pods" (list $ .) | nindent 4 }}
{{- end }}
{{- with include "slurm.policies.logins" . }}
- podSelector:
    {{- . | nindent 4 }}
{{- end }}
{{- with (.Values.networkPolicy | default dict).members }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slurm.policies.operator" -}}
{{- $operator := (.Values.networkPolicy | default dict).operator | default dict -}}
- namespaceSelector:
    {{- $operator.namespaceSelector | default (dict "matchLabels" (dict "kubernetes.io/metadata.name" "slinky")) | toYaml | nindent 4 }}
  podSelector:
    {{- $operator.podSelector | default (dict "matchLabels" (dict "app.kubernetes.io/name" "slurm-operator")) | toYaml | nindent 4 }}
{{- end -}}

{{/* Peers in the values of the component. (list root component) */}}
{{- define "slurm.policies.from" -}}
{{- with dig "networkPolicy" "from" list (get (first .).Values (last .)) }}
{{- toYaml . }}
{{- end -}}
{{- end -}}

{{/* (list root "controller") */}}
{{- define "slurm.policies.head" -}}
{{- $root := first . -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "slurm.fullname" $root }}-{{ last . }}
  namespace: {{ include "slurm.namespace" $root | quote }}
  labels:
    {{- include "slurm.labels" $root | nindent 4 }}
{{- end -}}
