//! slurm.conf and the files in the same format (cgroup.conf, gres.conf, topology.conf …).
//!
//! * [`Document`], [`Plugstack`] and [`TopologyYaml`] are parsed files that keep their bytes; [`Configuration`] is all files of a
//!   cluster together.
//! * [`keys`] lists every key of Slurm, its values, and the action that a change needs.
//! * [`Changes`] is the difference between two configurations, and the smallest action that makes it live.
//! * [`check`] finds problems before Slurm does.
//! * [`render_scratch`] prepares a configuration for a dry run of slurmctld.
//! * [`edit_settings`] and [`edit_partition`] change single settings of a text.
//! * `render_*` renders the files of the operator.
//!
//! Everything is pure; nothing here opens a file.

mod changes;
mod check;
mod configuration;
mod diff;
mod document;
mod edit;
mod file;
mod hash;
mod key;
pub mod keys;
mod line;
mod plugstack;
mod record;
mod scratch;
mod slurm_conf;
mod slurmdbd_conf;
mod topology_yaml;

pub use changes::{Changes, Event, Part, Subject};
pub use check::{Known, Problem, Severity, check, qos_in_database};
pub use configuration::{BadInclude, BadIncludeReason, ConfFile, Configuration, Located};
pub use diff::{Change, Difference, RecordChange};
pub use document::Document;
pub use edit::{EditError, SettingChange, edit_partition, edit_settings, remove_partition};
pub use file::{DIRECTORY, FileKind};
pub use key::Key;
pub use line::{Content, Line, Setting};
pub use plugstack::{Plugstack, PlugstackEntry, PlugstackLine};
pub use record::{Record, RecordKind, Settings};
pub use scratch::{Scratch, render_scratch, undefined_nodes};
pub use slurm_conf::{
    AccountingStorage, ExternalConf, NodeSetLines, PowerSaving, RenderedSlurmConf, SLURMCTLD_PORT, SLURMD_PORT,
    SLURMDBD_PORT, SlurmConf, SlurmctldHost, render_cgroup_conf, render_external_slurm_conf, render_slurm_conf,
};
pub use slurmdbd_conf::{SlurmdbdConf, Storage, Unwritable, render_slurmdbd_conf};
pub use topology_yaml::{TopologyYaml, YamlError};
