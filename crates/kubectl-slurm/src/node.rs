//! Nodes of Slurm that are pods.

mod commands;
mod view;

pub(crate) use self::commands::{list_pods, run};
pub(crate) use self::view::{NodeView, view_nodes};
