//! Slurm's return codes, with its own names and texts.

use std::fmt;

/// The content of RESPONSE_SLURM_RC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReturnCode(pub i32);

// The responses to the messages of this crate, in the order of their numbers; from libslurm 26.05.5.
/// Makes `KNOWN` of `number NAME "text";` rows.
macro_rules! return_codes {
    ($($number:literal $name:ident $text:literal;)+) => {
        const KNOWN: &[(i32, &str, &str)] = &[$(($number, stringify!($name), $text),)+];
    };
}

return_codes! {
    -1 SLURM_ERROR "Unspecified error";
    0 SLURM_SUCCESS "No error";
    1000 SLURM_UNEXPECTED_MSG_ERROR "Unexpected message received";
    1003 SLURM_COMMUNICATIONS_RECEIVE_ERROR "Message receive failure";
    1005 SLURM_PROTOCOL_VERSION_ERROR "Incompatible versions of client and server code";
    1007 SLURM_PROTOCOL_AUTHENTICATION_ERROR "Protocol authentication error";
    1008 SLURM_PROTOCOL_INSANE_MSG_LENGTH "Insane message length";
    1900 SLURM_NO_CHANGE_IN_DATA "Data has not changed since time specified";
    2000 ESLURM_INVALID_PARTITION_NAME "Invalid partition name specified";
    2002 ESLURM_ACCESS_DENIED "Access/permission denied";
    2004 ESLURM_REQUESTED_NODES_NOT_IN_PARTITION "Requested nodes not in this partition";
    2006 ESLURM_INVALID_NODE_COUNT "Node count specification invalid";
    2010 ESLURM_USER_ID_MISSING "Invalid user id";
    2016 ESLURM_NODES_BUSY "Requested nodes are busy";
    2018 ESLURM_INVALID_NODE_NAME "Invalid node name specified";
    2021 ESLURM_ALREADY_DONE "Job/step already completing or completed";
    2027 ESLURM_IN_STANDBY_MODE "Slurm backup controller in standby mode";
    2028 ESLURM_INVALID_NODE_STATE "Invalid node state specified";
    2029 ESLURM_INVALID_FEATURE "Invalid feature specification";
    2031 ESLURM_ACTIVE_FEATURE_NOT_SUBSET "Active features not subset of available features";
    2036 ESLURM_NOT_SUPPORTED "Requested operation not supported on this system";
    2037 ESLURM_DISABLED "Requested operation is presently disabled";
    2045 ESLURM_INVALID_ACCOUNT "Invalid account or account/partition combination specified";
    2049 ESLURM_NEED_RESTART "The node configuration changes that were made require restart of the slurmctld daemon to take effect";
    2051 ESLURM_INVALID_TIME_LIMIT "Requested time limit is invalid (missing or exceeds some limit)";
    2054 ESLURM_INVALID_TIME_VALUE "Invalid time specified";
    2066 ESLURM_INVALID_QOS "Invalid qos specification";
    2072 ESLURM_INVALID_GRES "Invalid generic resource (gres) specification";
    2075 ESLURM_PARTITION_IN_USE "Partition is in use";
    2090 ESLURM_INTERNAL "Slurm internal error, contact system administrator";
    2115 ESLURM_INVALID_TRES "Invalid Trackable RESource (TRES) specification";
    2116 ESLURM_INVALID_TRES_BILLING_WEIGHTS "Invalid TRESBillingWeights specification";
    2117 ESLURM_INVALID_JOB_DEFAULTS "Invalid JobDefaults specification";
    2120 ESLURM_REBOOT_IN_PROGRESS "Reboot already in progress";
    2126 ESLURM_CONFIGLESS_DISABLED "ConfigLess mode is disabled in slurm configuration.";
    2131 ESLURM_IN_STANDBY_USE_BACKUP "Controller is in standby mode, try a different controller";
    2168 ESLURM_NODE_ALREADY_EXISTS "Node already exists in the node table";
    2169 ESLURM_NODE_TABLE_FULL "Unable to add node, node table is full";
    2170 ESLURM_INVALID_RELATIVE_QOS "Invalid QOS specification, relative QOS can only be used in a single partition per cluster.";
    2178 ESLURM_REQUESTED_TOPO_CONFIG_UNAVAILABLE "Requested topology configuration is not available";
    2180 ESLURM_INVALID_NODE_STATE_TRANSITION "Invalid node state transition";
    2187 ESLURM_INVALID_POWER_ACTION "Invalid power action";
}

impl ReturnCode {
    pub const SUCCESS: Self = Self(0);
    /// Also the response to a message in a version that slurmctld does not support: it cannot read the credential.
    pub const AUTHENTICATION: Self = Self(1007);
    pub const VERSION: Self = Self(1005);
    pub const NO_CHANGE: Self = Self(1900);
    /// Also returned if a partition of that name exists already.
    pub const INVALID_PARTITION_NAME: Self = Self(2000);
    pub const INVALID_NODE_NAME: Self = Self(2018);
    pub const IN_STANDBY_MODE: Self = Self(2027);
    pub const IN_STANDBY_USE_BACKUP: Self = Self(2131);
    pub const PARTITION_IN_USE: Self = Self(2075);
    pub const CONFIGLESS_DISABLED: Self = Self(2126);

    /// Whether this slurmctld is a standby, so that only the active one carries out the request.
    pub fn is_of_standby(self) -> bool {
        [Self::IN_STANDBY_MODE, Self::IN_STANDBY_USE_BACKUP].contains(&self)
    }

    fn known(self) -> Option<(&'static str, &'static str)> {
        let at = KNOWN.binary_search_by_key(&self.0, |(number, ..)| *number).ok()?;
        KNOWN.get(at).map(|(_, name, text)| (*name, *text))
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, text)) => write!(f, "{text} ({name}, {})", self.0),
            None => write!(f, "error {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, ReturnCode};

    #[test]
    fn codes_are_in_order_for_the_search() {
        assert!(KNOWN.is_sorted_by_key(|(number, ..)| *number));
        assert!(
            KNOWN
                .iter()
                .all(|(number, name, text)| ReturnCode(*number).known() == Some((name, text)))
        );
    }

    #[test]
    fn a_code_is_shown_with_slurms_name_and_text() {
        assert_eq!(
            ReturnCode::PARTITION_IN_USE.to_string(),
            "Partition is in use (ESLURM_PARTITION_IN_USE, 2075)"
        );
        assert_eq!(ReturnCode(9999).to_string(), "error 9999");
    }
}
