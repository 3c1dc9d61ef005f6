//! Names that become paths. They come from ConfigMaps and over the network, so they are checked once, here.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A file name's limit on every file system, less room for a suffix while it is written. ConfigMap keys end at 253, too.
const LONGEST: usize = 253;

/// A file directly in /etc/slurm.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no file name for /etc/slurm: up to {LONGEST} of the characters A-Z a-z 0-9 - _ . are, unless it is \".\" or begins with \"..\""
)]
pub struct InvalidFileName(pub String);

impl FileName {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidFileName> {
        let name = name.into();
        // Names with two dots in front are the kubelet's way, and ours, to keep the machinery apart from the files.
        let reserved = name == "." || name.starts_with("..");
        if reserved || !is_plain(&name, |byte| matches!(byte, b'-' | b'_' | b'.')) {
            return Err(InvalidFileName(name));
        }
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The UID of a Controller object: the name of the directory that holds its revisions on the state volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ControllerUid(String);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no UID of an object: letters, digits and hyphens are")]
pub struct InvalidControllerUid(pub String);

impl ControllerUid {
    pub fn new(uid: impl Into<String>) -> Result<Self, InvalidControllerUid> {
        let uid = uid.into();
        if is_plain(&uid, |byte| byte == b'-') {
            Ok(Self(uid))
        } else {
            Err(InvalidControllerUid(uid))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_plain(name: &str, also: impl Fn(u8) -> bool) -> bool {
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || also(byte))
}

checked_text!(FileName, InvalidFileName);
checked_text!(ControllerUid, InvalidControllerUid);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_configmap_that_is_not_the_kubelets_own_is_a_file_name() {
        for name in ["slurm.conf", "prolog-10_x.sh", ".hidden", "a..b", "A", &"x".repeat(253)] {
            assert_eq!(FileName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn no_file_name_leaves_its_directory_or_takes_the_place_of_the_machinery() {
        for name in [
            "",
            ".",
            "..",
            "...",
            "..data",
            "..revision",
            "..2025_01_09",
            "a/b",
            "/etc",
            "../x",
            "a\0b",
            "a b",
            "ä",
            "a\n",
            &"x".repeat(254),
        ] {
            assert_eq!(FileName::new(name), Err(InvalidFileName(name.to_owned())));
        }
    }

    #[test]
    fn a_uid_is_one_directory() {
        ControllerUid::new("1b4e28ba-2fa1-11d2-883f-0016d3cca427").unwrap();
        for uid in ["", ".", "..", "a/b", "a.b", "a b", "ä"] {
            assert_eq!(ControllerUid::new(uid), Err(InvalidControllerUid(uid.to_owned())));
        }
    }
}
