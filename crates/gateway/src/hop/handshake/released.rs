//! Handshakes of released versions, with the present code on either side of them.
//!
//! `tests/released/VERSION.txt` records the messages of a version, with known keys and randomness: for each
//! kind of key the first message, the answer and a record in each direction. The current code must read them,
//! and write the same bytes. A release adds a file
//! (`RELEASED=VERSION cargo test -p brisk-gateway --lib released` writes it); existing files are never
//! changed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, FallbackResolver};
use snow::types::{Cipher, Dh, Hash, Random};

use super::*;
use crate::hop::ephemeral;
use crate::hop::opening::{ClientAddresses, Opening, Purpose};
use crate::hop::pairs::private_keys;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: released.example\r\n\r\n";
const STAMP: Stamp = Stamp { epoch: 0x0102_0304_0506_0708, at: 123_456, accepts_lasting: true };

/// Randomness that repeats one byte.
#[derive(Clone, Copy)]
struct Repeated(u8);

impl Random for Repeated {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        bytes.fill(self.0);
        Ok(())
    }
}

impl CryptoResolver for Repeated {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(*self))
    }

    fn resolve_dh(&self, _: &DHChoice) -> Option<Box<dyn Dh>> {
        None
    }

    fn resolve_hash(&self, _: &HashChoice) -> Option<Box<dyn Hash>> {
        None
    }

    fn resolve_cipher(&self, _: &CipherChoice) -> Option<Box<dyn Cipher>> {
        None
    }
}

/// The kinds of keys between two gateways.
#[derive(Clone, Copy, Debug)]
enum ReleasedKind {
    OneKey,
    Lasting,
    Pairs,
}

const KINDS: [ReleasedKind; 3] = [ReleasedKind::OneKey, ReleasedKind::Lasting, ReleasedKind::Pairs];

/// The messages of a connection, in order.
const MESSAGES: [&str; 4] = ["first", "answer", "frontend-record", "backend-record"];

fn key() -> HopKey {
    HopKey::new([0x11; 32])
}

/// Returns a private key of 32 times this byte.
fn private(byte: u8) -> PrivateKey {
    let line = format!("private:{}", format!("{byte:02x}").repeat(32));
    private_keys(&line, "test").expect("a private key").remove(0)
}

fn pairs(own: u8, peer: u8) -> StaticKeys {
    StaticKeys::of(private(own), vec![private(peer).public()]).expect("a peer")
}

/// Returns a side with the randomness `random`.
fn state(kind: ReleasedKind, random: u8, is_frontend: bool) -> HandshakeState {
    let repeated = |rest: Box<dyn CryptoResolver + Send>| {
        Box::new(FallbackResolver::new(Box::new(Repeated(random)), rest))
    };
    let built = |builder: Builder<'_>| {
        let builder = builder.prologue(PROLOGUE)?;
        if is_frontend { builder.build_initiator() } else { builder.build_responder() }
    };
    let (own, peer) = if is_frontend { (0x44, 0x55) } else { (0x55, 0x44) };
    let state = match kind {
        ReleasedKind::OneKey => {
            let builder = Builder::with_resolver(ONE_KEY.clone(), repeated(Box::new(primitives())));
            builder.psk(0, key().bytes()).and_then(built)
        }
        ReleasedKind::Lasting => {
            let own = Lasting(Arc::new(Ephemerals::of([random; 32])));
            let builder = Builder::with_resolver(LASTING.clone(), repeated(Box::new(own)));
            builder.psk(0, key().bytes()).and_then(built)
        }
        ReleasedKind::Pairs => {
            let builder = Builder::with_resolver(PAIRS.clone(), repeated(Box::new(primitives())));
            let (own, peer) = (private(own), private(peer).public());
            let builder = builder.local_private_key(own.bytes()).expect("a private key");
            if is_frontend { builder.remote_public_key(peer.bytes()).and_then(built) } else { built(builder) }
        }
    };
    state.expect("the names of the protocols are known")
}

fn payload() -> Vec<u8> {
    let client = ClientAddresses {
        source: "192.0.2.7:50000".parse().expect("an address"),
        destination: "198.51.100.1:443".parse().expect("an address"),
    };
    let opening = Opening {
        stamp: STAMP,
        client: Some(client),
        origin: Some("web".into()),
        ..Opening::new(Purpose::Carry)
    };
    let mut payload = Vec::new();
    opening.encode(&mut payload);
    payload.extend_from_slice(REQUEST);
    payload
}

fn sealed(sealing: &mut Sealing, text: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    sealing.seal(text, &mut wire).expect("a record");
    wire
}

fn opened(sealing: &mut Sealing, wire: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    sealing.open(&wire[2..], &mut plain).expect("a record of the other side");
    plain
}

/// Returns the messages of a connection between two sides of the current code.
fn conversation(kind: ReleasedKind) -> [Vec<u8>; 4] {
    let (initiator, first) = Initiator::start(Ok(state(kind, 0x21, true)), &payload()).expect("it is short");
    let accepted = Responder::first_that_fits([Ok(state(kind, 0x31, false))].into_iter(), &first);
    let (mut backend, answer) =
        accepted.expect("it fits").responder.finish(Verdict::Go, STAMP).expect("it is short");
    let (mut frontend, ..) = initiator.finish(&answer).expect("it fits");
    [first, answer, sealed(&mut frontend, b"more"), sealed(&mut backend, b"HTTP/1.1 200 OK\r\n\r\n")]
}

/// Opens the first message as the current backend does, with the keys of its files; its own randomness does
/// not matter.
fn accept(kind: ReleasedKind, first: &[u8]) -> FirstMessage {
    let ring = KeyRing::of(key());
    let own = Arc::new(Ephemerals::new(ephemeral::USUAL_LIFETIME));
    match kind {
        ReleasedKind::OneKey => Responder::accept(&ring, first),
        ReleasedKind::Lasting => Responder::accept_lasting(&ring, &own, first),
        ReleasedKind::Pairs => Responder::accept_with_pair(&pairs(0x55, 0x44), first),
    }
    .expect("the present backend opens it")
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/released")
}

fn lines() -> String {
    let mut text = String::new();
    for kind in KINDS {
        for (name, message) in MESSAGES.iter().zip(conversation(kind)) {
            let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{kind:?} {name} {hex}").expect("it is written to memory");
        }
    }
    text
}

/// Returns the bytes of a message in a file.
fn message(text: &str, kind: ReleasedKind, name: &str) -> Vec<u8> {
    let begin = format!("{kind:?} {name} ");
    let hex = text.lines().find_map(|line| line.strip_prefix(&begin)).expect("the file has the message");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn gateways_understand_those_of_every_release() {
    if let Ok(version) = std::env::var("RELEASED") {
        std::fs::write(directory().join(format!("{version}.txt")), lines()).expect("the file");
    }
    let files: Vec<PathBuf> = std::fs::read_dir(directory())
        .expect("the directory")
        .map(|entry| entry.expect("a file").path())
        .collect();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        for kind in KINDS {
            let [first, answer, more, response] = MESSAGES.map(|name| message(&text, kind, name));
            let place = format!("{} {kind:?}", file.display());

            // A frontend of that release with the current backend: the backend reads the message and answers
            // as that release did.
            let said = accept(kind, &first).payload;
            assert_eq!(said[..], payload()[..], "{place}");
            let (opening, rest) = Opening::decode(&said).expect("an opening");
            assert_eq!(
                (opening.stamp, opening.origin.as_deref(), rest),
                (STAMP, Some("web"), REQUEST),
                "{place}"
            );
            let backend = Responder::first_that_fits([Ok(state(kind, 0x31, false))].into_iter(), &first);
            let (mut backend, own) =
                backend.expect("it fits").responder.finish(Verdict::Go, STAMP).expect("short");
            assert_eq!(own, answer, "{place}");
            assert_eq!(opened(&mut backend, &more), b"more", "{place}");

            // The current frontend with a backend of that release: the frontend sends the bytes of that
            // release and reads the answer.
            let (frontend, own) = Initiator::start(Ok(state(kind, 0x21, true)), &payload()).expect("short");
            assert_eq!(own, first, "{place}");
            let (mut frontend, verdict, stamp) = frontend.finish(&answer).expect("the answer fits");
            assert_eq!((verdict, stamp), (Verdict::Go, STAMP), "{place}");
            assert_eq!(opened(&mut frontend, &response), b"HTTP/1.1 200 OK\r\n\r\n", "{place}");
        }
    }
}
