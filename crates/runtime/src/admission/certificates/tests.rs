use super::*;

const NAME: &str = "slurm-operator-webhook.slinky.svc";

fn start() -> Timestamp {
    "2026-11-17T12:00:00Z".parse().unwrap()
}

fn days(days: i64) -> Timestamp {
    start().checked_add((days * 24).hours()).unwrap()
}

fn renewed(now: Timestamp, stored: &Content, introduced: bool) -> Content {
    renew(NAME, now, stored, None, introduced).unwrap()
}

fn first() -> Content {
    renewed(start(), &Content::default(), false)
}

fn serving(content: &Content) -> Pair {
    content.serving.clone().unwrap()
}

/// Whether an API server that was told these certificates accepts this one.
fn is_accepted(pair: &Pair, trusted: &str, now: Timestamp) -> bool {
    let roots: Vec<_> = CertificateDer::pem_slice_iter(trusted.as_bytes()).flatten().collect();
    let own = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    roots.contains(&own) && pair.is_valid(NAME, "", now)
}

#[test]
fn a_new_certificate_is_valid_at_once_for_the_service_alone_and_nothing_is_written_again() {
    let content = first();
    let pair = serving(&content);
    assert!(is_accepted(&pair, &content.trusted, start()));
    let behind = start().checked_sub(11.hours()).unwrap();
    assert!(is_accepted(&pair, &content.trusted, behind), "a clock that is behind");
    assert!(!pair.is_valid("another.slinky.svc", &content.trusted, start()));
    assert!(!pair.is_valid(NAME, &content.trusted, days(LIFE + 1)));
    assert_eq!(renewed(start(), &content, false), content);
    assert_eq!(renewed(days(LIFE - RENEWAL - 1), &content, true), content);
}

#[test]
fn a_renewed_certificate_is_trusted_before_it_is_served_and_the_old_one_after() {
    let old = first();
    let now = days(LIFE - RENEWAL + 1);
    let introducing = renewed(now, &old, false);
    assert_eq!(introducing.serving, old.serving);
    let next = introducing.next.clone().unwrap();
    for pair in [&next, &serving(&old)] {
        assert!(is_accepted(pair, &introducing.trusted, now));
    }
    assert_eq!(
        renewed(now, &introducing, false),
        introducing,
        "it waits for API servers"
    );
    let renewed_content = renewed(now, &introducing, true);
    assert_eq!(renewed_content.serving, Some(next));
    assert_eq!(renewed_content.next, None);
    for pair in [&serving(&renewed_content), &serving(&old)] {
        assert!(
            is_accepted(pair, &renewed_content.trusted, now),
            "another replica is slower"
        );
    }
    assert_eq!(renewed(now, &renewed_content, true), renewed_content);
}

#[test]
fn the_bundle_does_not_grow_with_the_years() {
    let (mut content, mut now) = (first(), start());
    for _ in 0..20 {
        now = now.checked_add(((LIFE - RENEWAL + 1) * 24).hours()).unwrap();
        content = renewed(now, &content, false);
        content = renewed(now, &content, true);
    }
    assert_eq!(content.trusted.matches("BEGIN CERTIFICATE").count(), TRUSTED);
    assert!(is_accepted(&serving(&content), &content.trusted, now));
}

#[test]
fn an_expired_certificate_is_replaced_at_once() {
    let old = first();
    let now = days(LIFE + 10);
    let content = renewed(now, &old, false);
    assert_ne!(content.serving, old.serving);
    assert!(is_accepted(&serving(&content), &content.trusted, now));
}

#[test]
fn a_secret_that_was_deleted_or_damaged_gets_the_certificate_back_that_is_trusted() {
    let good = first();
    let last = serving(&good);
    let mut other_key = good.clone();
    other_key.serving.as_mut().unwrap().key = serving(&first()).key;
    let nonsense = Content {
        trusted: "nonsense".to_owned(),
        serving: Some(Pair {
            certificate: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
            key: String::new(),
        }),
        next: None,
    };
    for damaged in [Content::default(), other_key, nonsense] {
        let content = renew(NAME, start(), &damaged, Some(&last), false).unwrap();
        assert_eq!(content.serving.as_ref(), Some(&last));
        assert!(is_accepted(&last, &content.trusted, start()));
    }
}

#[test]
fn an_expired_memory_is_not_written_back() {
    let last = serving(&first());
    let now = days(LIFE + 1);
    let content = renew(NAME, now, &Content::default(), Some(&last), false).unwrap();
    assert!(serving(&content).is_valid(NAME, "", now));
}

#[test]
fn the_secret_keeps_everything() {
    let mut content = renewed(days(LIFE - RENEWAL + 1), &first(), false);
    for _ in 0..2 {
        let secret = Secret {
            data: Some(content.data()),
            ..Secret::default()
        };
        assert_eq!(Content::of(&secret), content);
        content.next = None;
    }
}

#[test]
fn a_certificate_of_another_authority_is_kept_while_it_is_valid() {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(parameters, key);
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new([NAME.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap();
    let stored = Content {
        trusted: authority.pem(),
        serving: Some(Pair {
            certificate: leaf.pem(),
            key: leaf_key.serialize_pem(),
        }),
        next: None,
    };
    let content = renewed(start(), &stored, false);
    assert_eq!(content.serving, stored.serving);
    let trusted: Vec<_> = CertificateDer::pem_slice_iter(content.trusted.as_bytes())
        .flatten()
        .collect();
    assert!(trusted.contains(authority.der()), "{trusted:?}");
}
