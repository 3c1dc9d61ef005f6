//! Container images without a container engine or a registry: a Debian root made by mmdebstrap, thin layers from the
//! files in `images/`, written as one OCI archive that `ctr images import` takes.
//!
//! `sources` finds the Debian mirror this machine uses, `rootfs` makes the shared root, `layer` makes the layers above it,
//! `catalog` says which images exist under which names, `oci` writes archives, `cache` forgets old ones.

mod cache;
mod catalog;
mod layer;
mod oci;
mod rootfs;
mod sources;

use std::fs::{self, Permissions};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::lock;
use crate::slurm_release::Release;
use crate::steps::step;
use layer::Tree;
use oci::{Config, Image, Layout};

/// Number of archives in the cache: enough for a few checkouts. Each is as large as the root.
const ARCHIVES_KEPT: usize = 3;
/// Suffix of incomplete archives.
const UNFINISHED: &str = "unfinished-archive-";

/// Builds the images of Slurm clusters, or finds them in the cache.
#[derive(Debug, Clone)]
pub struct Builder {
    /// Shared by all checkouts of a machine.
    pub cache: PathBuf,
    /// The static `slurm-agent`.
    pub agent: PathBuf,
    /// The repository's `images` directory.
    pub images_dir: PathBuf,
    /// The Slurm in them.
    pub release: Release,
}

impl Builder {
    /// The root all images share, as a tar whose name changes with what it is made from.
    pub fn base_rootfs(&self) -> Result<PathBuf> {
        rootfs::Recipe::read(&self.images_dir.join("base"), self.release)?.tar(&self.cache)
    }

    /// All images in one archive, whose name changes with its content.
    pub fn slurm_archive(&self) -> Result<PathBuf> {
        let base = self.base_rootfs()?;
        let layout = self.layout(&base)?;
        let archive = self.cache.join(format!("slurm-images-{}.tar", layout.digest().short()));
        if !archive.exists() {
            let _lock = lock::exclusive(&self.cache.join("archive.lock"), "another build of the images to end")?;
            if !archive.exists() {
                cache::remove_unfinished(&self.cache, UNFINISHED)?;
                step("write the image archive", || write_archive(&layout, &archive))?;
                cache::keep_newest(&self.cache, "slurm-images-", ARCHIVES_KEPT)?;
            }
        }
        Ok(archive)
    }

    fn layout(&self, base: &Path) -> Result<Layout> {
        let base = rootfs::layer(base)?;
        let agent = Tree::default()
            .file("usr/local/bin/slurm-agent", &self.agent)?
            .layer()?;
        let mut layout = Layout::default();
        for entry in catalog::images(self.release) {
            let own = Tree::read(&self.images_dir.join(entry.name))?;
            let layers = match entry.root {
                catalog::Root::Base => [Some(base.clone()), Some(agent.clone()), own.layer_unless_empty()?],
                catalog::Root::Scratch => [None, Some(agent.clone()), None],
            };
            let image = Image {
                config: entry.config,
                layers: layers.into_iter().flatten().collect(),
            };
            layout.add(&image, &entry.references)?;
        }
        Ok(layout)
    }
}

/// An image with static binaries in its root and a user to run as.
pub fn scratch_image(out: &Path, reference: &str, binaries: &[&Path], entrypoint: &[&str]) -> Result<()> {
    // The usual user ID of images without a shell. It has a name because some programs look it up.
    let mut tree = Tree::default().text("etc/passwd", "nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n");
    for binary in binaries {
        let name = binary
            .file_name()
            .with_context(|| format!("{} is not a file", binary.display()))?;
        tree = tree.file(&name.to_string_lossy(), binary)?;
    }
    let config = Config {
        entrypoint: entrypoint.to_vec(),
        user: "65532:65532",
        ..Config::default()
    };
    let mut layout = Layout::default();
    layout.add(
        &Image {
            config,
            layers: vec![tree.layer()?],
        },
        &[reference.to_owned()],
    )?;
    write_archive(&layout, out)
}

/// Written under another name first, so that an archive that exists is complete.
fn write_archive(layout: &Layout, out: &Path) -> Result<()> {
    let folder = out.parent().context("an archive has a folder")?;
    fs::create_dir_all(folder)?;
    let unfinished = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    layout
        .write(BufWriter::new(&unfinished))
        .with_context(|| format!("cannot write {}", out.display()))?;
    unfinished
        .persist(out)
        .with_context(|| format!("cannot write {}", out.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root, the network and two minutes"]
    fn all_images_build_and_are_found_again() {
        let builder = Builder {
            cache: crate::paths::cache().unwrap().join("images"),
            agent: crate::sibling("slurm-agent").unwrap(),
            images_dir: crate::paths::repository().join("images"),
            release: Release::Current,
        };
        let archive = builder.slurm_archive().unwrap();
        let written = fs::metadata(&archive).unwrap().modified().unwrap();
        assert_eq!(builder.slurm_archive().unwrap(), archive);
        assert_eq!(fs::metadata(&archive).unwrap().modified().unwrap(), written);
    }

    #[test]
    fn a_scratch_image_is_the_same_bytes_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("operator");
        fs::write(&binary, "#!").unwrap();
        let build = |name: &str| {
            let out = folder.path().join(name);
            scratch_image(&out, "localhost/operator:1", &[&binary], &["/operator", "run"]).unwrap();
            fs::read(out).unwrap()
        };
        assert_eq!(build("one.tar"), build("two.tar"));
    }

    #[test]
    fn a_missing_binary_leaves_no_archive_behind() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.tar");
        let missing = folder.path().join("missing");
        let error = scratch_image(&out, "localhost/operator:1", &[&missing], &[]).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
