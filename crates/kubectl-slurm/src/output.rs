//! Output: tables for people, JSON and YAML for programs.

mod table;

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

pub(crate) use self::table::{Cell, Table, Tone};
use crate::cli::Format;
use crate::failure::{Failure, Outcome};

/// An item of a list, in every format.
pub(crate) trait Listed: Serialize {
    /// The object in kubectl's form: `nodeset/compute`.
    fn object(&self) -> String;
}

/// Prints a list in the selected format.
pub(crate) fn print_list<T: Listed>(format: Format, items: &[T], table: impl FnOnce(&[T]) -> Table) -> Outcome {
    let text = match format {
        Format::Table | Format::Wide => table(items).render(format == Format::Wide, colours()),
        Format::Json | Format::Yaml => render_value(format, &serde_json::json!({ "items": items }))?,
        Format::Name => items.iter().flat_map(|item| [item.object(), "\n".to_owned()]).collect(),
    };
    print(&text)
}

/// Prints one item: as text, or as a value.
pub(crate) fn print_one<T: Listed>(format: Format, item: &T, text: impl FnOnce(&T) -> String) -> Outcome {
    let text = match format {
        Format::Table | Format::Wide => text(item),
        Format::Json | Format::Yaml => render_value(format, item)?,
        Format::Name => format!("{}\n", item.object()),
    };
    print(&text)
}

fn render_value<T: Serialize>(format: Format, value: &T) -> Outcome<String> {
    let failed = |error: &dyn std::fmt::Display| Failure::refused(format!("cannot encode the output: {error}"));
    if format == Format::Yaml {
        return serde_saphyr::to_string(value).map_err(|error| failed(&error));
    }
    let mut text = serde_json::to_string_pretty(value).map_err(|error| failed(&error))?;
    text.push('\n');
    Ok(text)
}

/// Prints text. Unlike `println!`, it does not panic if the reader has closed the pipe.
pub(crate) fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a note for people to standard error. A failure to do so is ignored.
pub(crate) fn notify(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether to print colours: on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub(crate) fn colours() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !no_color && !dumb
}
