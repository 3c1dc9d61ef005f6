//! What the answer of a slurmctld outside Kubernetes says about it. Pure.

use slurm::{
    conf::Configuration,
    rpc::{Error, ReturnCode, ServedFile},
    transport,
};

use crate::reason;

/// Why pods cannot work with it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// What it lacks, if it lacks something.
pub(crate) fn check_requirements(address: &str, answer: &Result<Vec<ServedFile>, Error>) -> Option<Unfit> {
    let unfit = |reason, message: String| Some(Unfit { reason, message });
    match answer {
        Ok(files) => {
            let lacks = lacking(files);
            let message = format!("slurmctld at {address} lacks {}", lacks.join(", and "));
            unfit(reason::REQUIREMENT_MISSING, message).filter(|_| !lacks.is_empty())
        }
        Err(Error::Refused { code, .. }) if *code == ReturnCode::CONFIGLESS_DISABLED => unfit(
            reason::REQUIREMENT_MISSING,
            format!(
                "slurmctld at {address} lacks configless: add enable_configless to SlurmctldParameters in its slurm.conf"
            ),
        ),
        Err(Error::Unauthorized(_)) => unfit(
            reason::REQUIREMENT_MISSING,
            format!(
                "slurmctld at {address} does not accept a token of ours, so it lacks auth/jwt or has another key: set AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=… in its slurm.conf, and put the same key into the Secret of spec.jwtKeyRef"
            ),
        ),
        // One without auth/jwt cannot read our question, and says nothing (measured, 26.05).
        Err(Error::Transport(error)) if error.is_hang_up() => unfit(
            reason::REQUIREMENT_MISSING,
            format!(
                "what listens at {address} hangs up when it is shown a token: as a slurmctld it lacks auth/jwt, so set AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=… in its slurm.conf; if it is none, correct spec.externalConfig"
            ),
        ),
        Err(Error::Transport(transport::Error::Unreachable { reason: why, .. })) => unfit(
            reason::SLURMCTLD_AWAY,
            format!(
                "no slurmctld can be reached at {address}: {why}; correct spec.externalConfig, or see that it runs and that pods have a route to it"
            ),
        ),
        Err(error @ (Error::Unsupported | Error::Transport(transport::Error::Malformed { .. }))) => unfit(
            reason::NOT_SLURMCTLD,
            format!(
                "what answers at {address} is no slurmctld of Slurm 24.11 to 26.05: {error}; correct spec.externalConfig"
            ),
        ),
        Err(error @ (Error::Refused { .. } | Error::Unpackable(_) | Error::Token(_))) => unfit(
            reason::SLURMCTLD_AWAY,
            format!("slurmctld at {address} does not say what it runs with: {error}; look at its log"),
        ),
    }
}

fn lacking(files: &[ServedFile]) -> Vec<&'static str> {
    let read = files
        .iter()
        .filter_map(|file| Some((file.name.as_str(), file.content.as_deref()?)));
    let conf = Configuration::parse(read);
    let has = |key: &str, word: &str| {
        let words = conf.value(key).unwrap_or_default().split(',');
        words.map(str::trim).any(|found| found.eq_ignore_ascii_case(word))
    };
    let needs = [
        (
            has("AuthType", "auth/slurm"),
            "auth/slurm (set AuthType=auth/slurm in its slurm.conf)",
        ),
        (
            has("AuthAltTypes", "auth/jwt"),
            "auth/jwt (set AuthAltTypes=auth/jwt in its slurm.conf)",
        ),
        (
            has("AuthInfo", "use_client_ids"),
            "use_client_ids (add it to AuthInfo in its slurm.conf)",
        ),
    ];
    let lacks = needs.into_iter().filter(|(holds, _)| !holds);
    lacks.map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::*;

    fn serves(conf: &str) -> ServedFile {
        ServedFile {
            name: "slurm.conf".to_owned(),
            content: Some(conf.as_bytes().to_vec()),
            executable: false,
        }
    }

    fn said(answer: &Result<Vec<ServedFile>, Error>) -> String {
        check_requirements("ctl:6817", answer)
            .map_or_else(String::new, |Unfit { reason, message }| format!("{reason}: {message}"))
    }

    const FIT: &str = "AuthType=auth/slurm\nAuthInfo=cred_expire=60,use_client_ids\nauthalttypes=auth/jwt\n";

    #[test]
    fn one_that_has_all_is_fit() {
        assert_eq!(said(&Ok(vec![serves(FIT)])), "");
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_else() {
        for (line, name) in [
            ("AuthType=auth/slurm", "auth/slurm"),
            ("authalttypes=auth/jwt", "auth/jwt"),
            (",use_client_ids", "use_client_ids"),
        ] {
            let message = said(&Ok(vec![serves(&FIT.replace(line, ""))]));
            assert!(message.starts_with("RequirementMissing: "), "{message}");
            let named: Vec<&str> = ["configless", "auth/slurm", "auth/jwt", "use_client_ids"]
                .into_iter()
                .filter(|need| message.contains(need))
                .collect();
            assert_eq!(named, [name], "{message}");
        }
        let two = said(&Ok(vec![serves("AuthAltTypes=auth/jwt\n")]));
        assert!(two.contains("auth/slurm") && two.contains("use_client_ids"), "{two}");
    }

    #[test]
    fn a_refusal_is_told_by_what_it_means() {
        let configless = Error::Refused {
            code: ReturnCode::CONFIGLESS_DISABLED,
            said: None,
        };
        assert!(said(&Err(configless)).contains("lacks configless"));
        let token = said(&Err(Error::Unauthorized(ReturnCode::AUTHENTICATION)));
        assert!(
            token.contains("auth/jwt") && token.contains("spec.jwtKeyRef"),
            "{token}"
        );
    }

    #[test]
    fn a_wrong_address_is_told_from_a_wrong_daemon() {
        let away = Error::Transport(transport::Error::Unreachable {
            reason: "connection refused".to_owned(),
            source: None,
        });
        assert!(
            said(&Err(away)).starts_with("SlurmctldAway: no slurmctld can be reached at ctl:6817: connection refused")
        );
        assert!(said(&Err(Error::Unsupported)).starts_with("NotSlurmctld"));
        let hung_up = Error::Transport(transport::Error::Unreachable {
            reason: "the connection broke".to_owned(),
            source: Some(Box::new(io::Error::from(ErrorKind::UnexpectedEof))),
        });
        let message = said(&Err(hung_up));
        assert!(
            message.contains("lacks auth/jwt") && message.contains("correct spec.externalConfig"),
            "{message}"
        );
    }
}
