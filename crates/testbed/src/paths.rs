//! Paths on the host: one cache per machine for builds, one state folder per cluster.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Number of clusters for tests that need their own. These tests mostly wait, so there are more clusters than cores.
pub const TEST_CLUSTERS: usize = 4;

/// The checkout this binary was built from.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// Builds shared by all checkouts on this machine.
pub fn cache() -> Result<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

/// What belongs to one cluster. Removing the folder (after `down`) removes the cluster.
#[derive(Clone, Debug)]
pub struct Layout {
    pub cluster: String,
    root: PathBuf,
}

impl Layout {
    pub fn of(cluster: &str) -> Result<Self> {
        // `down` removes the folder; an empty name would be the folder of all clusters.
        let is_name = cluster.starts_with(|c: char| c.is_ascii_alphanumeric())
            && cluster.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        ensure!(
            is_name,
            "{cluster:?} is no name of a cluster; letters, digits and hyphens are"
        );
        let root = base("XDG_STATE_HOME", ".local/state")?.join(cluster);
        Ok(Self {
            cluster: cluster.to_owned(),
            root,
        })
    }

    /// The cluster of this checkout. Names differ between checkouts, so that their clusters run in parallel.
    pub fn default_cluster() -> String {
        let repository = repository();
        let mut hasher = DefaultHasher::new();
        repository.hash(&mut hasher);
        format!("t{:08x}", hasher.finish() & 0xffff_ffff)
    }

    /// Tests do not use the cluster of `make up`. This one is shared by all tests that do not disturb each other.
    pub fn test_cluster() -> String {
        format!("{}-test", Self::default_cluster())
    }

    /// All clusters of tests, the shared one first.
    pub fn test_clusters() -> [String; TEST_CLUSTERS] {
        std::array::from_fn(|index| match index {
            0 => Self::test_cluster(),
            _ => format!("{}{}", Self::test_cluster(), index + 1),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Records of running processes, one file each.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    pub fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// Directories of PersistentVolumes, at the same path on every node.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node)
    }

    /// Configuration written for components of `place` (a node's name, or "control-plane").
    pub fn config(&self, place: &str) -> PathBuf {
        self.root.join("config").join(place)
    }

    pub fn log(&self, place: &str, component: &str) -> PathBuf {
        self.root.join("logs").join(place).join(format!("{component}.log"))
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The requests of the operator, beside the folder of the cluster: they outlive it.
    pub fn audit_log(&self) -> PathBuf {
        self.root.with_extension("audit.log")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }
}

fn base(variable: &str, fallback: &str) -> Result<PathBuf> {
    let parent = match std::env::var_os(variable) {
        Some(set) if !set.is_empty() => PathBuf::from(set),
        _ => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(fallback),
    };
    let path = parent.join("slurm-operator");
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Writes a file together with the folders above it.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn only_a_valid_name_identifies_a_cluster() {
        for name in ["", ".", "..", "a/b", "/", "../other", " ", "-x"] {
            assert!(Layout::of(name).is_err(), "{name:?}");
        }
        assert!(Layout::of(&Layout::test_cluster()).is_ok());
    }
}
