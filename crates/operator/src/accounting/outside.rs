//! Whether a slurmdbd outside Kubernetes is where an Accounting says. Nobody tells when that changes, and slurmrestd, which asks it
//! for records, may know another address than the newest: it reads slurm.conf when it starts.

use slurm::{rpc::Error, transport};

use super::observe::Observed;
use crate::{outside::client_of, secret::entry};

const NO_SLURMDBD: &str = "what listens there is no slurmdbd";

/// Why no slurmdbd is there. `None` also where there is no key to ask with.
pub(super) async fn look(observed: &Observed) -> Option<String> {
    let (host, port) = observed.accounting.spec.external_address()?;
    let key = &observed.jwt_key;
    let bytes = entry(key.secret.as_deref(), &key.reference.as_ref()?.key)?;
    let client = client_of(format!("{host}:{port}"), bytes)?;
    judge(&client.greet_slurmdbd().await)
}

fn judge(answer: &Result<(), Error>) -> Option<String> {
    match answer {
        // slurmdbd answers whoever it does not let in too.
        Err(Error::Transport(error)) if error.is_hang_up() => Some(NO_SLURMDBD.to_owned()),
        Err(Error::Transport(transport::Error::Malformed { .. }) | Error::Unsupported) => Some(NO_SLURMDBD.to_owned()),
        Err(Error::Transport(transport::Error::Unreachable { reason, .. })) => Some(reason.clone()),
        Err(Error::Refused { code, .. } | Error::Unauthorized(code)) => Some(format!(
            "it does not accept a token of ours ({code}), so it lacks auth/jwt or has another key"
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
    fn an_address_without_slurmdbd_is_told_and_one_that_lets_us_not_in() {
        let malformed = Error::Transport(transport::Error::Malformed {
            reason: String::new(),
            source: None,
        });
        let refused = Error::Refused {
            code: ReturnCode::AUTHENTICATION,
            said: None,
        };
        for (answer, told) in [
            (Ok(()), ""),
            (Err(unreachable(ErrorKind::ConnectionRefused)), "dbd:6819: its reason"),
            (Err(unreachable(ErrorKind::UnexpectedEof)), NO_SLURMDBD),
            (Err(Error::Unsupported), NO_SLURMDBD),
            (Err(malformed), NO_SLURMDBD),
            (Err(refused), "it lacks auth/jwt or has another key"),
        ] {
            let said = judge(&answer).unwrap_or_default();
            assert!(
                said.ends_with(told) && said.is_empty() == told.is_empty(),
                "{answer:?} {said}"
            );
        }
    }
}
