//! Slurm's hash of slurm.conf, which daemons compare.
//!
//! It covers every byte, including comments, of slurm.conf and of the included files, in the order they are read: a cyclic redundancy
//! check of 16 bits (polynomial 0x1021) in a register of 32.

use std::ffi::c_char;

use super::configuration::Configuration;
use super::line::Content;

impl Configuration {
    /// Returns `None` if it is unknown: a file is missing here, is read twice, or is no text.
    pub fn hash(&self) -> Option<u32> {
        let mut includes = 0;
        let mut hash = 0;
        for located in self.slurm_conf() {
            includes += usize::from(matches!(located.line.content(), Content::Include(_)));
            let text = located.line.raw();
            // Slurm ends a line at a NUL; the other character replaces bytes that are not UTF-8.
            if text.contains(['\0', char::REPLACEMENT_CHARACTER]) {
                return None;
            }
            hash = text.bytes().fold(hash, add);
        }
        let complete = !self.includes_elsewhere() && self.bad_includes().is_empty() && includes < self.files_read();
        complete.then_some(hash)
    }
}

fn add(hash: u32, byte: u8) -> u32 {
    // C's `char`, which is signed on some architectures; slurmctld runs on the same one.
    let character = i32::from(c_char::from_ne_bytes([byte]));
    let mixed = hash ^ (character << 8).cast_unsigned();
    (0..8).fold(mixed, |hash, _| {
        let shifted = hash << 1;
        if hash & 0x8000 == 0 { shifted } else { shifted ^ 0x1021 }
    })
}

#[cfg(test)]
mod tests {
    use super::Configuration;

    fn hash(files: &[(&str, &[u8])]) -> Option<u32> {
        Configuration::parse(files.iter().copied()).hash()
    }

    /// The numbers are those of slurmctld 26.05.5 on x86-64.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_hash_is_slurms() {
        let conf = include_bytes!("../../tests/hash/slurm.conf");
        assert_eq!(hash(&[("slurm.conf", conf)]), Some(0x7c04_bc84));
        let including = [conf.as_slice(), "Include more.conf\n# end ü".as_bytes()].concat();
        let included = "# more ö\nPartitionName=r Nodes=n4\n".as_bytes();
        let files = [("slurm.conf", including.as_slice()), ("more.conf", included)];
        assert_eq!(hash(&files), Some(0xfb5f_7fbf));
    }

    #[test]
    fn every_byte_counts() {
        let one = hash(&[("slurm.conf", b"ClusterName=a # x\n")]);
        assert!(one.is_some());
        for other in [
            &b"ClusterName=a # y\n"[..],
            b"ClusterName=a # x",
            b"ClusterName=a  # x\n",
        ] {
            assert_ne!(hash(&[("slurm.conf", other)]), one);
        }
    }

    #[test]
    fn an_included_file_counts_at_its_position() {
        let whole = hash(&[("slurm.conf", b"A=1\nInclude more\nB=2\n".as_slice()), ("more", b"")]);
        let more = hash(&[
            ("slurm.conf", b"A=1\nInclude more\nB=2\n".as_slice()),
            ("more", b"C=3\n"),
        ]);
        assert!(whole.is_some() && more.is_some() && whole != more);
    }

    #[test]
    fn without_all_files_the_hash_is_unknown() {
        for files in [
            &[("slurm.conf", &b"Include /opt/site.conf\n"[..])][..],
            &[("slurm.conf", b"Include missing\n")],
            &[("slurm.conf", b"Include more\nInclude more\n"), ("more", b"A=1\n")],
            &[("slurm.conf", b"A=\xff\n")],
            &[("slurm.conf", b"A=1\0B\n")],
            &[],
        ] {
            assert_eq!(hash(files), None, "{files:?}");
        }
    }
}
