//! Layers: tars that depend on nothing but their content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use sha2::digest::Output;
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Digest(String);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::hex(Sha256::digest(bytes))
    }

    pub(super) fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let mut hash = Sha256::new();
        let mut chunk = vec![0; 1 << 20];
        loop {
            match reader.read(&mut chunk)? {
                0 => return Ok(Self::hex(hash.finalize())),
                read => hash.update(chunk.get(..read).unwrap_or_default()),
            }
        }
    }

    /// Parses the text of [`Digest::as_hex`].
    pub(super) fn parse(hex: &str) -> Result<Self> {
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!("{hex:?} is not a SHA-256 digest");
        }
        Ok(Self(hex.to_owned()))
    }

    pub(super) fn as_hex(&self) -> &str {
        &self.0
    }

    /// A prefix that distinguishes files in a cache.
    pub(super) fn short(&self) -> &str {
        self.0.get(..16).unwrap_or(&self.0)
    }

    fn hex(hash: Output<Sha256>) -> Self {
        Self(format!("{hash:x}"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// An uncompressed layer: images never leave the machine, and unpacking would delay the start of nodes.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub digest: Digest,
    pub size: u64,
    pub content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    File(PathBuf),
    Bytes(Arc<[u8]>),
}

/// Files of a layer, by path from the root, without a leading slash.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    bytes: Vec<u8>,
    mode: u32,
}

impl Tree {
    /// All files below a folder except README files; none if the folder does not exist.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let mut tree = Self::default();
        if folder.exists() {
            tree.read_below(folder, folder)
                .with_context(|| format!("cannot read {}", folder.display()))?;
        }
        Ok(tree)
    }

    fn read_below(&mut self, folder: &Path, at: &Path) -> Result<()> {
        for entry in fs::read_dir(at)? {
            let path = entry?.path();
            if path.is_dir() {
                self.read_below(folder, &path)?;
            } else if path.file_name().is_some_and(|name| name != "README.md") {
                let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
                self.add(&name, &path)?;
            }
        }
        Ok(())
    }

    pub(super) fn text(mut self, path: &str, text: &str) -> Self {
        self.files.insert(
            path.to_owned(),
            Entry {
                bytes: text.as_bytes().to_vec(),
                mode: 0o644,
            },
        );
        self
    }

    pub(super) fn file(mut self, path: &str, source: &Path) -> Result<Self> {
        self.add(path, source)?;
        Ok(self)
    }

    /// Only the executable bit of the mode is used, which git keeps.
    fn add(&mut self, path: &str, source: &Path) -> Result<()> {
        let failed = || format!("cannot read {}", source.display());
        let bytes = fs::read(source).with_context(failed)?;
        let executable = fs::metadata(source).with_context(failed)?.permissions().mode() & 0o111 != 0;
        self.files.insert(
            path.to_owned(),
            Entry {
                bytes,
                mode: if executable { 0o755 } else { 0o644 },
            },
        );
        Ok(())
    }

    /// Identifies what is in the tree.
    pub(super) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        for (path, Entry { bytes, mode }) in &self.files {
            hash.update(format!("{path}\0{mode:o}\0{}\0", bytes.len()));
            hash.update(bytes);
        }
        Digest::hex(hash.finalize())
    }

    pub(super) fn get(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(|entry| entry.bytes.as_slice())
    }

    pub(super) fn layer_unless_empty(&self) -> Result<Option<Layer>> {
        if self.files.is_empty() {
            Ok(None)
        } else {
            self.layer().map(Some)
        }
    }

    pub(super) fn layer(&self) -> Result<Layer> {
        let mut tar = tar::Builder::new(Vec::new());
        for folder in self.folders() {
            tar.append_data(
                &mut header(tar::EntryType::Directory, 0o755, 0),
                format!("{folder}/"),
                io::empty(),
            )?;
        }
        for (path, Entry { bytes, mode }) in &self.files {
            let mut header = header(tar::EntryType::Regular, *mode, bytes.len() as u64);
            tar.append_data(&mut header, path, bytes.as_slice())?;
        }
        let bytes = tar.into_inner()?;
        Ok(Layer {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            content: Content::Bytes(bytes.into()),
        })
    }

    /// Parents first.
    fn folders(&self) -> BTreeSet<String> {
        let parents = self.files.keys().flat_map(|path| Path::new(path).ancestors().skip(1));
        parents
            .map(|folder| folder.to_string_lossy().into_owned())
            .filter(|folder| !folder.is_empty())
            .collect()
    }
}

impl Layer {
    /// A tar made elsewhere, whose digest is known.
    pub(super) fn of_file(path: &Path, digest: Digest) -> Result<Self> {
        let size = fs::metadata(path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .len();
        Ok(Self {
            digest,
            size,
            content: Content::File(path.to_owned()),
        })
    }

    pub(super) fn open(&self) -> Result<Box<dyn Read + '_>> {
        Ok(match &self.content {
            Content::File(path) => {
                Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?)
            }
            Content::Bytes(bytes) => Box::new(bytes.as_ref()),
        })
    }
}

/// Owned by root, with timestamp 0.
pub(super) fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_a_sha256() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), format!("sha256:{abc}"));
        assert_eq!(Digest::of_reader(&b"abc"[..]).unwrap(), Digest::parse(abc).unwrap());
        assert!(Digest::parse("abc").is_err());
    }

    #[test]
    fn a_layer_depends_only_on_content_and_the_executable_bit() {
        let build = |mode| {
            let folder = tempfile::tempdir().unwrap();
            let script = folder.path().join("usr/bin/run");
            fs::create_dir_all(script.parent().unwrap()).unwrap();
            fs::write(&script, "#!/bin/sh\n").unwrap();
            fs::write(folder.path().join("README.md"), "for people").unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(mode)).unwrap();
            Tree::read(folder.path()).unwrap().layer().unwrap()
        };
        assert_eq!(build(0o700).digest, build(0o755).digest);
        assert_ne!(build(0o644).digest, build(0o755).digest);
    }

    #[test]
    fn a_layer_holds_folders_before_files_all_owned_by_root() {
        let layer = Tree::default().text("etc/a/b", "text").text("top", "").layer().unwrap();
        let mut archive = tar::Archive::new(layer.open().unwrap());
        let seen: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!(
                    (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()),
                    (0, 0, 0)
                );
                entry.path().unwrap().to_string_lossy().into_owned()
            })
            .collect();
        assert_eq!(seen, ["etc/", "etc/a/", "etc/a/b", "top"]);
    }

    #[test]
    fn an_image_without_own_files_has_no_layer() {
        let tree = Tree::read(Path::new("/no/such/folder")).unwrap();
        assert!(tree.layer_unless_empty().unwrap().is_none());
    }
}
