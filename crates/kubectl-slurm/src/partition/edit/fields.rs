//! The settings of Slurm that are fields of a Partition object. Pure.

use api::partition::{PartitionState, SETTING_FIELDS, SettingField, SettingForm};
use serde_json::{Value, json};
use slurm::conf::Key;

use crate::failure::{Failure, Outcome};

/// Finds a field by Slurm's key, or by its own name.
pub(super) fn find_field(key: &Key) -> Option<&'static SettingField> {
    SETTING_FIELDS
        .iter()
        .find(|field| *key == *field.key || *key == *field.name)
}

/// Returns the value of a field.
pub(super) fn field_value(field: &SettingField, text: &str) -> Outcome<Value> {
    let bad = |wanted: &str| Failure::usage(format!("{}={text}: give {wanted}", field.key));
    match field.form {
        SettingForm::Text => Ok(text.into()),
        SettingForm::Number => text.parse::<i64>().map(Value::from).map_err(|_| bad("a number")),
        SettingForm::NumberOrWord => Ok(text.parse::<i64>().map_or_else(|_| text.into(), Value::from)),
        SettingForm::List => Ok(json!(super::super::members::split_items(text))),
        // Slurm's words for booleans.
        SettingForm::Switch => match text.to_ascii_lowercase().as_str() {
            "yes" | "true" | "1" | "up" => Ok(true.into()),
            "no" | "false" | "0" | "down" => Ok(false.into()),
            _ => Err(bad("YES or NO")),
        },
        SettingForm::State => {
            let mut states = PartitionState::KNOWN.iter();
            let state = states.find(|state| state.eq_ignore_ascii_case(text));
            state
                .map(|state| (*state).into())
                .ok_or_else(|| bad("UP, DOWN, DRAIN or INACTIVE"))
        }
    }
}

#[cfg(test)]
mod tests {
    use api::PartitionSpec;

    use super::*;

    /// Every field with a setting is listed, with the same key, and accepts the values of slurm.conf.
    #[test]
    fn the_fields_are_those_of_the_kind() {
        let mut spec = serde_json::Map::new();
        spec.insert("controllerRef".into(), json!({ "name": "slurm" }));
        for field in &SETTING_FIELDS {
            let sample = match field.form {
                SettingForm::Switch => "YES",
                SettingForm::Text | SettingForm::List => "a",
                SettingForm::Number | SettingForm::NumberOrWord => "1",
                SettingForm::State => "DRAIN",
            };
            spec.insert(field.name.into(), field_value(field, sample).unwrap());
        }
        let known: PartitionSpec = serde_json::from_value(spec.into()).unwrap();
        let said: Vec<(&str, &str)> = known
            .settings()
            .iter()
            .map(|setting| (setting.field, setting.key))
            .collect();
        let ours: Vec<(&str, &str)> = SETTING_FIELDS
            .iter()
            .skip(1)
            .map(|field| (field.name, field.key))
            .collect();
        assert_eq!(said, ours);
        assert_eq!(known.state(), PartitionState::Drain);
    }
}
