//! The images of every node, and the image of the operator.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::image::{self, Builder};
use crate::image_store;
use crate::paths;
use crate::slurm_release::Release;

/// The archive with all images of the chosen release of Slurm. It is built if necessary.
pub fn archive() -> Result<PathBuf> {
    let builder = Builder {
        cache: paths::cache()?.join("images"),
        agent: crate::sibling("slurm-agent")?,
        images_dir: paths::repository().join("images"),
        release: Release::chosen()?,
    };
    builder.slurm_archive()
}

/// The unpacked images that nodes share.
pub fn store() -> Result<PathBuf> {
    image_store::store(&[archive()?])
}

/// The operator's image as an archive, under the name in its chart. It is rebuilt each time, which is quick.
pub fn operator() -> Result<PathBuf> {
    let chart = std::fs::read_to_string(paths::repository().join("charts/slurm-operator/Chart.yaml"))?;
    let version = chart_version(&chart).context("the operator's chart has no version")?;
    let archive = paths::cache()?
        .join("images")
        .join(format!("operator-{}.tar", paths::Layout::default_cluster()));
    let binaries = [
        crate::sibling("../image/slurm-operator")?,
        crate::sibling("../image/slurm-agent")?,
    ];
    let binaries: Vec<&std::path::Path> = binaries.iter().map(PathBuf::as_path).collect();
    let reference = format!("localhost/slurm-operator:{version}");
    image::scratch_image(&archive, &reference, &binaries, &["/slurm-operator"])?;
    Ok(archive)
}

fn chart_version(chart: &str) -> Option<&str> {
    chart
        .lines()
        .find_map(|line| line.strip_prefix("version:"))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::chart_version;

    #[test]
    fn the_chart_names_its_version() {
        assert_eq!(chart_version("name: x\nversion: 0.1.0\nappVersion: 9\n"), Some("0.1.0"));
    }
}
