//! A Slurm outside Kubernetes, with workers, slurmrestd and login pods inside, and machines that are neither.

use std::time::{Duration, Instant};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::faults::{Fault, Pod};
use testbed::harness::{Namespace, cluster, eventually, expect};
use testbed::network;
use testbed::outside::Outside;
use testbed::process::Process;

use crate::accounting::{MARIADB as MARIADB_IN_KUBERNETES, set_password};
use crate::common::operator::{
    SOON, change_spec, install, install_as_written, install_chart, slurm, slurmrestd_pod, wait_node, wait_said,
};
use crate::kubectl_slurm::done;

/// As on bare metal, with the four things that pods need of it.
const SLURM_CONF: &str = "
ClusterName=outside
SlurmctldHost=bare-ctl(CTL)
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
AuthType=auth/slurm
CredType=cred/slurm
AuthInfo=use_client_ids
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt_hs256.key
SlurmctldParameters=enable_configless
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MaxNodeCount=16
ReturnToService=2
NodeName=bare-1 NodeAddr=ONE CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
PartitionName=bare Nodes=bare-1 MaxTime=60
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=CTL
";

const SLURMDBD_CONF: &str = "
AuthType=auth/slurm
AuthInfo=use_client_ids
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt_hs256.key
DbdHost=bare-ctl
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=secret
";

const MARIADB: &str = "bash -c '
    install -d -o mysql /run/mysqld /var/lib/mysql
    mariadb-install-db --no-defaults --user=mysql --datadir=/var/lib/mysql --skip-test-db
    exec mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock \
        --innodb-snapshot-isolation=OFF --innodb-lock-wait-timeout=900 --init-file=/etc/setup.sql'";
const SETUP: &str = "CREATE DATABASE slurm_acct_db;
CREATE USER slurm@'%' IDENTIFIED BY 'secret';
GRANT ALL ON slurm_acct_db.* TO slurm@'%';
";

const KEYS: [(&str, &str, &str); 2] = [
    (
        "external-auth-slurm",
        "slurm.key",
        "a key of auth/slurm that is long enough",
    ),
    (
        "external-auth-jwths256",
        "jwt_hs256.key",
        "a key of auth/jwt that is also long enough",
    ),
];

const OLDER_GUIDES: &str = include_str!("../../../../examples/seeds/hybrid.yaml");
const VALUES: &str = include_str!("../../../../examples/hybrid/values.yaml");
const HOST_NETWORK: &str = include_str!("../../../../examples/hybrid/host-network.yaml");
const CONTROL_PLANE: &str = include_str!("../../../../examples/hybrid/control-plane.yaml");
const RECORDS: &str = include_str!("../../../../examples/hybrid/records.yaml");
const MIXED: &str = include_str!("../../../../examples/hybrid/mixed.yaml");
const SET: &str = "nodeset/slurm-worker-slinky";
const LOGIN: &str = "deploy/slurm-login-slinky -c login";
const HOSTS: &str = "nodeset/slurm-worker-host";

/// The workers of the nodes' networks have one beside them that is not, so that two nodes are left for the three of them; and what the
/// older guides write.
const SLINKY: &str = "nodesets:
  slinky:
    replicas: 1
  host:
    oversubscribeNode: true";

/// A Controller that nothing else belongs to.
const PROBE: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata:
  name: probe
spec:
  external: true
  externalConfig:
    host: HOST
  slurmKeyRef:
    name: external-auth-slurm
    key: slurm.key
  jwtKeyRef:
    name: external-auth-jwths256
    key: jwt_hs256.key
";

/// Partitions of the Slurm outside: one that its slurm.conf has, and one that it has not.
const PARTITIONS: &str = "
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata:
  name: bare
spec:
  controllerRef: {name: slurm}
  nodes: [bare-1]
  maxTime: 30
---
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata:
  name: fresh
spec:
  controllerRef: {name: slurm}
  nodes: [\"bare-[1-2]\"]
";

/// For machines of which not all have cgroups.
const NO_CGROUPS: &str = "
configFiles:
  cgroup.conf: CgroupPlugin=disabled
";
const EXTRA_CONF: &str = "  extraConf: |
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
";

struct Hybrid {
    cluster: &'static Cluster,
    namespace: Namespace,
    ctl: Outside,
}

impl Hybrid {
    fn begin() -> Self {
        let cluster = cluster();
        install(cluster);
        let namespace = Namespace::create(cluster, "hybrid").unwrap();
        create_keys(&namespace);
        let ctl = boot(cluster, 1, "bare-ctl");
        ctl.write("/etc/slurm/cgroup.conf", 0o644, "CgroupPlugin=disabled\n")
            .unwrap();
        ctl.write("/etc/slurm/slurmdbd.conf", 0o600, SLURMDBD_CONF).unwrap();
        ctl.write("/etc/setup.sql", 0o644, SETUP).unwrap();
        ctl.run("chown slurm: /etc/slurm/slurmdbd.conf").unwrap();
        ctl.start("mariadb", MARIADB).unwrap();
        ctl.start("slurmdbd", "slurmdbd -D").unwrap();
        Self {
            cluster,
            namespace,
            ctl,
        }
    }

    /// Starts slurmctld without these words in its slurm.conf.
    fn start_slurmctld(&self, without: &str) -> Process {
        self.write_conf(without, "");
        self.ctl.start("slurmctld", "slurmctld -D").unwrap()
    }

    fn write_conf(&self, without: &str, with: &str) {
        let conf = SLURM_CONF
            .replace("CTL", &self.ctl.address)
            .replace("ONE", &network::outside_address(2))
            .replace(without, with);
        self.ctl.write("/etc/slurm/slurm.conf", 0o644, conf).unwrap();
    }

    fn wait_partition(&self, partition: &str, words: &[&str]) {
        let begun = Instant::now();
        eventually(&format!("{partition} with {words:?}"), SOON, || {
            let shown = self.slurm(&format!("scontrol --oneliner show partition {partition}"))?;
            expect(words.iter().all(|word| shown.contains(word)), shown)
        })
        .unwrap();
        eprintln!("{partition} {words:?}: seen after {:?}", begun.elapsed());
    }

    /// Values with this Slurm's address in place of the hosts that they name.
    fn filled_in(&self, values: &str) -> String {
        values
            .replace("slurm-controller.example.com", &self.ctl.address)
            .replace("slurm-accounting.example.com", &self.ctl.address)
    }

    /// As whoever administers it there.
    fn slurm(&self, line: &str) -> Result<String> {
        self.ctl.run(line)
    }

    fn wait_node(&self, node: &str, words: &[&str]) {
        eventually(&format!("node {node} with {words:?}"), SOON, || {
            let shown = self.slurm(&format!("scontrol show node {node} --oneliner"))?;
            expect(words.iter().all(|word| shown.contains(word)), shown)
        })
        .unwrap();
    }

    fn nodes(&self) -> Result<Vec<String>> {
        let shown = self.slurm("scontrol --oneliner show nodes")?;
        let names = shown.lines().filter_map(|line| line.strip_prefix("NodeName="));
        let mut names: Vec<String> = names
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    fn wait_nodes(&self, expected: &[&str]) {
        eventually(&format!("nodes {expected:?}"), SOON, || {
            let now = self.nodes()?;
            expect(now == expected, now)
        })
        .unwrap();
    }

    fn start_job(&self, options: &str, line: &str) -> String {
        let submit = format!("sbatch --parsable --chdir=/tmp -o /dev/null {options} --wrap '{line}'");
        let job = self.slurm(&submit).unwrap().trim().to_owned();
        self.wait_job(&job, "RUNNING");
        job
    }

    fn wait_job(&self, job: &str, state: &str) {
        eventually(&format!("job {job} {state}"), SOON, || {
            let shown = self.slurm(&format!("scontrol show job {job}"))?;
            expect(shown.contains(&format!("JobState={state}")), shown)
        })
        .unwrap();
    }
}

impl Drop for Hybrid {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.ctl.log("slurmctld")).unwrap_or_default();
            eprintln!("--- slurmctld outside\n{log}");
        }
    }
}

/// As the older guides have them made.
fn create_keys(namespace: &Namespace) {
    for (secret, entry, content) in KEYS {
        let literal = format!("--from-literal={entry}={content}");
        namespace
            .ask(&["create", "secret", "generic", secret, &literal])
            .unwrap();
    }
}

/// A machine with the cluster's keys.
fn boot(cluster: &Cluster, index: u8, name: &str) -> Outside {
    let machine = Outside::boot(cluster, index, name).unwrap();
    for (_, entry, content) in KEYS {
        machine.write(&format!("/etc/slurm/{entry}"), 0o600, content).unwrap();
    }
    machine
        .run("chown slurm: /etc/slurm/*.key; install -d -o slurm /run/slurmctld /run/slurmdbd; install -d /run/slurm")
        .unwrap();
    machine
}

/// What slurmctld lacks is named, and so is an address where there is none; each heals by itself.
fn requirements_are_named(hybrid: &Hybrid) -> Process {
    let probe = "controller/probe";
    hybrid
        .namespace
        .apply(&PROBE.replace("HOST", &hybrid.ctl.address))
        .unwrap();
    wait_said(&hybrid.namespace, probe, "Ready", &["False SlurmctldAway", "6817"]);
    for (without, named) in [
        ("SlurmctldParameters=enable_configless", "lacks configless"),
        ("AuthInfo=use_client_ids", "lacks use_client_ids"),
        ("AuthAltTypes=auth/jwt", "auth/jwt"),
    ] {
        let slurmctld = hybrid.start_slurmctld(without);
        wait_said(&hybrid.namespace, probe, "Ready", &["False RequirementMissing", named]);
        slurmctld.end(Signal::SIGTERM, Duration::from_secs(20)).unwrap();
    }
    let slurmctld = hybrid.start_slurmctld("nothing");
    wait_said(&hybrid.namespace, probe, "Ready", &["True External"]);
    let something_else = json!({ "externalConfig": { "host": network::CONTROL_PLANE, "port": network::API_PORT } });
    change_spec(&hybrid.namespace, probe, &something_else).unwrap();
    wait_said(
        &hybrid.namespace,
        probe,
        "Ready",
        &["False", "6443", "correct spec.externalConfig"],
    );
    change_spec(
        &hybrid.namespace,
        probe,
        &json!({ "externalConfig": { "host": hybrid.ctl.address, "port": null } }),
    )
    .unwrap();
    wait_said(&hybrid.namespace, probe, "Ready", &["True External"]);
    hybrid.namespace.ask(&["delete", probe]).unwrap();
    slurmctld
}

/// Partitions there are changed in the running slurmctld, and told again when it has forgotten; none is made that would be lost,
/// and none that others made goes.
fn partitions_outside_are_changed_live(hybrid: &Hybrid, slurmctld: Process) {
    let namespace = &hybrid.namespace;
    let (bare, fresh) = ("partition.slinky.slurm.net/bare", "partition.slinky.slurm.net/fresh");
    let job = hybrid.start_job("-p bare -w bare-1", "sleep 20");
    namespace.apply(PARTITIONS).unwrap();
    hybrid.wait_partition("bare", &["MaxTime=00:30:00", "State=UP"]);
    wait_said(namespace, bare, "Ready", &["True"]);
    wait_said(
        namespace,
        bare,
        "NotPersistent",
        &["True", "write PartitionName=bare Nodes=bare-1 State=UP MaxTime=30 into"],
    );
    assert_eq!(namespace.field(bare, ".status.applied.way").unwrap(), "Rpc");
    let refused = "add the line PartitionName=fresh Nodes=bare-[1-2] State=UP to the slurm.conf there";
    wait_said(namespace, fresh, "Ready", &["False CannotCreate", refused]);
    done(namespace, &["partition", "drain", "bare"]);
    hybrid.wait_partition("bare", &["MaxTime=00:30:00", "State=DRAIN"]);
    done(namespace, &["partition", "set", "bare", "PriorityTier=7"]);

    let all = ["MaxTime=00:30:00", "State=DRAIN", "PriorityTier=7"];
    slurmctld.end(Signal::SIGTERM, Duration::from_secs(20)).unwrap();
    hybrid.start_slurmctld("nothing");
    hybrid.wait_partition("bare", &all);
    for _ in 0..2 {
        hybrid.slurm("scontrol reconfigure").unwrap();
        hybrid.wait_partition("bare", &all);
    }
    hybrid.slurm("scontrol update PartitionName=bare MaxTime=5").unwrap();
    hybrid.wait_partition("bare", &all);
    done(namespace, &["partition", "resume", "bare"]);
    hybrid.wait_partition("bare", &["State=UP"]);
    // What somebody closes stays closed, until it is lifted.
    hybrid.slurm("scontrol update PartitionName=bare State=DRAIN").unwrap();
    wait_said(namespace, bare, "Drifted", &["True ClosedByHand"]);
    done(namespace, &["partition", "resume", "bare"]);
    hybrid.wait_partition("bare", &["State=UP"]);
    hybrid.wait_job(&job, "COMPLETED");

    // Where slurmctld keeps what it was told, one can be made, and goes when its jobs have.
    hybrid.write_conf("ReturnToService", "ReconfigFlags=KeepPartInfo\nReturnToService");
    hybrid.slurm("scontrol reconfigure").unwrap();
    wait_said(namespace, fresh, "Ready", &["True"]);
    hybrid.wait_partition("fresh", &["State=UP", "Nodes=bare-[1-2]"]);
    let job = hybrid.start_job("-p fresh -w bare-2", "sleep 10");
    namespace.ask(&["delete", fresh, "--wait=false"]).unwrap();
    wait_said(namespace, fresh, "PartitionRetained", &["True WaitsForJobs"]);
    hybrid.wait_partition("fresh", &["State=DRAIN"]);
    namespace.wait("delete", fresh).unwrap();
    hybrid.wait_job(&job, "COMPLETED");
    let gone = hybrid.slurm("scontrol --oneliner show partition").unwrap();
    assert!(!gone.contains("PartitionName=fresh"), "{gone}");

    what_cannot_be_had_outside_is_said_and_taken_back(hybrid);
    partitions_outside_are_changed_by_slurmrestd(hybrid);
    namespace.ask(&["delete", bare]).unwrap();
    hybrid.wait_partition("bare", &["MaxTime=00:45:00", "State=UP"]);
}

/// Nodes that slurmctld does not know, a second default, and NodeSets that its slurm.conf does not have; each heals.
fn what_cannot_be_had_outside_is_said_and_taken_back(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    let (bare, fresh) = ("partition.slinky.slurm.net/bare", "partition.slinky.slurm.net/fresh");
    change_spec(namespace, bare, &json!({ "maxTime": 20, "nodes": ["nowhere"] })).unwrap();
    wait_said(
        namespace,
        bare,
        "Ready",
        &["False ConfigRejected", "ESLURM_INVALID_NODE_NAME"],
    );
    hybrid.wait_partition("bare", &["MaxTime=00:30:00", "Nodes=bare-1"]);
    change_spec(
        namespace,
        bare,
        &json!({ "maxTime": 30, "nodes": ["bare-1"], "default": true }),
    )
    .unwrap();
    wait_said(namespace, bare, "Ready", &["True"]);
    hybrid.wait_partition("all", &["Default=NO"]);
    let second = PARTITIONS.rsplit_once("---").unwrap().1;
    namespace.apply(&format!("{second}  default: true\n")).unwrap();
    wait_said(namespace, fresh, "Ready", &["False TwoDefaults", "Partition \"bare\""]);
    namespace.ask(&["delete", fresh]).unwrap();
    change_spec(namespace, bare, &json!({ "default": null })).unwrap();
    hybrid.wait_partition("all", &["Default=YES"]);

    namespace
        .apply(&second.replace("nodes: [\"bare-[1-2]\"]", "nodeSets: [slurm-worker-slinky]"))
        .unwrap();
    wait_said(
        namespace,
        fresh,
        "Ready",
        &["False BadMembers", "NodeSet=slinky Feature=slinky"],
    );
    hybrid.write_conf(
        "ReturnToService",
        "ReconfigFlags=KeepPartInfo\nNodeSet=slinky Feature=slinky\nReturnToService",
    );
    hybrid.slurm("scontrol reconfigure").unwrap();
    wait_said(namespace, fresh, "Ready", &["True"]);
    hybrid.wait_partition("fresh", &["NodeSets=slinky"]);
    namespace.ask(&["delete", fresh]).unwrap();
}

/// Where the operator does not reach slurmctld and slurmrestd does, that is the way, also for making one and letting it go.
fn partitions_outside_are_changed_by_slurmrestd(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    let (bare, fresh) = ("partition.slinky.slurm.net/bare", "partition.slinky.slurm.net/fresh");
    let cut = cut_operator_from(hybrid);
    wait_said(namespace, "controller/slurm", "Ready", &["False SlurmctldAway"]);
    change_spec(namespace, bare, &json!({ "maxTime": 45 })).unwrap();
    hybrid.wait_partition("bare", &["MaxTime=00:45:00", "State=UP", "PriorityTier=7"]);
    wait_said(namespace, bare, "Ready", &["True"]);
    assert_eq!(namespace.field(bare, ".status.applied.way").unwrap(), "Rest");
    // What slurmctld refuses is taken back, with its words.
    change_spec(namespace, bare, &json!({ "maxTime": 20, "nodes": ["nowhere"] })).unwrap();
    wait_said(
        namespace,
        bare,
        "Ready",
        &["False ConfigRejected", "does not know all of its nodes"],
    );
    hybrid.wait_partition("bare", &["MaxTime=00:45:00", "Nodes=bare-1"]);
    change_spec(namespace, bare, &json!({ "maxTime": 45, "nodes": ["bare-1"] })).unwrap();
    wait_said(namespace, bare, "Ready", &["True"]);

    namespace.apply(PARTITIONS.rsplit_once("---").unwrap().1).unwrap();
    wait_said(namespace, fresh, "Ready", &["True"]);
    assert_eq!(namespace.field(fresh, ".status.applied.way").unwrap(), "Rest");
    hybrid.wait_partition("fresh", &["State=UP", "Nodes=bare-[1-2]"]);
    let job = hybrid.start_job("-p fresh -w bare-2", "sleep 10");
    namespace.ask(&["delete", fresh, "--wait=false"]).unwrap();
    wait_said(namespace, fresh, "PartitionRetained", &["True WaitsForJobs"]);
    namespace.wait("delete", fresh).unwrap();
    hybrid.wait_job(&job, "COMPLETED");
    let gone = hybrid.slurm("scontrol --oneliner show partition").unwrap();
    assert!(!gone.contains("PartitionName=fresh"), "{gone}");
    drop(cut);
    wait_said(namespace, "controller/slurm", "Ready", &["True External"]);
}

/// No packet goes between the operator and that slurmctld.
fn cut_operator_from(hybrid: &Hybrid) -> Vec<Fault> {
    let pods = [
        "get",
        "pods",
        "--namespace=slinky",
        "--selector=app.kubernetes.io/name=slurm-operator",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ];
    let pods = hybrid.cluster.ask(&pods).unwrap();
    let cut = |name| {
        let namespace = "slinky";
        hybrid
            .cluster
            .cut_from(Pod { namespace, name }, &hybrid.ctl.address)
            .unwrap()
    };
    pods.split_whitespace().map(cut).collect()
}

/// The older guides' values and checks, with nothing but the hosts filled in. Five workers on three nodes: two wait for more.
fn the_older_guides_values_install_as_written(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    install_as_written(hybrid.cluster, namespace, &hybrid.filled_in(OLDER_GUIDES)).unwrap();
    eventually("a worker on each node joins", SOON, || {
        let nodes = hybrid.slurm("scontrol --oneliner show nodes")?;
        let workers = nodes.lines().filter(|line| line.starts_with("NodeName=slinky-"));
        let idle = workers.filter(|line| line.contains("State=IDLE+DYNAMIC_NORM")).count();
        expect(idle == hybrid.cluster.nodes().len(), nodes)
    })
    .unwrap();
    let pods = namespace.ask(&["get", "pods", "--no-headers"]).unwrap();
    let workers = |phase: &str| {
        let lines = pods.lines().filter(|line| line.starts_with("slurm-worker-slinky-"));
        lines.filter(|line| line.contains(phase)).count()
    };
    assert_eq!((workers("Running"), workers("Pending")), (3, 2), "{pods}");
    let login = ["exec", "deployment/slurm-login-slinky", "--", "sinfo"];
    let refused = namespace.ask(&login).unwrap_err().to_string();
    assert!(
        refused.contains("not found"),
        "those values make no LoginSet: {refused}"
    );
}

/// The workers of hostNetwork, by the names of their Kubernetes nodes; the third waits, since no node is left for it.
fn workers_on_the_nodes_networks(hybrid: &Hybrid) -> Vec<String> {
    let path =
        "jsonpath={range .items[*]}{.spec.nodeName}={.status.conditions[?(@.type==\"PodScheduled\")].reason}\n{end}";
    let ask = [
        "get",
        "pods",
        "--selector",
        "app.kubernetes.io/instance=slurm-worker-host",
        "-o",
        path,
    ];
    eventually("two on nodes of their own and a third that waits", SOON, || {
        let found = hybrid.namespace.ask(&ask)?;
        let mut places: Vec<&str> = found.lines().collect();
        places.sort_unstable();
        expect(places.len() == 3 && places.first() == Some(&"=Unschedulable"), &found)?;
        let named: Vec<String> = places
            .iter()
            .filter_map(|place| place.strip_suffix('='))
            .map(str::to_owned)
            .collect();
        expect(named.len() == 2 && named.first() != named.last(), &found)?;
        Ok(named)
    })
    .unwrap()
}

/// A login host, and a second slurmrestd.
fn hosts_outside_log_in_and_serve_rest(hybrid: &Hybrid, conf_server: &str, worker: &str) {
    let host = boot(hybrid.cluster, 4, "bare-login");
    host.start("sackd", &format!("sackd -D {conf_server}")).unwrap();
    eventually("a login host outside", SOON, || {
        let shown = host.run(&format!("srun -w {worker} hostname"))?;
        expect(shown.trim() == worker, shown)
    })
    .unwrap();
    let serve = "env SLURM_JWT=daemon setpriv --reuid=65534 --regid=65534 --clear-groups slurmrestd 0.0.0.0:6820";
    host.start("slurmrestd", serve).unwrap();
    let ask = "eval $(scontrol token username=slurm) && curl --silent --fail \
        -H X-SLURM-USER-NAME:slurm -H X-SLURM-USER-TOKEN:$SLURM_JWT ADDRESS:6820/slurm/v0.0.44/nodes/";
    eventually("slurmrestd outside", SOON, || {
        let nodes = hybrid.slurm(&ask.replace("ADDRESS", &host.address))?;
        expect(nodes.contains(worker), nodes)
    })
    .unwrap();
}

/// The record of a worker that went with its Kubernetes node, whose name it had.
/// There is no agent outside, so slurmrestd carries orders.
fn an_order_that_hung_in_slurmrestd_is_not_carried_out_later(hybrid: &Hybrid, worker: &str) {
    let namespace = &hybrid.namespace;
    let annotate = |word: &str| {
        let pod = format!("pod/slurm-worker-{worker}");
        namespace.ask(&["annotate", "--overwrite", &pod, word]).unwrap();
    };
    annotate("nodeset.slinky.slurm.net/pod-cordon=true");
    hybrid.wait_node(worker, &["DRAIN", "was cordoned"]);
    let restd = slurmrestd_pod(namespace).unwrap();
    let frozen = hybrid
        .cluster
        .pause_container(namespace.pod(&restd), "slurmrestd")
        .unwrap();
    annotate("nodeset.slinky.slurm.net/pod-cordon-");
    // The operator has tried by then, and given up.
    std::thread::sleep(Duration::from_secs(12));
    let drain = format!("scontrol update nodename={worker} state=drain reason=RMA");
    hybrid.slurm(&drain).unwrap();
    frozen.heal().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    let shown = hybrid
        .slurm(&format!("scontrol show node {worker} --oneliner"))
        .unwrap();
    assert!(shown.contains("DRAIN") && shown.contains("Reason=RMA "), "{shown}");
    hybrid
        .slurm(&format!("scontrol update nodename={worker} state=resume"))
        .unwrap();
    hybrid.wait_node(worker, &["State=IDLE"]);
}

fn a_record_named_by_a_lost_node_is_pruned(hybrid: &Hybrid, conf_server: &str) {
    let namespace = &hybrid.namespace;
    let comment = json!({
        "namespace": namespace.name, "podName": "slurm-worker-host-7", "node": "node77",
        "nodeSetName": "slurm-worker-host", "nodeSetUID": namespace.field(HOSTS, ".metadata.uid").unwrap(),
    });
    let lost = boot(hybrid.cluster, 4, "node77");
    lost.start("slurmd", &format!("slurmd -D -Z {conf_server}")).unwrap();
    hybrid.wait_node("node77", &["State=IDLE+DYNAMIC_NORM"]);
    drop(lost);
    let mark = format!("scontrol update NodeName=node77 Comment='{comment}'");
    hybrid.slurm(&mark).unwrap();
    eventually("the lost node's record goes", SOON, || {
        let nodes = hybrid.nodes()?;
        expect(!nodes.iter().any(|node| node == "node77"), nodes)
    })
    .unwrap();
}

/// Whatever slurmrestd was told when it started.
fn an_address_without_slurmdbd_is_noticed(hybrid: &Hybrid) {
    let namespace = &hybrid.namespace;
    let accounting = "accounting/slurm";
    let no_slurmdbd = "what listens there is not slurmdbd";
    let at = |host: &str, port: u16| json!({ "externalConfig": { "host": host, "port": port } });
    let slurmrestd = format!("slurm-restapi.{}", namespace.name);
    let theirs = "--from-literal=jwt.key=a key of somebody else's clusters";
    namespace
        .ask(&["create", "secret", "generic", "theirs", theirs])
        .unwrap();
    let signed_with = |name: &str, key: &str| json!({ "jwtKeyRef": { "name": name, "key": key } });
    wait_said(namespace, accounting, "Degraded", &["False"]);
    for (spec, words) in [
        (at(&hybrid.ctl.address, 6999), "SlurmdbdAway"),
        // slurmctld, one that speaks HTTP and one that speaks TLS.
        (at(&hybrid.ctl.address, 6817), no_slurmdbd),
        (at(&slurmrestd, 6820), no_slurmdbd),
        (at(network::CONTROL_PLANE, network::API_PORT), no_slurmdbd),
        (at(&hybrid.ctl.address, 6819), "False"),
        (signed_with("theirs", "jwt.key"), "it rejects the operator's token"),
        (signed_with("external-auth-jwths256", "jwt_hs256.key"), "False"),
    ] {
        change_spec(namespace, accounting, &spec).unwrap();
        let since = Instant::now();
        wait_said(namespace, accounting, "Degraded", &[words]);
        let noticed = since.elapsed();
        assert!(noticed < Duration::from_mins(1), "{spec} was noticed after {noticed:?}");
    }
}

/// Waits until a job of this cluster is in the accounts as it should be.
fn wait_recorded(cluster: &str, job: &str, ask: impl Fn(&str) -> Result<String>) {
    let line = format!("sacct -X --noheader --parsable2 --format=Cluster,State --jobs={job}");
    eventually("sacct shows it", SOON, || {
        let said = ask(&line)?;
        expect(said.trim() == format!("{cluster}|COMPLETED"), said)
    })
    .unwrap();
}

/// Two more clusters in the same accounts, with slurmctld in Kubernetes; a machine outside is one of the nodes of the second.
fn clusters_inside_keep_their_records_there(hybrid: &Hybrid) {
    let mixed = format!(
        "{}{NO_CGROUPS}",
        MIXED.replace("controller:\n", &format!("controller:\n{EXTRA_CONF}"))
    );
    let records = Namespace::create(hybrid.cluster, "records").unwrap();
    create_keys(&records);
    install_chart(hybrid.cluster, &records, &hybrid.filled_in(RECORDS)).unwrap();
    let second = Namespace::create(hybrid.cluster, "mixed").unwrap();
    create_keys(&second);
    install_as_written(hybrid.cluster, &second, &hybrid.filled_in(&mixed)).unwrap();
    second.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
    let joined = machine_that_knows_names(&second, 4, "bare-4");
    joined
        .start(
            "slurmd",
            &format!("slurmd -D -Z --conf-server slurm-controller.{}:6817", second.name),
        )
        .unwrap();

    for (namespace, cluster, nodes) in [
        (&records, "inside", &["slinky-0"][..]),
        (&second, "mixed", &["bare-4", "slinky-0"]),
    ] {
        for node in nodes {
            wait_node(namespace, node, &["State=IDLE"], &[]).unwrap();
        }
        let submit = format!(
            "sbatch --parsable --wait --chdir=/tmp -o /dev/null -N{} --wrap 'srun true'",
            nodes.len()
        );
        let job = slurm(namespace, &submit).unwrap();
        wait_recorded(cluster, job.trim(), |line| slurm(namespace, line));
    }
    eventually("people log in where slurmdbd and a node are elsewhere", SOON, || {
        let shown = second.exec(LOGIN, "srun -w bare-4 hostname")?;
        expect(shown == "bare-4\n", shown)
    })
    .unwrap();
}

/// One that asks the cluster's DNS, as docs/hybrid.md prescribes.
fn machine_that_knows_names(namespace: &Namespace, index: u8, name: &str) -> Outside {
    let machine = boot(cluster(), index, name);
    let search = format!("search svc.cluster.local {}.svc.cluster.local", namespace.name);
    let names = format!("{search}\nnameserver {}\n", network::CONTROL_PLANE);
    machine.write("/etc/resolv.conf", 0o644, names).unwrap();
    machine
}

#[test]
fn a_slurm_outside_kubernetes_has_workers_inside_and_keeps_its_own() {
    let hybrid = Hybrid::begin();
    let namespace = &hybrid.namespace;
    let slurmctld = requirements_are_named(&hybrid);
    the_older_guides_values_install_as_written(&hybrid);

    install_as_written(hybrid.cluster, namespace, &hybrid.filled_in(VALUES)).unwrap();
    eventually("fewer workers", SOON, || {
        let nodes = hybrid.nodes()?;
        expect(
            nodes.iter().filter(|node| node.starts_with("slinky-")).count() == 2,
            nodes,
        )
    })
    .unwrap();
    let values = HOST_NETWORK
        .replace("nodesets:\n  host:", SLINKY)
        .replace("dnsPolicy", "dNSPolicy");
    install_as_written(hybrid.cluster, namespace, &hybrid.filled_in(&values)).unwrap();
    let bare_1 = boot(hybrid.cluster, 2, "bare-1");
    let conf_server = format!("--conf-server {}:6817", hybrid.ctl.address);
    bare_1.start("slurmd", &format!("slurmd -D {conf_server}")).unwrap();
    let bare_2 = boot(hybrid.cluster, 3, "bare-2");
    bare_2.start("slurmd", &format!("slurmd -D -Z {conf_server}")).unwrap();
    let on_nodes = workers_on_the_nodes_networks(&hybrid);
    let worker = eventually("one of the first workers stays", SOON, || {
        let nodes = hybrid.nodes()?;
        let left: Vec<&String> = nodes.iter().filter(|node| node.starts_with("slinky-")).collect();
        let [one] = left.as_slice() else {
            anyhow::bail!("{nodes:?}")
        };
        Ok((*one).clone())
    })
    .unwrap();
    let workers = [on_nodes, vec![worker.clone()]].concat();
    let bare = ["bare-1", "bare-2"];
    let all: Vec<&str> = bare.into_iter().chain(workers.iter().map(String::as_str)).collect();
    for node in &all {
        hybrid.wait_node(node, &["State=IDLE"]);
    }
    let hosts = hybrid.slurm("srun -N5 hostname | sort").unwrap();
    assert_eq!(hosts.lines().collect::<Vec<_>>(), all);
    wait_said(
        &hybrid.namespace,
        HOSTS,
        "UnknownFields",
        &["dNSPolicy is read as dnsPolicy"],
    );

    // Through slurmrestd, and from where people log in.
    eventually("the NodeSet counts its nodes", SOON, || {
        let idle = namespace.field(SET, ".status.slurmIdle")?;
        expect(idle == "1", idle)
    })
    .unwrap();
    eventually(
        "people can log in, and the older guides' last check answers",
        SOON,
        || {
            let shown = namespace.ask(&["exec", "deployment/slurm-login-slinky", "--", "sinfo"])?;
            expect(shown.contains("idle"), shown)?;
            let shown = namespace.exec(LOGIN, "srun -w bare-1 hostname")?;
            expect(shown == "bare-1\n", shown)
        },
    )
    .unwrap();
    hosts_outside_log_in_and_serve_rest(&hybrid, &conf_server, &worker);
    an_order_that_hung_in_slurmrestd_is_not_carried_out_later(&hybrid, &worker);

    // Fewer wait for their jobs and take their records along; those of others stay, whatever is pruned.
    for set in [SET, HOSTS] {
        change_spec(
            &hybrid.namespace,
            set,
            &json!({ "pruneSlurmNodeRecords": "NodeNotFound" }),
        )
        .unwrap();
    }
    a_record_named_by_a_lost_node_is_pruned(&hybrid, &conf_server);
    let jobs: Vec<String> = workers
        .iter()
        .map(|node| hybrid.start_job(&format!("-w {node}"), "sleep 10"))
        .collect();
    for set in [SET, HOSTS] {
        namespace.ask(&["scale", set, "--replicas=0"]).unwrap();
    }
    for node in &workers {
        hybrid.wait_node(node, &["DRAIN", "scale-in"]);
    }
    for job in &jobs {
        hybrid.wait_job(job, "COMPLETED");
    }
    hybrid.wait_nodes(&bare);
    for node in bare {
        hybrid.wait_node(node, &["State=IDLE"]);
    }

    // The records are kept by a slurmdbd that is outside, too.
    eventually("the jobs are in the accounts", SOON, || {
        let line = format!("sacct -X --noheader --format=State -j {}", jobs.join(","));
        let states = namespace.exec(LOGIN, &line)?;
        let states: Vec<&str> = states.split_whitespace().collect();
        expect(states == ["COMPLETED"; 3], states)
    })
    .unwrap();
    partitions_outside_are_changed_live(&hybrid, slurmctld);
    an_address_without_slurmdbd_is_noticed(&hybrid);
    clusters_inside_keep_their_records_there(&hybrid);
}

#[test]
fn machines_outside_join_a_slurm_inside_kubernetes() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "joined").unwrap();
    let values = CONTROL_PLANE
        .replace(
            "bare-1.example.com CPUs=64 RealMemory=250000",
            &format!("{} CPUs=1", network::outside_address(5)),
        )
        .replace("  extraConf: |\n", EXTRA_CONF)
        .replace("bare-1", "bare-5");
    set_password(&namespace, "secret");
    namespace.apply(MARIADB_IN_KUBERNETES).unwrap();
    install_as_written(cluster, &namespace, &format!("{values}{NO_CGROUPS}")).unwrap();
    namespace.wait("create", "secret/slurm-auth-slurm").unwrap();
    let key = namespace.field("secret/slurm-auth-slurm", r".data.slurm\.key").unwrap();
    let server = format!("--conf-server slurm-controller.{}:6817", namespace.name);
    let machines = [
        (5, "bare-5", "slurmd -D"),
        (6, "bare-6", "slurmd -D -Z"),
        (7, "bare-7", "sackd -D"),
    ]
    .map(|(index, name, daemon)| {
        let machine = machine_that_knows_names(&namespace, index, name);
        machine
            .write("/etc/slurm/slurm.key", 0o600, STANDARD.decode(&key).unwrap())
            .unwrap();
        namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
        machine.start(name, &format!("{daemon} {server}")).unwrap();
        machine
    });
    for node in ["bare-5", "bare-6", "slinky-0"] {
        wait_node(&namespace, node, &["State=IDLE"], &[]).unwrap();
    }
    let hosts = slurm(&namespace, "srun -p all -N3 hostname | sort").unwrap();
    assert_eq!(hosts, "bare-5\nbare-6\nslinky-0\n");
    let host = machines.last().unwrap();
    let job = eventually("a login host outside submits", SOON, || {
        host.run("sbatch --parsable --wait --chdir=/tmp -o /dev/null -p all -w bare-6 --wrap true")
    })
    .unwrap();
    let cluster_name = slurm(&namespace, "scontrol show config | sed -n 's/^ClusterName *= //p'").unwrap();
    wait_recorded(cluster_name.trim(), job.trim(), |line| host.run(line));

    // They are not the operator's, whatever becomes of its own.
    let gone = r#"{"spec":{"replicas":0,"pruneSlurmNodeRecords":"NodeNotFound"}}"#;
    namespace
        .ask(&["patch", "nodeset/slurm-worker-slinky", "--type=merge", "--patch", gone])
        .unwrap();
    eventually("the worker's record goes", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        expect(!nodes.contains("slinky-0"), nodes)
    })
    .unwrap();
    for node in ["bare-5", "bare-6"] {
        wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();
    }
}
