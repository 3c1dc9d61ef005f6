//! Accounting records in a real database.

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{configuration_applied, install_chart, operator_namespace, set_extra_conf, wait_said};
use crate::common::slurm::{SOON, slurm, wait_done, wait_idle, wait_job};

pub(crate) const MARIADB: &str = include_str!("../../../../examples/accounting/mariadb.yaml");
pub(crate) const VALUES: &str = include_str!("../../../../examples/accounting/values.yaml");

const ACCOUNTING: &str = "accounting/slurm";

/// With characters that are special in slurmdbd.conf.
const FIRST_PASSWORD: &str = "first # \\ one";

/// Limits are enforced, and two jobs fit on one worker.
const ENFORCED: &str = "    AccountingStorageEnforce=limits,qos
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core_Memory";

pub(crate) fn set_password(namespace: &Namespace, password: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mariadb-password" },
        "stringData": { "password": password },
    });
    namespace.apply(&secret.to_string()).unwrap();
}

/// Runs a job and gives its number.
fn run_job(namespace: &Namespace, name: &str) -> String {
    let submit =
        format!("sbatch --parsable --wait --chdir=/tmp -o /dev/null --partition=all --job-name={name} --wrap true");
    slurm(namespace, &submit).unwrap().trim().to_owned()
}

fn wait_recorded(namespace: &Namespace, job: &str, name: &str) {
    let ask = format!("sacct --noheader --parsable2 --allocations --jobs={job} --format=JobName,State,ExitCode");
    eventually(&format!("{name} is in sacct"), SOON, || {
        let said = slurm(namespace, &ask)?;
        expect(said.trim() == format!("{name}|COMPLETED|0:0"), said)
    })
    .unwrap();
}

fn a_limit_of_a_qos_holds_a_job_back(namespace: &Namespace) {
    let submit = "sbatch --parsable --chdir=/tmp -o /dev/null --partition=all --mem=50M --wrap";
    let setting = "sacctmgr --immediate modify qos normal set MaxJobsPerUser";
    slurm(namespace, &format!("{setting}=1")).unwrap();
    let runs = slurm(namespace, &format!("{submit} 'sleep 600'")).unwrap();
    wait_job(namespace, runs.trim(), "RUNNING").unwrap();
    let waits = slurm(namespace, &format!("{submit} true")).unwrap();
    eventually("the guide's squeue names the limit", SOON, || {
        let jobs = slurm(namespace, r#"squeue -o "%i %j %T %r""#)?;
        let words = format!("{} wrap PENDING QOSMaxJobsPerUserLimit", waits.trim());
        expect(jobs.lines().any(|line| line == words), jobs)
    })
    .unwrap();
    slurm(namespace, &format!("{setting}=-1; scancel {}", runs.trim())).unwrap();
    wait_done(namespace, waits.trim()).unwrap();
}

/// slurmctld rejects its whole configuration if a partition has a QOS that is not in the database.
fn unknown_qos_is_held_until_it_is_there(namespace: &Namespace) {
    let extra_conf = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
    let line = "PartitionName=fast Nodes=ALL AllowQos=rush";
    set_extra_conf(namespace, &format!("{extra_conf}\n{line}\n")).unwrap();
    eventually("the QOS is named", SOON, || {
        let said = configuration_applied(namespace, "message")?;
        expect(said.contains("rush") && said.contains("spec.extraConf is held"), said)
    })
    .unwrap();
    let partitions = slurm(namespace, "scontrol show partitions --oneliner").unwrap();
    assert!(!partitions.contains("PartitionName=fast"), "{partitions}");

    slurm(namespace, "sacctmgr --immediate add qos rush").unwrap();
    eventually("it is live by itself", SOON, || {
        let shown = slurm(namespace, "scontrol show partition fast")?;
        expect(shown.contains("AllowQos=rush"), shown)?;
        let applied = configuration_applied(namespace, "status")?;
        expect(applied == "True", applied)
    })
    .unwrap();
}

#[test]
fn records_survive_kills_of_slurmdbd_and_the_database_and_a_new_password() {
    let namespace = operator_namespace(cluster(), "accounting");
    // The order of creation does not matter: first the cluster, then the Secret and database of slurmdbd.
    let values = VALUES.replace("extraConf: |", &format!("extraConf: |\n{ENFORCED}"));
    install_chart(&namespace, &values).unwrap();
    wait_said(&namespace, ACCOUNTING, "Ready", &["False SecretMissing"]);
    set_password(&namespace, FIRST_PASSWORD);
    namespace.apply(MARIADB).unwrap();
    wait_idle(&namespace, 1).unwrap();
    wait_said(&namespace, ACCOUNTING, "Ready", &["True"]);

    slurm(&namespace, "sacctmgr --immediate add user slurm account=root").unwrap();
    let first = run_job(&namespace, "first");
    wait_recorded(&namespace, &first, "first");

    // An upgrade that changes slurmdbd.conf and thereby replaces the pod.
    let pod = || namespace.uid("pod/slurm-accounting-0");
    let before = pod().unwrap();
    let upgraded = values.replace("accounting:\n", "accounting:\n  extraConf: DebugLevel=verbose\n");
    install_chart(&namespace, &upgraded).unwrap();
    eventually("slurmdbd's pod is replaced", SOON, || expect(pod()? != before, &before)).unwrap();
    wait_recorded(&namespace, &first, "first");
    // Waits until slurmctld is connected again: until then a new limit would reach the database only.
    let after = run_job(&namespace, "after");
    wait_recorded(&namespace, &after, "after");

    a_limit_of_a_qos_holds_a_job_back(&namespace);
    unknown_qos_is_held_until_it_is_there(&namespace);

    // While the database is down, jobs run and no record is lost.
    namespace
        .ask(&["scale", "statefulset/mariadb", "--replicas=0"])
        .unwrap();
    eventually("no database", SOON, || {
        let left = namespace.ask(&["get", "pods", "-l", "app=mariadb", "-o", "name"])?;
        expect(left.is_empty(), left)
    })
    .unwrap();
    wait_said(&namespace, ACCOUNTING, "Degraded", &["True DatabaseAway"]);
    let second = run_job(&namespace, "second");
    namespace
        .ask(&["scale", "statefulset/mariadb", "--replicas=1"])
        .unwrap();
    wait_recorded(&namespace, &second, "second");
    wait_recorded(&namespace, &first, "first");
    wait_said(&namespace, ACCOUNTING, "Degraded", &["False"]);

    // A wrong password is reported with slurmdbd's error, and the right one heals it.
    set_password(&namespace, "wrong");
    wait_said(&namespace, ACCOUNTING, "Degraded", &["Access denied"]);
    let third = run_job(&namespace, "third");
    set_password(&namespace, FIRST_PASSWORD);
    wait_said(&namespace, ACCOUNTING, "Degraded", &["False"]);
    wait_recorded(&namespace, &third, "third");

    // A new password, as in the documentation: first in the database, then in the Secret.
    let before = pod().unwrap();
    let old = format!("--password={FIRST_PASSWORD}");
    let sql = "SET PASSWORD = PASSWORD('second')";
    namespace
        .ask(&[
            "exec",
            "mariadb-0",
            "--",
            "mariadb",
            "--host=127.0.0.1",
            "--user=slurm",
            &old,
            "--execute",
            sql,
        ])
        .unwrap();
    set_password(&namespace, "second");
    eventually("slurmdbd's pod is replaced", SOON, || expect(pod()? != before, &before)).unwrap();
    let fourth = run_job(&namespace, "fourth");
    wait_recorded(&namespace, &fourth, "fourth");
    wait_said(&namespace, ACCOUNTING, "Degraded", &["False"]);
}
