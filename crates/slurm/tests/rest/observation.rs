use super::*;

/// A slurmctld whose n-th boot time is `boots(n)`, and whose clock shows 2000.
async fn cluster(boots: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Fake {
    let readings = AtomicU64::new(0);
    after_ping(move |seen| match seen.line.rsplit("v0.0.45/").next().unwrap() {
        "conf" => {
            let boot = boots(readings.fetch_add(1, Ordering::SeqCst));
            answer(
                "slurm_conf_meta",
                &json!({"BOOT_TIME": boot, "LastUpdate": 2000, "HashValue": -5}),
                "26.05.5",
            )
        }
        "nodes/" => answer("nodes", &json!([{"name": "n1", "state": ["IDLE"]}]), "26.05.5"),
        "jobs/" => answer(
            "jobs",
            &json!([{"job_id": 1, "job_state": ["RUNNING"], "nodes": "n1"}]),
            "26.05.5",
        ),
        other => panic!("{other}"),
    })
    .await
}

#[tokio::test]
async fn nodes_and_jobs_of_one_process_name_it() {
    let observation = cluster(|_| 1000).await.client().observe().await.unwrap();
    assert_eq!(observation.process, Some(Process { boot_time: 1000 }));
    let job = &observation.jobs[0];
    assert!(job.state.may_be_on_nodes() && job.node_list().unwrap().contains(&observation.nodes[0].name));
}

#[tokio::test]
async fn a_restart_in_between_leaves_no_process() {
    assert_eq!(
        cluster(|reading| 1000 + reading)
            .await
            .client()
            .observe()
            .await
            .unwrap()
            .process,
        None
    );
}

#[tokio::test]
async fn a_process_younger_than_the_clock_resolution_proves_nothing() {
    assert_eq!(cluster(|_| 1999).await.client().observe().await.unwrap().process, None);
}
