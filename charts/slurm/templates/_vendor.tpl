{{/*
Settings that workers on some machines need, added to the values of their NodeSets.
*/}}

{{- define "slurm.vendor" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $set := index . 2 -}}
{{- $vendor := $root.Values.vendor -}}
{{- $gpu := false -}}
{{- range list ($set.slurmd | default dict) ($set.podSpec | default dict) -}}
  {{- if or (dig "resources" "limits" "nvidia.com/gpu" 0 .) (dig "resources" "requests" "nvidia.com/gpu" 0 .) -}}
    {{- $gpu = true -}}
  {{- end -}}
{{- end -}}
{{- if and $vendor.nvidia.dcgm.enabled $gpu -}}
  {{- include "slurm.vendorPatch" (list $set (include "slurm.dcgm" $vendor.nvidia.dcgm | fromYaml)) -}}
{{- end -}}
{{- range $machine, $title := dict "a3mega" "A3 Mega" "a3ultra" "A3 Ultra" -}}
  {{- range get $vendor.google $machine -}}
    {{- if eq .targetNodeSet $name -}}
      {{- if ne (len (.networks | default list)) 9 -}}
        {{- fail (printf "vendor.google.%s: Google %s needs exactly 9 networks; the entry of NodeSet %q has %d" $machine $title $name (len (.networks | default list))) -}}
      {{- end -}}
      {{- include "slurm.vendorPatch" (list $set (include (printf "slurm.%s" $machine) . | fromYaml)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/*
Merges a patch into the values of a NodeSet. Items of lists are appended and replace those of the same name.
(list set patch)
*/}}
{{- define "slurm.vendorPatch" -}}
{{- $set := first . -}}
{{- range $key, $value := last . -}}
  {{- $old := get $set $key -}}
  {{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
    {{- include "slurm.vendorPatch" (list $old $value) -}}
  {{- else if and (kindIs "slice" $value) (kindIs "slice" $old) -}}
    {{- $names := list -}}
    {{- range $value }}{{ $names = append $names .name }}{{ end -}}
    {{- $kept := list -}}
    {{- range $old -}}
      {{- if not (has .name $names) }}{{ $kept = append $kept . }}{{ end -}}
    {{- end -}}
    {{- $_ := set $set $key (concat $kept $value) -}}
  {{- else -}}
    {{- $_ := set $set $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The prolog and the epilog write the job of each GPU to files on the host, which dcgm-exporter reads. */}}
{{- define "slurm.dcgm" -}}
slurmd:
  volumeMounts:
    - name: dcgm-job-mapping
      mountPath: {{ .jobMappingDir | quote }}
podSpec:
  volumes:
    - name: dcgm-job-mapping
      hostPath:
        path: {{ .jobMappingDir | quote }}
        type: DirectoryOrCreate
{{- end -}}

{{/* GPUDirect-TCPXO: a daemon beside slurmd transfers data between GPUs and eight NICs. */}}
{{- define "slurm.a3mega" -}}
{{- $interfaces := list -}}
{{- range $i, $network := .networks -}}
  {{- $interfaces = append $interfaces (dict "interfaceName" (printf "eth%d" $i) "network" $network) -}}
{{- end -}}
{{- $devices := list -}}
{{- range list "nvidia0" "nvidia1" "nvidia2" "nvidia3" "nvidia4" "nvidia5" "nvidia6" "nvidia7" "nvidiactl" "nvidia-uvm" "dmabuf_import_helper" -}}
  {{- $devices = append $devices (dict "path" (printf "/dev/%s" .)) -}}
{{- end -}}
metadata:
  annotations:
    devices.gke.io/container.tcpxo-daemon: {{ toYaml $devices | quote }}
    networking.gke.io/default-interface: eth0
    networking.gke.io/interfaces: {{ toJson $interfaces | quote }}
extraConfMap:
  Gres: gpu:nvidia_h100_80gb_hbm3:8
slurmd:
  env:
    - name: LD_LIBRARY_PATH
      value: /usr/local/nvidia/lib64
    - name: NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY
      value: /dev/aperture_devices
  volumeMounts:
    - name: aperture-devices
      mountPath: /dev/aperture_devices
  resources:
    requests:
      nvidia.com/gpu: 8
    limits:
      nvidia.com/gpu: 8
podSpec:
  nodeSelector:
    cloud.google.com/gke-nodepool: {{ .nodePool | quote }}
  containers:
    - name: tcpxo-daemon
      image: us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21
      imagePullPolicy: Always
      command: ["/bin/sh", "-c"]
      args:
        - chmod 755 /fts/entrypoint_rxdm_container.sh && exec /fts/entrypoint_rxdm_container.sh --num_hops=2 --num_nics=8 --uid= --alsologtostderr
      securityContext:
        capabilities:
          add: [NET_ADMIN, NET_BIND_SERVICE]
      env:
        - name: LD_LIBRARY_PATH
          value: /usr/local/nvidia/lib64
      volumeMounts:
        - name: libraries
          mountPath: /usr/local/nvidia/lib64
        - name: sys
          mountPath: /hostsysfs
        - name: proc-sys
          mountPath: /hostprocsysfs
  volumes:
    - name: libraries
      hostPath:
        path: /home/kubernetes/bin/nvidia/lib64
    - name: sys
      hostPath:
        path: /sys
    - name: proc-sys
      hostPath:
        path: /proc/sys
    - name: aperture-devices
      hostPath:
        path: /dev/aperture_devices
{{- end -}}

{{/* GPUDirect-RDMA: eth1 is the host's second NIC, so the RDMA networks begin at eth2. */}}
{{- define "slurm.a3ultra" -}}
{{- $interfaces := list -}}
{{- range $i, $network := .networks -}}
  {{- $interfaces = append $interfaces (dict "interfaceName" (printf "eth%d" (ternary 0 (add1 $i) (eq $i 0))) "network" $network) -}}
{{- end -}}
metadata:
  annotations:
    networking.gke.io/default-interface: eth0
    networking.gke.io/interfaces: {{ toJson $interfaces | quote }}
extraConfMap:
  gres: gpu:nvidia_h200:8
slurmd:
  env:
    - name: LD_LIBRARY_PATH
      value: /usr/local/nvidia/lib64
    - name: PATH
      value: /usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  volumeMounts:
    - name: library-dir-host
      mountPath: /usr/local/nvidia
    - name: gib
      mountPath: /usr/local/gib
  resources:
    requests:
      nvidia.com/gpu: 8
    limits:
      nvidia.com/gpu: 8
podSpec:
  nodeSelector:
    cloud.google.com/gke-nodepool: {{ .nodePool | quote }}
  volumes:
    - name: library-dir-host
      hostPath:
        path: /home/kubernetes/bin/nvidia
    - name: gib
      hostPath:
        path: /home/kubernetes/bin/gib
    - name: sys
      hostPath:
        path: /sys
    - name: proc-sys
      hostPath:
        path: /proc/sys
{{- end -}}
