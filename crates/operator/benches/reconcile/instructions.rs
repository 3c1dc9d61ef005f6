//! Counting with valgrind.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::situation::Situation;

/// First argument of the program when valgrind runs it.
pub(crate) const CHILD: &str = "count";
/// Enough for hash maps, whose order differs from run to run, not to matter.
const TIMES: u32 = 3;

pub(crate) fn can_count() -> bool {
    let version = Command::new("valgrind").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// Instructions of one reconcile: those of a program that makes some, less those of one that makes none.
pub(crate) fn count(situation: Situation, size: u32) -> Result<u64> {
    let (many, none) = std::thread::scope(|scope| {
        let many = scope.spawn(|| run(situation, size, TIMES));
        (many.join(), run(situation, size, 0))
    });
    let many = many.unwrap_or_else(|_| bail!("a thread panicked"))?;
    Ok(many.saturating_sub(none?) / u64::from(TIMES))
}

fn run(situation: Situation, size: u32, times: u32) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    valgrind.arg(std::env::current_exe()?);
    valgrind.args([CHILD, situation.name(), &size.to_string(), &times.to_string()]);
    let output = valgrind
        .output()
        .context("cannot run valgrind; on Debian `apt-get install valgrind` brings it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{} with {size} workers under valgrind: {said}", situation.name());
    }
    parse(&said).with_context(|| format!("valgrind does not tell a count: {said}"))
}

/// From a line such as `==12== I   refs:      1,234`.
fn parse(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("refs:"))?;
    let (_, count) = line.rsplit_once(':')?;
    count.trim().replace(',', "").parse().ok()
}
