//! A Slurm cluster on machines outside Kubernetes.

use std::time::Instant;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, cluster, eventually, expect};
use testbed::network;
use testbed::outside::Outside;
use testbed::process::Process;

use crate::common::operator::install;
use crate::common::slurm::{SOON, node_names};

/// A slurm.conf as on bare metal, with the four settings that pods require.
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

/// For clusters in which not all machines have cgroups.
pub(super) const NO_CGROUPS: &str = "
configFiles:
  cgroup.conf: CgroupPlugin=disabled
";

pub(super) const EXTRA_CONF: &str = "  extraConf: |
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
";

/// A Slurm outside Kubernetes, whose slurmctld and slurmdbd run on one machine, and the namespace of its workers.
pub(super) struct Hybrid {
    pub(super) cluster: &'static Cluster,
    pub(super) namespace: Namespace,
    pub(super) ctl: Outside,
}

impl Hybrid {
    pub(super) fn begin() -> Self {
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

    /// Starts slurmctld without this text in its slurm.conf.
    pub(super) fn start_slurmctld(&self, without: &str) -> Process {
        self.write_conf(without, "");
        self.ctl.start("slurmctld", "slurmctld -D").unwrap()
    }

    pub(super) fn write_conf(&self, without: &str, with: &str) {
        let conf = SLURM_CONF
            .replace("CTL", &self.ctl.address)
            .replace("ONE", &network::outside_address(2))
            .replace(without, with);
        self.ctl.write("/etc/slurm/slurm.conf", 0o644, conf).unwrap();
    }

    pub(super) fn wait_partition(&self, partition: &str, words: &[&str]) {
        let begun = Instant::now();
        eventually(&format!("{partition} with {words:?}"), SOON, || {
            let shown = self.slurm(&format!("scontrol --oneliner show partition {partition}"))?;
            expect(words.iter().all(|word| shown.contains(word)), shown)
        })
        .unwrap();
        eprintln!("{partition} {words:?}: seen after {:?}", begun.elapsed());
    }

    /// Replaces the hosts in the values by this Slurm's address.
    pub(super) fn filled_in(&self, values: &str) -> String {
        values
            .replace("slurm-controller.example.com", &self.ctl.address)
            .replace("slurm-accounting.example.com", &self.ctl.address)
    }

    /// Runs a command on slurmctld's machine.
    pub(super) fn slurm(&self, line: &str) -> Result<String> {
        self.ctl.run(line)
    }

    pub(super) fn wait_node(&self, node: &str, words: &[&str]) {
        eventually(&format!("node {node} with {words:?}"), SOON, || {
            let shown = self.slurm(&format!("scontrol show node {node} --oneliner"))?;
            expect(words.iter().all(|word| shown.contains(word)), shown)
        })
        .unwrap();
    }

    pub(super) fn nodes(&self) -> Result<Vec<String>> {
        Ok(node_names(&self.slurm("scontrol --oneliner show nodes")?))
    }

    pub(super) fn wait_nodes(&self, expected: &[&str]) {
        eventually(&format!("nodes {expected:?}"), SOON, || {
            let now = self.nodes()?;
            expect(now == expected, now)
        })
        .unwrap();
    }

    pub(super) fn start_job(&self, options: &str, line: &str) -> String {
        let submit = format!("sbatch --parsable --chdir=/tmp -o /dev/null {options} --wrap '{line}'");
        let job = self.slurm(&submit).unwrap().trim().to_owned();
        self.wait_job(&job, "RUNNING");
        job
    }

    pub(super) fn wait_job(&self, job: &str, state: &str) {
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

/// Creates the Secrets as in the older guides.
pub(super) fn create_keys(namespace: &Namespace) {
    for (secret, entry, content) in KEYS {
        let literal = format!("--from-literal={entry}={content}");
        namespace
            .ask(&["create", "secret", "generic", secret, &literal])
            .unwrap();
    }
}

/// Boots a machine with the cluster's keys.
pub(super) fn boot(cluster: &Cluster, index: u8, name: &str) -> Outside {
    let machine = Outside::boot(cluster, index, name).unwrap();
    for (_, entry, content) in KEYS {
        machine.write(&format!("/etc/slurm/{entry}"), 0o600, content).unwrap();
    }
    machine
        .run("chown slurm: /etc/slurm/*.key; install -d -o slurm /run/slurmctld /run/slurmdbd; install -d /run/slurm")
        .unwrap();
    machine
}

/// Boots a machine that uses the cluster's DNS, as in docs/hybrid.md.
pub(super) fn machine_with_cluster_dns(namespace: &Namespace, index: u8, name: &str) -> Outside {
    let machine = boot(cluster(), index, name);
    let search = format!("search svc.cluster.local {}.svc.cluster.local", namespace.name);
    let names = format!("{search}\nnameserver {}\n", network::CONTROL_PLANE);
    machine.write("/etc/resolv.conf", 0o644, names).unwrap();
    machine
}
