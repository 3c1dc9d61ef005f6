//! Renders the operator's slurmdbd.conf, in upstream's order. Equal values give equal text.

use thiserror::Error;

use super::line::is_space;
use super::slurm_conf::{
    AUTH_ALT_TYPES, AUTH_INFO, AUTH_TYPE, JWKS, JWT_KEY, SLURM_USER, SLURMDBD_PORT, Text, render_merged,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmdbdConf {
    /// The host name of slurmdbd's machine.
    pub host: String,
    /// Whether tokens are also checked against `/etc/slurm/jwks.json`.
    pub jwks: bool,
    pub storage: Storage,
    /// The user's lines, unchanged.
    pub extra: String,
}

/// The database.
#[derive(Clone, PartialEq, Eq)]
pub struct Storage {
    pub host: String,
    pub port: u16,
    pub user: Option<String>,
    pub database: String,
    pub password: String,
}

impl std::fmt::Debug for Storage {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}@{}:{}/{}",
            self.user.as_deref().unwrap_or_default(),
            self.host,
            self.port,
            self.database
        )
    }
}

/// Why a password cannot be written to slurmdbd.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unwritable {
    #[error("has a line break or another control character")]
    ControlCharacter,
    #[error("has both a blank and a quotation mark")]
    BlankAndQuote,
}

pub fn render_slurmdbd_conf(conf: &SlurmdbdConf) -> Result<String, Unwritable> {
    let SlurmdbdConf {
        host,
        jwks,
        storage,
        extra,
    } = conf;
    let auth_alt_parameters: &[&str] = if *jwks { &[JWT_KEY, JWKS] } else { &[JWT_KEY] };

    let mut text = Text::default();
    text.section("GENERAL");
    text.set("DbdHost", host);
    text.set("DbdPort", SLURMDBD_PORT);
    text.set("SlurmUser", SLURM_USER);

    text.section("PLUGINS & PARAMETERS");
    text.set("AuthType", AUTH_TYPE);
    text.set("AuthAltTypes", AUTH_ALT_TYPES);
    text.set("AuthAltParameters", auth_alt_parameters.join(","));
    text.set("AuthInfo", AUTH_INFO);

    text.section("STORAGE");
    text.set("StorageType", "accounting_storage/mysql");
    text.set("StorageHost", &storage.host);
    text.set("StoragePort", storage.port);
    if let Some(user) = &storage.user {
        text.set("StorageUser", user);
    }
    text.set("StorageLoc", &storage.database);
    text.set("StoragePass", write_value(&storage.password)?);

    text.section("LOGGING");
    text.set("LogFile", "/dev/null");
    if !extra.is_empty() {
        text.section("EXTRA CONFIG");
        text.line(extra);
    }
    let required: [(&str, &[&str]); 2] = [("AuthAltParameters", auth_alt_parameters), ("AuthInfo", &[AUTH_INFO])];
    render_merged(&mut text, extra, &required);
    Ok(text.text)
}

/// Escapes a value: Slurm removes backslashes, cuts at `#`, and then handles quotes.
fn write_value(value: &str) -> Result<String, Unwritable> {
    if value.contains(|c: char| c.is_control() && c != '\t') {
        return Err(Unwritable::ControlCharacter);
    }
    let escaped = value.replace('\\', "\\\\").replace('#', "\\#");
    let needs_quotes = value.contains(is_space) || value.starts_with('"') || value.is_empty();
    match (needs_quotes, value.contains('"')) {
        (true, true) => Err(Unwritable::BlankAndQuote),
        (true, false) => Ok(format!("\"{escaped}\"")),
        (false, _) => Ok(escaped),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::document::Document;
    use super::*;

    fn conf(password: &str, extra: &str) -> SlurmdbdConf {
        SlurmdbdConf {
            host: "slurm-accounting-0".to_owned(),
            jwks: false,
            storage: Storage {
                host: "mariadb".to_owned(),
                port: 3306,
                user: Some("slurm".to_owned()),
                database: "slurm_acct_db".to_owned(),
                password: password.to_owned(),
            },
            extra: extra.to_owned(),
        }
    }

    #[test]
    fn a_users_options_are_merged_with_those_the_cluster_needs() {
        let text = render_slurmdbd_conf(&conf("x", "DebugLevel=debug\nAuthInfo=ttl=30")).unwrap();
        let document = Document::parse(&text);
        assert_eq!(document.value("AuthInfo"), Some("ttl=30,use_client_ids"));
        assert_eq!(document.value("DebugLevel"), Some("debug"));
    }

    #[test]
    fn a_password_that_cannot_be_written_is_rejected() {
        assert_eq!(
            render_slurmdbd_conf(&conf("a\nStorageHost=x", "")),
            Err(Unwritable::ControlCharacter)
        );
        assert_eq!(
            render_slurmdbd_conf(&conf("a \" b", "")),
            Err(Unwritable::BlankAndQuote)
        );
    }

    #[test]
    fn debug_does_not_show_the_password() {
        assert!(!format!("{:?}", conf("secret", "")).contains("secret"));
    }

    proptest! {
        #[test]
        fn every_password_is_read_back(password in ".{0,20}") {
            if let Ok(text) = render_slurmdbd_conf(&conf(&password, "")) {
                let document = Document::parse(&text);
                prop_assert_eq!(document.value("StoragePass"), Some(password.as_str()));
                prop_assert_eq!(document.value("LogFile"), Some("/dev/null"));
            }
        }
    }
}
