//! A revision as bytes: gzipped JSON, which people can read by `kubectl get … | base64 -d | zcat`.
//!
//! Equal revisions have equal bytes. Readers ignore unknown fields; the digest covers the files, so a missing or changed file is
//! detected.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{ControllerUid, Digest, File, FileName, Revision};

/// The API server's limit for the values of one ConfigMap.
pub const MAX_BUNDLE: usize = 1024 * 1024;

/// The limit of the uncompressed size. slurmctld sends its files to every node, so a hundredth of this is already much.
pub const MAX_CONTENT: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TooLarge {
    #[error("the configuration has {bytes} bytes; {MAX_CONTENT} are allowed")]
    Content { bytes: usize },
    #[error("the configuration has {bytes} bytes after compression; a ConfigMap holds {MAX_BUNDLE}")]
    Bundle { bytes: usize },
}

#[derive(Debug, Error)]
pub enum DecodeError {
    #[error("the bundle cannot be decompressed: {0}")]
    Gzip(#[source] std::io::Error),
    #[error("the bundle has more than {MAX_CONTENT} bytes after decompression")]
    TooLarge,
    #[error("the bundle is no revision: {0}")]
    Json(#[source] serde_json::Error),
    #[error("file {file} of the bundle cannot be decoded: {source}")]
    Base64 {
        file: FileName,
        source: base64::DecodeError,
    },
    #[error("the digest of the bundle is {said}, but its files have {found}")]
    Digest { said: Digest, found: Digest },
}

#[derive(Serialize, Deserialize)]
struct Wire {
    sequence: u64,
    controller: ControllerUid,
    digest: Digest,
    files: BTreeMap<FileName, WireFile>,
    /// Older operators do not send it, and older agents ignore it.
    #[serde(rename = "closedByHand", default, skip_serializing_if = "BTreeSet::is_empty")]
    closed_by_hand: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct WireFile {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    executable: bool,
    #[serde(flatten)]
    content: Content,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Content {
    Text(String),
    Base64(String),
}

impl Content {
    fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    fn into_bytes(self) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Base64(text) => STANDARD.decode(text),
        }
    }
}

impl Revision {
    pub fn to_bundle(&self) -> Result<Vec<u8>, TooLarge> {
        let wire = Wire {
            sequence: self.sequence,
            controller: self.controller.clone(),
            digest: self.digest(),
            files: self
                .files
                .iter()
                .map(|(name, file)| {
                    let file = WireFile {
                        executable: file.executable,
                        content: Content::new(&file.content),
                    };
                    (name.clone(), file)
                })
                .collect(),
            closed_by_hand: self.closed_by_hand.clone(),
        };
        // Strings, numbers and maps with string keys cannot fail.
        let json = serde_json::to_vec(&wire).unwrap_or_default();
        if json.len() > MAX_CONTENT {
            return Err(TooLarge::Content { bytes: json.len() });
        }
        let bundle = compress(&json);
        if bundle.len() > MAX_BUNDLE {
            return Err(TooLarge::Bundle { bytes: bundle.len() });
        }
        Ok(bundle)
    }

    pub fn from_bundle(bundle: &[u8]) -> Result<Self, DecodeError> {
        let Wire {
            sequence,
            controller,
            digest: said,
            files,
            closed_by_hand,
        } = serde_json::from_slice(&decompress(bundle)?).map_err(DecodeError::Json)?;
        let files = files
            .into_iter()
            .map(|(name, WireFile { executable, content })| match content.into_bytes() {
                Ok(content) => Ok((name, File { content, executable })),
                Err(source) => Err(DecodeError::Base64 { file: name, source }),
            })
            .collect::<Result<_, _>>()?;
        let revision = Self {
            sequence,
            controller,
            files,
            closed_by_hand,
        };
        let found = revision.digest();
        if said != found {
            return Err(DecodeError::Digest { said, found });
        }
        Ok(revision)
    }
}

/// The encoder writes no time and no file name into the header. Writing to a vector cannot fail.
fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(bytes);
    written.and_then(|()| encoder.finish()).unwrap_or_default()
}

fn decompress(bundle: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_CONTENT).unwrap_or(u64::MAX);
    GzDecoder::new(bundle)
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(DecodeError::Gzip)?;
    if bytes.len() > MAX_CONTENT {
        return Err(DecodeError::TooLarge);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revision() -> Revision {
        let file = |name: &str, file| (FileName::new(name).unwrap(), file);
        Revision {
            sequence: 12,
            controller: ControllerUid::new("1b4e28ba").unwrap(),
            files: BTreeMap::from([
                file("slurm.conf", File::config("ClusterName=ü\n")),
                file("prolog.sh", File::script("#!/bin/sh\n")),
                file("blob", File::config([0xff, 0])),
            ]),
            closed_by_hand: BTreeSet::new(),
        }
    }

    fn json_of(bundle: &[u8]) -> String {
        String::from_utf8(decompress(bundle).unwrap()).unwrap()
    }

    #[test]
    fn a_bundle_is_readable_json() {
        let digest = revision().digest();
        assert_eq!(
            json_of(&revision().to_bundle().unwrap()),
            format!(
                r##"{{"sequence":12,"controller":"1b4e28ba","digest":"{digest}","files":{{"blob":{{"base64":"/wA="}},"prolog.sh":{{"executable":true,"text":"#!/bin/sh\n"}},"slurm.conf":{{"text":"ClusterName=ü\n"}}}}}}"##
            )
        );
    }

    #[test]
    fn a_field_of_a_later_version_is_ignored() {
        let json = json_of(&revision().to_bundle().unwrap());
        let json = json
            .replacen('{', r#"{"cause":["x"],"#, 1)
            .replace(r#""text""#, r#""mode":7,"text""#);
        assert_eq!(Revision::from_bundle(&compress(json.as_bytes())).unwrap(), revision());
    }

    #[test]
    fn manually_closed_partitions_are_in_the_bundle() {
        let closed = Revision {
            closed_by_hand: BTreeSet::from(["long".to_owned()]),
            ..revision()
        };
        let bundle = closed.to_bundle().unwrap();
        assert!(json_of(&bundle).ends_with(r#","closedByHand":["long"]}"#));
        assert_eq!(Revision::from_bundle(&bundle).unwrap(), closed);
        assert_eq!(closed.digest(), revision().digest(), "the files are the same");
    }

    #[test]
    fn a_changed_file_is_detected() {
        let json = json_of(&revision().to_bundle().unwrap());
        let result = Revision::from_bundle(&compress(json.replace("#!/bin/sh", "#!/bin/sx").as_bytes()));
        assert!(matches!(result, Err(DecodeError::Digest { .. })), "{result:?}");
    }

    #[test]
    fn a_name_outside_of_the_directory_is_rejected() {
        let json = json_of(&revision().to_bundle().unwrap());
        for name in ["../slurm.conf", "..data"] {
            let result = Revision::from_bundle(&compress(json.replace("slurm.conf", name).as_bytes()));
            assert!(matches!(result, Err(DecodeError::Json(_))), "{result:?}");
        }
    }

    #[test]
    fn a_bundle_that_does_not_fit_into_a_configmap_is_rejected() {
        let mut noise = 1_u64;
        let content: Vec<u8> = std::iter::repeat_with(|| {
            // An LCG, whose upper bits gzip cannot compress.
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            noise.to_be_bytes()[0]
        })
        .take(MAX_BUNDLE)
        .collect();
        let with = |content: Vec<u8>| Revision {
            files: BTreeMap::from([(FileName::new("x").unwrap(), File::config(content))]),
            ..revision()
        };
        assert!(matches!(with(content).to_bundle(), Err(TooLarge::Bundle { .. })));
        assert!(with(vec![b'#'; MAX_BUNDLE]).to_bundle().unwrap().len() < 10_000);
        assert!(matches!(
            with(vec![b'#'; MAX_CONTENT + 1]).to_bundle(),
            Err(TooLarge::Content { .. })
        ));
    }

    #[test]
    fn a_decompression_bomb_is_rejected() {
        let result = Revision::from_bundle(&compress(&vec![b' '; MAX_CONTENT + 1]));
        assert!(matches!(result, Err(DecodeError::TooLarge)), "{result:?}");
    }

    fn any_revision() -> impl Strategy<Value = Revision> {
        let name = "[a-z][a-z.]{0,8}".prop_map(|name| FileName::new(name).unwrap());
        let file = (any::<Vec<u8>>(), any::<bool>()).prop_map(|(content, executable)| File { content, executable });
        let closed = prop::collection::btree_set(any::<String>(), 0..3);
        let files = prop::collection::btree_map(name, file, 0..5);
        (any::<u64>(), files, closed).prop_map(|(sequence, files, closed_by_hand)| Revision {
            sequence,
            controller: ControllerUid::new("uid-1").unwrap(),
            files,
            closed_by_hand,
        })
    }

    proptest! {
        #[test]
        fn bytes_and_back(revision in any_revision()) {
            let bundle = revision.to_bundle().unwrap();
            prop_assert_eq!(&revision.to_bundle().unwrap(), &bundle);
            prop_assert_eq!(Revision::from_bundle(&bundle).unwrap(), revision);
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
            drop(Revision::from_bundle(&bytes));
            drop(Revision::from_bundle(&compress(&bytes)));
        }

        #[test]
        fn a_flipped_byte_does_not_panic(revision in any_revision(), at in any::<prop::sample::Index>(), by in 1_u8..) {
            let mut bundle = revision.to_bundle().unwrap();
            let at = at.index(bundle.len());
            bundle[at] ^= by;
            drop(Revision::from_bundle(&bundle));
        }

        #[test]
        fn a_truncated_bundle_is_rejected(revision in any_revision(), at in any::<prop::sample::Index>()) {
            let bundle = revision.to_bundle().unwrap();
            prop_assert!(Revision::from_bundle(&bundle[..at.index(bundle.len())]).is_err());
        }
    }
}
