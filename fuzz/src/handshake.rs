//! Target: any bytes as messages on the hop between two gateways.
//!
//! The first byte chooses a target: a first message under one key (with ephemeral keys for this connection or
//! with a lifetime) or under key pairs, the answer to one, the content of a decrypted message, a record. For
//! messages that keys protect, the rest is either the message itself or, more useful, describes changes of a
//! valid one. Every changed message must be refused.

use std::sync::{Arc, LazyLock};

use brisk_gateway::hop::ephemeral::{Ephemerals, USUAL_LIFETIME};
use brisk_gateway::hop::handshake::{FirstMessage, Initiator, Responder};
use brisk_gateway::hop::records::Sealing;
use brisk_gateway::hop::{Opening, PrivateKey, Purpose, Stamp, StaticKeys, Verdict};
use brisk_gateway::{Hop, HopKey, KeyRing};

use crate::decisions::Decisions;

/// The client's first bytes in the changed message.
const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: origin.example\r\n\r\n";
const STAMP: Stamp = Stamp { epoch: 1, at: 2, accepts_lasting: true };

/// The keys of a frontend and of its backend, and a first message between them.
struct Gateways {
    backend: Hop,
    frontend: Hop,
    /// Ephemeral keys of both with a lifetime; `None`: for one connection.
    own: Option<[Arc<Ephemerals>; 2]>,
    message: Vec<u8>,
}

/// One key that both have; the backend has others too.
static ONE_KEY: LazyLock<Gateways> = LazyLock::new(|| one_key(None));

/// The same with ephemeral keys that have a lifetime.
static LASTING: LazyLock<Gateways> =
    LazyLock::new(|| one_key(Some([(); 2].map(|()| Arc::new(Ephemerals::new(USUAL_LIFETIME))))));

fn one_key(own: Option<[Arc<Ephemerals>; 2]>) -> Gateways {
    let lines: Vec<String> = (1..=4).map(|n: u8| HopKey::new([n; 32]).reveal().to_string()).collect();
    let ring = KeyRing::parse(&lines.join("\n"), "fuzz").expect("four keys");
    Gateways::new(Hop::Sealed(ring), Hop::Sealed(KeyRing::of(HopKey::new([4; 32]))), own)
}

/// A key pair on each side.
static PAIRS: LazyLock<Gateways> = LazyLock::new(|| {
    let [front, back] = [(); 2].map(|()| PrivateKey::generate().expect("randomness"));
    let (to_front, to_back) = (vec![front.public()], vec![back.public()]);
    let keys = |own, peers| Hop::Pairs(StaticKeys::of(own, peers).expect("a peer"));
    Gateways::new(keys(back, to_front), keys(front, to_back), None)
});

impl Gateways {
    fn new(backend: Hop, frontend: Hop, own: Option<[Arc<Ephemerals>; 2]>) -> Gateways {
        let mut gateways = Gateways { backend, frontend, own, message: Vec::new() };
        gateways.message = gateways.begin().1;
        assert!(gateways.accept(&gateways.message).is_some(), "the good message is good");
        gateways
    }

    fn begin(&self) -> (Initiator, Vec<u8>) {
        let mut payload = Vec::new();
        Opening { stamp: STAMP, ..Opening::new(Purpose::Carry) }.encode(&mut payload);
        payload.extend_from_slice(REQUEST);
        match (&self.frontend, &self.own) {
            (Hop::Sealed(keys), None) => Initiator::begin(keys.newest(), &payload),
            (Hop::Sealed(keys), Some([own, _])) => Initiator::begin_lasting(keys.newest(), own, &payload),
            (Hop::Pairs(keys), _) => Initiator::begin_with_pair(keys, &payload),
            (Hop::Plain, _) => unreachable!("no gateways without a key"),
        }
        .expect("a short message")
    }

    fn accept(&self, message: &[u8]) -> Option<FirstMessage> {
        match (&self.backend, &self.own) {
            (Hop::Sealed(keys), None) => Responder::accept(keys, message).ok(),
            (Hop::Sealed(keys), Some([_, own])) => Responder::accept_lasting(keys, own, message).ok(),
            (Hop::Pairs(keys), _) => Responder::accept_with_pair(keys, message).ok(),
            (Hop::Plain, _) => None,
        }
    }

    /// Returns both sides after the two messages.
    fn sealings(&self) -> (Sealing, Sealing) {
        let (initiator, message) = self.begin();
        let first = self.accept(&message).expect("it is good");
        let (backend, answer) = first.responder.finish(Verdict::Go, STAMP).expect("a short answer");
        let (frontend, ..) = initiator.finish(&answer).expect("it is good");
        (frontend, backend)
    }
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let choice = decisions.below(12);
    let gateways = match choice {
        8.. => &*LASTING,
        _ if choice.is_multiple_of(2) => &*ONE_KEY,
        _ => &*PAIRS,
    };
    match choice {
        0 | 1 | 8 => first_message(gateways, &mut decisions),
        2 | 3 | 9 => assert!(gateways.accept(decisions.all()).is_none(), "nobody can guess a message"),
        4 | 10 => answer(gateways, &mut decisions),
        5 | 11 => record(gateways, &mut decisions),
        _ => opening(decisions.all()),
    }
}

/// Changes `good` according to the decisions; `None` if it is unchanged.
fn changed(good: &[u8], decisions: &mut Decisions<'_>) -> Option<Vec<u8>> {
    let mut message = good.to_vec();
    while !decisions.is_over() {
        let (what, at) = (decisions.below(5), usize::from(decisions.short()) % (message.len() + 1));
        match what {
            0 => message.get_mut(at).map_or((), |byte| *byte ^= 1 << decisions.below(8)),
            1 => message.get_mut(at).map_or((), |byte| *byte = decisions.byte()),
            2 => message.truncate(at),
            3 => drop(message.splice(at..at, decisions.bytes(16).iter().copied())),
            _ => message.extend_from_slice(decisions.bytes(64)),
        }
    }
    (message != good).then_some(message)
}

fn first_message(gateways: &Gateways, decisions: &mut Decisions<'_>) {
    match changed(&gateways.message, decisions) {
        Some(message) => assert!(gateways.accept(&message).is_none(), "a changed message is refused"),
        None => {
            let first = gateways.accept(&gateways.message).expect("what is unchanged is good");
            assert!(first.payload.ends_with(REQUEST));
        }
    }
}

fn answer(gateways: &Gateways, decisions: &mut Decisions<'_>) {
    let (initiator, message) = gateways.begin();
    let first = gateways.accept(&message).expect("it is good");
    let (_, good) = first.responder.finish(Verdict::Go, STAMP).expect("a short answer");
    let answer = changed(&good, decisions);
    let finished = initiator.finish(answer.as_ref().unwrap_or(&good));
    assert_eq!(finished.is_ok(), answer.is_none());
}

fn record(gateways: &Gateways, decisions: &mut Decisions<'_>) {
    let (mut frontend, mut backend) = gateways.sealings();
    let (mut wire, mut plain) = (Vec::new(), Vec::new());
    frontend.seal(REQUEST, &mut wire).expect("a short record");
    // The length at the front is not encrypted.
    let good = wire.split_off(2);
    let record = changed(&good, decisions);
    let opened = backend.open(record.as_ref().unwrap_or(&good), &mut plain);
    assert_eq!(opened.is_ok(), record.is_none());
    assert!(plain.len() <= good.len());
}

fn opening(message: &[u8]) {
    let Ok((opening, rest)) = Opening::decode(message) else { return };
    assert!(message.ends_with(rest));
    let mut again = Vec::new();
    opening.encode(&mut again);
    again.extend_from_slice(rest);
    let (read, behind) = Opening::decode(&again).expect("what was written is read");
    assert_eq!((read, behind), (opening, rest));
}
