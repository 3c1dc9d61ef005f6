//! Prints the definitions of all kinds, or writes one file for each into the folder that is named.

use std::{env, error::Error, fs, path::PathBuf};

use slurm_operator_api::crds::{crds, render_yaml};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    for crd in crds() {
        let yaml = render_yaml(&crd)?;
        match &folder {
            Some(folder) => fs::write(folder.join(format!("{}.yaml", crd.spec.names.plural)), yaml)?,
            None => print!("---\n{yaml}"),
        }
    }
    Ok(())
}
