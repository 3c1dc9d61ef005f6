//! The examples in `--help`. A test parses each of them.

pub(super) const ALL: &str = "\
Examples:
  kubectl slurm status                                  # one screen about the cluster
  kubectl slurm node list                               # nodes, and why some are out of service
  kubectl slurm partition set gpu MaxTime=1-00:00:00    # change a partition, live and for good
  kubectl slurm -n hpc config diff                      # what is in the objects and not live

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not found, 4 timed out";

pub(super) const PARTITION: &str = "\
Examples:
  kubectl slurm partition list
  kubectl slurm partition create debug --nodes compute MaxTime=30
  kubectl slurm partition set debug --nodes -compute-0";

pub(super) const PARTITION_LIST: &str = "\
Examples:
  kubectl slurm partition list -o wide
  kubectl slurm partition list --watch
  kubectl slurm partition list -A -o json";

pub(super) const PARTITION_SHOW: &str = "\
Examples:
  kubectl slurm partition show gpu
  kubectl slurm partition show gpu -o yaml";

pub(super) const PARTITION_CREATE: &str = "\
Examples:
  kubectl slurm partition create debug --nodes compute MaxTime=30
  kubectl slurm partition create long --nodes gpu,ext[001-004] MaxTime=7-00:00:00 PriorityTier=5
  kubectl slurm partition create most --nodes compute --exclude compute-[0-1]";

pub(super) const PARTITION_SET: &str = "\
Examples:
  kubectl slurm partition set gpu MaxTime=1-00:00:00 PriorityTier=10
  kubectl slurm partition set gpu DefaultTime-                # removes the setting
  kubectl slurm partition set gpu --nodes +compute            # all nodes of a NodeSet, also future ones
  kubectl slurm partition set gpu --nodes -gpu-[0-1]          # excludes two nodes";

pub(super) const PARTITION_DRAIN: &str = "\
Examples:
  kubectl slurm partition drain gpu
  kubectl slurm partition drain gpu --reason 'storage moves'";

pub(super) const PARTITION_RESUME: &str = "\
Examples:
  kubectl slurm partition resume gpu";

pub(super) const PARTITION_DELETE: &str = "\
Examples:
  kubectl slurm partition delete gpu --timeout 2h             # waits for its jobs
  kubectl slurm partition delete gpu --wait=false";

pub(super) const NODE: &str = "\
Examples:
  kubectl slurm node list
  kubectl slurm node show compute-0
  kubectl slurm node drain compute-[0-3] --reason 'disk swap'";

pub(super) const NODE_LIST: &str = "\
Examples:
  kubectl slurm node list -o wide
  kubectl slurm node list --watch";

pub(super) const NODE_SHOW: &str = "\
Examples:
  kubectl slurm node show compute-0
  kubectl slurm node show compute-0 -o json";

pub(super) const NODE_DRAIN: &str = "\
Examples:
  kubectl slurm node drain compute-0 compute-1
  kubectl slurm node drain compute-[0-3] --reason 'disk swap'";

pub(super) const NODE_RESUME: &str = "\
Examples:
  kubectl slurm node resume compute-[0-3]";

pub(super) const CONFIG: &str = "\
Examples:
  kubectl slurm config diff
  kubectl slurm config history
  kubectl slurm config check slurm.conf";

pub(super) const CONFIG_DIFF: &str = "\
Examples:
  kubectl slurm config diff
  kubectl slurm config diff -A";

pub(super) const CONFIG_HISTORY: &str = "\
Examples:
  kubectl slurm config history
  kubectl slurm config history 12                             # with the difference";

pub(super) const CONFIG_CHECK: &str = "\
Examples:
  kubectl slurm config check slurm.conf
  kubectl slurm config check /etc/slurm
  kubectl slurm config check -                                # standard input";

pub(super) const STATUS: &str = "\
Examples:
  kubectl slurm status
  kubectl slurm status --watch
  kubectl slurm status -A -o json";

pub(super) const COMPLETION: &str = "\
Examples:
  kubectl slurm completion bash > ~/.local/share/bash-completion/completions/kubectl-slurm
  kubectl slurm completion fish > ~/.config/fish/completions/kubectl-slurm.fish

For `kubectl slurm`, kubectl's own completion runs `kubectl_complete-slurm`, which also completes the names of partitions,
nodes, NodeSets and clusters. Link it to the plugin, in a directory of the PATH:
  ln -s \"$(command -v kubectl-slurm)\" /usr/local/bin/kubectl_complete-slurm";
