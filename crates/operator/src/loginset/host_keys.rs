//! SSH host keys in OpenSSH's format. They are generated once, since SSH clients remember them.

use aws_lc_rs::{
    encoding::{AsBigEndian as _, AsDer as _, Curve25519SeedBin, EcPrivateKeyBin, Pkcs8V1Der},
    error::Unspecified,
    rsa::{self, KeySize},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pem::{EncodeConfig, LineEnding, Pem};
use yasna::{ASN1Result, parse_der};

/// The kinds of keys, in the order in which pods mount them.
pub(super) const KINDS: [&str; 3] = ["rsa", "ed25519", "ecdsa"];

/// The file of a private key, which is also its entry in the Secret.
pub(super) fn private_file(kind: &str) -> String {
    format!("ssh_host_{kind}_key")
}

/// The file of a public key.
pub(super) fn public_file(kind: &str) -> String {
    format!("{}.pub", private_file(kind))
}

/// The line length of `ssh-keygen`.
const LINE: usize = 70;
/// The private part is padded to a multiple of this.
const BLOCK: usize = 8;

/// Generates keys of all kinds and returns their files. RSA takes a second or more.
pub(super) fn generate() -> Result<Vec<(String, Vec<u8>)>, Unspecified> {
    let keys = [
        ("rsa", rsa_key()?),
        ("ed25519", ed25519_key()?),
        ("ecdsa", ecdsa_key()?),
    ];
    Ok(keys
        .into_iter()
        .flat_map(|(kind, key)| {
            [
                (private_file(kind), key.private_text().into_bytes()),
                (public_file(kind), key.public_text().into_bytes()),
            ]
        })
        .collect())
}

/// The parts of a key's encodings.
struct HostKey {
    algorithm: &'static str,
    /// What follows the algorithm in the public key.
    public: Vec<u8>,
    /// What follows the algorithm in the private key.
    private: Vec<u8>,
}

impl HostKey {
    fn public_blob(&self) -> Vec<u8> {
        let mut blob = Vec::new();
        put_string(&mut blob, self.algorithm.as_bytes());
        blob.extend(&self.public);
        blob
    }

    /// One line in the format of authorized_keys.
    fn public_text(&self) -> String {
        format!("{} {}\n", self.algorithm, STANDARD.encode(self.public_blob()))
    }

    /// The format of OpenSSH's PROTOCOL.key, without a passphrase.
    fn private_text(&self) -> String {
        let mut secret = Vec::new();
        // Two equal numbers, by which a reader checks the decryption.
        secret.extend([0; 8]);
        put_string(&mut secret, self.algorithm.as_bytes());
        secret.extend(&self.private);
        put_string(&mut secret, b"");
        let padding = secret.len().next_multiple_of(BLOCK) - secret.len();
        secret.extend((1..=u8::MAX).take(padding));
        let mut all = b"openssh-key-v1\0".to_vec();
        for word in [b"none".as_slice(), b"none", b""] {
            put_string(&mut all, word);
        }
        all.extend(1_u32.to_be_bytes());
        put_string(&mut all, &self.public_blob());
        put_string(&mut all, &secret);
        let format = EncodeConfig::new().set_line_ending(LineEnding::LF).set_line_wrap(LINE);
        pem::encode_config(&Pem::new("OPENSSH PRIVATE KEY", all), format)
    }
}

fn ed25519_key() -> Result<HostKey, Unspecified> {
    let pair = Ed25519KeyPair::generate()?;
    let seed: Curve25519SeedBin<'_> = pair.seed()?.as_be_bytes()?;
    let point = pair.public_key().as_ref();
    let mut public = Vec::new();
    put_string(&mut public, point);
    let mut private = public.clone();
    put_string(&mut private, &[seed.as_ref(), point].concat());
    Ok(HostKey {
        algorithm: "ssh-ed25519",
        public,
        private,
    })
}

fn ecdsa_key() -> Result<HostKey, Unspecified> {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)?;
    let number: EcPrivateKeyBin<'_> = pair.private_key().as_be_bytes()?;
    let mut public = Vec::new();
    put_string(&mut public, b"nistp256");
    put_string(&mut public, pair.public_key().as_ref());
    let mut private = public.clone();
    put_number(&mut private, number.as_ref());
    Ok(HostKey {
        algorithm: "ecdsa-sha2-nistp256",
        public,
        private,
    })
}

fn rsa_key() -> Result<HostKey, Unspecified> {
    // The default of `ssh-keygen`. More bits would take a busy machine most of a minute.
    let pair = rsa::KeyPair::generate(KeySize::Rsa3072)?;
    let der: Pkcs8V1Der<'_> = pair.as_der()?;
    let numbers = rsa_numbers(der.as_ref()).map_err(|_| Unspecified)?;
    let [modulus, exponent, secret, first, second, inverse] = &numbers;
    let (mut public, mut private) = (Vec::new(), Vec::new());
    for number in [exponent, modulus] {
        put_string(&mut public, number);
    }
    for number in [modulus, exponent, secret, inverse, first, second] {
        put_string(&mut private, number);
    }
    Ok(HostKey {
        algorithm: "ssh-rsa",
        public,
        private,
    })
}

fn put_string(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(bytes);
}

/// Appends a positive number without leading zeros, except for one if it would look negative.
fn put_number(to: &mut Vec<u8>, bytes: &[u8]) {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let digits = bytes.get(zeros..).unwrap_or_default();
    let sign = digits.first().is_some_and(|first| *first >= 0x80).then_some(0);
    put_string(to, &sign.into_iter().chain(digits.iter().copied()).collect::<Vec<u8>>());
}

/// Reads modulus, both exponents, both primes and the coefficient from PKCS#8: an RSAPrivateKey (RFC 8017, A.1.2) in an octet
/// string. Numbers have the same bytes in DER and in SSH.
fn rsa_numbers(pkcs8: &[u8]) -> ASN1Result<[Vec<u8>; 6]> {
    let key = parse_der(pkcs8, |reader| {
        reader.read_sequence(|parts| {
            let _version = parts.next().read_u8()?;
            let _algorithm = parts.next().read_der()?;
            parts.next().read_bytes()
        })
    })?;
    parse_der(&key, |reader| {
        reader.read_sequence(|parts| {
            let mut next = || parts.next().read_bigint_bytes().map(|(number, _)| number);
            let _version = next()?;
            let [modulus, exponent, secret, first, second] = [next()?, next()?, next()?, next()?, next()?];
            let _exponents = [next()?, next()?];
            Ok([modulus, exponent, secret, first, second, next()?])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_leading_zeros_and_no_sign() {
        let put = |bytes: &[u8]| {
            let mut to = Vec::new();
            put_number(&mut to, bytes);
            to
        };
        assert_eq!(put(&[0, 0, 1]), [0, 0, 0, 1, 1]);
        assert_eq!(put(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        assert_eq!(put(&[]), [0, 0, 0, 0]);
    }

    #[test]
    fn invalid_keys_are_rejected() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x82, 0xff], &[0x30, 0x03, 0x02, 0x01, 0x00]] {
            assert!(rsa_numbers(bytes).is_err());
        }
    }

    /// The files have the length of upstream's. A test on the cluster logs in with them.
    #[test]
    fn every_kind_of_key_is_generated() {
        let keys: std::collections::BTreeMap<String, Vec<u8>> = generate().unwrap().into_iter().collect();
        assert_eq!(keys.len(), 6);
        for (kind, algorithm) in KINDS.iter().zip(["ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256"]) {
            let public = String::from_utf8(keys[&public_file(kind)].clone()).unwrap();
            assert!(public.starts_with(&format!("{algorithm} AAAA")), "{public}");
            let private = String::from_utf8(keys[&private_file(kind)].clone()).unwrap();
            let body: String = private.lines().filter(|line| !line.starts_with('-')).collect();
            let bytes = STANDARD.decode(body).unwrap();
            assert!(bytes.starts_with(b"openssh-key-v1\0"));
            assert!(private.lines().all(|line| line.len() <= LINE));
        }
        assert_eq!(keys["ssh_host_ed25519_key"].len(), 387);
        assert_eq!(keys["ssh_host_ed25519_key.pub"].len(), 81);
    }
}
