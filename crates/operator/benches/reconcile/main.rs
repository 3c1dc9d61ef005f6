//! Instructions that one reconcile of a NodeSet takes, and how they grow with the set.
//!
//! Counted by valgrind, so the figures are the same on a busy machine. What is counted is `observe`, `plan` and `status`: all
//! of a reconcile but its requests. `cargo test --bench reconcile` counts for small sets only, to show that it works.

mod circumstances;
mod instructions;
mod situation;

use anyhow::{Context, Result, bail, ensure};

use self::situation::Situation;

const SIZES: [u32; 3] = [100, 1_000, 10_000];
/// What `cargo test` tries.
const SMALL: [u32; 1] = [4];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        // By `cargo bench`.
        ["--bench"] => print_table(&SIZES),
        [] if instructions::can_count() => print_table(&SMALL),
        [] => {
            println!("there is no valgrind: situations are checked, and nothing is counted");
            print_table(&[])
        }
        [instructions::CHILD, situation, size, times] => {
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

fn print_table(sizes: &[u32]) -> Result<()> {
    println!("{}", circumstances::describe());
    println!("Instructions of one reconcile of a NodeSet, by its workers; a growth of 1.00 is linear\n");
    let shown: Vec<String> = sizes.iter().map(u32::to_string).collect();
    print_row("situation", &shown, "growth");
    for situation in Situation::ALL {
        // A figure says nothing unless the plan is the one that is meant.
        situation.world(10)?.check(situation)?;
        let mut counts = Vec::new();
        for size in sizes {
            counts.push(instructions::count(situation, *size)?);
        }
        ensure!(!counts.contains(&0), "{} takes no instructions", situation.name());
        let shown: Vec<String> = counts.iter().map(u64::to_string).collect();
        print_row(situation.name(), &shown, &format!("{:.2}", growth(sizes, &counts)));
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
fn growth(sizes: &[u32], counts: &[u64]) -> f64 {
    let each: Vec<f64> = sizes
        .iter()
        .zip(counts)
        .map(|(size, count)| *count as f64 / f64::from(*size))
        .collect();
    each.first()
        .zip(each.last())
        .map_or(f64::NAN, |(small, large)| large / small)
}
