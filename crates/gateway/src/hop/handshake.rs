//! The two messages of Noise that begin a connection of the hop.
//!
//! ```text
//! NNpsk0, one key on both sides      IK, a pair of keys on each
//! -> psk, e                          -> e, es, s, ss     the opening and the client's first bytes, encrypted
//! <- e, ee                           <- e, ee, se        the verdict of the backend
//! ```
//!
//! With one key, `e` is either a key pair of this connection alone, or a nonce with a key pair that serves
//! for several connections ([`super::ephemeral`]). These are two protocols; the backend's answers report
//! whether it accepts the second.
//!
//! A wrong key, a changed byte and a message from another program cause the same error,
//! [`HandshakeError::NotOurs`]. Only a frontend's key that is not on the backend's list causes another error,
//! for the log.
//!
//! A backend tries the keys of its ring one by one. Each attempt costs two hashes and one authenticated
//! decryption, but no operation on the elliptic curve, so a flood of garbage is cheap to reject. With pairs
//! it costs one multiplication on the curve for each pair of the backend.

use std::sync::{Arc, LazyLock};

use snow::params::NoiseParams;

use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::ephemeral::{Ephemerals, Lasting, primitives};
use super::key::{HopKey, KeyRing};
use super::pairs::{Fingerprint, PrivateKey, StaticKeys};
use super::records::Sealing;
use super::replay::MessageId;
use super::stamp::Stamp;

/// Noise's name of the usual protocol.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The protocol with key pairs that serve for several connections. `25519nonce` is brisk's own variant of the
/// curve.
const NOISE_LASTING: &str = "Noise_NNpsk0_25519nonce_ChaChaPoly_BLAKE2s";
/// The protocol with static keys.
const NOISE_PAIRS: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// Noise's prologue. It identifies the meaning of the messages; both sides must have the same.
const PROLOGUE: &[u8] = b"brisk hop 1";
/// Bytes that encryption adds to a message: a public key and a tag.
pub const MESSAGE_OVERHEAD: usize = 32 + 16;
/// Bytes that static keys add to the first message: the frontend's public key and a tag.
pub const PAIR_OVERHEAD: usize = 32 + 16;

/// Error of the handshake between two gateways.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other side does not hold the key, or the message was changed on the path.
    #[error("the other side does not hold the key; compare the key files of both gateways")]
    NotOurs,
    /// The message is sealed to this side's key, but the sender's key is not on the list.
    #[error("{0} is not among the public keys of the other side")]
    UnknownKey(Fingerprint),
    /// The Noise library failed. It cannot fail with messages as short as those of the callers.
    #[error("the message cannot be encrypted")]
    Library,
}

/// A backend's answer to an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The backend is connected to the origin, which has received the client's first bytes.
    Go,
    /// The backend cannot tell whether the opening is fresh. The frontend must send any record; then the
    /// backend acts on the opening.
    Confirm,
    /// The origin could not be reached and has received nothing.
    OriginUnreachable,
    /// The backend may not connect to the requested origin.
    Forbidden,
    /// The frontend has reached its limit of connections.
    Limited,
}

impl Verdict {
    /// Length of the answer, bytes: the verdict, and the stamp of the backend.
    pub(super) const ANSWER: usize = 1 + Stamp::LENGTH;

    /// Encodes the answer.
    pub(super) fn answer(self, stamp: Stamp) -> [u8; Self::ANSWER] {
        let mut answer = [self.byte(); Self::ANSWER];
        answer[1..].copy_from_slice(&stamp.encode());
        answer
    }

    /// Decodes an answer.
    pub(super) fn from_answer(answer: &[u8]) -> Result<(Verdict, Stamp), HandshakeError> {
        let (verdict, stamp) = answer.split_first().ok_or(HandshakeError::NotOurs)?;
        let verdict = Verdict::from_byte(*verdict).ok_or(HandshakeError::NotOurs)?;
        let stamp = stamp.try_into().map_err(|_| HandshakeError::NotOurs)?;
        Ok((verdict, Stamp::decode(stamp)))
    }

    pub(super) fn byte(self) -> u8 {
        match self {
            Verdict::Go => 0,
            Verdict::Confirm => 1,
            Verdict::OriginUnreachable => 2,
            Verdict::Forbidden => 3,
            Verdict::Limited => 4,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Verdict> {
        use Verdict::{Confirm, Forbidden, Go, Limited, OriginUnreachable};
        [Go, Confirm, OriginUnreachable, Forbidden, Limited]
            .into_iter()
            .find(|verdict| verdict.byte() == byte)
    }
}

/// The frontend's state between the first message and the answer.
#[derive(Debug)]
pub struct Initiator(Box<HandshakeState>);

impl Initiator {
    /// Seals the first message under `key`.
    ///
    /// # Errors
    /// [`HandshakeError::Library`] if `payload` is longer than a Noise message, 65 kB.
    pub fn begin(key: &HopKey, payload: &[u8]) -> Result<(Initiator, Vec<u8>), HandshakeError> {
        Initiator::start(builder(key).and_then(Builder::build_initiator), payload)
    }

    /// Like [`begin`](Initiator::begin), with the current key pair.
    ///
    /// # Errors
    /// Those of [`begin`](Initiator::begin); an error if the operating system has no randomness.
    pub fn begin_lasting(
        key: &HopKey,
        own: &Arc<Ephemerals>,
        payload: &[u8],
    ) -> Result<(Initiator, Vec<u8>), HandshakeError> {
        Initiator::start(lasting_builder(key, own).and_then(Builder::build_initiator), payload)
    }

    /// Seals the first message to the first public key of `keys`.
    ///
    /// # Errors
    /// Those of [`begin`](Initiator::begin).
    pub fn begin_with_pair(
        keys: &StaticKeys,
        payload: &[u8],
    ) -> Result<(Initiator, Vec<u8>), HandshakeError> {
        let peer = keys.first_peer().ok_or(HandshakeError::NotOurs)?;
        let to_peer = |builder: Builder<'_>| builder.remote_public_key(peer.bytes())?.build_initiator();
        Initiator::start(pair_builder(keys.newest()).and_then(to_peer), payload)
    }

    fn start(
        state: Result<HandshakeState, snow::Error>,
        payload: &[u8],
    ) -> Result<(Initiator, Vec<u8>), HandshakeError> {
        let mut state = state.map_err(ours)?;
        let message = write(&mut state, payload)?;
        Ok((Initiator(Box::new(state)), message))
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// [`HandshakeError::NotOurs`] if it is not authentic.
    pub fn finish(mut self, answer: &[u8]) -> Result<(Sealing, Verdict, Stamp), HandshakeError> {
        let (verdict, stamp) = Verdict::from_answer(&read(&mut self.0, answer)?)?;
        Ok((Sealing::new(self.0.into_transport_mode().map_err(ours)?), verdict, stamp))
    }
}

/// The backend's state between the first message and its answer.
#[derive(Debug)]
pub struct Responder(Box<HandshakeState>);

/// An authentic first message. [`replay`](super::replay) decides whether it is fresh.
#[derive(Debug)]
pub struct FirstMessage {
    /// Seals the answer.
    pub responder: Responder,
    /// Identifies the message.
    pub id: MessageId,
    /// Content.
    pub payload: Zeroizing<Vec<u8>>,
    /// The label of the frontend's key, if it has its own.
    pub frontend: Option<Arc<str>>,
}

impl Responder {
    /// Opens a first message with the key of `keys` that it was sealed with.
    ///
    /// # Errors
    /// [`HandshakeError::NotOurs`] if no key fits.
    pub fn accept(keys: &KeyRing, message: &[u8]) -> Result<FirstMessage, HandshakeError> {
        let states = keys.iter().map(|key| builder(key).and_then(Builder::build_responder));
        Responder::first_that_fits(states, message)
    }

    /// Like [`accept`](Responder::accept), for a frontend whose key pair serves for several connections. The
    /// answer uses the current pair of `own`.
    ///
    /// # Errors
    /// Those of [`accept`](Responder::accept).
    pub fn accept_lasting(
        keys: &KeyRing,
        own: &Arc<Ephemerals>,
        message: &[u8],
    ) -> Result<FirstMessage, HandshakeError> {
        let state = |key| lasting_builder(key, own).and_then(Builder::build_responder);
        Responder::first_that_fits(keys.iter().map(state), message)
    }

    /// Opens a first message with the pair of `keys` that it was sealed to. The sender's key must be on the
    /// list.
    ///
    /// # Errors
    /// [`HandshakeError::NotOurs`] if the message was sealed to another pair, [`HandshakeError::UnknownKey`]
    /// if the sender's key is not on the list.
    pub fn accept_with_pair(keys: &StaticKeys, message: &[u8]) -> Result<FirstMessage, HandshakeError> {
        let states = keys.own().map(|own| pair_builder(own).and_then(Builder::build_responder));
        let opened = Responder::first_that_fits(states, message)?;
        let from = opened.responder.0.get_remote_static().ok_or(HandshakeError::NotOurs)?;
        match keys.label_of(from).cloned() {
            Some(label) => Ok(FirstMessage { frontend: Some(label), ..opened }),
            None => Err(HandshakeError::UnknownKey(Fingerprint::of(from))),
        }
    }

    fn first_that_fits(
        states: impl Iterator<Item = Result<HandshakeState, snow::Error>>,
        message: &[u8],
    ) -> Result<FirstMessage, HandshakeError> {
        let (id, _) = message.split_first_chunk().ok_or(HandshakeError::NotOurs)?;
        for state in states {
            let mut state = state.map_err(ours)?;
            if let Ok(payload) = read(&mut state, message) {
                let responder = Responder(Box::new(state));
                return Ok(FirstMessage { responder, id: *id, payload, frontend: None });
            }
        }
        Err(HandshakeError::NotOurs)
    }

    /// Seals the answer.
    ///
    /// # Errors
    /// [`HandshakeError::Library`] in theory only, because an answer is short.
    pub fn finish(mut self, verdict: Verdict, stamp: Stamp) -> Result<(Sealing, Vec<u8>), HandshakeError> {
        let answer = write(&mut self.0, &verdict.answer(stamp))?;
        Ok((Sealing::new(self.0.into_transport_mode().map_err(ours)?), answer))
    }
}

/// The protocols, parsed once.
static ONE_KEY: LazyLock<NoiseParams> = LazyLock::new(|| params(NOISE));
static LASTING: LazyLock<NoiseParams> =
    LazyLock::new(|| NoiseParams { name: NOISE_LASTING.to_owned(), ..params(NOISE) });
static PAIRS: LazyLock<NoiseParams> = LazyLock::new(|| params(NOISE_PAIRS));

fn params(name: &str) -> NoiseParams {
    name.parse().expect("the library supports the protocols named at the top of this file")
}

fn builder(key: &HopKey) -> Result<Builder<'_>, snow::Error> {
    let builder = Builder::with_resolver(ONE_KEY.clone(), Box::new(primitives()));
    builder.prologue(PROLOGUE)?.psk(0, key.bytes())
}

fn lasting_builder<'a>(key: &'a HopKey, own: &Arc<Ephemerals>) -> Result<Builder<'a>, snow::Error> {
    let builder = Builder::with_resolver(LASTING.clone(), Box::new(Lasting(own.clone())));
    builder.prologue(PROLOGUE)?.psk(0, key.bytes())
}

fn pair_builder(own: &PrivateKey) -> Result<Builder<'_>, snow::Error> {
    let builder = Builder::with_resolver(PAIRS.clone(), Box::new(primitives()));
    builder.prologue(PROLOGUE)?.local_private_key(own.bytes())
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let mut message = vec![0; payload.len() + MESSAGE_OVERHEAD + PAIR_OVERHEAD];
    let length = state.write_message(payload, &mut message).map_err(ours)?;
    message.truncate(length);
    Ok(message)
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Zeroizing<Vec<u8>>, HandshakeError> {
    let mut payload = Zeroizing::new(vec![0; message.len()]);
    let length = state.read_message(message, &mut payload).map_err(|_| HandshakeError::NotOurs)?;
    payload.truncate(length);
    Ok(payload)
}

fn ours(_: snow::Error) -> HandshakeError {
    HandshakeError::Library
}

#[cfg(test)]
mod released;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hop::ephemeral;

    const STAMP: Stamp = Stamp { epoch: 3, at: 4, accepts_lasting: true };
    const LIFETIME: Duration = ephemeral::USUAL_LIFETIME;
    /// Bytes that encryption adds to a message with key pairs that serve for several connections.
    const LASTING_OVERHEAD: usize = ephemeral::PUBLIC + 16;

    fn key(byte: u8) -> HopKey {
        HopKey::new([byte; 32])
    }

    fn ring(keys: &[u8]) -> KeyRing {
        let lines: Vec<String> = keys.iter().map(|byte| key(*byte).reveal().to_string()).collect();
        KeyRing::parse(&lines.join("\n"), "test").unwrap()
    }

    #[test]
    fn two_messages_make_a_sealing_on_both_sides() {
        let (initiator, first) = Initiator::begin(&key(1), b"request").unwrap();
        assert_eq!(first.len(), 7 + MESSAGE_OVERHEAD);
        assert!(!first.windows(7).any(|window| window == b"request"));
        let message = Responder::accept(&ring(&[2, 1]), &first).unwrap();
        assert_eq!((&message.payload[..], &message.id[..]), (&b"request"[..], &first[..16]));
        let (mut backend, answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
        let (mut frontend, verdict, stamp) = initiator.finish(&answer).unwrap();
        assert_eq!((verdict, stamp), (Verdict::Go, STAMP));
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        backend.seal(b"answer", &mut wire).unwrap();
        frontend.open(&wire[2..], &mut plain).unwrap();
        assert_eq!(plain, b"answer");
    }

    #[test]
    fn two_connections_of_the_same_pairs_have_no_key_in_common() {
        let [front, back] = [(); 2].map(|()| Arc::new(Ephemerals::new(LIFETIME)));
        let connection = || {
            let (initiator, first) = Initiator::begin_lasting(&key(1), &front, b"request").unwrap();
            assert_eq!(first.len(), 7 + LASTING_OVERHEAD);
            let message = Responder::accept_lasting(&ring(&[2, 1]), &back, &first).unwrap();
            assert_eq!((&message.payload[..], &message.id[..]), (&b"request"[..], &first[..16]));
            let (mut backend, answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
            let (mut frontend, verdict, stamp) = initiator.finish(&answer).unwrap();
            assert_eq!((verdict, stamp), (Verdict::Go, STAMP));
            let (mut there, mut back, mut plain) = (Vec::new(), Vec::new(), Vec::new());
            frontend.seal(b"more", &mut there).unwrap();
            backend.seal(b"answer", &mut back).unwrap();
            backend.open(&there[2..], &mut plain).unwrap();
            frontend.open(&back[2..], &mut plain).unwrap();
            assert_eq!(plain, b"moreanswer");
            [first, answer, there, back]
        };
        let (one, other) = (connection(), connection());
        let public = ephemeral::PUBLIC - 32..ephemeral::PUBLIC;
        for said in 0..2 {
            assert_eq!(one[said][public.clone()], other[said][public.clone()], "the pair is the same");
            assert_ne!(one[said][..24], other[said][..24], "the nonce differs");
            assert_ne!(one[said][public.end..], other[said][public.end..], "the sealed bytes differ");
        }
        assert!(one[2] != other[2] && one[3] != other[3], "the records differ");
        // A message of one connection and the answer of another do not match.
        let (initiator, _) = Initiator::begin_lasting(&key(1), &front, b"request").unwrap();
        assert_eq!(initiator.finish(&one[1]).unwrap_err(), HandshakeError::NotOurs);
    }

    #[test]
    fn any_changed_byte_of_the_kind_with_a_nonce_is_refused_on_either_side() {
        let [front, back] = [(); 2].map(|()| Arc::new(Ephemerals::new(LIFETIME)));
        let (_, first) = Initiator::begin_lasting(&key(1), &front, b"request").unwrap();
        let accept =
            |keys: &[u8], message: &[u8]| Responder::accept_lasting(&ring(keys), &back, message).is_ok();
        assert!(accept(&[1], &first) && !accept(&[2, 3], &first));
        assert!(front.holds_one() && !back.holds_one(), "no pair is created for a peer that gets no answer");
        assert!(Responder::accept(&ring(&[1]), &first).is_err(), "the two kinds are different protocols");
        let (_, other) = Initiator::begin(&key(1), b"request").unwrap();
        assert!(!accept(&[1], &other));
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 0x80;
            assert!(!accept(&[1], &changed) && !accept(&[1], &first[..at]), "byte {at}");
        }
        for at in 0..LASTING_OVERHEAD + Verdict::ANSWER {
            let (initiator, first) = Initiator::begin_lasting(&key(1), &front, b"request").unwrap();
            let message = Responder::accept_lasting(&ring(&[1]), &back, &first).unwrap();
            let (_, mut answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
            answer[at] ^= 1;
            assert!(initiator.finish(&answer).is_err(), "byte {at}");
        }
    }

    fn pairs() -> (PrivateKey, PrivateKey) {
        (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap())
    }

    fn with_pair(own: &PrivateKey, peer: &PrivateKey) -> StaticKeys {
        StaticKeys::of(own.clone(), vec![peer.public()]).unwrap()
    }

    #[test]
    fn pairs_of_keys_make_a_sealing_too() {
        let (front, back) = pairs();
        let (initiator, first) = Initiator::begin_with_pair(&with_pair(&front, &back), b"request").unwrap();
        assert_eq!(first.len(), 7 + MESSAGE_OVERHEAD + PAIR_OVERHEAD);
        let message = Responder::accept_with_pair(&with_pair(&back, &front), &first).unwrap();
        assert_eq!(&message.payload[..], b"request");
        let (mut backend, answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
        let (mut frontend, verdict, _) = initiator.finish(&answer).unwrap();
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        backend.seal(b"answer", &mut wire).unwrap();
        frontend.open(&wire[2..], &mut plain).unwrap();
        assert_eq!((verdict, &plain[..]), (Verdict::Go, &b"answer"[..]));
    }

    #[test]
    fn unlisted_peer_and_wrong_recipient_are_refused() {
        let ((front, back), (stranger, _)) = (pairs(), pairs());
        let say = |keys: &StaticKeys| Initiator::begin_with_pair(keys, b"request").unwrap().1;
        let backend = with_pair(&back, &front);
        let accept = |first: &[u8]| Responder::accept_with_pair(&backend, first).map(drop);
        let good = say(&with_pair(&front, &back));
        assert_eq!(accept(&good), Ok(()));
        let unknown = HandshakeError::UnknownKey(Fingerprint::of(stranger.public().bytes()));
        assert_eq!(accept(&say(&with_pair(&stranger, &back))), Err(unknown));
        assert_eq!(accept(&say(&with_pair(&front, &stranger))), Err(HandshakeError::NotOurs));
        let (_, under_one_key) = Initiator::begin(&key(1), b"request").unwrap();
        assert_eq!(accept(&under_one_key), Err(HandshakeError::NotOurs));
        assert!(Responder::accept(&ring(&[1]), &good).is_err());
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 0x40;
            assert!(accept(&changed).is_err() && accept(&good[..at]).is_err(), "byte {at}");
        }
        // A backend without the private key cannot answer.
        let (initiator, first) = Initiator::begin_with_pair(&with_pair(&front, &back), b"x").unwrap();
        let message = Responder::accept_with_pair(&backend, &first).unwrap();
        let (_, mut answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
        answer[40] ^= 1;
        assert!(initiator.finish(&answer).is_err());
    }

    #[test]
    fn another_key_and_any_changed_byte_are_refused_on_either_side() {
        let (_, first) = Initiator::begin(&key(1), b"request").unwrap();
        assert_eq!(Responder::accept(&ring(&[2, 3]), &first).unwrap_err(), HandshakeError::NotOurs);
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 0x80;
            assert!(Responder::accept(&ring(&[1]), &changed).is_err(), "byte {at}");
            assert!(Responder::accept(&ring(&[1]), &first[..at]).is_err(), "cut at {at}");
        }
        let answer_to = |at: Option<usize>| {
            let (initiator, first) = Initiator::begin(&key(1), b"request").unwrap();
            let message = Responder::accept(&ring(&[1]), &first).unwrap();
            let (_, mut answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
            if let Some(byte) = at.and_then(|at| answer.get_mut(at)) {
                *byte ^= 1;
            }
            initiator.finish(&answer).is_ok()
        };
        assert!(answer_to(None));
        for at in 0..MESSAGE_OVERHEAD + Verdict::ANSWER {
            assert!(!answer_to(Some(at)), "byte {at}");
        }
    }

    /// Runs a million mutations with `BRISK_MUTATIONS=1000000 cargo test --release -p brisk-gateway mutated`.
    #[test]
    fn mutated_and_truncated_first_messages_are_refused_without_a_panic() {
        let count =
            std::env::var("BRISK_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(5_000);
        let (keys, mut state) = (ring(&[1, 2, 3, 4]), 0x9e37_79b9_7f4a_7c15_u64);
        let mut draw = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (_, first) = Initiator::begin(&key(1), &[7; 200]).unwrap();
        for n in 0..count {
            let mut changed = first[..1 + draw(first.len())].to_vec();
            for _ in 0..1 + draw(4) {
                let at = draw(changed.len());
                changed[at] = changed[at].wrapping_add(1 + draw(255) as u8);
            }
            // Two changes of one byte can cancel out.
            if changed != first {
                assert!(Responder::accept(&keys, &changed).is_err(), "message {n}");
            }
        }
    }

    #[test]
    fn an_answer_to_another_opening_is_refused() {
        let (_, recorded) = Initiator::begin(&key(1), b"one").unwrap();
        let message = Responder::accept(&ring(&[1]), &recorded).unwrap();
        let (_, answer) = message.responder.finish(Verdict::Go, STAMP).unwrap();
        let (initiator, _) = Initiator::begin(&key(1), b"one").unwrap();
        assert_eq!(initiator.finish(&answer).unwrap_err(), HandshakeError::NotOurs);
    }

    #[test]
    fn every_verdict_arrives_as_it_was_given() {
        for verdict in [Verdict::Go, Verdict::Confirm, Verdict::OriginUnreachable, Verdict::Forbidden] {
            let (initiator, first) = Initiator::begin(&key(1), b"").unwrap();
            let message = Responder::accept(&ring(&[1]), &first).unwrap();
            let (_, answer) = message.responder.finish(verdict, STAMP).unwrap();
            assert_eq!(initiator.finish(&answer).unwrap().1, verdict);
        }
    }
}
