//! `slurm-agent prepare`: an init container that fills /etc/slurm before any daemon starts.

use std::path::{Path, PathBuf};

use host::{FileError, Host};
use slurm::Revision;
use slurm::agent::{BundleKey, SIGNATURE_FILE};
use slurm::revision::{ControllerUid, DecodeError, Digest, check_jump};
use thiserror::Error;
use tracing::{info, warn};

use crate::cli;
use crate::config_dir::ConfigDir;
use crate::store::{self, Store};

const KEY_FILE: &str = "slurm.key";
const JWT_KEY_FILE: &str = "jwt.key";

#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("cannot decode the bundle {path}: {source}", path = .path.display())]
    DecodeBundle { path: PathBuf, source: DecodeError },
    #[error(
        "the bundle {path} belongs to Controller {found} and this pod to {wanted}; retrying until the operator replaces it",
        path = .path.display()
    )]
    ForeignBundle {
        path: PathBuf,
        found: ControllerUid,
        wanted: ControllerUid,
    },
    #[error(
        "the bundle {path} is not signed with this cluster's {JWT_KEY_FILE}; retrying until the operator signs it, which it does by \
         itself unless its Controller says otherwise",
        path = .path.display()
    )]
    UnsignedBundle { path: PathBuf },
    #[error("the Secret has another {KEY_FILE} than the cluster runs with; retrying until its former key is back")]
    OtherKey,
    #[error("there is no revision to start from: neither on the state volume nor in {path}", path = .path.display())]
    Nothing { path: PathBuf },
}

pub fn run(host: &Host, options: &cli::Prepare) -> Result<(), Error> {
    let cli::Places {
        config_dir,
        keys_dir,
        state_dir,
        controller_uid,
        pod_name,
    } = &options.places;
    if let Some(digest) = options.key_digest
        && digest != Digest::of(&host.files().read(&keys_dir.join(KEY_FILE))?)
    {
        return Err(Error::OtherKey);
    }
    // A volume that lives with the pod is mounted one level up, and everybody may write there.
    host.files().create_directories(state_dir, 0o700)?;
    let store = Store::new(host, state_dir, controller_uid).of_pod(pod_name.as_deref());
    let stored = store.newest()?;
    let bundle = match read_bundle(host, &options.bundle, keys_dir, controller_uid) {
        // The state volume is at least as new as the bundle.
        Err(error) if stored.is_some() => {
            warn!(%error, "starting without the bundle");
            None
        }
        other => other?,
    };
    let bundle = bundle.filter(|bundle| {
        let plausible = stored
            .as_ref()
            .map_or(Ok(()), |stored| check_jump(bundle.sequence, stored.sequence));
        let plausible = plausible.inspect_err(|error| warn!(%error, "starting without the bundle"));
        plausible.is_ok()
    });
    let (revision, source) = newer(stored, bundle).ok_or_else(|| Error::Nothing {
        path: options.bundle.clone(),
    })?;
    info!(sequence = revision.sequence, digest = %revision.digest(), source, "filling the configuration directory");
    let config_dir = ConfigDir::new(host, config_dir, keys_dir);
    let files = config_dir.write(&revision)?;
    config_dir.switch(&files)?;
    config_dir.remove_all_but(&files);
    Ok(())
}

fn read_bundle(host: &Host, path: &Path, keys_dir: &Path, wanted: &ControllerUid) -> Result<Option<Revision>, Error> {
    let bytes = match host.files().read(path) {
        Err(error) if error.is_not_found() => return Ok(None),
        other => other?,
    };
    // Whoever can write the ConfigMap would otherwise choose the programs that slurmctld runs.
    if !is_signed(host, path, keys_dir, &bytes)? {
        return Err(Error::UnsignedBundle { path: path.to_owned() });
    }
    let revision = Revision::from_bundle(&bytes).map_err(|source| Error::DecodeBundle {
        path: path.to_owned(),
        source,
    })?;
    if revision.controller != *wanted {
        return Err(Error::ForeignBundle {
            path: path.to_owned(),
            found: revision.controller,
            wanted: wanted.clone(),
        });
    }
    Ok(Some(revision))
}

/// Whether the signature beside the bundle was made with the cluster's key.
fn is_signed(host: &Host, path: &Path, keys_dir: &Path, bundle: &[u8]) -> Result<bool, Error> {
    let signature = match host.files().read(&path.with_file_name(SIGNATURE_FILE)) {
        Err(error) if error.is_not_found() => return Ok(false),
        other => other?,
    };
    let key = host.files().read(&keys_dir.join(JWT_KEY_FILE))?;
    let signed = BundleKey::derive(&key).ok().and_then(|key| key.read(&signature));
    Ok(signed.is_some_and(|signed| signed.covers(bundle)))
}

fn newer(stored: Option<Revision>, bundle: Option<Revision>) -> Option<(Revision, &'static str)> {
    let stored = stored.map(|revision| (revision, "state volume"));
    let bundle = bundle.map(|revision| (revision, "bundle"));
    // max_by_key returns the last of two equal ones: the stored revision has been live here.
    bundle
        .into_iter()
        .chain(stored)
        .max_by_key(|(revision, _)| revision.sequence)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use slurm::revision::{File, FileName};
    use tempfile::TempDir;

    use super::*;

    fn uid(text: &str) -> ControllerUid {
        ControllerUid::new(text).unwrap()
    }

    fn revision(sequence: u64, text: &str) -> Revision {
        Revision {
            sequence,
            controller: uid("a"),
            files: BTreeMap::from([(FileName::new("slurm.conf").unwrap(), File::config(text))]),
            closed_by_hand: BTreeSet::new(),
        }
    }

    /// Writes a bundle that is not accepted.
    type Bad<'a> = &'a dyn Fn(&cli::Prepare);

    const JWT_KEY: &[u8] = b"jwt";

    /// Writes a bundle as the operator does.
    fn write_bundle(options: &cli::Prepare, revision: &Revision) {
        let bundle = revision.to_bundle().unwrap();
        let signature = BundleKey::derive(JWT_KEY).unwrap().sign(&bundle, None);
        fs::write(&options.bundle, bundle).unwrap();
        fs::write(options.bundle.with_file_name(SIGNATURE_FILE), signature).unwrap();
    }

    fn pod() -> (TempDir, cli::Prepare) {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["etc", "keys", "state"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("keys/jwt.key"), JWT_KEY).unwrap();
        let options = cli::Prepare {
            places: cli::Places {
                config_dir: path("etc"),
                keys_dir: path("keys"),
                state_dir: path("state"),
                controller_uid: uid("a"),
                pod_name: None,
            },
            key_digest: None,
            bundle: path("bundle"),
        };
        (directory, options)
    }

    fn started_with(options: &cli::Prepare) -> String {
        run(&Host::real(), options).unwrap();
        fs::read_to_string(options.places.config_dir.join("slurm.conf")).unwrap()
    }

    #[test]
    fn the_state_directory_is_created_for_its_owner_alone() {
        let (_directory, options) = pod();
        let state = &options.places.state_dir;
        write_bundle(&options, &revision(1, "bundle"));
        fs::remove_dir(state).unwrap();
        run(&Host::real(), &options).unwrap();
        assert_eq!(fs::metadata(state).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(state, fs::Permissions::from_mode(0o775)).unwrap();
        run(&Host::real(), &options).unwrap();
        let kept = fs::metadata(state).unwrap().permissions().mode() & 0o777;
        assert_eq!(kept, 0o775, "a volume's own directory is left as it is");
    }

    #[test]
    fn a_pod_starts_from_the_highest_revision_of_volume_and_bundle() {
        for (stored, bundle, expected) in [
            (None, Some(1), "bundle"),
            (Some(1), None, "stored"),
            (Some(2), Some(1), "stored"),
            (Some(9), Some(10), "bundle"),
            (Some(3), Some(3), "stored"),
            (Some(3), Some(u64::MAX), "stored"),
            (None, Some(2_000_000), "bundle"),
        ] {
            let (_directory, options) = pod();
            if let Some(sequence) = stored {
                let store = Store::new(&Host::real(), &options.places.state_dir, &uid("a"));
                store.save(&revision(sequence, "stored")).unwrap();
            }
            if let Some(sequence) = bundle {
                write_bundle(&options, &revision(sequence, "bundle"));
            }
            assert_eq!(started_with(&options), expected, "{stored:?} {bundle:?}");
        }
    }

    #[test]
    fn one_of_several_pods_starts_from_its_own_revision_or_the_accepted_one() {
        let (_directory, mut options) = pod();
        options.places.pod_name = Some("slurm-controller-1".to_owned());
        let other = Store::new(&Host::real(), &options.places.state_dir, &uid("a")).of_pod(Some("slurm-controller-0"));
        other.save(&revision(9, "of the other")).unwrap();
        write_bundle(&options, &revision(8, "accepted"));
        assert_eq!(started_with(&options), "accepted");
        let own = Store::new(&Host::real(), &options.places.state_dir, &uid("a")).of_pod(Some("slurm-controller-1"));
        own.save(&revision(9, "own")).unwrap();
        assert_eq!(started_with(&options), "own");
    }

    #[test]
    fn revisions_of_another_controller_are_ignored() {
        let (_directory, options) = pod();
        let foreign = Revision {
            controller: uid("b"),
            ..revision(100, "foreign")
        };
        Store::new(&Host::real(), &options.places.state_dir, &uid("b"))
            .save(&foreign)
            .unwrap();
        write_bundle(&options, &revision(1, "ours"));
        assert_eq!(started_with(&options), "ours");
    }

    #[test]
    fn a_bad_bundle_stops_only_a_pod_without_a_stored_revision() {
        let foreign = Revision {
            controller: uid("b"),
            ..revision(100, "foreign")
        };
        let garbage: Bad = &|options| fs::write(&options.bundle, "garbage").unwrap();
        let foreign: Bad = &|options| write_bundle(options, &foreign);
        let forged = revision(100, "forged").to_bundle().unwrap();
        let unsigned: Bad = &|options| fs::write(&options.bundle, &forged).unwrap();
        let changed: Bad = &|options| {
            write_bundle(options, &revision(100, "ours"));
            unsigned(options);
        };
        let of_another_key: Bad = &|options| {
            write_bundle(options, &revision(100, "forged"));
            fs::write(options.places.keys_dir.join(JWT_KEY_FILE), "other").unwrap();
        };
        for write in [garbage, foreign, unsigned, changed, of_another_key] {
            let (_directory, options) = pod();
            write(&options);
            run(&Host::real(), &options).unwrap_err();
            let store = Store::new(&Host::real(), &options.places.state_dir, &uid("a"));
            store.save(&revision(1, "stored")).unwrap();
            assert_eq!(started_with(&options), "stored");
        }
    }

    #[test]
    fn a_pod_without_any_revision_fails_with_a_reason() {
        let (_directory, options) = pod();
        let error = run(&Host::real(), &options).unwrap_err();
        assert!(matches!(error, Error::Nothing { .. }), "{error}");
    }

    #[test]
    fn a_pod_waits_while_its_key_is_not_that_of_the_cluster() {
        let (_directory, mut options) = pod();
        write_bundle(&options, &revision(1, "one"));
        fs::write(options.places.keys_dir.join(KEY_FILE), "new").unwrap();
        options.key_digest = Some(Digest::of(b"former"));
        let error = run(&Host::real(), &options).unwrap_err();
        assert!(matches!(error, Error::OtherKey), "{error}");
        fs::write(options.places.keys_dir.join(KEY_FILE), "former").unwrap();
        assert_eq!(started_with(&options), "one");
    }

    #[test]
    fn a_pod_with_a_new_sandbox_is_prepared_again() {
        let (_directory, options) = pod();
        write_bundle(&options, &revision(1, "one"));
        started_with(&options);
        write_bundle(&options, &revision(2, "two"));
        assert_eq!(started_with(&options), "two");
        let left = fs::read_dir(&options.places.config_dir).unwrap().count();
        assert_eq!(left, 4, "one directory, ..data, jwt.key and slurm.conf");
    }
}
