//! The rules of partitions, each in one file with its test: for partitions of objects, of NodeSets and of extraConf,
//! inside and outside Kubernetes. Pure; they use Slurm's values and Kubernetes' objects, and nothing else of the
//! operator.

pub(crate) mod closing;
pub(crate) mod default;
pub(crate) mod line;
pub(crate) mod manual_state;
pub(crate) mod mark;
pub(crate) mod members;
pub(crate) mod names;
