//! A Slurm outside Kubernetes, with workers, slurmrestd and login pods inside, and machines that are neither.

use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, cluster, eventually, expect};
use testbed::network;
use testbed::outside::Outside;
use testbed::process::Process;

use crate::common::operator::{
    REST_API, SOON, change_spec, install, install_chart, slurm, wait_node, wait_said, workers,
};

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

const VALUES: &str = include_str!("../../../../examples/hybrid/values.yaml");
const SET: &str = "nodeset/slurm-worker-slinky";
const LOGIN: &str = "deploy/slurm-login-slinky -c login";
const HOSTS: &str = "nodeset/slurm-worker-host";

/// Two workers on one node, and as many on the networks of the others as there is room for.
const SLINKY: &str = "    replicas: 2
    oversubscribeNode: true
    podSpec: {nodeSelector: {kubernetes.io/hostname: node1}}
  host:
    replicas: 3
    oversubscribeNode: true
    podSpec:
      hostNetwork: true
      dNSPolicy: ClusterFirstWithHostNet
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node2, node3]}]";

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

/// A slurmctld inside whose Service has no address of its own, so that machines outside reach its pod without NAT.
const INSIDE: &str = "
apiVersion: v1
kind: ConfigMap
metadata:
  name: cgroup
data:
  cgroup.conf: CgroupPlugin=disabled
---
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata:
  name: slurm
spec:
  configFileRefs:
  - name: cgroup
  service:
    spec:
      clusterIP: None
  extraConf: |
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    NodeName=bare-5 NodeAddr=ADDRESS CPUs=1 State=UNKNOWN
    PartitionName=all Nodes=ALL
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
        for (secret, entry, content) in KEYS {
            let literal = format!("--from-literal={entry}={content}");
            namespace
                .ask(&["create", "secret", "generic", secret, &literal])
                .unwrap();
        }
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
        let conf = SLURM_CONF
            .replace("CTL", &self.ctl.address)
            .replace("ONE", &network::outside_address(2))
            .replace(without, "");
        self.ctl.write("/etc/slurm/slurm.conf", 0o644, conf).unwrap();
        self.ctl.start("slurmctld", "slurmctld -D").unwrap()
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
fn requirements_are_named(hybrid: &Hybrid) {
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
    let _slurmctld = hybrid.start_slurmctld("nothing");
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
}

/// A login host, and a second slurmrestd.
fn hosts_outside_log_in_and_serve_rest(hybrid: &Hybrid, conf_server: &str) {
    let host = boot(hybrid.cluster, 4, "bare-login");
    host.start("sackd", &format!("sackd -D {conf_server}")).unwrap();
    eventually("a login host outside", SOON, || {
        let shown = host.run("srun -w slinky-0 hostname")?;
        expect(shown == "slinky-0\n", shown)
    })
    .unwrap();
    let serve = "env SLURM_JWT=daemon setpriv --reuid=65534 --regid=65534 --clear-groups slurmrestd 0.0.0.0:6820";
    host.start("slurmrestd", serve).unwrap();
    let ask = "eval $(scontrol token username=slurm) && curl --silent --fail \
        -H X-SLURM-USER-NAME:slurm -H X-SLURM-USER-TOKEN:$SLURM_JWT ADDRESS:6820/slurm/v0.0.44/nodes/";
    eventually("slurmrestd outside", SOON, || {
        let nodes = hybrid.slurm(&ask.replace("ADDRESS", &host.address))?;
        expect(nodes.contains("slinky-1"), nodes)
    })
    .unwrap();
}

#[test]
fn a_slurm_outside_kubernetes_has_workers_inside_and_keeps_its_own() {
    let hybrid = Hybrid::begin();
    let namespace = &hybrid.namespace;
    requirements_are_named(&hybrid);

    let values = VALUES
        .replace("slurm-controller.example.com", &hybrid.ctl.address)
        .replace("slurm-accounting.example.com", &hybrid.ctl.address)
        .replace("    replicas: 2", SLINKY);
    install_chart(hybrid.cluster, namespace, &values).unwrap();
    let bare_1 = boot(hybrid.cluster, 2, "bare-1");
    let conf_server = format!("--conf-server {}:6817", hybrid.ctl.address);
    bare_1.start("slurmd", &format!("slurmd -D {conf_server}")).unwrap();
    let bare_2 = boot(hybrid.cluster, 3, "bare-2");
    bare_2.start("slurmd", &format!("slurmd -D -Z {conf_server}")).unwrap();
    let all = ["bare-1", "bare-2", "node2", "node3", "slinky-0", "slinky-1"];
    for node in all {
        hybrid.wait_node(node, &["State=IDLE"]);
    }
    let hosts = hybrid.slurm("srun -N6 hostname | sort").unwrap();
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
        expect(idle == "2", idle)
    })
    .unwrap();
    eventually("people can log in", SOON, || {
        let shown = namespace.exec(LOGIN, "srun -w bare-1 hostname")?;
        expect(shown == "bare-1\n", shown)
    })
    .unwrap();
    hosts_outside_log_in_and_serve_rest(&hybrid, &conf_server);

    // Fewer wait for their jobs and take their records along; those of others stay, whatever is pruned.
    for set in [SET, HOSTS] {
        change_spec(
            &hybrid.namespace,
            set,
            &json!({ "pruneSlurmNodeRecords": "NodeNotFound" }),
        )
        .unwrap();
    }
    let workers = ["node2", "node3", "slinky-0", "slinky-1"];
    let jobs = workers.map(|node| hybrid.start_job(&format!("-w {node}"), "sleep 10"));
    for set in [SET, HOSTS] {
        namespace.ask(&["scale", set, "--replicas=0"]).unwrap();
    }
    for node in workers {
        hybrid.wait_node(node, &["DRAIN", "scale-in"]);
    }
    for job in &jobs {
        hybrid.wait_job(job, "COMPLETED");
    }
    hybrid.wait_nodes(&["bare-1", "bare-2"]);
    for node in ["bare-1", "bare-2"] {
        hybrid.wait_node(node, &["State=IDLE"]);
    }

    // The records are kept by a slurmdbd that is outside, too.
    eventually("the jobs are in the accounts", SOON, || {
        let line = format!("sacct -X --noheader --format=State -j {}", jobs.join(","));
        let states = namespace.exec(LOGIN, &line)?;
        let states: Vec<&str> = states.split_whitespace().collect();
        expect(states == ["COMPLETED"; 4], states)
    })
    .unwrap();
    wait_said(&hybrid.namespace, "accounting/slurm", "Degraded", &["False"]);
}

#[test]
fn machines_outside_join_a_slurm_inside_kubernetes() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "joined").unwrap();
    namespace
        .apply(&INSIDE.replace("ADDRESS", &network::outside_address(5)))
        .unwrap();
    for manifest in [REST_API, &workers(1)] {
        namespace.apply(manifest).unwrap();
    }
    namespace.wait("create", "secret/slurm-auth-slurm").unwrap();
    let key = namespace.field("secret/slurm-auth-slurm", r".data.slurm\.key").unwrap();
    let server = format!("--conf-server slurm-controller.{}:6817", namespace.name);
    let _machines = [(5, "bare-5", ""), (6, "bare-6", "-Z")].map(|(index, name, dynamic)| {
        let machine = boot(cluster, index, name);
        let names = format!("search svc.cluster.local\nnameserver {}\n", network::CONTROL_PLANE);
        machine.write("/etc/resolv.conf", 0o644, names).unwrap();
        machine
            .write("/etc/slurm/slurm.key", 0o600, STANDARD.decode(&key).unwrap())
            .unwrap();
        namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
        machine
            .start("slurmd", &format!("slurmd -D {dynamic} {server}"))
            .unwrap();
        machine
    });
    for node in ["bare-5", "bare-6", "compute-0"] {
        wait_node(&namespace, node, &["State=IDLE"], &[]).unwrap();
    }
    let hosts = slurm(&namespace, "srun -p all -N3 hostname | sort").unwrap();
    assert_eq!(hosts, "bare-5\nbare-6\ncompute-0\n");

    // They are not the operator's, whatever becomes of its own.
    let gone = r#"{"spec":{"replicas":0,"pruneSlurmNodeRecords":"NodeNotFound"}}"#;
    namespace
        .ask(&["patch", "nodeset/compute", "--type=merge", "--patch", gone])
        .unwrap();
    eventually("the worker's record goes", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        expect(!nodes.contains("compute-0"), nodes)
    })
    .unwrap();
    for node in ["bare-5", "bare-6"] {
        wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();
    }
}
