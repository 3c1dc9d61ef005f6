//! Slurm's own wire protocol, as far as it is needed: commands that slurmctld answers with a return code, the files it
//! serves, its partitions, and the configuration it runs with.
//!
//! A message is a frame ([`Frame`]) with a header, a credential (auth/jwt, the same token as for slurmrestd) and a body.
//! [`Client`] sends one per connection, as Slurm's own programs do. Everything but the client is pure and has both
//! directions, so that a test can act as slurmctld.
//!
//! The layout of the large responses (nodes, jobs) changes with every release; [`rest`](crate::rest) reads those. Of nodes only
//! few fields are read here too: the administrative state of one, right before an order that depends on it, and which
//! slurmd each node has.
//!
//! One message goes to slurmd: the request to register.

mod client;
mod config;
mod error;
mod frame;
mod job;
mod live_conf;
mod node;
mod node_info;
mod partition;
mod registration;
mod return_code;
mod slurmdbd;
mod version;
mod wire;

pub use client::{Client, Options};
pub use config::{ServedFile, pack_served_files};
pub use error::Error;
pub use frame::{Frame, MAX_FRAME, MessageType};
pub use job::unpack_end_of_job;
pub use live_conf::pack_live_conf;
pub use node::{NodeCommand, NodeUpdate};
pub use node_info::{LiveNode, pack_admin_state, pack_nodes, unpack_node_name};
pub(crate) use partition::{CPU_BINDS, Names, PREEMPT_MODES, over_subscribe};
pub use partition::{
    Delivery, Difference, Failure, Incomparable, JobDefault, LivePartition, LiveState, NotLive, NotReleased,
    PartitionCommands, PartitionFlag, PartitionUpdate, StillNeeded, deliver_partitions, pack_partitions,
    plan_partition, plan_partition_update, read_back_partitions, release_partitions, restore_partition,
    unpack_partition_name,
};
pub use registration::SlurmKey;
pub use return_code::ReturnCode;
pub use version::Version;
pub use wire::{Malformed, Unpackable};
