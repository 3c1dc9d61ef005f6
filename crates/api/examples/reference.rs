//! Prints the API reference.

use slurm_operator_api::{crds, reference::render_markdown};

fn main() {
    print!("{}", render_markdown(&crds()));
}
