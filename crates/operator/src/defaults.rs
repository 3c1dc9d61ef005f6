//! The values of fields that an object omits, and the limits of others, as set by the operator's flags.

use jiff::SignedDuration;

/// The tag in the charts and in upstream's documentation.
pub const SLURM_TAG: &str = "26.05-ubuntu26.04";
const REGISTRY: &str = "ghcr.io/slinkyproject";
/// As in the chart. Under upstream's name a node would pull and run upstream's operator.
const OPERATOR_REPOSITORY: &str = "localhost/slurm-operator";
/// The image of `logfile` in upstream's charts and in ours before they left it out. It counts as the default, so that
/// leaving it out replaces no pods.
pub(crate) const FORMER_LOGFILE_IMAGE: &str = "docker.io/library/alpine:latest";

/// Defines `Images` from its fields, each with its flag, its variable and its default.
macro_rules! images {
    ($($(#[$doc:meta])* $field:ident: $flag:literal, $variable:literal, $default:expr;)*) => {
        /// Images for objects that name none. Each field is a flag of `run`.
        #[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
        pub struct Images {
            $(
                $(#[$doc])*
                #[arg(long = $flag, env = $variable, default_value = "", hide_default_value = true)]
                pub $field: String,
            )*
        }

        impl Default for Images {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Images {
            /// Replaces empty images by the defaults. A chart sets a variable without a value to an empty text.
            #[must_use]
            pub fn or_defaults(mut self) -> Self {
                let defaults = Self::default();
                $(if self.$field.is_empty() {
                    self.$field = defaults.$field;
                })*
                self
            }
        }
    };
}

images! {
    /// The operator's own image, from which pods get slurm-agent.
    operator: "operator-image", "OPERATOR_IMAGE", format!("{OPERATOR_REPOSITORY}:{}", env!("CARGO_PKG_VERSION"));
    slurmctld: "slurmctld-image", "SLURMCTLD_IMAGE", stock("slurmctld");
    slurmd: "slurmd-image", "SLURMD_IMAGE", stock("slurmd");
    slurmrestd: "slurmrestd-image", "SLURMRESTD_IMAGE", stock("slurmrestd");
    slurmdbd: "slurmdbd-image", "SLURMDBD_IMAGE", stock("slurmdbd");
    login: "login-image", "LOGIN_IMAGE", stock("login");
    /// Prints the daemons' log files. Empty: the image of the daemon, so that no further image is pulled.
    logfile: "logfile-image", "LOGFILE_IMAGE", String::new();
    /// Prepares configuration in login pods. Empty: the image of the login container.
    initconf: "initconf-image", "INITCONF_IMAGE", String::new();
}

fn stock(name: &str) -> String {
    format!("{REGISTRY}/{name}:{SLURM_TAG}")
}

/// The default of `--max-token-lifetime`.
pub const MAX_TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(24);

/// Users with all rights in Slurm: root and the `SlurmUser` of the operator's slurm.conf.
const PRIVILEGED_USERS: [&str; 2] = ["root", "slurm"];

/// Which tokens the objects of kind Token may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPolicy {
    /// Users with privileges for whom tokens are issued.
    pub privileged_users: Vec<String>,
    pub max_lifetime: SignedDuration,
}

impl Default for TokenPolicy {
    fn default() -> Self {
        Self {
            privileged_users: Vec::new(),
            max_lifetime: MAX_TOKEN_LIFETIME,
        }
    }
}

impl TokenPolicy {
    /// Whether tokens of this user are issued. Slurm takes a number for a UID, in every form that `strtol` reads.
    pub fn allows(&self, user: &str) -> bool {
        let is_number = user.trim().parse::<i128>().is_ok();
        let is_privileged = is_number
            || PRIVILEGED_USERS
                .iter()
                .any(|name| user.trim().eq_ignore_ascii_case(name));
        !is_privileged || self.privileged_users.iter().any(|allowed| allowed == user)
    }
}

/// What the operator's flags determine about objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    pub images: Images,
    pub tokens: TokenPolicy,
    /// Types of conditions of a Kubernetes node that explain why the workers on a cordoned node are drained.
    pub propagated_node_conditions: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_with_privileges_are_allowed_by_name_only() {
        let policy = TokenPolicy::default();
        for user in [
            "root", "slurm", "ROOT", " slurm", "0", "401", "+0", "-0", " 1000", "000",
        ] {
            assert!(!policy.allows(user), "{user:?}");
        }
        for user in ["alice", "nobody", "slurmy", "user1", "1a"] {
            assert!(policy.allows(user), "{user:?}");
        }
        let policy = TokenPolicy {
            privileged_users: vec!["slurm".to_owned()],
            ..policy
        };
        assert!(policy.allows("slurm") && !policy.allows("root") && !policy.allows("SLURM"));
    }
}
