//! Releases of Slurm, as year and month, and what the operator's pods depend on in them.

use api::keys::apps;
use serde_json::{Value, json};

/// Year and month.
pub type Release = (u16, u16);

/// slurmctld and slurmd respond to HTTP on their ports since this release.
const HTTP_SINCE: Release = (25, 11);

/// Parses a release such as `26.05.5`.
pub(crate) fn parse(release: &str) -> Option<Release> {
    let mut numbers = release.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The release in the tag of an image, such as `26.05-ubuntu26.04`. A tag is what its owner says, and other tags say nothing.
pub(crate) fn of_image(image: &str) -> Option<Release> {
    let (image, _digest) = image.split_once('@').unwrap_or((image, ""));
    let (_, name) = image.rsplit_once('/').unwrap_or(("", image));
    let (_, tag) = name.split_once(':')?;
    let end = tag.find(|c: char| c != '.' && !c.is_ascii_digit());
    let (year, month) = parse(tag.get(..end.unwrap_or(tag.len()))?)?;
    ((20..100).contains(&year) && (1..=12).contains(&month)).then_some((year, month))
}

/// Whether the daemons of a release can be probed by HTTP. The probes without HTTP work with every release.
pub(crate) fn has_http(release: Option<Release>) -> bool {
    release.is_some_and(|release| release >= HTTP_SINCE)
}

/// slurmdbd accepts a slurmdbd.conf that its group can read since this release.
const GROUP_READS_SLURMDBD_CONF_SINCE: Release = (25, 11);

/// Whether the slurmdbd of this image exits if others than the owner can read slurmdbd.conf, according to its tag.
pub(crate) fn wants_private_slurmdbd_conf(image: &str) -> bool {
    of_image(image).is_some_and(|release| release < GROUP_READS_SLURMDBD_CONF_SINCE)
}

/// slurmctld serves metrics since this release. An older one does not start with `MetricsType`.
const METRICS_SINCE: Release = (25, 11);

/// The release of this image, if its tag says that it is one that has no metrics.
pub(crate) fn without_metrics(image: Option<&str>) -> Option<Release> {
    of_image(image?).filter(|release| *release < METRICS_SINCE)
}

/// What a probe of slurmctld does. slurmctld logs nothing about connections that are closed at once.
pub(crate) fn slurmctld_probe(by_http: bool, path: &str) -> Value {
    if by_http {
        json!({ "httpGet": { "path": path, "port": apps::SLURMCTLD } })
    } else {
        json!({ "tcpSocket": { "port": apps::SLURMCTLD } })
    }
}

/// What a probe of slurmd does. slurmd logs an error for every connection without a message, so scontrol sends one.
pub(crate) fn slurmd_probe(by_http: bool, path: &str) -> Value {
    if by_http {
        json!({ "httpGet": { "path": path, "port": apps::SLURMD } })
    } else {
        // scontrol responds within 50 ms, but the default of one second is short for a program on a busy machine.
        json!({ "exec": { "command": ["scontrol", "show", "slurmd"] }, "timeoutSeconds": 5 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_a_year_and_a_month() {
        assert_eq!(parse("26.05.5"), Some((26, 5)));
        assert_eq!(parse("26.11.0-0rc1"), Some((26, 11)));
        assert_eq!(parse("26"), None);
        assert_eq!(parse("of our own"), None);
    }

    #[test]
    fn the_tag_of_an_image_may_be_a_release() {
        for (image, release) in [
            ("ghcr.io/slinkyproject/slurmd:26.05-ubuntu26.04", Some((26, 5))),
            ("localhost:5000/slurmd:24.11.5", Some((24, 11))),
            ("slurmd:25.11@sha256:0123", Some((25, 11))),
            ("localhost:5000/slurmd", None),
            ("example.com/slurmd@sha256:24.11", None),
            ("slurmd:latest", None),
            ("slurmd:1.2.3", None),
            ("slurmd:24.13", None),
        ] {
            assert_eq!(of_image(image), release, "{image}");
        }
    }

    #[test]
    fn only_a_release_that_is_known_to_have_http_is_probed_by_it() {
        assert!(has_http(Some((26, 5))) && has_http(Some((25, 11))));
        assert!(!has_http(Some((25, 5))) && !has_http(Some((24, 11))) && !has_http(None));
    }
}
