//! Instructions that one reconcile of a NodeSet takes, and how they grow with the set.
//!
//! Counted by valgrind, so the figures are the same on a busy machine. What is counted is `observe`, `plan` and `status`: all
//! of a reconcile but its requests.

mod instructions;
mod situation;

use anyhow::{Context, Result, bail};

use self::situation::Situation;

const SIZES: [u32; 3] = [100, 1_000, 10_000];

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match arguments.as_slice() {
        [] => print_table(),
        [mode, situation, size, times] if mode == instructions::CHILD => {
            reconcile(situation_named(situation)?, size.parse()?, times.parse()?)
        }
        other => bail!("no arguments are expected, not {other:?}"),
    }
}

/// What runs under valgrind.
fn reconcile(situation: Situation, size: u32, times: u32) -> Result<()> {
    let world = situation.world(size)?;
    for _ in 0..times {
        std::hint::black_box(world.reconcile()?);
    }
    Ok(())
}

fn situation_named(name: &str) -> Result<Situation> {
    let found = Situation::ALL.into_iter().find(|situation| situation.name() == name);
    found.with_context(|| format!("there is no situation {name:?}"))
}

fn print_table() -> Result<()> {
    println!("Instructions of one reconcile of a NodeSet, by its workers; a growth of 1.00 is linear\n");
    print_row("situation", &SIZES.map(|size| size.to_string()), "growth");
    for situation in Situation::ALL {
        // A figure says nothing unless the plan is the one that is meant.
        situation.world(10)?.check(situation)?;
        let mut counts = Vec::new();
        for size in SIZES {
            counts.push(instructions::count(situation, size)?);
        }
        let shown: Vec<String> = counts.iter().map(u64::to_string).collect();
        print_row(situation.name(), &shown, &format!("{:.2}", growth(&counts)));
    }
    Ok(())
}

fn print_row(first: &str, columns: &[String], last: &str) {
    print!("{first:<46}");
    for column in columns {
        print!("{column:>14}");
    }
    println!("{last:>9}");
}

/// Instructions per worker in the largest set over those in the smallest.
#[allow(clippy::cast_precision_loss, reason = "a ratio with two digits")]
fn growth(counts: &[u64]) -> f64 {
    let [small, .., large] = counts else { return 0.0 };
    let [fewest, .., most] = SIZES;
    (*large as f64 / f64::from(most)) / (*small as f64 / f64::from(fewest))
}
