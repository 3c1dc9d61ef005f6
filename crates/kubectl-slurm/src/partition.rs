//! Partitions of a cluster. They are written down in three kinds of places, and look and are handled alike.

mod commands;
mod edit;
mod expect;
mod members;
mod place;
mod show;
mod view;

pub(crate) use self::commands::{live, run};
pub(crate) use self::show::partition_table;
pub(crate) use self::view::{PartitionView, view_partitions};
