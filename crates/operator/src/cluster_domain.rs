//! The DNS domain of the Kubernetes cluster, read from the operator's own pod.

use std::path::Path;

use host::Host;

/// The default of Kubernetes.
const DEFAULT: &str = "cluster.local";

/// The domain in the `/etc/resolv.conf` of this pod.
pub(crate) fn of_this_pod(host: &Host) -> String {
    let resolv_conf = host.files().read_text(Path::new("/etc/resolv.conf"));
    parse(&resolv_conf.unwrap_or_default())
}

/// The domain in an `/etc/resolv.conf`: the kubelet writes `svc.<domain>` into its search list.
fn parse(resolv_conf: &str) -> String {
    let mut searched = resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("search "))
        .flat_map(str::split_whitespace);
    let domain = searched
        .find_map(|domain| domain.strip_prefix("svc."))
        .map(|domain| domain.trim_end_matches('.'));
    domain.filter(|domain| !domain.is_empty()).unwrap_or(DEFAULT).to_owned()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_domain_is_what_follows_svc() {
        assert_eq!(
            parse("nameserver 10.0.0.10\nsearch slinky.svc.k8s.lan svc.k8s.lan k8s.lan\n"),
            "k8s.lan"
        );
        for without in ["", "search example.org", "search svc."] {
            assert_eq!(parse(without), "cluster.local", "{without:?}");
        }
    }
}
