//! The images every node starts with.

use std::path::PathBuf;

use anyhow::Result;

use crate::image::Builder;
use crate::image_store;
use crate::paths;

/// The archive with all images, built if need be.
pub fn archive() -> Result<PathBuf> {
    let builder = Builder {
        cache: paths::cache()?.join("images"),
        agent: crate::sibling("slurm-agent")?,
        images_dir: paths::repository().join("images"),
    };
    builder.slurm_archive()
}

/// The unpacked images that nodes share.
pub fn store() -> Result<PathBuf> {
    image_store::store(&[archive()?])
}
