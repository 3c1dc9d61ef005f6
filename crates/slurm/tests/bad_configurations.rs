//! Which layer finds what is wrong with each of the bad configurations of `bad/rows.yaml`, and in which words.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use slurm::conf::{Configuration, Known, Problem, Severity, check};

const BASE: &str = include_str!("bad/base.slurm.conf");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(rename = "row")]
    number: u32,
    what: String,
    #[serde(default)]
    drop: Option<String>,
    #[serde(default)]
    append: String,
    #[serde(default)]
    files: BTreeMap<String, String>,
    slurm_conf: Option<String>,
    by: By,
    says: Option<String>,
    why: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum By {
    Checker,
    Warning,
    #[serde(rename = "dry run")]
    DryRun,
    Accepted,
}

fn rows() -> Result<Vec<Row>, serde_saphyr::Error> {
    serde_saphyr::from_str(include_str!("bad/rows.yaml"))
}

impl Row {
    fn configuration(&self) -> Configuration {
        let kept = BASE
            .split_inclusive('\n')
            .filter(|line| self.drop.as_ref().is_none_or(|drop| !line.starts_with(drop)));
        let edited = kept.chain([self.append.as_str(), "\n"]).collect();
        let slurm_conf: String = self.slurm_conf.clone().unwrap_or(edited);
        let files = self.files.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
        Configuration::parse(files.chain([("slurm.conf", slurm_conf.as_bytes())]))
    }
}

fn problems_of(configuration: &Configuration) -> Vec<Problem> {
    let live = Configuration::parse([("slurm.conf", BASE.as_bytes())]);
    let nodes: BTreeSet<String> = ["n1", "n2", "n3"].map(str::to_owned).into();
    let qos = BTreeSet::from(["normal".to_owned()]);
    let known = Known {
        live: Some(&live),
        nodes: Some(&nodes),
        qos: Some(&qos),
        ..Known::default()
    };
    check(configuration, &known)
}

#[test]
fn a_running_configuration_passes() {
    let base = Configuration::parse([("slurm.conf", BASE.as_bytes())]);
    assert_eq!(problems_of(&base), []);
}

#[test]
fn every_bad_configuration_is_found_as_in_the_table() {
    for row in rows().unwrap() {
        let problems = problems_of(&row.configuration());
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let name = format!("row {}, {}: {texts:#?}", row.number, row.what);
        match row.by {
            By::Checker | By::Warning => {
                let says = row.says.as_ref().expect(&name);
                assert!(texts[..1].iter().any(|text| text.starts_with(says)), "{name}");
                let worst = problems.iter().map(|problem| problem.severity).max();
                let expected = if row.by == By::Checker {
                    Severity::Refuse
                } else {
                    Severity::Warn
                };
                assert_eq!(worst, Some(expected), "{name}");
            }
            By::DryRun | By::Accepted => {
                assert!(row.why.is_some(), "{name}");
                assert_eq!(problems, [], "{name}");
            }
        }
    }
}

#[test]
fn all_66_rows_are_there_and_what_a_dry_run_misses_is_refused() {
    let rows = rows().unwrap();
    assert_eq!(
        rows.iter().map(|row| row.number).collect::<Vec<_>>(),
        (1..=66).collect::<Vec<_>>()
    );
    for blind in [20, 29, 41, 42, 43, 52, 54, 56] {
        assert_eq!(rows[blind - 1].by, By::Checker, "row {blind}");
    }
}
