//! Whether an external slurmdbd responds at the address of its Accounting. slurmrestd, which asks it for records, may still
//! use an older address: it reads slurm.conf only when it starts.

use host::Host;
use slurm::{rpc::Error, transport};

use super::observe::Observed;
use crate::{cluster::external::client_of, secret::entry};

const NO_SLURMDBD: &str = "what listens there is not slurmdbd";

/// Why slurmdbd does not respond. `None` also without a key to ask with.
pub(super) async fn probe(machine: &Host, observed: &Observed) -> Option<String> {
    let (host, port) = observed.accounting.spec.external_address()?;
    let key = &observed.jwt_key;
    let bytes = entry(key.secret.as_deref(), &key.reference.as_ref()?.key)?;
    let client = client_of(machine, format!("{host}:{port}"), bytes)?;
    describe(&client.greet_slurmdbd().await)
}

fn describe(response: &Result<(), Error>) -> Option<String> {
    match response {
        // slurmdbd also responds to callers that it rejects.
        Err(Error::Transport(error)) if error.is_hang_up() => Some(NO_SLURMDBD.to_owned()),
        Err(Error::Transport(transport::Error::Malformed { .. }) | Error::Unsupported) => Some(NO_SLURMDBD.to_owned()),
        Err(Error::Transport(transport::Error::Unreachable { reason, .. })) => Some(reason.clone()),
        Err(Error::Refused { code, .. } | Error::Unauthorized(code)) => Some(format!(
            "it rejects the operator's token ({code}), so it lacks auth/jwt or has another key"
        )),
        Ok(()) | Err(Error::Unpackable(_) | Error::Token(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use slurm::rpc::ReturnCode;

    use super::*;

    fn unreachable(kind: ErrorKind) -> Error {
        Error::Transport(transport::Error::Unreachable {
            reason: "dbd:6819: its reason".to_owned(),
            source: Some(Box::new(io::Error::from(kind))),
        })
    }

    #[test]
    fn a_missing_slurmdbd_and_a_rejected_token_are_reported() {
        let malformed = Error::Transport(transport::Error::Malformed {
            reason: String::new(),
            source: None,
        });
        let refused = Error::Refused {
            code: ReturnCode::AUTHENTICATION,
            said: None,
        };
        for (response, expected) in [
            (Ok(()), ""),
            (Err(unreachable(ErrorKind::ConnectionRefused)), "dbd:6819: its reason"),
            (Err(unreachable(ErrorKind::UnexpectedEof)), NO_SLURMDBD),
            (Err(Error::Unsupported), NO_SLURMDBD),
            (Err(malformed), NO_SLURMDBD),
            (Err(refused), "it lacks auth/jwt or has another key"),
        ] {
            let found = describe(&response).unwrap_or_default();
            assert!(
                found.ends_with(expected) && found.is_empty() == expected.is_empty(),
                "{response:?} {found}"
            );
        }
    }
}
