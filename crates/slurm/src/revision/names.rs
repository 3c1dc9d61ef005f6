//! Names that become paths. They come from ConfigMaps and over the network, so they are checked here.

use crate::checked_text::is_plain;

/// The limit of file names, less room for a suffix while a file is written. It is the limit of ConfigMap keys too.
const MAX_LENGTH: usize = 253;

checked_text! {
    /// A file directly in /etc/slurm.
    FileName: is_file_name,
    InvalidFileName: "{0:?} is no file name for /etc/slurm; use up to {MAX_LENGTH} of the characters A-Z a-z 0-9 - _ ., and neither \".\" nor a name that begins with \"..\""
}

fn is_file_name(name: &str) -> bool {
    // Names that begin with two dots belong to the kubelet and to the agent.
    let is_reserved = name == "." || name.starts_with("..");
    !is_reserved && has_valid_length(name) && is_plain(name, "-_.")
}

checked_text! {
    /// The UID of a Controller object: the name of the directory with its revisions on the state volume.
    ControllerUid: |uid| has_valid_length(uid) && is_plain(uid, "-"),
    InvalidControllerUid: "{0:?} is no UID of an object; it has letters, digits and hyphens"
}

fn has_valid_length(name: &str) -> bool {
    (1..=MAX_LENGTH).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_configmap_but_the_kubelets_own_is_a_file_name() {
        for name in ["slurm.conf", "prolog-10_x.sh", ".hidden", "a..b", "A", &"x".repeat(253)] {
            assert_eq!(FileName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn no_file_name_leaves_its_directory_or_is_reserved() {
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
