//! The runtime with this operator's kinds and context: what every kind imports.

pub use ::runtime::*;

pub use crate::{
    conditions::{DesiredCondition, remarks, settle},
    context::Context,
    kinds::Caches,
    service_monitor::ServiceMonitor,
};
