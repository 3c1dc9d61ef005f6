//! Which process of slurmctld this is and the hash of the slurm.conf it runs with (REQUEST_BUILD_INFO).
//!
//! The answer holds all of slurm.conf and is laid out anew in every release. So it is asked for in the oldest version we
//! speak, whose layout no longer changes, and read as far as the hash.

use super::layout::Value::{self, Pairs, Text, Texts, U16, U32, U64};
use super::layout::{pack_nothing, pass_over};
use super::version::Version;
use super::wire::{Malformed, Reader, Unpackable, Writer};
use crate::answer::ServedConf;

pub(super) const VERSION: Version = Version::V42;

/// Between the time of the answer and the boot time.
const BEFORE_BOOT_TIME: &[Value] = &[
    // AccountingStorage*, acct_gather.conf
    U16, Text, Text, Text, Text, U16, Text, Text, Text, Pairs, //
    // AcctGather*
    Text, Text, Text, U16, Text, //
    // Auth*, BatchStartTimeout
    Text, Text, Text, Text, U16,
];

/// Between the boot time and the hash.
const BEFORE_HASH: &[Value] = &[
    // BurstBufferType, Bcast*, cgroup.conf
    Text, Text, Text, Pairs, //
    // CliFilterPlugins to CompleteWait, flags, SlurmctldHost as addresses and as names
    Text, Text, Text, U16, U32, Texts, Texts, //
    // CpuFreq*, CredType, DataParserParameters
    U32, U32, Text, Text, //
    // DefMemPerCPU, DebugFlags, DependencyParameters
    U64, U64, Text, //
    // EioTimeout to EpilogSlurmctld
    U16, U16, Texts, U32, Texts, //
    // FederationParameters, FirstJobId, FairShareDampeningFactor
    Text, U32, U16, //
    // GetEnvTimeout, GresTypes, GroupUpdate*, GpuFreqDef
    U16, Text, U16, U16, Text, //
    // HashPlugin
    Text,
];

pub(super) fn pack_question() -> Vec<u8> {
    let mut body = Writer::default();
    // Only if it has changed since then: whenever that was.
    body.u64(0);
    body.into_bytes()
}

pub(super) fn unpack_live_conf(body: &[u8]) -> Result<ServedConf, Malformed> {
    let mut reader = Reader::new(body);
    let now = reader.u64()?;
    pass_over(&mut reader, BEFORE_BOOT_TIME)?;
    let boot_time = reader.u64()?;
    pass_over(&mut reader, BEFORE_HASH)?;
    let hash = reader.u32()?.into();
    Ok(ServedConf { boot_time, now, hash })
}

/// The answer as far as it is read, for whoever plays slurmctld.
pub fn pack_live_conf(conf: &ServedConf) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u64(conf.now);
    pack_nothing(&mut body, BEFORE_BOOT_TIME)?;
    body.u64(conf.boot_time);
    pack_nothing(&mut body, BEFORE_HASH)?;
    body.u32(u32::try_from(conf.hash).map_err(|_| Unpackable::TooLarge)?);
    Ok(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_answer_comes_back_and_never_from_less(now in any::<u64>(), boot_time in any::<u64>(), hash in any::<u32>()) {
            let conf = ServedConf { now, boot_time, hash: hash.into() };
            let body = pack_live_conf(&conf).unwrap();
            prop_assert_eq!(unpack_live_conf(&body), Ok(conf));
            for end in 0..body.len() {
                prop_assert_eq!(unpack_live_conf(&body[..end]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let _ = unpack_live_conf(&bytes);
        }
    }
}
