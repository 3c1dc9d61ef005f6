//! The cluster's certificate authority, its certificates, and kubeconfigs with them.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::network;
use crate::paths;

/// Identity of a certificate: Kubernetes takes the user from the common name and the groups from organisations.
struct Subject<'a> {
    user: &'a str,
    group: Option<&'a str>,
    names: &'a [&'a str],
}

impl<'a> Subject<'a> {
    fn user(user: &'a str) -> Self {
        Self {
            user,
            group: None,
            names: &[],
        }
    }
}

#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Creates the files of the control plane below `folder`.
pub fn create(folder: &Path) -> Result<Authority> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name("testbed", None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let certificate = params.self_signed(&key)?;
    paths::write(&folder.join("ca.crt"), certificate.pem())?;
    paths::write(&folder.join("ca.key"), key.serialize_pem())?;
    let authority = Authority {
        folder: folder.to_path_buf(),
        issuer: Issuer::new(params, key),
    };

    let service_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        network::CONTROL_PLANE,
        network::KUBERNETES_SERVICE,
    ];
    authority.sign(
        "apiserver",
        &Subject {
            user: "kube-apiserver",
            group: None,
            names: &service_names,
        },
    )?;
    let kubelet_client = Subject {
        user: "kube-apiserver",
        group: Some("system:masters"),
        names: &[],
    };
    authority.sign("kubelet-client", &kubelet_client)?;
    authority.sign("front-proxy-client", &Subject::user("front-proxy-client"))?;
    authority.sign(
        "admin",
        &Subject {
            user: "admin",
            group: Some("system:masters"),
            names: &[],
        },
    )?;
    authority.kubeconfig("admin")?;
    for component in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        authority.sign(component, &Subject::user(&format!("system:{component}")))?;
        authority.kubeconfig(component)?;
    }

    let service_accounts = KeyPair::generate()?;
    paths::write(&folder.join("sa.key"), service_accounts.serialize_pem())?;
    paths::write(&folder.join("sa.pub"), service_accounts.public_key_pem())?;
    Ok(authority)
}

/// The authority that `create` left in `folder`.
pub fn open(folder: &Path) -> Result<Authority> {
    let key = KeyPair::from_pem(&fs::read_to_string(folder.join("ca.key")).context("the cluster has no CA")?)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name("testbed", None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(Authority {
        folder: folder.to_path_buf(),
        issuer: Issuer::new(params, key),
    })
}

impl Authority {
    /// A node's identity and its kubeconfig.
    pub fn node(&self, node: &str) -> Result<()> {
        let user = format!("system:node:{node}");
        self.sign(
            node,
            &Subject {
                user: &user,
                group: Some("system:nodes"),
                names: &[],
            },
        )?;
        self.kubeconfig(node)
    }

    /// A serving certificate for `names` (DNS names or addresses), as PEM: certificate, key.
    pub fn serving(&self, names: &[&str]) -> Result<(String, String)> {
        let name = names.first().copied().unwrap_or("server");
        self.issue(&Subject {
            user: name,
            group: None,
            names,
        })
    }

    pub fn certificate_pem(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("ca.crt"))?)
    }

    fn sign(&self, file: &str, subject: &Subject) -> Result<()> {
        let (certificate, key) = self.issue(subject)?;
        paths::write(&self.folder.join(format!("{file}.crt")), certificate)?;
        paths::write(&self.folder.join(format!("{file}.key")), key)
    }

    fn issue(&self, subject: &Subject) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(subject.user, subject.group);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = subject
            .names
            .iter()
            .map(|name| alternative(name))
            .collect::<Result<_>>()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// For use inside the cluster's network. The certificates are embedded, so that the file can be copied.
    fn kubeconfig(&self, user: &str) -> Result<()> {
        let server = format!("https://{}:{}", network::CONTROL_PLANE, network::API_PORT);
        let text = kubeconfig(&self.folder, user, &server)?;
        paths::write(&self.folder.join(format!("{user}.kubeconfig")), text)
    }
}

/// A kubeconfig (JSON is YAML) for `user`, whose certificate lies in `folder`.
pub fn kubeconfig(folder: &Path, user: &str, server: &str) -> Result<String> {
    let embedded = |file: String| -> Result<String> { Ok(base64(&fs::read(folder.join(file))?)) };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {
            "server": server, "certificate-authority-data": embedded("ca.crt".to_owned())?,
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": embedded(format!("{user}.crt"))?,
            "client-key-data": embedded(format!("{user}.key"))?,
        }}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        "current-context": "testbed",
    });
    Ok(serde_json::to_string_pretty(&config)?)
}

fn distinguished_name(user: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}

fn alternative(name: &str) -> Result<SanType> {
    Ok(match name.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(name.try_into()?),
    })
}

pub fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
