//! Whether a slurmdbd outside Kubernetes is where an Accounting says. Nobody tells when that changes, and slurmrestd, which asks it
//! for records, may know another address than the newest: it reads slurm.conf when it starts.

use std::{
    io::{self, ErrorKind},
    time::Duration,
};

use slurm::{
    rpc::{Client, Error, Options},
    token::{Issuer, SigningKey},
};

use super::observe::Observed;
use crate::secret::entry;

/// A slurmdbd on another continent answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);
const USER: &str = "slurm";
const TOKEN_LIFETIME: Duration = Duration::from_mins(5);

/// Why no slurmdbd is there. `None` also where there is no key to ask with.
pub(super) async fn look(observed: &Observed) -> Option<String> {
    let (host, port) = observed.accounting.spec.external_address()?;
    let key = &observed.jwt_key;
    let bytes = entry(key.secret.as_deref(), &key.reference.as_ref()?.key)?;
    let issuer = Issuer::new(SigningKey::new(bytes).ok()?, USER, TOKEN_LIFETIME);
    let options = Options {
        timeout: PATIENCE,
        ..Options::default()
    };
    let answer = Client::new(format!("{host}:{port}"), issuer, options)
        .greet_slurmdbd()
        .await;
    judge(&answer)
}

fn judge(answer: &Result<(), Error>) -> Option<String> {
    match answer {
        // One without auth/jwt cannot read our words, and may work for slurmctld all the same.
        Err(error @ Error::Unreachable { .. }) if is_hung_up(error) => None,
        Err(Error::Unreachable { reason, .. }) => Some(reason.clone()),
        Err(Error::Malformed { .. } | Error::Unsupported) => Some("what listens there is no slurmdbd".to_owned()),
        Ok(()) | Err(Error::Unauthorized(_) | Error::Refused { .. } | Error::Unpackable(_) | Error::Token(_)) => None,
    }
}

fn is_hung_up(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(kind: ErrorKind) -> Error {
        Error::Unreachable {
            reason: "dbd:6819: its reason".to_owned(),
            source: Some(Box::new(io::Error::from(kind))),
        }
    }

    #[test]
    fn an_address_without_slurmdbd_is_told_and_a_taciturn_one_is_not() {
        let malformed = Error::Malformed { what: String::new() };
        for (answer, told) in [
            (Ok(()), None),
            (
                Err(unreachable(ErrorKind::ConnectionRefused)),
                Some("dbd:6819: its reason"),
            ),
            (Err(unreachable(ErrorKind::UnexpectedEof)), None),
            (Err(Error::Unsupported), Some("what listens there is no slurmdbd")),
            (Err(malformed), Some("what listens there is no slurmdbd")),
        ] {
            assert_eq!(judge(&answer).as_deref(), told, "{answer:?}");
        }
    }
}
