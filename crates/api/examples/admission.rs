//! Prints the list of rules, or with `--json` their examples, for programs that try them.

use std::{env, error::Error};

use slurm_operator_api::validate::{entries, render_markdown};

fn main() -> Result<(), Box<dyn Error>> {
    if env::args().any(|argument| argument == "--json") {
        println!("{}", serde_json::to_string(&entries())?);
    } else {
        print!("{}", render_markdown());
    }
    Ok(())
}
