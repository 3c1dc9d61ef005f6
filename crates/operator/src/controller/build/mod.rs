//! The children of a Controller. Pure: values in, objects out.

pub(super) mod containers;
pub(super) mod keys;
pub(super) mod monitor;
pub(super) mod services;
pub(super) mod stateful_set;

use crate::parent::Parent;
