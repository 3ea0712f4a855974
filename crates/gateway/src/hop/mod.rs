//! The protocol between frontend and backend: authentication, the content of the first message, and the
//! encryption of the bytes.
//!
//! ```text
//! frontend                                   backend
//!   | first message: stamp, client, request    |    carried by the SYN if there is a Fast Open cookie
//!   |----------------------------------------->|    checks: key, replay; then connects to the origin
//!   |          second message: go, or confirm  |    leaves with the origin's first bytes, or after 5 ms
//!   |<-----------------------------------------|
//!   | records ...                  records ... |
//! ```
//!
//! The messages are those of Noise's `NNpsk0` with X25519, ChaCha20-Poly1305 and BLAKE2s. A peer without the
//! key can create neither message. Everything from the second message on has forward secrecy: a later theft
//! of the key does not reveal it. The first message is sealed under the key alone, because the backend has
//! not answered yet. An attacker could record it and send it again; [`replay`] detects that. The key pairs of
//! X25519 are used for some seconds ([`ephemeral`]); forward secrecy begins when both sides have erased
//! theirs. With a pair of keys on each side ([`pairs`]) the pattern is `IK`, and the first message is sealed
//! to the backend's public key.
//!
//! | file | content |
//! |---|---|
//! | [`key`] | the key, its file, several keys during a change |
//! | [`pairs`] | the alternative: a pair of keys on each side |
//! | [`opening`] | content of the first message |
//! | [`handshake`] | the two messages |
//! | [`ephemeral`] | key pairs that serve for more than one connection |
//! | `dial`, `answer` | exchanging the messages: the frontend's part, the backend's part |
//! | [`records`] | records, which carry the bytes after the messages |
//! | [`stamp`] | identifies the run of the backend that a message is for, and a time in that run |
//! | [`replay`] | detection of replayed first messages |
//! | [`connection`] | transport of the hop: brisk's TCP, or the kernel's if the path carries nothing else |
//! | [`stream`] | an encrypted connection as a stream |
//!
//! Each message and each record is preceded by its length in two bytes. An empty record ends a direction. If
//! a direction ends without it, an attacker or a failure has ended the connection.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

pub(crate) mod answer;
pub mod connection;
pub(crate) mod dial;
pub mod ephemeral;
pub mod handshake;
pub mod key;
pub mod opening;
pub mod pairs;
pub mod records;
pub mod replay;
pub mod stamp;
pub mod stream;

pub use ephemeral::Ephemerals;
pub use handshake::Verdict;
pub use key::{HopKey, KeyError, KeyRing};
pub use opening::{Opening, Purpose};
pub use pairs::{PrivateKey, PublicKey, StaticKeys};
pub use replay::ReplayWindow;
pub use stamp::{BackendClock, Stamp};

/// Protection of the hop.
#[derive(Clone, Debug)]
pub enum Hop {
    /// Encrypted and authenticated by keys that both sides hold.
    Sealed(KeyRing),
    /// Encrypted and authenticated by a pair of keys on each side.
    Pairs(StaticKeys),
    /// Not encrypted, and open to every peer that reaches it: for loopback, and for networks with other
    /// protection.
    Plain,
}

impl Hop {
    /// Reads the key file and, if it has a private key, the other side's public keys in `peers`.
    ///
    /// # Errors
    /// If a file cannot be read, others may read or change it, or it holds no such key.
    pub fn load(key: &Path, peers: Option<&Path>) -> Result<Hop, KeyError> {
        Hop::parse(&key::read_secret(key)?, &key.display().to_string(), peers)
    }

    /// Like [`load`](Hop::load), with a key that came from `place`.
    ///
    /// # Errors
    /// Those of [`load`](Hop::load).
    pub fn parse(text: &str, place: &str, peers: Option<&Path>) -> Result<Hop, KeyError> {
        let is_pair =
            key::lines(text, place).next().is_some_and(|(_, line)| line.starts_with(pairs::PRIVATE));
        match (is_pair, peers) {
            (true, Some(peers)) => StaticKeys::read(text, place, peers).map(Hop::Pairs),
            (true, None) => Err(KeyError::Alone { place: place.to_owned() }),
            (false, Some(_)) => Err(KeyError::NoPair { place: place.to_owned() }),
            (false, None) => KeyRing::parse(text, place).map(Hop::Sealed),
        }
    }

    /// True if no frontend may connect: the list of public keys is empty.
    pub fn admits_nobody(&self) -> bool {
        matches!(self, Hop::Pairs(keys) if keys.first_peer().is_none())
    }

    /// Returns the number of keys in words, for the log.
    pub fn summary(&self) -> String {
        let count = |count: usize, name: &str| match count {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        match self {
            Hop::Plain => "none".to_owned(),
            Hop::Sealed(keys) => count(keys.iter().count(), "key"),
            Hop::Pairs(keys) => {
                format!("{}, {}", count(keys.own().count(), "pair"), count(keys.peers().len(), "peer key"))
            }
        }
    }

    /// Returns the labels of the other side's public keys, each once; empty without pairs of keys.
    pub fn labels(&self) -> BTreeSet<Arc<str>> {
        match self {
            Hop::Pairs(keys) => keys.labels(),
            Hop::Plain | Hop::Sealed(_) => BTreeSet::new(),
        }
    }

    /// True if both have the same keys with the same labels.
    pub fn has_keys_of(&self, other: &Hop) -> bool {
        match (self, other) {
            (Hop::Plain, Hop::Plain) => true,
            (Hop::Sealed(own), Hop::Sealed(others)) => {
                own.iter().map(HopKey::bytes).eq(others.iter().map(HopKey::bytes))
            }
            (Hop::Pairs(own), Hop::Pairs(others)) => {
                let pairs = own.own().map(PrivateKey::bytes).eq(others.own().map(PrivateKey::bytes));
                pairs && own.peers() == others.peers()
            }
            (Hop::Plain | Hop::Sealed(_) | Hop::Pairs(_), _) => false,
        }
    }
}

/// Longest first or second message, bytes: the description of the connection, the client's first bytes and
/// the overhead of encryption. The first two bytes of `GET`, `HEAD` or `POST`, read as a length, exceed this
/// limit, so such HTTP clients are rejected at once.
pub(crate) const LONGEST_MESSAGE: usize = 17 << 10;

/// Maximum number of a client's first bytes in a first message; the others follow after the answer. The SYN
/// and the nine segments after it carry the whole message, also with packets of 1,400 bytes. A backend
/// answers only a whole message, so a longer one would delay the others by a round trip.
pub(crate) const LONGEST_FIRST: usize = 12 << 10;

/// Length of the length field of messages and records, bytes.
pub(crate) const LENGTH: usize = 2;

/// Flag in the length of a first message: its key pair serves for several connections. Releases that do not
/// know the flag read a length above the limit, and reject the message.
const LASTING_FLAG: u16 = 1 << 15;
