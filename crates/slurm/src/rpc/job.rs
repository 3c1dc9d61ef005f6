//! The ends of jobs: REQUEST_COMPLETE_BATCH_SCRIPT and REQUEST_COMPLETE_JOB_ALLOCATION.
//!
//! A node reports the end of a batch script by the former, srun and salloc that of an allocation by the latter. Both are sent in
//! the oldest supported version, whose layout is final.

use super::frame::MessageType;
use super::version::Version;
use super::wire::{Field, Fields as _, Malformed, Reader, Unpackable, Writer};

pub(super) const VERSION: Version = Version::V42;

/// `status` is as of wait(2).
pub(super) fn pack_end_of_script(job: u32, status: u32) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    // No resource usage.
    body.u8(&mut 0)?;
    body.u32(&mut { job })?;
    body.u32(&mut { status })?;
    // The node had no problem of its own, its user, and its name, which slurmctld compares only if it is given.
    body.skip(&[Field::U32, Field::U32, Field::Text])?;
    Ok(body.into_bytes())
}

pub(super) fn pack_end_of_allocation(job: u32, status: u32) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u32(&mut { job })?;
    body.u32(&mut { status })?;
    Ok(body.into_bytes())
}

/// Reads the job and its status from either request, for a test that acts as slurmctld.
pub fn unpack_end_of_job(kind: MessageType, body: &[u8]) -> Result<(u32, u32), Malformed> {
    let mut reader = Reader::new(body);
    if kind == MessageType::COMPLETE_BATCH_SCRIPT {
        reader.u8(&mut 0)?;
    }
    let (mut job, mut status) = (0, 0);
    reader.u32(&mut job)?;
    reader.u32(&mut status)?;
    Ok((job, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_the_job_and_its_status() {
        let numbers = [0, 0, 0, 7, 0, 0, 1, 0];
        assert_eq!(pack_end_of_allocation(7, 0x100).unwrap(), numbers);
        let script = pack_end_of_script(7, 0x100).unwrap();
        assert_eq!(script.len(), 1 + 4 * 4 + 4);
        assert_eq!(script[0], 0);
        assert_eq!(script[1..9], numbers);
        assert_eq!(script[9..], [0; 12]);
        let allocation = pack_end_of_allocation(7, 0x100).unwrap();
        let read = |kind, body: &[u8]| unpack_end_of_job(kind, body);
        assert_eq!(read(MessageType::COMPLETE_BATCH_SCRIPT, &script), Ok((7, 0x100)));
        assert_eq!(read(MessageType::COMPLETE_JOB_ALLOCATION, &allocation), Ok((7, 0x100)));
    }
}
