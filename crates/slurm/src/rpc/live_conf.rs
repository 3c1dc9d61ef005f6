//! The process of slurmctld and the hash of the slurm.conf it runs with (REQUEST_BUILD_INFO).
//!
//! The response holds all of slurm.conf, and its layout changes with every release. It is therefore requested in the oldest
//! supported version, whose layout is final, and read up to the hash.

use super::version::Version;
use super::wire::Field::{self, Pairs, Text, Texts, U16, U32, U64};
use super::wire::{Fields, Malformed, Reader, Unpackable, Writer};
use crate::answer::ServedConf;

pub(super) const VERSION: Version = Version::V42;

/// The fields between the time of the response and the boot time.
const BEFORE_BOOT_TIME: &[Field] = &[
    // AccountingStorage*, acct_gather.conf
    U16, Text, Text, Text, Text, U16, Text, Text, Text, Pairs, //
    // AcctGather*
    Text, Text, Text, U16, Text, //
    // Auth*, BatchStartTimeout
    Text, Text, Text, Text, U16,
];

/// The fields between the boot time and the hash.
const BEFORE_HASH: &[Field] = &[
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

pub(super) fn pack_request() -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    // Responds only if something has changed since this time.
    body.u64(&mut 0)?;
    Ok(body.into_bytes())
}

fn fields<F: Fields>(conf: &mut ServedConf, hash: &mut u32, fields: &mut F) -> Result<(), F::Error> {
    fields.u64(&mut conf.now)?;
    fields.skip(BEFORE_BOOT_TIME)?;
    fields.u64(&mut conf.boot_time)?;
    fields.skip(BEFORE_HASH)?;
    fields.u32(hash)
}

pub(super) fn unpack_live_conf(body: &[u8]) -> Result<ServedConf, Malformed> {
    let (mut conf, mut hash) = (ServedConf::default(), 0);
    fields(&mut conf, &mut hash, &mut Reader::new(body))?;
    conf.hash = hash.into();
    Ok(conf)
}

/// Returns the response up to the hash, for a test that acts as slurmctld.
pub fn pack_live_conf(conf: &ServedConf) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    let mut hash = u32::try_from(conf.hash).map_err(|_| Unpackable::TooLarge)?;
    fields(&mut { *conf }, &mut hash, &mut body)?;
    Ok(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_response_is_read_back_and_never_from_a_truncated_message(now in any::<u64>(), boot_time in any::<u64>(), hash in any::<u32>()) {
            let conf = ServedConf { now, boot_time, hash: hash.into() };
            let body = pack_live_conf(&conf).unwrap();
            prop_assert_eq!(unpack_live_conf(&body), Ok(conf));
            for end in 0..body.len() {
                prop_assert_eq!(unpack_live_conf(&body[..end]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let _ = unpack_live_conf(&bytes);
        }
    }
}
