//! Users of the image, read from /etc/passwd: the C library's lookup needs shared objects of its own version, which a static
//! binary does not find in a foreign image.

use std::path::Path;

use host::{FileError, Host};
use thiserror::Error;

const PASSWD: &str = "/etc/passwd";

#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{PASSWD} has no user {0:?}")]
    Unknown(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    pub fn find(host: &Host, name: &str) -> Result<Self, Error> {
        let passwd = host.files().read_text(Path::new(PASSWD))?;
        Self::find_in(&passwd, name).ok_or_else(|| Error::Unknown(name.to_owned()))
    }

    fn find_in(passwd: &str, name: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(Self { uid, gid })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "root:x:0:0:root:/root:/bin/bash\nslurmx:x:9:9::/:\nslurm:x:401:402:Slurm:/:/bin/false\nbad:x\n";

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        assert_eq!(User::find_in(TEXT, "slurm"), Some(User { uid: 401, gid: 402 }));
    }

    #[test]
    fn a_missing_or_broken_entry_is_no_user() {
        assert_eq!(User::find_in(TEXT, "slur"), None);
        assert_eq!(User::find_in(TEXT, "bad"), None);
    }
}
