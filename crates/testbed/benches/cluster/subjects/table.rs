//! The table: each figure beside its baseline.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::requests::Writes;

/// One figure. Its unit is part of what it is called.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) ours: f64,
    /// The baseline in the same run, and its value.
    pub(crate) baseline: Option<(&'static str, f64)>,
    /// The figure of upstream's operator on a similar machine, measured on another day.
    pub(crate) upstream: Option<f64>,
}

impl Row {
    pub(crate) fn alone(what: &'static str, ours: f64) -> Self {
        Self {
            what,
            ours,
            baseline: None,
            upstream: None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// Writes by what was scaled.
    writes: Vec<(&'static str, Writes)>,
}

impl Table {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Whether there is a figure of this name, and it and its baseline are numbers.
    #[allow(dead_code, reason = "only the test of the subjects asks")]
    pub(crate) fn has(&self, what: &str) -> bool {
        let mut rows = self.rows.iter().filter(|row| row.what == what).peekable();
        let is_number = |row: &Row| row.ours.is_finite() && row.baseline.is_none_or(|(_, figure)| figure.is_finite());
        rows.peek().is_some() && rows.all(is_number)
    }

    pub(crate) fn add_writes(&mut self, by: &'static str, writes: Writes) {
        self.writes.push((by, writes));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upstream = "upstream, elsewhere";
        writeln!(
            out,
            "{:<52} {:>10} {:>10} {:>8}  {:<44} {upstream}",
            "what", "ours", "baseline", "ratio", "baseline is"
        )?;
        for row in &self.rows {
            let (name, baseline) = row.baseline.unzip();
            writeln!(
                out,
                "{:<52} {:>10.2} {:>10} {:>8}  {:<44} {}",
                row.what,
                row.ours,
                shown(baseline, 2),
                shown(baseline.map(|baseline| row.ours / baseline), 3),
                name.unwrap_or_default(),
                shown(row.upstream, 0),
            )?;
        }
        if self.writes.is_empty() {
            return Ok(());
        }
        write!(out, "\n{:<52}", "API writes while scaling, everyone's")?;
        for (by, _) in &self.writes {
            write!(out, " {by:>12}")?;
        }
        writeln!(out)?;
        let kinds: BTreeSet<&String> = self.writes.iter().flat_map(|(_, writes)| writes.0.keys()).collect();
        for kind in kinds {
            write!(out, "{kind:<52}")?;
            for (_, writes) in &self.writes {
                write!(out, " {:>12}", writes.0.get(kind).copied().unwrap_or_default())?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
}

/// The percentile of the values, in seconds.
pub(crate) fn percentile(values: &[Duration], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort();
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).map_or(f64::NAN, Duration::as_secs_f64)
}
