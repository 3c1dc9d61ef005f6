//! The list of all rules in Markdown.

use std::fmt::Write;

use super::{Cel, Entry, Moment, entries};

/// Renders the list.
pub fn render_markdown() -> String {
    let mut page = String::from(
        "# Rules\n\n\
         <!-- Made from the table of rules by `cargo run -p slurm-operator-api --example admission > docs/admission.md`. -->\n\n\
         What an object must fulfil beyond the types in the [API reference](api.md).\n\n\
         * **API server**: the definition has the rule, so it holds whether or not the operator runs. An object that was\n  \
         stored before the rule existed keeps its value: status, finalizers, labels and other fields can still be written,\n  \
         and the object can be deleted. Only a change of the field must fulfil the rule.\n\
         * **operator**: the operator checks the rule before it acts on the object. It does not act on an object that\n  \
         violates the rule, and says why in a condition. A warning is reported, and the operator acts.\n\
         * **admission webhook**: the rule is about a new object or a change, and the API server cannot check it alone. The\n  \
         [webhook](webhook.md) is part of the chart; with `webhook.enabled: false`, or while it is away, nothing checks the rule.\n\n\
         Rules that the API server checks are checked by the operator too, for objects that were stored before. Where the\n\
         API server cannot check a rule, the table says why.\n",
    );
    let mut kind = "";
    let entries = entries();
    for entry in &entries {
        if entry.kind != kind {
            kind = &entry.kind;
            // Writing to a String cannot fail, here and below.
            let _ = write!(
                page,
                "\n## {kind}\n\n| Rule | Field | What must hold | Checked by | Remedy |\n|---|---|---|---|---|\n"
            );
        }
        let fields: Vec<String> = entry.field.split(", ").map(|field| format!("`{field}`")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            entry.id,
            fields.join(", "),
            cell(entry.holds),
            checked_by(entry),
            cell(entry.remedy),
        );
    }
    page
}

/// Markdown takes `|` for the end of a cell, and `<name>` for HTML.
fn cell(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        if word.contains('<') {
            format!("`{word}`")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn checked_by(entry: &Entry) -> String {
    let moment = match entry.moment {
        Moment::Always => "",
        Moment::Creation => " on creation",
        Moment::Change => " on a change",
    };
    match entry.cel {
        Cel::No(_) if !entry.is_error => "operator: a warning".into(),
        Cel::No(why) if entry.moment == Moment::Always => format!("operator ({why})"),
        Cel::No(why) => format!("admission webhook{moment} ({why})"),
        _ => format!("API server{moment}"),
    }
}
