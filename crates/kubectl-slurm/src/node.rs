//! Nodes of Slurm, above all those that are pods.

mod commands;
mod show;
mod view;

pub(crate) use self::commands::{list_pods, run};
pub(crate) use self::view::{NodeView, view_nodes};
