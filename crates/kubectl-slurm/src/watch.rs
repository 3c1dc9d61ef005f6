//! Lists with `--watch`: the whole list first, then changes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cli::{Common, Format, Watch};
use crate::failure::{Failure, Outcome};
use crate::output::{Listed, Table, colours, print, print_list};

/// The operator polls Slurm every one to five seconds.
const PAUSE: Duration = Duration::from_secs(2);

/// Prints a list, and with `--watch` each line that is new or changed.
pub(crate) async fn print_watched<A, T: Listed>(
    common: &Common,
    watch: &Watch,
    mut ask: impl AsyncFnMut() -> Outcome<A>,
    items: impl Fn(&A) -> &Vec<T>,
    table: impl Fn(&A) -> Table,
) -> Outcome {
    let format = common.output;
    if watch.watch && !matches!(format, Format::Table | Format::Wide) {
        return Err(Failure::usage("--watch prints tables; leave out -o, or give -o wide"));
    }
    let answer = ask().await?;
    print_list(format, items(&answer), |_| table(&answer))?;
    if !watch.watch {
        return Ok(());
    }
    let lines = |answer: &A| table(answer).lines(format == Format::Wide, colours());
    let mut before: BTreeMap<String, String> = lines(&answer).into_iter().collect();
    loop {
        tokio::time::sleep(PAUSE).await;
        let now = lines(&ask().await?);
        for (_, line) in now.iter().filter(|(key, line)| before.get(key) != Some(line)) {
            print(line)?;
        }
        for key in before.keys().filter(|key| !now.iter().any(|(other, _)| other == *key)) {
            print(&format!("{key}   (gone)\n"))?;
        }
        before = now.into_iter().collect();
    }
}
