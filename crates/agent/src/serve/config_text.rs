//! `scontrol show config` of a Slurm before 26.05, which ignores `--json` for it and prints text.

use serde_json::json;

/// Makes scontrol print times as seconds since 1970: the pod's time zone would be needed to read others.
pub(super) const SECONDS: [&str; 2] = ["env", "SLURM_TIME_FORMAT=%s"];

/// The first words of the text, followed by slurmctld's time.
const HEAD: &str = "Configuration data as of ";

pub(super) fn is_text(printed: &[u8]) -> bool {
    printed.starts_with(HEAD.as_bytes())
}

/// Renders what [`ServedConf`](slurm::answer::ServedConf) has of the text as Slurm's JSON. The text does not have the hash of
/// slurm.conf, which the operator does not use.
pub(super) fn to_json(printed: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(printed).ok()?;
    let now: u64 = text.lines().next()?.strip_prefix(HEAD)?.trim().parse().ok()?;
    let mut settings = text.lines().filter_map(|line| line.split_once('='));
    let (_, boot_time) = settings.find(|(key, _)| key.trim_end() == "BOOT_TIME")?;
    let boot_time: u64 = boot_time.trim().parse().ok()?;
    let meta = json!({ "LastUpdate": now, "BOOT_TIME": boot_time, "HashValue": 0 });
    serde_json::to_vec(&json!({ "slurm_conf_meta": meta, "errors": [] })).ok()
}

#[cfg(test)]
mod tests {
    use slurm::answer::{ServedConf, decode};

    use super::*;

    /// Slurm 24.11.5, shortened.
    const PRINTED: &[u8] = b"Configuration data as of 1795015683\nAccountingStorageType   = (null)\n\
        BOOT_TIME               = 1795015681\nHASH_VAL                = Match\n";

    #[test]
    fn boot_time_and_clock_are_read_from_the_text() {
        assert!(is_text(PRINTED));
        let conf = decode::<ServedConf>(&to_json(PRINTED).unwrap()).unwrap().value;
        assert_eq!((conf.boot_time, conf.now), (1_795_015_681, 1_795_015_683));
    }

    #[test]
    fn a_text_without_its_times_is_not_used() {
        for printed in [
            &b"Configuration data as of 2026-11-18T15:26:33\nBOOT_TIME = 1\n"[..],
            b"Configuration data as of 5\nBOOT_TIME = 2026-11-18T15:26:33\n",
            b"Configuration data as of 5\n",
            b"",
        ] {
            assert_eq!(to_json(printed), None);
        }
        assert!(!is_text(b"{}"));
    }
}
