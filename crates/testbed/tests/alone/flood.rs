//! A job that opens thousands of connections to everything that listens.

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{change_spec, chart_cluster, chart_workers, configuration_applied};
use crate::common::slurm::{SOON, slurm, slurm_conf, slurmrestd_pod, start_job, wait_done, wait_idle, wait_node};

/// Opens 2,000 connections to each target and sends half a request on each, then replaces them one by one, oldest first. The files
/// count the connections that were opened, and those that were refused.
const FLOOD: &str = r#"#!/bin/bash
flood() {
    trap '' PIPE
    ulimit -n 4096
    local opened=0 refused=0 held=() fd
    while :; do
        if { exec {fd}<>"/dev/tcp/$1/$2"; } 2>/dev/null; then
            printf 'GET /metrics HTTP/1.1\r\nHost: flood\r\n' >&"$fd" 2>/dev/null
            opened=$((opened + 1))
            held+=("$fd")
        else
            refused=$((refused + 1))
        fi
        if [ ${#held[@]} -gt 2000 ]; then
            fd=${held[0]}
            held=("${held[@]:1}")
            exec {fd}>&-
            sleep 0.02
        fi
        [ $(((opened + refused) % 50)) != 0 ] || echo "$opened $refused" >"/tmp/flood.$1.$2"
    done
}
for target in TARGETS; do
    flood "${target%:*}" "${target#*:}" &
done
wait
"#;

/// What the job floods, and the counts of its connections.
struct Flood<'a> {
    namespace: &'a Namespace,
    targets: Vec<String>,
}

impl Flood<'_> {
    /// The connections to each target: opened and refused.
    fn counts(&self) -> Result<Vec<(u64, u64)>> {
        let count = |target: &String| {
            let file = format!("cat /tmp/flood.{}", target.replace(':', "."));
            let text = self.namespace.inside("slurm-worker-slinky-0", "slurmd", &file)?;
            let mut numbers = text.split_whitespace().map(str::parse);
            let mut next = || anyhow::Ok(numbers.next().transpose()?.unwrap_or(0));
            Ok((next()?, next()?))
        };
        self.targets.iter().map(count).collect()
    }

    /// Waits until another connection was made, or refused, everywhere.
    fn wait_progress(&self) {
        let before = self.counts().unwrap();
        eventually("the flood goes on", SOON, || {
            let now = self.counts()?;
            let goes_on = now.iter().zip(&before).all(|(now, before)| now != before);
            expect(goes_on, format!("{:?}: {before:?}, then {now:?}", self.targets))
        })
        .unwrap();
    }
}

/// IP addresses of the operator's and the webhook's pods.
fn operator_addresses(cluster: &Cluster, name: &str) -> Vec<String> {
    let selector = format!("app.kubernetes.io/name={name}");
    let path = "jsonpath={.items[*].status.podIP}";
    let shown = cluster.ask(&["get", "pods", "--namespace=slinky", "--selector", &selector, "-o", path]);
    shown.unwrap().split_whitespace().map(str::to_owned).collect()
}

fn operator_restarts(cluster: &Cluster) -> String {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{'\\n'}{end}";
    cluster.ask(&["get", "pods", "--namespace=slinky", "-o", path]).unwrap()
}

#[test]
fn a_flood_of_connections_from_a_job_stops_neither_orders_nor_configuration_nor_metrics() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = chart_cluster(cluster, "flood", &chart_workers(2), 2);
    let operator = operator_addresses(cluster, "slurm-operator").remove(0);
    let webhook = operator_addresses(cluster, "slurm-operator-webhook").remove(0);
    let slurmctld = namespace.field("pod/slurm-controller-0", ".status.podIP").unwrap();
    let restapi = slurmrestd_pod(&namespace).unwrap();
    let slurmrestd = namespace.field(&format!("pod/{restapi}"), ".status.podIP").unwrap();
    let targets = vec![
        format!("{slurmctld}:6822"),
        format!("{slurmrestd}:6820"),
        format!("{operator}:8080"),
        format!("{operator}:8081"),
        format!("{webhook}:8081"),
        format!("{webhook}:9443"),
    ];
    let restarts = operator_restarts(cluster);
    let script = FLOOD.replace("TARGETS", &targets.join(" "));
    let submit = format!(
        "cat >/tmp/flood.sh <<'END'\n{script}END\nsbatch --parsable --chdir=/tmp -o /dev/null -p all -w slinky-0 /tmp/flood.sh"
    );
    slurm(&namespace, &submit).unwrap();
    let flood = Flood {
        namespace: &namespace,
        targets,
    };
    eventually("2,000 connections everywhere", SOON * 2, || {
        let counts = flood.counts()?;
        let enough = counts.iter().all(|(opened, refused)| opened + refused > 2000);
        expect(enough, format!("{:?}: {counts:?}", flood.targets))
    })
    .unwrap();

    // A scale-in of a worker with a job: drain, proof, removal.
    // The worker that is not ready in Kubernetes would be removed first.
    for pod in ["pod/slurm-worker-slinky-0", "pod/slurm-worker-slinky-1"] {
        namespace.wait("condition=Ready", pod).unwrap();
    }
    let cost = "nodeset.slinky.slurm.net/pod-deletion-cost=-1";
    namespace.ask(&["annotate", "pod/slurm-worker-slinky-1", cost]).unwrap();
    let job = start_job(&namespace, "-p all -w slinky-1", "sleep 30").unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=1"])
        .unwrap();
    let draining = ["DRAIN", "is pending termination for scale-in"];
    wait_node(&namespace, "slinky-1", &draining, &[]).unwrap();
    wait_done(&namespace, &job).unwrap();
    namespace.wait("delete", "pod/slurm-worker-slinky-1").unwrap();
    flood.wait_progress();

    let old = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
    let new = serde_json::json!({ "extraConf": format!("{old}\nMaxJobCount=4321\n") });
    change_spec(&namespace, "controller/slurm", &new).unwrap();
    eventually("slurmctld has the new configuration", SOON, || {
        let shown = slurm(&namespace, "scontrol show config")?;
        expect(shown.contains("MaxJobCount             = 4321"), shown)?;
        expect(slurm_conf(&namespace)?.contains("MaxJobCount=4321"), "slurm.conf")?;
        let status = configuration_applied(&namespace, "status")?;
        expect(status == "True", status)
    })
    .unwrap();
    flood.wait_progress();

    for (address, path) in [
        (format!("{operator}:8080"), "metrics"),
        (format!("{operator}:8081"), "healthz"),
        (format!("{operator}:8081"), "readyz"),
        (format!("{webhook}:8081"), "readyz"),
    ] {
        let fetch = format!("curl -s -m 5 -o /dev/null -w '%{{http_code}}' http://{address}/{path}");
        for _ in 0..20 {
            assert_eq!(slurm(&namespace, &fetch).unwrap(), "200", "{address}/{path}");
        }
    }
    // The API server asks the webhook about objects in namespaces without the label.
    let label = ["label", "namespace", &namespace.name, "slinky.slurm.net/admission-"];
    cluster.ask(&label).unwrap();
    let refused = change_spec(
        &namespace,
        "controller/slurm",
        &serde_json::json!({ "extraConf": "SchedulerTyp=sched/backfill" }),
    );
    assert!(format!("{:#}", refused.unwrap_err()).contains("SchedulerTyp"));
    flood.wait_progress();

    // slurmrestd is Slurm's own program: what it does is not asserted, only shown.
    let fetch = format!(
        "curl -s -m 5 -o /dev/null -w '%{{http_code}} %{{time_total}}' http://{slurmrestd}:6820/openapi/v3 || true"
    );
    println!("slurmrestd during the flood: {}", slurm(&namespace, &fetch).unwrap());
    println!(
        "connections opened and refused: {:?} {:?}",
        flood.targets,
        flood.counts().unwrap()
    );
    assert_eq!(operator_restarts(cluster), restarts);

    slurm(&namespace, "scancel --me").unwrap();
    wait_idle(&namespace, 1).unwrap();
}
