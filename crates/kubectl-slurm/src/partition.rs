//! Partitions of a cluster. Three kinds of objects define them, which are shown and changed alike.

mod commands;
mod edit;
mod expect;
mod members;
mod place;
mod show;
mod view;

pub(crate) use self::commands::{live, run};
pub(crate) use self::place::{partition_names, settings_of_line};
pub(crate) use self::show::partition_table;
pub(crate) use self::view::{PartitionView, view_partitions};
