//! The backend's side of the handshake: reads the first message and answers it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::Hop;
use super::connection::Connection;
use super::ephemeral::Ephemerals;
use super::handshake::{FirstMessage, HandshakeError, Responder, Verdict};
use super::opening::{Opening, OpeningError};
use super::replay::{Freshness, MessageId, ReplayWindow};
use super::stamp::Stamp;
use super::stream::{HopStream, Message, arrival, framed, next_message};

/// Reason why a connection of the hop is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejected {
    /// The peer does not hold the key.
    #[error("first message: {0}")]
    Handshake(#[from] HandshakeError),
    /// The peer's first message is not valid.
    #[error("first message: {0}")]
    Opening(#[from] OpeningError),
    /// The first message was replayed.
    #[error("replayed first message")]
    Repeated {
        /// The label of the frontend's key.
        frontend: Option<Arc<str>>,
    },
    /// The connection failed, or its bytes were not a message.
    #[error("first message: {0}")]
    Connection(#[from] io::Error),
    /// The peer closed the connection without a message.
    #[error("the peer closed the connection without a message")]
    Silent,
    /// No complete message arrived in time.
    #[error("first message: timed out")]
    Late,
    /// Later connections have displaced this one before a complete message arrived.
    #[error("first message: displaced by later connections")]
    Displaced,
}

/// State of a backend since its start: the first messages that it has acted on, and its current key pair.
#[derive(Debug)]
pub(crate) struct Run {
    began: Instant,
    window: Mutex<ReplayWindow>,
    pub(crate) own: Arc<Ephemerals>,
}

impl Run {
    /// Creates the state; see [`ReplayWindow::new`] and [`Ephemerals::new`].
    ///
    /// # Errors
    /// If the operating system has no randomness.
    pub(crate) fn begin(tolerance: Duration, lifetime: Duration) -> io::Result<Run> {
        let mut epoch = [0; 8];
        rustix::rand::getrandom(&mut epoch, rustix::rand::GetRandomFlags::empty())?;
        let tolerance = u64::try_from(tolerance.as_millis()).unwrap_or(u64::MAX);
        let window = ReplayWindow::new(u64::from_ne_bytes(epoch) | 1, tolerance);
        Ok(Run {
            began: Instant::now(),
            window: Mutex::new(window),
            own: Arc::new(Ephemerals::new(lifetime)),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn check(&self, id: MessageId, stamp: Stamp) -> Freshness {
        self.window.lock().unwrap_or_else(PoisonError::into_inner).check(id, stamp, self.now())
    }

    fn stamp(&self) -> Stamp {
        let stamp = self.window.lock().unwrap_or_else(PoisonError::into_inner).stamp(self.now());
        Stamp { accepts_lasting: self.own.are_lasting(), ..stamp }
    }
}

/// The request of a frontend.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) opening: Opening,
    /// The client's first bytes.
    pub(crate) first: Zeroizing<Vec<u8>>,
    /// The label of the frontend's key, if it has its own.
    pub(crate) frontend: Option<Arc<str>>,
    reply: HopReply,
}

/// How the verdict is sent.
#[derive(Debug)]
enum HopReply {
    /// In the second message.
    Message { connection: Connection, responder: Option<Responder>, arrived: Vec<u8> },
    /// In the first record, because the second message has requested a confirmation.
    Record(HopStream),
}

/// Waits for the beginning of the first message, and returns the bytes that have arrived.
pub(crate) async fn beginning(connection: &mut Connection) -> Result<Vec<u8>, Rejected> {
    match arrival(connection).await {
        Ok(arrived) if !arrived.is_empty() => Ok(arrived),
        Ok(_) | Err(_) => Err(Rejected::Silent),
    }
}

/// Reads the rest of the first message, which begins with `arrived`, and checks it. If a confirmation is
/// necessary, waits for that too.
pub(crate) async fn receive(
    mut connection: Connection,
    mut arrived: Vec<u8>,
    hop: &Hop,
    run: &Run,
) -> Result<Asked, Rejected> {
    let Message { bytes: message, is_lasting } = next_message(&mut connection, &mut arrived).await?;
    let first = match hop {
        Hop::Plain => return plain(connection, &message, arrived),
        Hop::Sealed(keys) if is_lasting => Responder::accept_lasting(keys, &run.own, &message)?,
        Hop::Sealed(keys) => Responder::accept(keys, &message)?,
        Hop::Pairs(keys) => Responder::accept_with_pair(keys, &message)?,
    };
    let FirstMessage { responder, id, payload, frontend } = first;
    let (opening, first) = Opening::decode(&payload)?;
    let first = Zeroizing::new(first.to_vec());
    let reply = match run.check(id, opening.stamp) {
        Freshness::Fresh => HopReply::Message { connection, responder: Some(responder), arrived },
        Freshness::Unknown => HopReply::Record(confirmed(connection, responder, arrived, run).await?),
        Freshness::Repeated => return Err(Rejected::Repeated { frontend }),
    };
    Ok(Asked { opening, first, frontend, reply })
}

fn plain(connection: Connection, message: &[u8], arrived: Vec<u8>) -> Result<Asked, Rejected> {
    let (opening, first) = Opening::decode(message)?;
    let first = Zeroizing::new(first.to_vec());
    let reply = HopReply::Message { connection, responder: None, arrived };
    Ok(Asked { opening, first, frontend: None, reply })
}

/// Requests a confirmation and waits for it. Only the sender of the first message can create a valid record
/// after it has read the answer.
async fn confirmed(
    connection: Connection,
    responder: Responder,
    arrived: Vec<u8>,
    run: &Run,
) -> Result<HopStream, Rejected> {
    let (sealing, answer) = responder.finish(Verdict::Confirm, run.stamp())?;
    let mut stream = HopStream::new(connection, Some(sealing), arrived, framed(&answer), 0);
    let (mut read, mut write) = stream.split();
    write.flush().await?;
    read.read_u8().await?;
    Ok(stream)
}

impl Asked {
    pub(crate) fn connection(&self) -> &Connection {
        match &self.reply {
            HopReply::Message { connection, .. } => connection,
            HopReply::Record(stream) => stream.connection(),
        }
    }

    /// Sends the verdict. If it is part of the second message, it leaves with the first written bytes or at a
    /// flush; as a record it leaves at once.
    pub(crate) async fn send_verdict(self, verdict: Verdict, run: &Run) -> Result<HopStream, Rejected> {
        match self.reply {
            HopReply::Message { connection, responder: Some(responder), arrived } => {
                let (sealing, answer) = responder.finish(verdict, run.stamp())?;
                Ok(HopStream::new(connection, Some(sealing), arrived, framed(&answer), 0))
            }
            HopReply::Message { connection, responder: None, arrived } => {
                Ok(HopStream::new(connection, None, arrived, framed(&verdict.answer(run.stamp())), 0))
            }
            HopReply::Record(mut stream) => {
                let (_, mut write) = stream.split();
                write.write_all(&[verdict.byte()]).await?;
                Ok(stream)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::super::dial::{self, DialError, Dialled, ask};
    use super::super::ephemeral::USUAL_LIFETIME;
    use super::super::key::{HopKey, KeyRing};
    use super::super::opening::Purpose;
    use super::super::pairs::{PrivateKey, StaticKeys};
    use super::super::stamp::BackendClock;
    use super::*;

    fn hop(byte: u8) -> Hop {
        Hop::Sealed(KeyRing::of(HopKey::new([byte; 32])))
    }

    /// Returns a frontend's keys and a backend's.
    fn pairs() -> [Hop; 2] {
        let own = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let public = [own[1].public(), own[0].public()];
        let mut keys = own.into_iter().zip(public).map(|(own, peer)| StaticKeys::of(own, vec![peer]));
        [(); 2].map(|()| Hop::Pairs(keys.next().flatten().unwrap()))
    }

    fn run() -> Run {
        Run::begin(Duration::from_secs(10), USUAL_LIFETIME).unwrap()
    }

    /// Returns the first message of a frontend whose key pairs serve for several connections.
    fn dial(hop: &Hop, opening: &Opening, first: &[u8]) -> Result<(Dialled, Vec<u8>), HandshakeError> {
        dial::dial(hop, &Arc::new(Ephemerals::new(USUAL_LIFETIME)), opening, first)
    }

    async fn lines() -> (Connection, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (connected, accepted) = tokio::join!(connecting, listener.accept());
        (Connection::Kernel(connected.unwrap()), Connection::Kernel(accepted.unwrap().0))
    }

    /// Runs the frontend's part after `dial`.
    async fn answered(
        dialled: Dialled,
        connection: Connection,
        message: &[u8],
        clock: &BackendClock,
    ) -> Result<HopStream, DialError> {
        dialled.finish(ask(connection, message, 0).await?, clock).await
    }

    fn opening(stamp: Stamp) -> Opening {
        Opening { purpose: Purpose::Carry, stamp, client: None, origin: None }
    }

    /// Sends these bytes; returns the backend's result, or `None` if it waits for more.
    async fn received(bytes: &[u8], hop: &Hop, run: &Run) -> Option<Result<Asked, Rejected>> {
        let (mut a, b) = lines().await;
        a.split().1.write_all(bytes).await.unwrap();
        tokio::time::timeout(Duration::from_millis(200), receive(b, Vec::new(), hop, run)).await.ok()
    }

    #[tokio::test]
    async fn a_fresh_message_is_acted_upon_once_however_often_it_comes() {
        for [front, back] in [[hop(1), hop(1)], pairs()] {
            let run = run();
            let (_, message) = dial(&front, &opening(run.stamp()), b"transfer 100").unwrap();
            let asked = received(&message, &back, &run).await.unwrap().unwrap();
            assert_eq!(asked.first[..], b"transfer 100"[..]);
            for _ in 0..3 {
                assert!(matches!(
                    received(&message, &back, &run).await,
                    Some(Err(Rejected::Repeated { .. }))
                ));
            }
        }
    }

    #[tokio::test]
    async fn a_message_for_another_run_is_acted_upon_only_when_it_is_confirmed() {
        let (key, run) = (hop(1), run());
        let elsewhere = Stamp { epoch: 12345, at: 5, accepts_lasting: true };
        let (dialled, message) = dial(&key, &opening(elsewhere), b"transfer 100").unwrap();
        // An attacker who has recorded the message can send it but not confirm it.
        assert!(received(&message, &key, &run).await.is_none());
        let (a, b) = lines().await;
        let clock = BackendClock::default();
        let backend = async {
            let asked = receive(b, Vec::new(), &key, &run).await.unwrap();
            assert_eq!(asked.first[..], b"transfer 100"[..]);
            let mut hop = asked.send_verdict(Verdict::Go, &run).await.unwrap();
            let (mut read, mut write) = hop.split();
            write.write_all(b"done").await.unwrap();
            write.shutdown().await.unwrap();
            let mut rest = Vec::new();
            read.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let frontend = async {
            let mut hop = answered(dialled, a, &message, &clock).await.unwrap();
            let (mut read, mut write) = hop.split();
            write.write_all(b"thanks").await.unwrap();
            write.shutdown().await.unwrap();
            let mut answer = Vec::new();
            read.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let (rest, answer) = tokio::join!(backend, frontend);
        assert_eq!((&rest[..], &answer[..]), (&b"thanks"[..], &b"done"[..]));
        // From now on the frontend knows the run.
        let (_, message) = dial(&key, &opening(clock.stamp(Instant::now())), b"").unwrap();
        let asked = received(&message, &key, &run).await.unwrap().unwrap();
        assert!(matches!(asked.reply, HopReply::Message { .. }));
    }

    /// True if the first bit of the length, the flag on the wire, is set.
    fn is_lasting(message: &[u8]) -> bool {
        message[0] & 0x80 != 0
    }

    #[tokio::test]
    async fn pairs_serve_for_more_than_one_connection_only_where_both_sides_want_it() {
        for [front, back] in [[true, true], [true, false], [false, true], [false, false]] {
            let own = Arc::new(Ephemerals::new(if front { USUAL_LIFETIME } else { Duration::ZERO }));
            let run = Run::begin(Duration::from_secs(10), Duration::ZERO).unwrap();
            run.own.set_lifetime(if back { USUAL_LIFETIME } else { Duration::ZERO });
            let (key, clock) = (hop(1), BackendClock::default());
            // The first connection does not know the backend and uses the form that every release accepts.
            for lasts in [false, front && back, front && back] {
                let stamp = clock.stamp(Instant::now());
                let (dialled, message) = dial::dial(&key, &own, &opening(stamp), b"request").unwrap();
                assert_eq!(is_lasting(&message), lasts);
                let (a, b) = lines().await;
                let backend = async {
                    let asked = receive(b, Vec::new(), &key, &run).await.unwrap();
                    assert_eq!(asked.first[..], b"request"[..]);
                    let mut hop = asked.send_verdict(Verdict::Go, &run).await.unwrap();
                    hop.split().1.shutdown().await.unwrap();
                };
                let (_, result) = tokio::join!(backend, answered(dialled, a, &message, &clock));
                assert!(result.is_ok(), "{:?}", result.err());
            }
        }
    }

    #[tokio::test]
    async fn message_of_the_other_kind_is_refused() {
        let (key, run) = (hop(1), run());
        for accepts_lasting in [true, false] {
            let stamp = Stamp { accepts_lasting, ..run.stamp() };
            let (_, mut message) = dial(&key, &opening(stamp), b"x").unwrap();
            assert_eq!(is_lasting(&message), accepts_lasting);
            message[0] ^= 0x80;
            let refused = received(&message, &key, &run).await;
            assert!(matches!(refused, Some(Err(Rejected::Handshake(HandshakeError::NotOurs)))));
        }
    }

    /// Two copies of a message of unknown freshness get two answers, under different keys.
    #[tokio::test]
    async fn a_message_that_is_repeated_is_asked_to_be_confirmed_under_other_keys() {
        let (key, run) = (hop(1), run());
        let elsewhere = Stamp { epoch: 12345, at: 5, accepts_lasting: true };
        let (_, message) = dial(&key, &opening(elsewhere), b"x").unwrap();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (mut a, b) = lines().await;
            a.split().1.write_all(&message).await.unwrap();
            let confirming =
                tokio::time::timeout(Duration::from_millis(100), receive(b, Vec::new(), &key, &run));
            let mut arrived = Vec::new();
            let (answer, confirmed) = tokio::join!(next_message(&mut a, &mut arrived), confirming);
            assert!(confirmed.is_err(), "the backend does not act on it");
            answers.push(answer.unwrap().bytes);
        }
        // The answer: 24 bytes of nonce, the pair's public key, and the sealed verdict, run and time.
        let parts = |at: std::ops::Range<usize>| answers.iter().map(move |answer| &answer[at.clone()]);
        assert!(parts(24..56).all(|public| *public == answers[0][24..56]), "one pair");
        for range in [0..24, 56..64] {
            let all: std::collections::HashSet<_> = parts(range).collect();
            assert_eq!(all.len(), answers.len());
        }
    }

    #[tokio::test]
    async fn peer_without_the_key_gets_no_answer() {
        let run = run();
        let (_, message) = dial(&hop(2), &opening(run.stamp()), b"x").unwrap();
        let refused = received(&message, &hop(1), &run).await.unwrap();
        assert!(matches!(refused, Err(Rejected::Handshake(HandshakeError::NotOurs))));
        let (_, plain) = dial(&Hop::Plain, &opening(run.stamp()), b"x").unwrap();
        assert!(matches!(received(&plain, &hop(1), &run).await, Some(Err(Rejected::Handshake(_)))));
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0; 64]] {
            let refused = received(garbage, &hop(1), &run).await;
            assert!(matches!(refused, Some(Err(_))), "{garbage:?}");
        }
        assert!(
            received(&message[..40], &hop(1), &run).await.is_none(),
            "the rest of half a message is awaited"
        );
    }

    #[tokio::test]
    async fn every_verdict_arrives_over_an_encrypted_and_a_plain_hop() {
        for [front, back] in [[hop(1), hop(1)], [Hop::Plain, Hop::Plain], pairs()] {
            for verdict in [Verdict::OriginUnreachable, Verdict::Forbidden, Verdict::Limited] {
                let (run, clock) = (run(), BackendClock::default());
                let (a, b) = lines().await;
                let (dialled, message) = dial(&front, &opening(run.stamp()), b"x").unwrap();
                let backend = async {
                    let asked = receive(b, Vec::new(), &back, &run).await.unwrap();
                    asked.send_verdict(verdict, &run).await.unwrap().split().1.shutdown().await.unwrap();
                };
                let (_, result) = tokio::join!(backend, answered(dialled, a, &message, &clock));
                assert!(matches!(result, Err(DialError::Refused(result)) if result == verdict));
            }
        }
    }

    #[tokio::test]
    async fn a_hop_that_is_cut_is_an_error_and_no_end() {
        let (key, run) = (hop(1), run());
        let (a, b) = lines().await;
        let (dialled, message) = dial(&key, &opening(run.stamp()), b"x").unwrap();
        let backend = async {
            let asked = receive(b, Vec::new(), &key, &run).await.unwrap();
            let mut hop = asked.send_verdict(Verdict::Go, &run).await.unwrap();
            hop.split().1.write_all(b"half").await.unwrap();
            hop.split().1.flush().await.unwrap();
            // The connection ends without an empty record: any attacker on the path can end it in this way.
        };
        let clock = BackendClock::default();
        let frontend = async {
            let mut hop = answered(dialled, a, &message, &clock).await.unwrap();
            let mut answer = Vec::new();
            let ended = hop.split().0.read_to_end(&mut answer).await;
            (answer, ended.unwrap_err().kind())
        };
        let (_, (answer, error)) = tokio::join!(backend, frontend);
        assert_eq!((&answer[..], error), (&b"half"[..], io::ErrorKind::UnexpectedEof));
    }

    #[tokio::test]
    async fn megabytes_pass_in_both_directions_at_once() {
        for key in [hop(1), Hop::Plain] {
            let (run, clock) = (run(), BackendClock::default());
            let (a, b) = lines().await;
            let (dialled, message) = dial(&key, &opening(run.stamp()), b"").unwrap();
            let data: Vec<u8> =
                (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let exchange = async |mut hop: HopStream| {
                let (mut read, mut write) = hop.split();
                let sending = async {
                    for chunk in data.chunks(20_011) {
                        write.write_all(chunk).await.unwrap();
                        write.flush().await.unwrap();
                    }
                    write.shutdown().await.unwrap();
                };
                let mut got = Vec::new();
                let (_, read) = tokio::join!(sending, read.read_to_end(&mut got));
                assert_eq!(read.unwrap(), data.len());
                assert!(got == data);
            };
            let backend = async {
                let asked = receive(b, Vec::new(), &key, &run).await.unwrap();
                exchange(asked.send_verdict(Verdict::Go, &run).await.unwrap()).await;
            };
            let frontend = async { exchange(answered(dialled, a, &message, &clock).await.unwrap()).await };
            tokio::join!(backend, frontend);
        }
    }
}
