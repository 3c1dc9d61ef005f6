//! The operator's API: the six kinds of `slinky.slurm.net/v1beta1` and Partition, the keys and names that go with them, and the
//! checks their objects must pass.
//!
//! The types keep what a user wrote: an absent field stays absent, and a method returns its default. Nothing in this
//! crate talks to Kubernetes or to Slurm.

#![allow(
    clippy::doc_markdown,
    reason = "doc comments are what `kubectl explain` prints, where kinds and Slurm's keys stand as plain words"
)]

#[macro_use]
mod open_enum;

pub mod accounting;
pub mod controller;
pub mod loginset;
pub mod nodeset;
pub mod partition;
pub mod restapi;
pub mod token;

pub mod autoscaling;
pub mod claims;
pub mod conditions;
pub mod configuration;
pub mod drain;
pub mod external;
pub mod health;
pub mod int_or_string;
pub mod items;
pub mod metrics;
pub mod overlay;
pub mod references;
pub mod templates;
pub mod time;
pub mod update_strategy;

pub mod keys;
pub mod names;
pub mod node_reason;
pub mod wellknown;

pub mod crds;
pub mod reference;
mod schema;
pub mod validate;

pub use accounting::{Accounting, AccountingSpec, AccountingStatus};
pub use conditions::{Condition, ConditionStatus};
pub use controller::{Controller, ControllerSpec, ControllerStatus};
pub use crds::crds;
pub use int_or_string::IntOrString;
pub use loginset::{LoginSet, LoginSetSpec, LoginSetStatus};
pub use nodeset::{NodeSet, NodeSetSpec, NodeSetStatus};
pub use overlay::Overlay;
pub use partition::{Partition, PartitionSpec, PartitionStatus};
pub use restapi::{RestApi, RestApiSpec, RestApiStatus};
pub use token::{Token, TokenSpec, TokenStatus};
pub use validate::{Problem, Problems, Severity, Validate};

/// The API group of every kind.
pub const GROUP: &str = "slinky.slurm.net";
/// The version of the six kinds that came from upstream.
pub const VERSION: &str = "v1beta1";
