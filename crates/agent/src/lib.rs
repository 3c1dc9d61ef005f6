//! What runs inside a Slurm pod, in one static binary that fits any image.

pub mod cli;
pub mod pause;
pub mod supervise;
