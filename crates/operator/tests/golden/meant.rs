//! What differs from upstream on purpose; `docs/compat.md` says the same in words.

/// Kind (and name), path and why; [`super::compare`] has the patterns.
pub(crate) const MEANT: &[(&str, &str, &str)] = &[
    (
        "StatefulSet",
        "metadata annotations slinky.slurm.net/restart-reasons",
        "why slurmctld was last restarted: an upgrade of the operator is no reason",
    ),
    (
        "StatefulSet",
        "metadata annotations slinky.slurm.net/template-version",
        "which release's idea of the pod it is, for the same",
    ),
    (
        "StatefulSet",
        "spec template metadata annotations slinky.slurm.net/slurm-config-hash",
        "a change of the configuration is taken over in place and recreates no pod",
    ),
    (
        "StatefulSet",
        "spec template metadata annotations meta.helm.sh/*",
        "Helm's own notes: adopting an object restarts nothing",
    ),
    (
        "Deployment",
        "spec template metadata annotations meta.helm.sh/*",
        "Helm's own notes: adopting an object restarts nothing",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld command",
        "slurmctld runs under slurm-agent: a bad configuration or a crash ends no container",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld env",
        "the socket the agent's two halves talk by",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld startupProbe",
        "slurmctld may start as slowly as it has to",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld livenessProbe",
        "a slurmctld that hangs is not killed: its supervisor watches it",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /etc/slurm name",
        "the agent writes /etc/slurm: all files change at once, in milliseconds",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /etc/slurm-keys",
        "/etc/slurm links to the keys there",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /opt/slurm-agent",
        "the agent, so that it runs in any image",
    ),
    (
        "StatefulSet",
        "spec template spec containers slurmctld volumeMounts /usr/local/bin/slurm-agent",
        "the agent on the PATH, for `slurm-agent check`",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers install-agent",
        "puts the agent into the pod",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers prepare",
        "fills /etc/slurm before anything starts",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure",
        "always there: it is the agent that takes changes over in place",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure *",
        "the agent instead of a script that polls, with slurmctld's environment and mounts",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure command *",
        "the agent instead of a script that polls",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure volumeMounts *",
        "the agent instead of a script that polls, with slurmctld's environment and mounts",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers reconfigure volumeMounts * *",
        "the agent writes /etc/slurm",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers logfile command 2",
        "our own script: it holds the pipe open, where upstream's loses a second at every restart of slurmctld",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers logfile lifecycle",
        "slurmctld starts when the pipe is there; before, it would make a file of it and fill the memory",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-conf",
        "what the agent makes /etc/slurm of",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-keys",
        "the keys alone, for /etc/slurm to link to",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-bundle",
        "the last accepted configuration, for a pod without state",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-candidate",
        "a configuration for an agent that cannot be reached",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-agent",
        "where the agent is put",
    ),
    (
        "StatefulSet",
        "spec template spec volumes slurm-etc projected sources *",
        "users' ConfigMaps are not mounted: their files are part of the revision that is checked and pushed as one",
    ),
    (
        "*",
        "spec template spec securityContext seccompProfile",
        "Pod Security Standard restricted",
    ),
    (
        "*",
        "spec template spec ** securityContext capabilities",
        "Pod Security Standard restricted",
    ),
    (
        "*",
        "spec template spec ** securityContext allowPrivilegeEscalation",
        "Pod Security Standard restricted",
    ),
    (
        "StatefulSet",
        "spec template spec initContainers logfile securityContext",
        "Pod Security Standard restricted",
    ),
    (
        "Secret slurm-sssd-conf",
        "data sssd.conf",
        "min_id: users of a directory get no UID of the system",
    ),
    (
        "ConfigMap",
        "data slurm.conf",
        "an external Accounting's externalConfig is honoured; upstream names a Service that nobody makes. A standby takes over after ten seconds",
    ),
    ("ConfigMap slurm-bundle", "", "the last accepted revision of all files"),
    (
        "ConfigMap slurm-history",
        "",
        "the last revisions that were accepted and refused, for people",
    ),
    (
        "PodDisruptionBudget",
        "spec minAvailable",
        "a number needs no arithmetic on the owners of the pods",
    ),
    (
        "PodDisruptionBudget",
        "spec maxUnavailable",
        "its place is taken by minAvailable",
    ),
    (
        "Pod",
        "metadata labels slinky.slurm.net/component",
        "added: the older documents select workers by it",
    ),
    (
        "Pod",
        "metadata labels nodeset.slinky.slurm.net/pod-protect",
        "from the beginning, not only after a job was seen",
    ),
    (
        "Pod",
        "metadata annotations meta.helm.sh/*",
        "Helm's notes are about the NodeSet; they are not copied",
    ),
    (
        "Pod",
        "metadata annotations topology.slinky.slurm.net/spec",
        "an empty topology is not written",
    ),
    (
        "Pod",
        "metadata name",
        "DaemonSet mode: the same name for the same node, so that none is made twice",
    ),
    (
        "Pod",
        "metadata labels nodeset.slinky.slurm.net/pod-name",
        "follows the name",
    ),
    (
        "Pod",
        "spec containers slurmd args 4",
        "an empty Topology= swallows the setting after it, so it is left out",
    ),
    (
        "Pod",
        "spec containers slurmd livenessProbe",
        "a slow slurmd is no reason to end its jobs",
    ),
    (
        "Pod",
        "spec containers slurmd lifecycle preStop exec command 2",
        "jobs are waited for within the grace period before the node is down",
    ),
    (
        "Pod",
        "spec containers slurmd volumeMounts /etc/sssd/sssd.conf *",
        "a copy that can be changed under a running sssd",
    ),
    ("Pod", "spec volumes sssd-conf-used", "where that copy is"),
    ("Pod", "spec initContainers sssd-conf", "makes that copy"),
    (
        "Pod",
        "spec containers slurmd lifecycle postStart",
        "brings a changed sssd.conf to the running sssd",
    ),
    (
        "Pod",
        "spec containers slurmd volumeMounts /mnt/wanted/sssd",
        "where it finds it",
    ),
    (
        "Pod",
        "spec initContainers logfile command 2",
        "our own script for the same thing",
    ),
    (
        "ControllerRevision",
        "metadata annotations",
        "the NodeSet's annotations are not part of its history",
    ),
    (
        "ControllerRevision",
        "metadata labels app.kubernetes.io/name",
        "added: by it revisions are found again",
    ),
    (
        "ControllerRevision",
        "metadata labels app.kubernetes.io/instance",
        "added: by it revisions are found again",
    ),
    (
        "NodeSet",
        "spec updateStrategy paused",
        "added: stops an update; off unless it is set",
    ),
    (
        "NodeSet",
        "metadata finalizers",
        "workers are emptied of jobs before a NodeSet goes",
    ),
    (
        "NodeSet",
        "metadata annotations slinky.slurm.net/chart-replicas",
        "the chart's: what the values asked for last, so that an upgrade keeps a scaled number",
    ),
    (
        "LoginSet",
        "metadata annotations slinky.slurm.net/chart-replicas",
        "the chart's, as for NodeSets",
    ),
    (
        "Pod",
        "metadata annotations slinky.slurm.net/slurm-key-hash",
        "which key a worker was made with, so that one whose slurmctld has another by now is told of",
    ),
    (
        "Secret",
        "immutable",
        "keys are in mutable Secrets: kubelets give the old content of an immutable one to new pods after it was created again",
    ),
    (
        "Secret alice-jwt-alice",
        "",
        "the token's: upstream gives it to the key's Secret, which the recording leaves out",
    ),
    (
        "* slurm-login-*",
        "metadata annotations slinky.slurm.net/chart-replicas",
        "the chart's, on children that carry the LoginSet's annotations; no pod has it",
    ),
    (
        "Deployment slurm-login-*",
        "spec template metadata annotations slinky.slurm.net/sshd-conf-hash",
        "a changed sshd_config reaches running pods and throws nobody out; the digest is on the pods",
    ),
    (
        "Deployment slurm-login-*",
        "spec template metadata annotations slinky.slurm.net/sssd-conf-hash",
        "a changed sssd.conf reaches running pods and throws nobody out; the digest is on the pods",
    ),
    (
        "Deployment slurm-login-*",
        "spec template metadata annotations slinky.slurm.net/slurm-key-hash",
        "added: sackd reads the key when it starts, and without the right one no command works",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec containers login securityContext",
        "`privileged: false` of the values is kept; upstream drops a no",
    ),
    (
        "ConfigMap slurm-login-*",
        "data sshd_config",
        "the line at which sshd waits for sackd, and the lines that refuse passwords",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec containers login volumeMounts /etc/ssh/wait.d",
        "what sshd waits for before sackd has its socket",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec containers login volumeMounts * name",
        "sshd_config, authorized_keys and sssd.conf are copies that can be changed under a running daemon",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec initContainers initconf command 2",
        "our own script; it makes those copies too, and /run/slurm sackd's own",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec initContainers initconf volumeMounts *",
        "our own script; it makes those copies too, and /run/slurm sackd's own",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec initContainers reload",
        "brings changed files to the running daemons",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec shareProcessNamespace",
        "so that the daemons can be told of changed files",
    ),
    (
        "Deployment slurm-login-*",
        "spec template spec volumes login-files",
        "where those copies are",
    ),
];
