//! Records in a real database, by slurmdbd.

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{SOON, install, install_chart, slurm, wait_idle};

const MARIADB: &str = include_str!("../../../../examples/accounting/mariadb.yaml");
const VALUES: &str = include_str!("../../../../examples/accounting/values.yaml");

fn set_password(namespace: &Namespace, password: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mariadb-password" },
        "stringData": { "password": password },
    });
    namespace.apply(&secret.to_string()).unwrap();
}

fn wait_condition(namespace: &Namespace, type_: &str, words: &str) {
    eventually(&format!("{type_} of the Accounting says {words:?}"), SOON, || {
        let path = format!(".status.conditions[?(@.type==\"{type_}\")].");
        let said = namespace.field(
            "accounting/slurm",
            &format!("{path}status}} {{{path}reason}} {{{path}message"),
        )?;
        expect(said.contains(words), said)
    })
    .unwrap();
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

#[test]
fn records_outlive_slurmdbd_and_the_database_and_another_password() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "accounting").unwrap();
    // The order in which things come is nobody's business: first the cluster, then what slurmdbd needs.
    install_chart(cluster, &namespace, VALUES).unwrap();
    wait_condition(&namespace, "Ready", "False SecretMissing");
    set_password(&namespace, "first # \\ one");
    namespace.apply(MARIADB).unwrap();
    wait_idle(&namespace, 1).unwrap();
    wait_condition(&namespace, "Ready", "True");

    let first = run_job(&namespace, "first");
    wait_recorded(&namespace, &first, "first");

    namespace.ask(&["delete", "pod", "slurm-accounting-0"]).unwrap();
    wait_recorded(&namespace, &first, "first");

    // Without its database for a while: jobs run, and nothing of them is lost.
    namespace
        .ask(&["scale", "statefulset/mariadb", "--replicas=0"])
        .unwrap();
    eventually("no database", SOON, || {
        let left = namespace.ask(&["get", "pods", "-l", "app=mariadb", "-o", "name"])?;
        expect(left.is_empty(), left)
    })
    .unwrap();
    let second = run_job(&namespace, "second");
    namespace
        .ask(&["scale", "statefulset/mariadb", "--replicas=1"])
        .unwrap();
    wait_recorded(&namespace, &second, "second");
    wait_recorded(&namespace, &first, "first");

    // A password that the database does not know is told in slurmdbd's words, and the right one heals it by itself.
    set_password(&namespace, "wrong");
    wait_condition(&namespace, "Degraded", "Access denied");
    let third = run_job(&namespace, "third");
    set_password(&namespace, "first # \\ one");
    wait_condition(&namespace, "Degraded", "False");
    wait_recorded(&namespace, &third, "third");
}
