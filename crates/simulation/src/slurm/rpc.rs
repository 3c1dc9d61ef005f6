//! Slurm's own protocol, as far as the agent uses it. slurmctld's files and their hash are those of its pod.

use slurm::rpc::{
    Frame, LiveNode, LivePartition, MessageType, NodeUpdate, PartitionUpdate, pack_admin_state, pack_nodes,
    pack_partitions, unpack_end_of_job, unpack_node_name, unpack_partition_name,
};
use slurm::{Node, Partition, node::NodeFlag};

use super::command_line::{parse_change, partition_update};
use super::engine::Slurm;
use super::ids::ControllerId;
use super::json;
use super::request::{Code, Failure, Request};
use super::settings::SLURMD_PORT;
use super::state::State;

/// The status of a job that was cancelled (`NO_VAL`).
const CANCELLED: u32 = 0xffff_fffe;

type Response = (MessageType, Vec<u8>);

impl Slurm {
    /// Returns the type and the body of the response; `None` to a message that the model does not know. The token was accepted.
    pub fn rpc(&mut self, to: ControllerId, sender: &str, asked: &Frame) -> Result<Option<Response>, Failure> {
        let Some(request) = parse_request(asked) else {
            return self.read(to, asked);
        };
        match self.request(to, sender, request) {
            Ok(_) => Ok(Some(return_code(0))),
            Err(Failure::Refused(code)) => Ok(Some(return_code(code.number()))),
            Err(failure) => Err(failure),
        }
    }

    fn read(&self, to: ControllerId, asked: &Frame) -> Result<Option<Response>, Failure> {
        let (state, conf) = (self.state(to)?, self.conf(to)?);
        Ok(match asked.kind {
            MessageType::PING => Some(return_code(0)),
            MessageType::PARTITION_INFO => {
                let shown: Vec<Partition> = serde_json::from_value(json::partitions(state, conf)).unwrap();
                let live: Result<Vec<LivePartition>, _> = shown.into_iter().map(LivePartition::try_from).collect();
                let body = pack_partitions(&live.unwrap()).unwrap();
                Some((MessageType::RESPONSE_PARTITION_INFO, body))
            }
            // Always in full, as if something had changed.
            MessageType::NODE_INFO => {
                let nodes = state.nodes.values().map(|node| self.live_node(state, node));
                let body = pack_nodes(json::unix(self.now()), &nodes.collect::<Vec<_>>()).unwrap();
                Some((MessageType::RESPONSE_NODE_INFO, body))
            }
            MessageType::NODE_INFO_SINGLE => {
                let name = unpack_node_name(&asked.body).unwrap();
                Some(match state.nodes.get(&name) {
                    None => return_code(Code::InvalidNodeName.number()),
                    Some(node) => {
                        let node = std::iter::once(node);
                        let shown: Vec<Node> = serde_json::from_value(json::nodes(state, node, self.now())).unwrap();
                        let body = pack_admin_state(Some((&name, &shown[0].admin_state()))).unwrap();
                        (MessageType::RESPONSE_NODE_INFO, body)
                    }
                })
            }
            _ => None,
        })
    }

    fn live_node(&self, state: &State, node: &super::state::Node) -> LiveNode {
        let names = state.node_state_names(node, self.now());
        LiveNode {
            name: node.name.clone(),
            address: node.address.clone(),
            port: SLURMD_PORT,
            slurmd_start: json::unix(node.slurmd_start_time),
            has_jobs: names.iter().any(|name| ["ALLOCATED", "MIXED"].contains(name)),
            is_responding: !node.has(NodeFlag::NotResponding),
        }
    }
}

/// Whether this message changes something.
pub fn is_order(asked: &Frame) -> bool {
    parse_request(asked).is_some()
}

/// Returns the request that scontrol would send with the same settings.
fn parse_request(asked: &Frame) -> Option<Request> {
    let (version, body) = (asked.version, asked.body.as_slice());
    let partition = || {
        let update = PartitionUpdate::unpack(version, body).ok()?;
        let settings = update.to_scontrol().ok()?;
        Some((update.name, partition_update(&words(&settings))))
    };
    match asked.kind {
        MessageType::UPDATE_NODE => {
            let settings = NodeUpdate::unpack(version, body).ok()?.to_scontrol();
            parse_change("update", &words(&settings)).map(|(_, request)| request)
        }
        MessageType::DELETE_NODE => Some(Request::DeleteNode(NodeUpdate::unpack(version, body).ok()?.names)),
        MessageType::CREATE_PARTITION => partition().map(|(name, update)| Request::CreatePartition { name, update }),
        MessageType::UPDATE_PARTITION => partition().map(|(name, update)| Request::UpdatePartition { name, update }),
        MessageType::DELETE_PARTITION => Some(Request::DeletePartition(unpack_partition_name(body).ok()?)),
        kind @ (MessageType::COMPLETE_BATCH_SCRIPT | MessageType::COMPLETE_JOB_ALLOCATION) => {
            let (job, status) = unpack_end_of_job(kind, body).ok()?;
            let (code, signal) = (i32::try_from(status >> 8).ok()?, i32::try_from(status & 0x7f).ok()?);
            let exit_code = (status != CANCELLED).then_some(if signal == 0 { code } else { -signal });
            Some(Request::CompleteJob { job, exit_code })
        }
        _ => None,
    }
}

fn words(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

fn return_code(code: u32) -> Response {
    (MessageType::RESPONSE_RETURN_CODE, code.to_be_bytes().to_vec())
}
