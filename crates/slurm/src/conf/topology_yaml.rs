//! topology.yaml: the networks of a cluster, by name. The parsed value serves for comparison and for the names that partitions
//! refer to.

use std::fmt;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyYaml {
    text: String,
    content: Result<Value, YamlError>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// From 1, if the parser knows it.
    pub line: Option<usize>,
    pub message: String,
}

impl TopologyYaml {
    pub fn parse(text: &str) -> Self {
        // Slurm's parser accepts a repeated key.
        let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins };
        let content = serde_saphyr::from_str_with_options(text, options).map_err(|error| YamlError {
            line: error.location().and_then(|at| usize::try_from(at.line()).ok()),
            message: error.without_snippet().to_string(),
        });
        Self {
            text: text.to_owned(),
            content,
        }
    }

    pub fn content(&self) -> Result<&Value, &YamlError> {
        self.content.as_ref()
    }

    /// Returns the names of the topologies in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.content
            .as_ref()
            .ok()
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|topology| topology.get("topology").and_then(Value::as_str))
    }
}

impl fmt::Display for TopologyYaml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
