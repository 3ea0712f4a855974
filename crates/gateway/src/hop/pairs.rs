//! Static keys: each gateway has its own pair, and the other side holds the public key.
//!
//! This is the alternative to one key that both hold. Nothing secret leaves a host, and an operator excludes
//! a frontend by removing its line from the backend's list.
//!
//! A gateway's own pairs are in the key file, as `private:` and 64 hexadecimal digits, the newest first. The
//! public keys of the other side are in another file, as `public:` and 64 digits on each line. A frontend
//! uses its newest pair and the first public key. A backend accepts every listed key, and answers with the
//! pair that the message was sealed to. Text after a public key is its label, the name of the frontend in the
//! backend's reports; several keys may have the same label.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::Zeroizing;

use super::key::{HopKey, KeyError, MAX_KEYS, digits, hexadecimal, lines, rights_of};

/// Prefix of a private key.
pub(super) const PRIVATE: &str = "private:";
/// Prefix of a public key.
const PUBLIC: &str = "public:";
/// Limit of public keys of the other side.
pub const MAX_PEERS: usize = 4096;

/// A private key of X25519.
#[derive(Clone)]
pub struct PrivateKey(HopKey);

/// The public half.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

/// A public key of the other side with its label; the default label is its fingerprint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerKey {
    key: PublicKey,
    label: Arc<str>,
}

/// The first bytes of a public key: enough to distinguish the keys of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint([u8; 4]);

/// A gateway's own pairs (at least one, the newest first), and the public keys of the other side. Without a
/// public key no peer is admitted.
#[derive(Clone, Debug)]
pub struct StaticKeys {
    own: Arc<[PrivateKey]>,
    peers: Arc<[PeerKey]>,
}

impl PrivateKey {
    /// Generates a key from the randomness of the operating system.
    ///
    /// # Errors
    /// If the system has none.
    pub fn generate() -> std::io::Result<PrivateKey> {
        HopKey::generate().map(PrivateKey)
    }

    /// Returns its public key.
    pub fn public(&self) -> PublicKey {
        let mut public = [0; 32];
        // This library always supports the curve.
        if let Some(mut curve) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
            curve.set(self.bytes());
            public.copy_from_slice(curve.pubkey());
        }
        PublicKey(public)
    }

    /// Returns the key as text for a key file. Keep it secret: anyone who reads it can impersonate this
    /// gateway.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{PRIVATE}{}", *self.0.reveal()))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

impl PublicKey {
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PeerKey {
    /// Returns a key with this label; without a label, with its fingerprint.
    fn new(key: PublicKey, label: &str) -> PeerKey {
        let label = match label {
            "" => Fingerprint::of(&key.0).to_string().into(),
            label => label.into(),
        };
        PeerKey { key, label }
    }
}

impl Fingerprint {
    /// Returns the fingerprint of a public key.
    pub(super) fn of(key: &[u8]) -> Fingerprint {
        let mut first = [0; 4];
        for (byte, of_key) in first.iter_mut().zip(key) {
            *byte = *of_key;
        }
        Fingerprint(first)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key-{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", *hexadecimal(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StaticKeys {
    /// Returns one pair with the public keys of its peers; `None` if there is no public key.
    pub fn of(own: PrivateKey, peers: Vec<PublicKey>) -> Option<StaticKeys> {
        let peers: Arc<[PeerKey]> = peers.into_iter().map(|key| PeerKey::new(key, "")).collect();
        (!peers.is_empty()).then(|| StaticKeys { own: [own].into(), peers })
    }

    /// Reads this side's pairs from a text that came from `place`, and the other side's public keys from a
    /// file.
    ///
    /// # Errors
    /// If one of them holds no key, too many or an invalid line; if anyone but the owner may change the file.
    pub(super) fn read(own: &str, place: &str, peers: &Path) -> Result<StaticKeys, KeyError> {
        let own = private_keys(own, place)?;
        let name = peers.display().to_string();
        let (_, mode) = rights_of(peers)?;
        if mode & 0o022 != 0 {
            return Err(KeyError::Writable { path: name, mode });
        }
        let text = std::fs::read_to_string(peers)
            .map_err(|error| KeyError::NoPeers { place: name.clone(), problem: error.to_string() })?;
        let peers = public_keys(&text, &name)?;
        Ok(StaticKeys { own: own.into(), peers: peers.into() })
    }

    /// Returns the newest pair, which a frontend uses.
    pub(super) fn newest(&self) -> &PrivateKey {
        // The list of pairs is never empty.
        &self.own[0]
    }

    /// Iterates over the pairs that messages may be sealed to.
    pub(super) fn own(&self) -> impl Iterator<Item = &PrivateKey> {
        self.own.iter()
    }

    /// Returns the backend's key, for a frontend; `None` if the list is empty.
    pub(super) fn first_peer(&self) -> Option<&PublicKey> {
        self.peers.first().map(|peer| &peer.key)
    }

    /// Returns the public keys of the other side.
    pub(super) fn peers(&self) -> &[PeerKey] {
        &self.peers
    }

    /// Returns the label of a public key of the other side. The search may take a variable time, because the
    /// list of keys is not secret.
    pub(super) fn label_of(&self, peer: &[u8]) -> Option<&Arc<str>> {
        self.peers.iter().find(|known| known.key.0 == peer).map(|known| &known.label)
    }

    /// Returns the labels of the other side, each once, in order.
    pub(super) fn labels(&self) -> BTreeSet<Arc<str>> {
        self.peers.iter().map(|peer| peer.label.clone()).collect()
    }
}

/// Parses the private keys in a text, the newest first.
///
/// # Errors
/// If there is none, too many, or an invalid line.
pub fn private_keys(text: &str, place: &str) -> Result<Vec<PrivateKey>, KeyError> {
    let malformed = |place, problem| KeyError::Malformed { place, problem };
    let mut keys = Vec::new();
    for (place, line) in lines(text, place) {
        let Some(rest) = line.strip_prefix(PRIVATE) else {
            return Err(malformed(place, "this line does not begin with private:, as others do"));
        };
        let bytes = digits(rest).map_err(|problem| malformed(place, problem))?;
        keys.push(PrivateKey(HopKey::new(*bytes)));
    }
    match keys.len() {
        0 => Err(malformed(place.to_owned(), "it has no private key")),
        1..=MAX_KEYS => Ok(keys),
        _ => Err(malformed(place.to_owned(), "it has more than 4 keys")),
    }
}

/// Parses the public keys in a text, with their labels. An empty list excludes every frontend.
fn public_keys(text: &str, place: &str) -> Result<Vec<PeerKey>, KeyError> {
    let refused = |place: String, problem: &str| KeyError::NoPeers { place, problem: problem.to_owned() };
    let mut keys = Vec::new();
    for (place, line) in lines(text, place) {
        let mut words = line.split_whitespace();
        let word = words.next().unwrap_or_default();
        let label = words.collect::<Vec<_>>().join(" ");
        let Some(rest) = word.strip_prefix(PUBLIC) else {
            return Err(refused(place, "this line does not begin with public:"));
        };
        let key = PublicKey(*digits(rest).map_err(|problem| refused(place, problem))?);
        keys.push(PeerKey::new(key, &label));
    }
    match keys.len() {
        0..=MAX_PEERS => Ok(keys),
        _ => Err(refused(place.to_owned(), "it has more than 4096 keys")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::hop::Hop;

    #[test]
    fn the_public_half_is_that_of_rfc_7748() {
        // Section 5.2: the first iteration, the scalar 9 at the base point 9.
        let keys = private_keys(&format!("private:09{}", "00".repeat(31)), "test").unwrap();
        let public = "public:422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
        assert_eq!(keys[0].public().to_string(), public);
    }

    #[test]
    fn key_without_label_is_named_by_its_fingerprint() {
        let (one, other) = ("1a2b3c4d".repeat(8), "ff".repeat(32));
        let text =
            format!("public:{one}\npublic:{other}  edge \t Rome  \npublic:{} edge Rome", "ab".repeat(32));
        let keys = public_keys(&text, "peers").unwrap();
        let labels: Vec<&str> = keys.iter().map(|key| &*key.label).collect();
        assert_eq!(labels, ["key-1a2b3c4d", "edge Rome", "edge Rome"]);
    }

    #[test]
    fn a_pair_is_read_with_the_keys_of_the_other_side() {
        let directory = std::env::temp_dir().join(format!("brisk-pairs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (own, peers) = (directory.join("key"), directory.join("peers"));
        let key = PrivateKey::generate().unwrap();
        let write = |path: &Path, text: &str, mode: u32| {
            std::fs::write(path, text).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        write(&own, &format!("# {}\n{}\n", key.public(), *key.reveal()), 0o600);
        write(&peers, &format!("{} the frontend in Rome\n", key.public()), 0o644);
        let error = |key: &Path, peers: Option<&Path>| Hop::load(key, peers).unwrap_err().to_string();
        let Ok(Hop::Pairs(keys)) = Hop::load(&own, Some(&peers)) else { panic!("they are read") };
        assert_eq!(keys.label_of(key.public().bytes()).map(|label| &**label), Some("the frontend in Rome"));
        assert_eq!(keys.label_of(&[1; 32]), None);
        assert_eq!(keys.newest().bytes(), key.bytes());
        assert!(error(&own, None).contains("--peer-keys"));

        write(&peers, &key.public().to_string(), 0o664);
        assert!(error(&own, Some(&peers)).contains("chmod 644"));
        write(&peers, "private:ab", 0o644);
        assert!(error(&own, Some(&peers)).contains("does not begin with public:"));
        write(&peers, "# nobody\n", 0o644);
        let nobody = Hop::load(&own, Some(&peers)).unwrap();
        assert!(nobody.admits_nobody() && !Hop::Pairs(keys.clone()).admits_nobody());
        assert_eq!(nobody.summary(), "1 pair, 0 peer keys");
        assert!(!nobody.has_keys_of(&Hop::Pairs(keys.clone())) && nobody.has_keys_of(&nobody));
        write(&own, &key.reveal(), 0o644);
        assert!(error(&own, Some(&peers)).contains("chmod 600"));
        write(&own, &"ab".repeat(32), 0o600);
        assert!(error(&own, Some(&peers)).contains("is not a key pair"));
        write(&own, &format!("{}\n{}\n", *key.reveal(), "ab".repeat(32)), 0o600);
        assert!(error(&own, Some(&peers)).contains("line 2"));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
