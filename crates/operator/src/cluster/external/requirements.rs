//! Checks whether an external slurmctld meets the requirements, from its response. Pure.

use slurm::{
    conf::Configuration,
    rpc::{Error, ReturnCode, ServedFile},
    transport,
};

use crate::{fault::Fault, reason};

/// Returns why pods cannot work with it and the remedy, if a requirement is missing.
pub(crate) fn check_requirements(address: &str, answer: &Result<Vec<ServedFile>, Error>) -> Option<Fault> {
    let unfit = |reason, message: String| Some(Fault::new(reason, message));
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
                "slurmctld at {address} does not accept the operator's token, so it lacks auth/jwt or has another key: set AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=… in its slurm.conf, and put the same key into the Secret of spec.jwtKeyRef"
            ),
        ),
        // A slurmctld without auth/jwt cannot read the request, and closes the connection (measured, 26.05).
        Err(Error::Transport(error)) if error.is_hang_up() => unfit(
            reason::REQUIREMENT_MISSING,
            format!(
                "the daemon at {address} closes the connection when it receives a token: if it is a slurmctld, it lacks auth/jwt, so set AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=… in its slurm.conf; if it is not, correct spec.externalConfig"
            ),
        ),
        Err(Error::Transport(transport::Error::Unreachable { reason: why, .. })) => unfit(
            reason::SLURMCTLD_AWAY,
            format!(
                "no slurmctld can be reached at {address}: {why}; correct spec.externalConfig, or make sure that it runs and that pods have a route to it"
            ),
        ),
        Err(error @ (Error::Unsupported | Error::Transport(transport::Error::Malformed { .. }))) => unfit(
            reason::NOT_SLURMCTLD,
            format!(
                "the daemon at {address} is not a slurmctld of Slurm 24.11 to 26.05: {error}; correct spec.externalConfig"
            ),
        ),
        Err(error @ (Error::Refused { .. } | Error::Unpackable(_) | Error::Token(_))) => unfit(
            reason::SLURMCTLD_AWAY,
            format!("slurmctld at {address} does not return its configuration: {error}; see its log"),
        ),
    }
}

/// Parses the files that slurmctld serves.
pub(super) fn parse(files: &[ServedFile]) -> Configuration {
    let read = files
        .iter()
        .filter_map(|file| Some((file.name.as_str(), file.content.as_deref()?)));
    Configuration::parse(read)
}

fn lacking(files: &[ServedFile]) -> Vec<String> {
    let conf = parse(files);
    let has = |key: &str, expected: &str| {
        let values = conf.value(key).unwrap_or_default().split(',');
        values.map(str::trim).any(|found| found.eq_ignore_ascii_case(expected))
    };
    let needs = [
        ("AuthType", "auth/slurm", "set AuthType=auth/slurm"),
        ("AuthAltTypes", "auth/jwt", "set AuthAltTypes=auth/jwt"),
        ("AuthInfo", "use_client_ids", "add it to AuthInfo"),
    ];
    let lacks = needs.into_iter().filter(|(key, value, _)| !has(key, value));
    lacks
        .map(|(_, value, remedy)| format!("{value} ({remedy} in its slurm.conf)"))
        .collect()
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

    fn message_for(answer: &Result<Vec<ServedFile>, Error>) -> String {
        check_requirements("ctl:6817", answer)
            .map_or_else(String::new, |Fault { reason, message }| format!("{reason}: {message}"))
    }

    const FIT: &str = "AuthType=auth/slurm\nAuthInfo=cred_expire=60,use_client_ids\nauthalttypes=auth/jwt\n";

    #[test]
    fn a_slurmctld_that_meets_all_requirements_is_accepted() {
        assert_eq!(message_for(&Ok(vec![serves(FIT)])), "");
    }

    #[test]
    fn exactly_the_missing_requirements_are_named() {
        for (line, name) in [
            ("AuthType=auth/slurm", "auth/slurm"),
            ("authalttypes=auth/jwt", "auth/jwt"),
            (",use_client_ids", "use_client_ids"),
        ] {
            let message = message_for(&Ok(vec![serves(&FIT.replace(line, ""))]));
            assert!(message.starts_with("RequirementMissing: "), "{message}");
            let named: Vec<&str> = ["configless", "auth/slurm", "auth/jwt", "use_client_ids"]
                .into_iter()
                .filter(|need| message.contains(need))
                .collect();
            assert_eq!(named, [name], "{message}");
        }
        let two = message_for(&Ok(vec![serves("AuthAltTypes=auth/jwt\n")]));
        assert!(two.contains("auth/slurm") && two.contains("use_client_ids"), "{two}");
    }

    #[test]
    fn a_refusal_names_the_missing_requirement() {
        let configless = Error::Refused {
            code: ReturnCode::CONFIGLESS_DISABLED,
            said: None,
        };
        assert!(message_for(&Err(configless)).contains("lacks configless"));
        let token = message_for(&Err(Error::Unauthorized(ReturnCode::AUTHENTICATION)));
        assert!(
            token.contains("auth/jwt") && token.contains("spec.jwtKeyRef"),
            "{token}"
        );
    }

    #[test]
    fn a_wrong_address_is_distinguished_from_a_wrong_daemon() {
        let away = Error::Transport(transport::Error::Unreachable {
            reason: "connection refused".to_owned(),
            source: None,
        });
        assert!(
            message_for(&Err(away))
                .starts_with("SlurmctldAway: no slurmctld can be reached at ctl:6817: connection refused")
        );
        assert!(message_for(&Err(Error::Unsupported)).starts_with("NotSlurmctld"));
        let hung_up = Error::Transport(transport::Error::Unreachable {
            reason: "the connection broke".to_owned(),
            source: Some(Box::new(io::Error::from(ErrorKind::UnexpectedEof))),
        });
        let message = message_for(&Err(hung_up));
        assert!(
            message.contains("lacks auth/jwt") && message.contains("correct spec.externalConfig"),
            "{message}"
        );
    }
}
