//! OCI image layouts in a tar: blobs by digest, and an index that names images.
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::layer::{Content, Digest, Layer, header};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Descriptor of a blob.
type Descriptor = Map<String, Value>;

/// How a container of the image starts.
#[derive(Debug, Clone, Default)]
pub(super) struct Config<'a> {
    pub entrypoint: Vec<&'a str>,
    pub cmd: Vec<&'a str>,
    pub env: Vec<&'a str>,
    /// `uid:gid`; empty for root.
    pub user: &'a str,
    pub workdir: &'a str,
    pub ports: Vec<u16>,
}

#[derive(Debug)]
pub(super) struct Image<'a> {
    pub config: Config<'a>,
    /// Bottom first.
    pub layers: Vec<Layer>,
}

/// The content of an archive. Images share common blobs.
#[derive(Debug, Default)]
pub(super) struct Layout {
    blobs: BTreeMap<Digest, Layer>,
    manifests: Vec<Descriptor>,
}

impl Layout {
    /// Adds an image under each of its full names (`registry/path:tag`).
    pub(super) fn add(&mut self, image: &Image<'_>, references: &[String]) -> Result<()> {
        for layer in &image.layers {
            self.blobs.entry(layer.digest.clone()).or_insert_with(|| layer.clone());
        }
        let config = self.add_json(CONFIG, &config_json(image))?;
        let layers: Vec<Descriptor> = image
            .layers
            .iter()
            .map(|layer| descriptor(LAYER, &layer.digest, layer.size))
            .collect();
        let manifest = self.add_json(
            MANIFEST,
            &json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}),
        )?;
        for reference in references {
            let (_, tag) = reference
                .rsplit_once(':')
                .with_context(|| format!("{reference} has no tag"))?;
            let mut named = manifest.clone();
            named.insert("platform".to_owned(), json!({"architecture": "amd64", "os": "linux"}));
            // `ctr images import` uses the first name.
            let annotations = json!({"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag});
            named.insert("annotations".to_owned(), annotations);
            self.manifests.push(named);
        }
        Ok(())
    }

    /// Identifies all of the content, since the index names it by digest.
    pub(super) fn digest(&self) -> Digest {
        Digest::of(self.index().to_string().as_bytes())
    }

    pub(super) fn write(&self, out: impl Write) -> Result<()> {
        let mut tar = tar::Builder::new(out);
        let mut append = |path: &str, size: u64, content: &mut dyn Read| {
            tar.append_data(&mut header(tar::EntryType::Regular, 0o644, size), path, content)
        };
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        append("oci-layout", layout.len() as u64, &mut &layout[..])?;
        for (digest, blob) in &self.blobs {
            append(
                &format!("blobs/sha256/{}", digest.as_hex()),
                blob.size,
                &mut blob.open()?,
            )?;
        }
        let index = self.index().to_string();
        append("index.json", index.len() as u64, &mut index.as_bytes())?;
        tar.into_inner()?.flush()?;
        Ok(())
    }

    fn index(&self) -> Value {
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests})
    }

    fn add_json(&mut self, media_type: &str, value: &Value) -> Result<Descriptor> {
        let bytes: Arc<[u8]> = serde_json::to_vec(value)?.into();
        let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
        let blob = Layer {
            digest: digest.clone(),
            size,
            content: Content::Bytes(bytes),
        };
        self.blobs.insert(digest.clone(), blob);
        Ok(descriptor(media_type, &digest, size))
    }
}

fn descriptor(media_type: &str, digest: &Digest, size: u64) -> Descriptor {
    let fields = [
        ("mediaType", json!(media_type)),
        ("digest", json!(digest.to_string())),
        ("size", json!(size)),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn config_json(image: &Image<'_>) -> Value {
    let Config {
        entrypoint,
        cmd,
        env,
        user,
        workdir,
        ports,
    } = &image.config;
    let mut config = Map::new();
    let mut set = |key: &str, empty: bool, value: Value| {
        if !empty {
            config.insert(key.to_owned(), value);
        }
    };
    set("User", user.is_empty(), json!(user));
    set(
        "ExposedPorts",
        ports.is_empty(),
        ports.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect(),
    );
    set("Env", env.is_empty(), json!(env));
    set("Entrypoint", entrypoint.is_empty(), json!(entrypoint));
    set("Cmd", cmd.is_empty(), json!(cmd));
    set("WorkingDir", workdir.is_empty(), json!(workdir));
    // An uncompressed layer's digest is its diff id.
    let diff_ids: Vec<String> = image.layers.iter().map(|layer| layer.digest.to_string()).collect();
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::layer::Tree;
    use super::*;

    fn archive() -> Vec<u8> {
        let base = Tree::default().text("base", "shared").layer().unwrap();
        let top = Tree::default().text("top", "own").layer().unwrap();
        let mut layout = Layout::default();
        let config = Config {
            entrypoint: vec!["/run"],
            user: "401:401",
            ports: vec![6817],
            ..Config::default()
        };
        let names = ["localhost/a:1".to_owned(), "localhost/a:2".to_owned()];
        layout
            .add(
                &Image {
                    config,
                    layers: vec![base.clone(), top],
                },
                &names,
            )
            .unwrap();
        layout
            .add(
                &Image {
                    config: Config::default(),
                    layers: vec![base],
                },
                &["localhost/b:1".to_owned()],
            )
            .unwrap();
        let mut out = Vec::new();
        layout.write(&mut out).unwrap();
        out
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            assert!(files.insert(path.clone(), bytes).is_none(), "{path} is there twice");
        }
        files
    }

    fn follow(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().unwrap();
        let bytes = files[&format!("blobs/{}", digest.replace(':', "/"))].clone();
        assert_eq!(Digest::of(&bytes).to_string(), digest);
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }

    #[test]
    fn every_descriptor_leads_to_a_blob_with_its_digest_and_size() {
        let files = files(&archive());
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        for image in index["manifests"].as_array().unwrap() {
            let manifest: Value = serde_json::from_slice(&follow(&files, image)).unwrap();
            let config: Value = serde_json::from_slice(&follow(&files, &manifest["config"])).unwrap();
            let layers = manifest["layers"].as_array().unwrap();
            let diffs = config["rootfs"]["diff_ids"].as_array().unwrap();
            assert_eq!(layers.len(), diffs.len());
            for (layer, diff) in layers.iter().zip(diffs) {
                follow(&files, layer);
                assert_eq!(&layer["digest"], diff);
            }
        }
    }

    #[test]
    fn names_of_one_image_share_a_manifest_and_images_share_layers() {
        let files = files(&archive());
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let named: Vec<_> = index["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|image| {
                (
                    image["annotations"]["io.containerd.image.name"].as_str().unwrap(),
                    &image["digest"],
                )
            })
            .collect();
        assert_eq!(
            named.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["localhost/a:1", "localhost/a:2", "localhost/b:1"]
        );
        assert_eq!(named[0].1, named[1].1);
        // Two layers, two configurations, two manifests.
        assert_eq!(files.keys().filter(|path| path.starts_with("blobs/")).count(), 6);
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        assert_eq!(archive(), archive());
    }

    #[test]
    fn a_name_without_a_tag_is_rejected() {
        let image = Image {
            config: Config::default(),
            layers: Vec::new(),
        };
        assert!(Layout::default().add(&image, &["localhost/a".to_owned()]).is_err());
    }
}
