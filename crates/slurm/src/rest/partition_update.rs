//! An update of a partition for slurmrestd (v0.0.45). Each key was tried with slurmrestd 26.05.5, set and removed again.
//!
//! slurmrestd shows these fields and ignores them in a request: `shares`, `oversubscribe` among the maximums, `memory_per_cpu`,
//! `defaults.job`. No flag clears ExclusiveUser; `exclusive` does.

use serde_json::{Value, json};

use super::body::Body;
use crate::number::Number;
use crate::rpc::{CPU_BINDS, Failure, Names, PREEMPT_MODES, PartitionFlag, PartitionUpdate, over_subscribe};

/// The body of `POST partitions/`.
pub(super) fn render_partition(update: &PartitionUpdate) -> Result<Value, Failure> {
    update.check_readable()?;
    let mut body = Body::default();
    body.set(["name"], Some(update.name.as_str()));
    for (place, value) in [
        (["nodes", "configured"], &update.nodes),
        (["accounts", "allowed"], &update.allow_accounts),
        (["accounts", "deny"], &update.deny_accounts),
        (["groups", "allowed"], &update.allow_groups),
        (["qos", "allowed"], &update.allow_qos),
        (["qos", "deny"], &update.deny_qos),
        (["qos", "assigned"], &update.qos),
        (["tres", "billing_weights"], &update.billing_weights),
    ] {
        body.set(place, value.as_deref());
    }
    body.set(["alternate"], update.alternate.as_deref());
    let state = update.state.map(|state| json!([state.name()]));
    body.set(["partition", "state"], state);
    body.flags_and_sharing(&update.flags, update.max_share)?;
    body.word(["cpus", "task_binding"], "CpuBind", update.cpu_bind, &CPU_BINDS)?;
    body.memory("defaults", update.default_memory);
    body.memory("maximums", update.max_memory);
    for (place, value) in [
        (["defaults", "time"], update.default_time),
        (["maximums", "time"], update.max_time),
        (["maximums", "cpus_per_node"], update.max_cpus_per_node),
        (["maximums", "cpus_per_socket"], update.max_cpus_per_socket),
        (["maximums", "nodes"], update.max_nodes),
    ] {
        body.number(place, value, u32::MAX);
    }
    body.number(["maximums", "over_time_limit"], update.over_time_limit, u16::MAX);
    body.set(["grace_time"], update.grace_time);
    body.set(["minimums", "nodes"], update.min_nodes);
    body.set(["priority", "job_factor"], update.priority_job_factor);
    body.set(["priority", "tier"], update.priority_tier);
    body.word(["preempt_mode"], "PreemptMode", update.preempt_mode, &PREEMPT_MODES)?;
    Ok(json!({ "partitions": [body] }))
}

fn inexpressible(what: &str) -> Failure {
    Failure::NotUnderstood(format!("slurmrestd cannot set {what}"))
}

impl Body {
    fn number<const DEPTH: usize, T>(&mut self, place: [&str; DEPTH], value: Option<T>, unlimited: T)
    where
        T: Copy + PartialEq + Into<u64>,
    {
        let number = value.map(|value| match value {
            value if value == unlimited => Number::Infinite,
            value => Number::Finite(value.into()),
        });
        self.set(place, number.map(|number| json!(number)));
    }

    fn word<const DEPTH: usize, T: PartialEq>(
        &mut self,
        place: [&str; DEPTH],
        key: &str,
        value: Option<T>,
        names: &[Names<T>],
    ) -> Result<(), Failure> {
        let Some(value) = value else { return Ok(()) };
        let known = names.iter().find(|(.., number)| *number == value);
        let (_, name, _) = known.ok_or_else(|| inexpressible(&format!("this {key}")))?;
        self.set(place, Some(json!([name])));
        Ok(())
    }

    fn memory(&mut self, of: &str, value: Option<u64>) {
        let Some(value) = value else { return };
        let megabytes = value & !PartitionUpdate::MEMORY_PER_CPU;
        let per = if megabytes == value {
            "partition_memory_per_node"
        } else {
            "partition_memory_per_cpu"
        };
        self.set([of, per], Some(json!(Number::Finite(megabytes))));
    }

    /// Measured: `exclusive: NODE` means OverSubscribe=EXCLUSIVE, and any `oversubscribe` beside it clears it; `exclusive: NO`
    /// clears both NODE and USER, and leaves the count of jobs.
    fn flags_and_sharing(&mut self, flags: &[PartitionFlag], max_share: Option<u16>) -> Result<(), Failure> {
        let clears_user = flags.contains(&PartitionFlag::ExclusiveUser(false));
        match max_share {
            Some(0) => self.set(["partition", "exclusive"], Some("NODE")),
            Some(share) => {
                self.set(["partition", "oversubscribe"], Some(over_subscribe(share)));
                self.set(["partition", "exclusive"], clears_user.then_some("NO"));
            }
            // It would also clear OverSubscribe=EXCLUSIVE.
            None if clears_user => return Err(inexpressible("ExclusiveUser=NO without OverSubscribe")),
            None => {}
        }
        let names = flags
            .iter()
            .filter(|flag| **flag != PartitionFlag::ExclusiveUser(false));
        let names: Vec<String> = names
            .map(|flag| format!("{}{}", flag.json_name(), if flag.is_set() { "" } else { "_CLEAR" }))
            .collect();
        self.set(["flags"], (!names.is_empty()).then_some(names));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionStateName;

    fn rendered(change: impl FnOnce(&mut PartitionUpdate)) -> Result<Value, Failure> {
        let mut update = PartitionUpdate::new("p");
        change(&mut update);
        render_partition(&update).map(|mut body| body["partitions"][0].take())
    }

    fn with_name(mut fields: Value) -> Value {
        fields["name"] = json!("p");
        fields
    }

    type Change = fn(&mut PartitionUpdate);

    fn check(rows: Vec<(Change, Value)>) {
        for (change, fields) in rows {
            assert_eq!(rendered(change), Ok(with_name(fields)));
        }
    }

    #[test]
    fn texts_have_the_fields_in_which_slurmrestd_shows_them() {
        check(vec![
            (|_| {}, json!({})),
            (
                |p| p.nodes = Some("s1,n1".to_owned()),
                json!({"nodes": {"configured": "s1,n1"}}),
            ),
            (
                |p| p.state = Some(PartitionStateName::Drain),
                json!({"partition": {"state": ["DRAIN"]}}),
            ),
            (
                |p| {
                    p.allow_accounts = Some("a".to_owned());
                    p.deny_accounts = Some(String::new());
                },
                json!({"accounts": {"allowed": "a", "deny": ""}}),
            ),
            (
                |p| p.allow_groups = Some("g".to_owned()),
                json!({"groups": {"allowed": "g"}}),
            ),
            (
                |p| {
                    p.allow_qos = Some("a".to_owned());
                    p.deny_qos = Some("d".to_owned());
                    p.qos = Some("q".to_owned());
                },
                json!({"qos": {"allowed": "a", "deny": "d", "assigned": "q"}}),
            ),
            (|p| p.alternate = Some("x".to_owned()), json!({"alternate": "x"})),
            (
                |p| p.billing_weights = Some("CPU=1".to_owned()),
                json!({"tres": {"billing_weights": "CPU=1"}}),
            ),
            (
                |p| p.cpu_bind = Some(4),
                json!({"cpus": {"task_binding": ["CPU_BIND_TO_CORES"]}}),
            ),
            (
                |p| p.cpu_bind = Some(0x8_0000),
                json!({"cpus": {"task_binding": ["CPU_BIND_OFF"]}}),
            ),
        ]);
    }

    #[test]
    fn numbers_and_flags_have_the_fields_in_which_slurmrestd_shows_them() {
        let finite = |number: u64| json!({ "set": true, "infinite": false, "number": number });
        let infinite = || json!({ "set": false, "infinite": true, "number": 0 });
        check(vec![
            (
                |p| {
                    p.default_memory = Some(PartitionUpdate::MEMORY_PER_CPU | 5);
                    p.max_memory = Some(0);
                },
                json!({
                    "defaults": {"partition_memory_per_cpu": finite(5)},
                    "maximums": {"partition_memory_per_node": finite(0)},
                }),
            ),
            (
                |p| {
                    p.default_time = Some(30);
                    p.max_time = Some(u32::MAX);
                    p.max_nodes = Some(3);
                    p.max_cpus_per_node = Some(u32::MAX);
                    p.max_cpus_per_socket = Some(2);
                    p.over_time_limit = Some(u16::MAX);
                },
                json!({
                    "defaults": {"time": finite(30)},
                    "maximums": {
                        "time": infinite(), "nodes": finite(3), "cpus_per_node": infinite(), "cpus_per_socket": finite(2),
                        "over_time_limit": infinite(),
                    },
                }),
            ),
            (
                |p| {
                    p.grace_time = Some(0);
                    p.min_nodes = Some(2);
                    p.priority_job_factor = Some(3);
                    p.priority_tier = Some(4);
                },
                json!({"grace_time": 0, "minimums": {"nodes": 2}, "priority": {"job_factor": 3, "tier": 4}}),
            ),
            (|p| p.preempt_mode = Some(0), json!({"preempt_mode": ["DISABLED"]})),
            (
                |p| p.flags = vec![PartitionFlag::Default(true), PartitionFlag::Hidden(false)],
                json!({"flags": ["DEFAULT", "HIDDEN_CLEAR"]}),
            ),
            (
                |p| p.flags = vec![PartitionFlag::ExclusiveUser(true)],
                json!({"flags": ["EXCLUSIVE_USER"]}),
            ),
            (|p| p.max_share = Some(0), json!({"partition": {"exclusive": "NODE"}})),
            (|p| p.max_share = Some(1), json!({"partition": {"oversubscribe": "NO"}})),
            (
                |p| p.max_share = Some(3),
                json!({"partition": {"oversubscribe": "YES:3"}}),
            ),
            (
                |p| {
                    p.max_share = Some(PartitionUpdate::SHARE_FORCED | 4);
                    p.flags = vec![PartitionFlag::ExclusiveUser(false), PartitionFlag::Lln(true)];
                },
                json!({"partition": {"oversubscribe": "FORCE:4", "exclusive": "NO"}, "flags": ["LLN"]}),
            ),
        ]);
    }

    #[test]
    fn a_setting_that_slurmrestd_cannot_express_is_rejected() {
        let rows: [Change; 6] = [
            |p| p.job_defaults = Some(String::new()),
            |p| p.topology = Some("t".to_owned()),
            |p| p.preempt_mode = Some(0x8001),
            |p| p.cpu_bind = Some(1),
            |p| p.flags = vec![PartitionFlag::ExclusiveUser(false)],
            |p| {
                p.max_share = Some(0);
                p.flags = vec![PartitionFlag::ExclusiveUser(true)];
            },
        ];
        for change in rows {
            assert!(
                matches!(rendered(change), Err(Failure::NotUnderstood(_))),
                "{:?}",
                rendered(change)
            );
        }
    }
}
