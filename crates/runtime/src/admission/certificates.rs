//! The webhook's certificate. It is its own trust anchor: the API server trusts exactly the certificates in `caBundle`,
//! so there is no key with which others could be issued. A new one is trusted before it is served.
//!
//! The Secret is the memory of all replicas, and any of them may take any step. With cert-manager, which issues the
//! certificate and injects its CA, nothing is written here.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{Stream, StreamExt, stream::select};
use host::Host;
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
        },
        core::v1::Secret,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::ObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{Clients, Object, error::describe, watch};

/// How long a certificate is valid, in days, and how many days before its end it is replaced.
const LIFE: i64 = 90;
const RENEWAL: i64 = 30;
/// How long API servers may take to notice a new `caBundle`.
const INTRODUCTION: Duration = Duration::from_mins(1);
/// When to look again: a certificate comes of age, or a write has failed.
const TICK: Duration = Duration::from_secs(10);
/// Certificates that were served before stay trusted: another replica may still serve one.
const TRUSTED: usize = 4;

const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";

/// Where the certificate is kept and for whom it is.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The namespace of the Secret and of the Service.
    pub namespace: String,
    /// The name of the Secret.
    pub secret: String,
    /// The name of the Service, and of the webhook configurations.
    pub service: String,
    /// Whether the certificate is made and renewed here; otherwise another program, such as cert-manager, does it.
    pub managed: bool,
}

impl Certificates {
    /// The name by which the API server calls the Service.
    fn host_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}

/// The certificate in use. A clone shares it.
#[derive(Debug, Clone, Default)]
pub(super) struct Serving(Arc<std::sync::RwLock<Option<Arc<CertifiedKey>>>>);

impl Serving {
    pub(super) fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn set(&self, key: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(key);
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn generate(host_name: &str, now: Timestamp) -> anyhow::Result<Self> {
        let service = host_name.trim_end_matches(".svc").to_owned();
        let mut parameters = CertificateParams::new([host_name.to_owned(), service])?;
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, host_name);
        parameters.distinguished_name = name;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let day = |days: i64| -> anyhow::Result<_> {
            let date = now.to_zoned(TimeZone::UTC).date().checked_add(days.days())?;
            let (month, day) = (u8::try_from(date.month())?, u8::try_from(date.day())?);
            Ok(date_time_ymd(date.year().into(), month, day))
        };
        // Clocks of API servers may be behind.
        (parameters.not_before, parameters.not_after) = (day(-1)?, day(LIFE)?);
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: parameters.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// What TLS needs, if the two belong together.
    fn certified(&self) -> anyhow::Result<CertifiedKey> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let chain = chain.context("no certificate in PEM")?;
        anyhow::ensure!(!chain.is_empty(), "no certificate in PEM");
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("no key in PEM")?;
        Ok(CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())?)
    }

    /// Whether an API server that trusts these certificates, and this one itself, would accept it at that time.
    fn is_valid(&self, host_name: &str, trusted: &str, at: Timestamp) -> bool {
        let check = || -> anyhow::Result<()> {
            let certified = self.certified()?;
            let (end_entity, intermediates) = certified.cert.split_first().context("no certificate")?;
            let mut roots = RootCertStore::empty();
            roots.add(end_entity.clone())?;
            for root in CertificateDer::pem_slice_iter(trusted.as_bytes()).flatten() {
                // An entry that is not a certificate adds no trust anchor.
                let _ = roots.add(root);
            }
            let provider = Arc::new(aws_lc_rs::default_provider());
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at.as_second())?));
            let name = ServerName::try_from(host_name.to_owned())?;
            verifier.verify_server_cert(end_entity, intermediates, &name, &[], at)?;
            Ok(())
        };
        check().is_ok()
    }
}

/// The content of the Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    /// The certificates that API servers are to trust, in PEM.
    trusted: String,
    serving: Option<Pair>,
    /// Trusted already, and served next.
    next: Option<Pair>,
}

impl Content {
    fn of(secret: &Secret) -> Self {
        let entry = |name: &str| {
            let ByteString(bytes) = secret.data.as_ref()?.get(name)?;
            String::from_utf8(bytes.clone()).ok()
        };
        let pair = |certificate, key| {
            Some(Pair {
                certificate: entry(certificate)?,
                key: entry(key)?,
            })
        };
        Self {
            trusted: entry(CA).unwrap_or_default(),
            serving: pair(CERTIFICATE, KEY),
            next: pair(NEXT_CERTIFICATE, NEXT_KEY),
        }
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        let mut put = |name: &str, text: &str| data.insert(name.to_owned(), ByteString(text.as_bytes().to_vec()));
        put(CA, &self.trusted);
        for (pair, certificate, key) in [
            (&self.serving, CERTIFICATE, KEY),
            (&self.next, NEXT_CERTIFICATE, NEXT_KEY),
        ] {
            if let Some(pair) = pair {
                put(certificate, &pair.certificate);
                put(key, &pair.key);
            }
        }
        data
    }

    /// Adds certificates in front, and drops what is not a certificate, is there twice, or is too old.
    fn trust(&mut self) {
        let own = [&self.next, &self.serving].into_iter().flatten();
        let own = own.map(|pair| pair.certificate.as_str()).collect::<String>();
        let text = own + &self.trusted;
        let mut kept: Vec<CertificateDer<'_>> = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()).flatten() {
            let is_anchor = RootCertStore::empty().add(certificate.clone()).is_ok();
            if is_anchor && !kept.contains(&certificate) && kept.len() < TRUSTED {
                kept.push(certificate);
            }
        }
        let format = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        let encoded = kept.iter().map(|der| pem::Pem::new("CERTIFICATE", der.to_vec()));
        self.trusted = encoded.map(|pem| pem::encode_config(&pem, format)).collect();
    }
}

/// What the Secret is to contain. `introduced` says that API servers trust `stored.next`; `last` is what this process
/// served last.
fn renew(
    host_name: &str,
    now: Timestamp,
    stored: &Content,
    last: Option<&Pair>,
    introduced: bool,
) -> anyhow::Result<Content> {
    let at = |days: i64| now.checked_add((days * 24).hours()).unwrap_or(Timestamp::MAX);
    let valid = |pair: &&Pair, days| pair.is_valid(host_name, &stored.trusted, at(days));
    let mut wanted = stored.clone();
    match (&stored.serving, &stored.next) {
        (Some(serving), _) if valid(&serving, RENEWAL) => wanted.next = None,
        (Some(serving), next) if valid(&serving, 0) => match next {
            Some(next) if valid(&next, RENEWAL) => {
                if introduced {
                    wanted.serving = wanted.next.take();
                }
            }
            _ => wanted.next = Some(Pair::generate(host_name, now)?),
        },
        // Whoever deleted or damaged the Secret: API servers trust the last one.
        _ => {
            let last = last.filter(|last| valid(last, 0)).cloned();
            wanted.serving = Some(match last {
                Some(last) => last,
                None => Pair::generate(host_name, now)?,
            });
        }
    }
    wanted.trust();
    Ok(wanted)
}

/// What is known of an object.
#[derive(Default)]
enum Known<K> {
    /// It was not read yet.
    #[default]
    Nothing,
    Absent,
    Present(K),
}

impl<K> From<Option<K>> for Known<K> {
    fn from(object: Option<K>) -> Self {
        object.map_or(Self::Absent, Self::Present)
    }
}

/// The objects of the webhook itself.
#[derive(Default)]
struct Own {
    secret: Known<Secret>,
    validating: Known<ValidatingWebhookConfiguration>,
    mutating: Known<MutatingWebhookConfiguration>,
}

enum Seen {
    Secret(Option<Secret>),
    Validating(Option<ValidatingWebhookConfiguration>),
    Mutating(Option<MutatingWebhookConfiguration>),
}

/// Keeps the certificate in use valid, as long as the process runs.
pub(super) struct Keeper {
    pub(super) certificates: Certificates,
    pub(super) serving: Serving,
    pub(super) clients: Clients,
    pub(super) host: Host,
}

impl Keeper {
    pub(super) async fn run(self) {
        let client = self.clients.clone().of_watch(|| {});
        let mut seen = pin!(self.watch(&client));
        let (mut own, mut last) = (Own::default(), None);
        let mut introduced: Option<(String, Instant)> = None;
        loop {
            let tick = tokio::time::sleep(TICK);
            tokio::select! {
                biased;
                Some(event) = seen.next() => match event {
                    Ok(Seen::Secret(secret)) => own.secret = secret.into(),
                    Ok(Seen::Validating(found)) => own.validating = found.into(),
                    Ok(Seen::Mutating(found)) => own.mutating = found.into(),
                    Err(error) => {
                        tracing::warn!(error = watch::describe(&error), "cannot read the webhook's own objects");
                        continue;
                    }
                },
                () = tick => {}
            }
            if let Err(error) = self.step(&own, &mut last, &mut introduced).await {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot keep the webhook's certificate; trying again"
                );
            }
        }
    }

    fn watch(&self, client: &Client) -> impl Stream<Item = watcher::Result<Seen>> + use<> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.certificates.namespace);
        let name = &self.certificates.service;
        let secrets = watch_object(secrets, &self.certificates.secret).default_backoff();
        let secrets = secrets.map(|event| event.map(Seen::Secret)).boxed();
        if !self.certificates.managed {
            return secrets;
        }
        let validating = watch_object(Api::all(client.clone()), name).default_backoff();
        let mutating = watch_object(Api::all(client.clone()), name).default_backoff();
        let validating = validating.map(|event| event.map(Seen::Validating));
        let mutating = mutating.map(|event| event.map(Seen::Mutating));
        select(secrets, select(validating, mutating)).boxed()
    }

    /// Serves what the Secret has, and writes what is missing.
    async fn step(
        &self,
        own: &Own,
        last: &mut Option<Pair>,
        introduced: &mut Option<(String, Instant)>,
    ) -> anyhow::Result<()> {
        let (secret, stored) = match &own.secret {
            Known::Nothing => return Ok(()),
            Known::Absent => (None, Content::default()),
            Known::Present(secret) => (Some(secret), Content::of(secret)),
        };
        let (host_name, now) = (self.certificates.host_name(), self.host.timestamp());
        if !self.certificates.managed {
            self.serve(stored.serving.as_ref(), last);
            return Ok(());
        }
        let Known::Present(configuration) = &own.validating else {
            // Nothing calls the webhook: the chart is being installed or uninstalled, and a new Secret would be left over.
            return Ok(());
        };
        let since = introduced.as_ref().filter(|(trusted, _)| *trusted == stored.trusted);
        let is_introduced =
            since.is_some_and(|(_, since)| self.host.instant().saturating_duration_since(*since) >= INTRODUCTION);
        let wanted = renew(&host_name, now, &stored, last.as_ref(), is_introduced)?;
        if wanted != stored {
            // The watch brings what was written, by this replica or by another one, and with it the next step.
            return self.write(configuration, secret, &wanted).await;
        }
        self.serve(stored.serving.as_ref(), last);
        let current = self.introduce(configuration, &own.mutating, &stored.trusted).await?;
        match introduced {
            Some((trusted, _)) if current && *trusted == stored.trusted => {}
            _ => *introduced = current.then(|| (stored.trusted.clone(), self.host.instant())),
        }
        Ok(())
    }

    /// Serves a certificate from now on. One that is not usable leaves the last one in use.
    fn serve(&self, pair: Option<&Pair>, last: &mut Option<Pair>) {
        let Some(pair) = pair.filter(|pair| last.as_ref() != Some(pair)) else {
            return;
        };
        match pair.certified() {
            Ok(certified) => {
                self.serving.set(Arc::new(certified));
                *last = Some(pair.clone());
                tracing::info!("serving with the certificate of the Secret");
            }
            Err(error) => tracing::warn!(
                secret = self.certificates.secret,
                error = format!("{error:#}"),
                "the Secret has no usable certificate; the last one stays in use"
            ),
        }
    }

    async fn write(
        &self,
        owner: &ValidatingWebhookConfiguration,
        secret: Option<&Secret>,
        wanted: &Content,
    ) -> anyhow::Result<()> {
        let (namespace, name) = (&self.certificates.namespace, &self.certificates.secret);
        let api: Api<Secret> = Api::namespaced(self.clients.calls.clone(), namespace);
        let new = || Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        };
        let mut written = secret.cloned().unwrap_or_else(new);
        (written.data, written.metadata.managed_fields) = (Some(wanted.data()), None);
        // It is deleted with the chart.
        written.metadata.owner_references = owner.owner_ref(&()).map(|owner| vec![owner]);
        // It has the version of the watch: a replica that is slower gets a conflict.
        let result = match secret {
            Some(_) => api.replace(name, &PostParams::default(), &written).await,
            None => api.create(&PostParams::default(), &written).await,
        };
        match result {
            Ok(_) => tracing::info!(secret = name, "wrote a certificate"),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {}
            Err(error) => anyhow::bail!("cannot write Secret {namespace}/{name}: {}", describe(&error)),
        }
        Ok(())
    }

    /// Writes the trusted certificates to `caBundle` of all webhooks. Returns whether they were there already.
    async fn introduce(
        &self,
        validating: &ValidatingWebhookConfiguration,
        mutating: &Known<MutatingWebhookConfiguration>,
        trusted: &str,
    ) -> anyhow::Result<bool> {
        let webhooks = validating.webhooks.iter().flatten();
        let clients = webhooks.map(|webhook| (webhook.name.as_str(), &webhook.client_config));
        let is_current = self.write_bundle(validating, clients, trusted).await?;
        let is_current_too = match mutating {
            Known::Nothing => false,
            Known::Absent => true,
            Known::Present(mutating) => {
                let webhooks = mutating.webhooks.iter().flatten();
                let clients = webhooks.map(|webhook| (webhook.name.as_str(), &webhook.client_config));
                self.write_bundle(mutating, clients, trusted).await?
            }
        };
        Ok(is_current && is_current_too)
    }

    async fn write_bundle<K: Object>(
        &self,
        configuration: &K,
        webhooks: impl Iterator<Item = (&str, &WebhookClientConfig)>,
        trusted: &str,
    ) -> anyhow::Result<bool> {
        let bundle = ByteString(trusted.as_bytes().to_vec());
        let mut changes = Vec::new();
        for (index, (name, client)) in webhooks.enumerate() {
            if client.ca_bundle.as_ref() != Some(&bundle) {
                // The list may have changed since.
                changes.push(json!({"op": "test", "path": format!("/webhooks/{index}/name"), "value": name}));
                let path = format!("/webhooks/{index}/clientConfig/caBundle");
                changes.push(json!({"op": "add", "path": path, "value": bundle}));
            }
        }
        if changes.is_empty() {
            return Ok(true);
        }
        let api: Api<K> = Api::all(self.clients.calls.clone());
        let patch: json_patch::Patch = serde_json::from_value(changes.into())?;
        let name = configuration.name_any();
        let written = api
            .patch(&name, &PatchParams::default(), &Patch::<K>::Json(patch))
            .await;
        written.map_err(|error| anyhow::anyhow!("cannot write {} {name}: {}", K::kind(&()), describe(&error)))?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
