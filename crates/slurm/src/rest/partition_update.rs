//! An update of a partition as slurmrestd takes it (v0.0.45). Each key was tried with slurmrestd 26.05.5, set and taken away again.
//!
//! What stands in its answers and is passed over in silence when it is sent: `shares`, `oversubscribe` among the maximums,
//! `memory_per_cpu`, `defaults.job`. There is no flag that takes ExclusiveUser away; `exclusive` does.

use serde_json::{Map, Value, json};

use crate::number::Number;
use crate::rpc::{CPU_BINDS, Failure, PREEMPT_MODES, PartitionFlag, PartitionUpdate, over_subscribe};

/// The body of `POST partitions/`.
pub(super) fn render_partition(update: &PartitionUpdate) -> Result<Value, Failure> {
    update.check_readable()?;
    let PartitionUpdate {
        name,
        nodes,
        state,
        flags,
        allow_accounts,
        allow_groups,
        allow_qos,
        deny_accounts,
        deny_qos,
        alternate,
        billing_weights,
        cpu_bind,
        default_memory,
        max_memory,
        default_time,
        max_time,
        job_defaults: _,
        grace_time,
        max_cpus_per_node,
        max_cpus_per_socket,
        max_nodes,
        min_nodes,
        max_share,
        over_time_limit,
        preempt_mode,
        priority_job_factor,
        priority_tier,
        qos,
        topology: _,
    } = update;
    let mut body = Body(Map::new());
    body.say(["name"], Some(name.as_str()));
    for (place, value) in [
        (["nodes", "configured"], nodes),
        (["accounts", "allowed"], allow_accounts),
        (["accounts", "deny"], deny_accounts),
        (["groups", "allowed"], allow_groups),
        (["qos", "allowed"], allow_qos),
        (["qos", "deny"], deny_qos),
        (["qos", "assigned"], qos),
        (["tres", "billing_weights"], billing_weights),
    ] {
        body.say(place, value.as_deref());
    }
    body.say(["alternate"], alternate.as_deref());
    body.say(["partition", "state"], state.map(|state| json!([state.name()])));
    body.flags_and_sharing(flags, *max_share)?;
    let bind = cpu_bind
        .map(|bind| word("this CpuBind", bind, &CPU_BINDS))
        .transpose()?;
    body.say(["cpus", "task_binding"], bind.map(|bind| json!([bind])));
    body.memory("defaults", *default_memory);
    body.memory("maximums", *max_memory);
    for (place, value) in [
        (["defaults", "time"], default_time),
        (["maximums", "time"], max_time),
        (["maximums", "cpus_per_node"], max_cpus_per_node),
        (["maximums", "cpus_per_socket"], max_cpus_per_socket),
        (["maximums", "nodes"], max_nodes),
    ] {
        body.number(place, value.map(u64::from), u32::MAX.into());
    }
    body.number(
        ["maximums", "over_time_limit"],
        over_time_limit.map(u64::from),
        u16::MAX.into(),
    );
    body.say(["grace_time"], *grace_time);
    body.say(["minimums", "nodes"], *min_nodes);
    body.say(["priority", "job_factor"], *priority_job_factor);
    body.say(["priority", "tier"], *priority_tier);
    let mode = preempt_mode
        .map(|mode| word("this PreemptMode", mode, &PREEMPT_MODES))
        .transpose()?;
    body.say(["preempt_mode"], mode.map(|mode| json!([mode])));
    Ok(json!({ "partitions": [body.0] }))
}

fn word<T: PartialEq + Copy>(what: &str, value: T, words: &[(&'static str, T)]) -> Result<&'static str, Failure> {
    let known = words.iter().find(|(_, known)| *known == value);
    known.map(|(word, _)| *word).ok_or_else(|| cannot_be_said(what))
}

fn cannot_be_said(what: &str) -> Failure {
    Failure::Unspoken(format!("{what} cannot be said to slurmrestd"))
}

struct Body(Map<String, Value>);

impl Body {
    /// A value in its place, of one name or two.
    fn say<const DEPTH: usize>(&mut self, place: [&str; DEPTH], value: Option<impl Into<Value>>) {
        let (Some(value), Some((last, outer))) = (value, place.split_last()) else {
            return;
        };
        let mut object = &mut self.0;
        for name in outer {
            let inner = object.entry(*name).or_insert_with(|| json!({}));
            let Value::Object(inner) = inner else { return };
            object = inner;
        }
        object.insert((*last).to_owned(), value.into());
    }

    fn number<const DEPTH: usize>(&mut self, place: [&str; DEPTH], value: Option<u64>, unlimited: u64) {
        let number = value.map(|value| match value {
            value if value == unlimited => Number::Infinite,
            value => Number::Finite(value),
        });
        self.say(place, number.map(|number| json!(number)));
    }

    fn memory(&mut self, of: &str, value: Option<u64>) {
        let Some(value) = value else { return };
        let megabytes = value & !PartitionUpdate::MEMORY_PER_CPU;
        let per = if megabytes == value {
            "partition_memory_per_node"
        } else {
            "partition_memory_per_cpu"
        };
        self.say([of, per], Some(json!(Number::Finite(megabytes))));
    }

    /// Measured: `exclusive: NODE` is what OverSubscribe=EXCLUSIVE makes, and any `oversubscribe` beside it takes it away;
    /// `exclusive: NO` takes away both NODE and USER, and leaves the count of jobs.
    fn flags_and_sharing(&mut self, flags: &[PartitionFlag], max_share: Option<u16>) -> Result<(), Failure> {
        let gives_user_up = flags.contains(&PartitionFlag::ExclusiveUser(false));
        match max_share {
            Some(0) => self.say(["partition", "exclusive"], Some("NODE")),
            Some(share) => {
                let word = over_subscribe(share);
                let word = if word.is_empty() { "NO".to_owned() } else { word };
                self.say(["partition", "oversubscribe"], Some(word));
                self.say(["partition", "exclusive"], gives_user_up.then_some("NO"));
            }
            // It would take OverSubscribe=EXCLUSIVE along, if it is that.
            None if gives_user_up => return Err(cannot_be_said("ExclusiveUser=NO without OverSubscribe")),
            None => {}
        }
        let names = flags
            .iter()
            .filter(|flag| **flag != PartitionFlag::ExclusiveUser(false));
        let names: Vec<String> = names
            .map(|flag| format!("{}{}", flag.json_name(), if flag.is_set() { "" } else { "_CLEAR" }))
            .collect();
        self.say(["flags"], (!names.is_empty()).then_some(names));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionStateName;

    fn said(change: impl FnOnce(&mut PartitionUpdate)) -> Result<Value, Failure> {
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
            assert_eq!(said(change), Ok(with_name(fields)));
        }
    }

    #[test]
    fn words_stand_where_slurmrestd_shows_them() {
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
    fn numbers_and_flags_stand_where_slurmrestd_shows_them() {
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
    fn what_slurmrestd_cannot_be_told_is_not_said() {
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
            assert!(matches!(said(change), Err(Failure::Unspoken(_))), "{:?}", said(change));
        }
    }
}
