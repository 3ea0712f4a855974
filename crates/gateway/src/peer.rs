//! Reports about a peer and the path to it: the redundancy that both sides agreed on, round-trip times and
//! losses.
//!
//! A frontend measures them on the connection that watches a backend. Each side counts the losses of its own
//! segments, so the losses of the other direction come from the backend. A frontend asks with `QUESTION`,
//! which earlier releases treat like any byte; a backend that knows it answers with `UP_WITH_LOSS` and the
//! losses.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use brisk_runtime::{ConnStats, Endpoint};
use brisk_tcp::mechanism::{GentleOff, GentleOutcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::log::{Level, Log, Value};
use crate::roaming::{Moved, Secret};

/// Asks whether the backend lives and what it loses towards this side.
const QUESTION: u8 = 1;
/// Asks for a full segment.
pub(crate) const FULL: u8 = 2;
/// Asks whether the backend follows frontends whose address changes.
pub(crate) const REGISTER: u8 = 4;
/// Asks whether the backend lives, and no more.
const PLAIN: u8 = 0;
/// The backend lives.
const UP: u8 = 0;
/// The backend drains.
const DRAINING: u8 = 1;
/// The backend lives; four bytes follow, big-endian: lost segments of a million that it sent here.
const UP_WITH_LOSS: u8 = 2;
/// The backend lives; two bytes with a length and as many more follow, a full segment of it.
const UP_FULL: u8 = 3;

/// The backend follows: the frontend is to send its secret, and the answer to that is `UP` or one of the
/// next two.
const FOLLOWS: u8 = 4;
/// The frontend has another port.
const MOVED_PORT: u8 = 5;
/// The frontend has another address.
const MOVED_PATH: u8 = 6;

/// Whether parity and copies may be sent on connections with a peer: both sides have to agree in the
/// handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redundancy {
    /// No handshake has shown it yet.
    #[default]
    Unknown,
    /// Both sides agreed.
    Agreed,
    /// This side does not ask for it.
    Off,
    /// The peer did not offer or did not answer.
    Unanswered,
    /// The path damages or swallows the option.
    Blocked,
    /// Not on this connection: its handshake was repeated or had no room for the option, or the one before
    /// failed.
    Lapsed,
}

impl Redundancy {
    /// All of them.
    pub(crate) const ALL: [Redundancy; 6] = [
        Redundancy::Unknown,
        Redundancy::Agreed,
        Redundancy::Off,
        Redundancy::Unanswered,
        Redundancy::Blocked,
        Redundancy::Lapsed,
    ];

    /// The outcome of one connection.
    pub(crate) fn of(outcome: GentleOutcome) -> Redundancy {
        match outcome {
            GentleOutcome::Pending => Redundancy::Unknown,
            GentleOutcome::On(_) => Redundancy::Agreed,
            GentleOutcome::Off(GentleOff::NotAsked) => Redundancy::Off,
            GentleOutcome::Off(GentleOff::NotAnswered) => Redundancy::Unanswered,
            GentleOutcome::Off(GentleOff::Remembered | GentleOff::IllegalAnswer | GentleOff::Stripped) => {
                Redundancy::Blocked
            }
            GentleOutcome::Off(_) => Redundancy::Lapsed,
        }
    }

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Redundancy::Unknown => "unknown",
            Redundancy::Agreed => "agreed",
            Redundancy::Off => "off",
            Redundancy::Unanswered => "unanswered",
            Redundancy::Blocked => "blocked",
            Redundancy::Lapsed => "lapsed",
        }
    }

    /// The reason, for reports.
    pub fn reason(self) -> &'static str {
        match self {
            Redundancy::Unknown => "no handshake yet",
            Redundancy::Agreed => "both sides agreed",
            Redundancy::Off => "switched off on this side",
            Redundancy::Unanswered => {
                "the peer has redundancy off or is an older release, or the path removes the option"
            }
            Redundancy::Blocked => "the path damages the option, or drops packets with it",
            Redundancy::Lapsed => "the handshake was repeated, or the connection before it failed",
        }
    }
}

/// The path to a peer, as it was measured last.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PathReport {
    /// Smoothed round-trip time.
    pub smoothed_rtt: Option<Duration>,
    /// Least round-trip time of the last 300 s; absent over the kernel's TCP.
    pub min_rtt: Option<Duration>,
    /// Share of the segments from here to the peer that were lost, repaired ones included.
    pub loss_out: Option<f64>,
    /// The same from the peer to here, as the peer counts it.
    pub loss_in: Option<f64>,
}

/// The facts known of a peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    path: Mutex<PathReport>,
    redundancy: AtomicU8,
    /// The redundancy that the log has last.
    logged: AtomicU8,
}

impl Peer {
    /// The path; nothing before it was measured.
    pub(crate) fn path(&self) -> PathReport {
        *self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of the watch has measured `seen`.
    pub(crate) fn measured(&self, seen: PathReport) {
        *self.path.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Whether connections carry redundancy.
    pub(crate) fn redundancy(&self) -> Redundancy {
        Redundancy::from_byte(&self.redundancy)
    }

    /// A connection has opened; what one cannot know leaves the last state.
    pub(crate) fn learn(&self, outcome: GentleOutcome) {
        match Redundancy::of(outcome) {
            Redundancy::Unknown | Redundancy::Lapsed => {}
            seen => self.redundancy.store(seen as u8, Ordering::Relaxed),
        }
    }

    /// Logs a change of the redundancy.
    pub(crate) fn tell(&self, backend: &str, log: &Log) {
        let now = self.redundancy();
        if self.logged.swap(now as u8, Ordering::Relaxed) == now as u8 {
            return;
        }
        let level = match now {
            Redundancy::Unanswered | Redundancy::Blocked => Level::Warning,
            _ => Level::Info,
        };
        let fields = [
            ("backend", Value::Text(backend.to_owned())),
            ("state", Value::Text(now.name().into())),
            ("reason", Value::Text(now.reason().into())),
        ];
        log.line(level, "redundancy", &fields);
    }
}

impl Redundancy {
    fn from_byte(byte: &AtomicU8) -> Redundancy {
        let byte = byte.load(Ordering::Relaxed);
        Redundancy::ALL.into_iter().find(|known| *known as u8 == byte).unwrap_or_default()
    }
}

impl PathReport {
    /// The path of a connection with these `stats`, between these addresses of `endpoint`, and the loss that
    /// the peer told.
    pub(crate) fn of(
        stats: &ConnStats,
        endpoint: &Endpoint,
        (local, remote): (IpAddr, IpAddr),
        loss_in: Option<f64>,
    ) -> PathReport {
        let loss_out = loss(endpoint, local, remote).map(share);
        PathReport { smoothed_rtt: stats.srtt, min_rtt: stats.min_rtt, loss_out, loss_in }
    }
}

/// Lost segments of a million that `endpoint` sent from `local` to `remote`, what a queue lost aside.
pub(crate) fn loss(endpoint: &Endpoint, local: IpAddr, remote: IpAddr) -> Option<u32> {
    endpoint.path(local, remote).loss.map(|loss| loss.per_million)
}

fn share(per_million: u32) -> f64 {
    f64::from(per_million) / 1e6
}

/// A backend's answer to a watch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Answer {
    /// It lives, and loses this share of what it sends here; an earlier release does not say.
    Up(Option<f64>),
    Draining,
}

/// Asks the backend whether it lives.
pub(crate) async fn ask(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
) -> io::Result<Answer> {
    write.write_all(&[QUESTION]).await?;
    write.flush().await?;
    match read.read_u8().await? {
        UP => Ok(Answer::Up(None)),
        UP_WITH_LOSS => Ok(Answer::Up(Some(share(read.read_u32().await?)))),
        _ => Ok(Answer::Draining),
    }
}

/// The result of a registration with a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Registered {
    /// The backend is of an earlier release or drains, or its stack does not name peers by their addresses
    /// outside.
    Refused,
    /// The backend will follow.
    Known,
    /// The address of this side has changed since it registered last; true if more than the port has.
    Moved(bool),
}

/// Tells the backend the secret by which it knows this frontend at another address ([`crate::roaming`]).
pub(crate) async fn register(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    secret: &Secret,
) -> io::Result<Registered> {
    write.write_all(&[REGISTER]).await?;
    write.flush().await?;
    if read.read_u8().await? != FOLLOWS {
        return Ok(Registered::Refused);
    }
    write.write_all(&secret.0).await?;
    write.flush().await?;
    Ok(match read.read_u8().await? {
        UP => Registered::Known,
        MOVED_PORT => Registered::Moved(false),
        MOVED_PATH => Registered::Moved(true),
        _ => Registered::Refused,
    })
}

/// Answers a frontend that registers: reads its secret and answers with what `register` makes of it.
pub(crate) async fn take_registration(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    register: impl FnOnce(Secret) -> Option<Moved>,
) -> io::Result<()> {
    write.write_all(&[FOLLOWS]).await?;
    write.flush().await?;
    let mut secret = [0; 32];
    read.read_exact(&mut secret).await?;
    let answer = match register(Secret(secret)) {
        None => UP,
        Some(Moved { is_other_path: false, .. }) => MOVED_PORT,
        Some(Moved { is_other_path: true, .. }) => MOVED_PATH,
    };
    write.write_all(&[answer]).await?;
    write.flush().await
}

/// More segments than the planner cuts into smaller ones.
const FULL_SEGMENTS: usize = 9;

/// Sends several full segments of this side, each of `segment` bytes, and lets the backend send a full one,
/// twice, behind the answers. Returns the payload of the backend's segments, first and last; `None` if the
/// backend is of an earlier release, which sends none.
pub(crate) async fn exchange_full(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    segment: usize,
) -> io::Result<Option<(usize, usize)>> {
    let questions = vec![PLAIN; FULL_SEGMENTS * segment];
    write.write_all(&questions).await?;
    write.flush().await?;
    let mut answers = questions;
    read.read_exact(&mut answers).await?;
    let Some(first) = ask_full(read, write).await? else { return Ok(None) };
    Ok(ask_full(read, write).await?.map(|last| (first, last)))
}

async fn ask_full(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
) -> io::Result<Option<usize>> {
    write.write_all(&[FULL]).await?;
    write.flush().await?;
    if read.read_u8().await? != UP_FULL {
        return Ok(None);
    }
    let length = read.read_u16().await?;
    let copied = tokio::io::copy(&mut read.take(length.into()), &mut tokio::io::sink()).await?;
    match copied == u64::from(length) {
        true => Ok(Some(length.into())),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Answers a `question` of a frontend that watches: with the loss towards it, or a full `segment`, if it asks
/// for that.
pub(crate) async fn answer(
    write: &mut (impl AsyncWrite + Unpin),
    question: u8,
    loss: impl FnOnce() -> Option<u32>,
    segment: usize,
) -> io::Result<()> {
    let loss = if question == QUESTION { loss() } else { None };
    match (question, loss) {
        (FULL, _) => {
            let length = u16::try_from(segment).unwrap_or(u16::MAX);
            write.write_all(&[UP_FULL]).await?;
            write.write_all(&length.to_be_bytes()).await?;
            write.write_all(&vec![0; length.into()]).await?;
        }
        (_, Some(per_million)) => {
            let [a, b, c, d] = per_million.to_be_bytes();
            write.write_all(&[UP_WITH_LOSS, a, b, c, d]).await?;
        }
        (_, None) => write.write_all(&[UP]).await?,
    }
    write.flush().await
}

/// Tells a frontend that watches that no new connections are wanted.
pub(crate) async fn say_draining(write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write.write_all(&[DRAINING]).await?;
    write.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer that a frontend reads where a backend has the loss `told`.
    async fn answered(told: Option<u32>) -> Answer {
        let (mut near, mut far) = tokio::io::duplex(64);
        let backend = async {
            let question = far.read_u8().await.unwrap();
            answer(&mut far, question, || told, 1400).await.unwrap();
        };
        let (mut read, mut write) = tokio::io::split(&mut near);
        tokio::join!(async { ask(&mut read, &mut write).await.unwrap() }, backend).0
    }

    #[tokio::test]
    async fn a_backend_tells_a_frontend_what_it_loses_towards_it() {
        assert_eq!(answered(None).await, Answer::Up(None));
        assert_eq!(answered(Some(50_000)).await, Answer::Up(Some(0.05)));
    }

    #[tokio::test]
    async fn a_frontend_of_an_earlier_release_gets_the_byte_that_it_knows() {
        let mut said = Vec::new();
        answer(&mut said, PLAIN, || Some(50_000), 1400).await.unwrap();
        assert_eq!(said, [UP]);
    }

    #[tokio::test]
    async fn a_full_segment_comes_from_a_backend_that_knows_the_question() {
        for knows in [true, false] {
            let (mut near, mut far) = tokio::io::duplex(64);
            let backend = async {
                let question = if knows { far.read_u8().await.unwrap() } else { PLAIN };
                answer(&mut far, question, || None, 1400).await.unwrap();
            };
            let (mut read, mut write) = tokio::io::split(&mut near);
            let asked = async { ask_full(&mut read, &mut write).await.unwrap() };
            assert_eq!(tokio::join!(asked, backend).0, knows.then_some(1400));
        }
    }

    #[tokio::test]
    async fn frontend_registers_with_a_backend_that_follows_and_no_other() {
        let moved = |is_other_path| Moved { before: "192.0.2.1:1".parse().unwrap(), is_other_path };
        for (known, expected) in [
            (Some(None), Registered::Known),
            (Some(Some(moved(false))), Registered::Moved(false)),
            (Some(Some(moved(true))), Registered::Moved(true)),
            (None, Registered::Refused),
        ] {
            let (mut near, mut far) = tokio::io::duplex(64);
            let backend = async {
                let question = far.read_u8().await.unwrap();
                assert_eq!(question, REGISTER);
                let (mut read, mut write) = tokio::io::split(&mut far);
                match known {
                    Some(outcome) => take_registration(&mut read, &mut write, |secret| {
                        assert_eq!(secret, Secret([7; 32]));
                        outcome
                    })
                    .await
                    .unwrap(),
                    // An earlier release answers a question that it does not know as it answers any.
                    None => answer(&mut write, question, || None, 1400).await.unwrap(),
                }
            };
            let (mut read, mut write) = tokio::io::split(&mut near);
            let asked = async { register(&mut read, &mut write, &Secret([7; 32])).await.unwrap() };
            assert_eq!(tokio::join!(asked, backend).0, expected);
        }
    }

    #[test]
    fn one_repeated_handshake_does_not_change_what_is_known_of_a_peer() {
        let peer = Peer::default();
        assert_eq!(peer.redundancy(), Redundancy::Unknown);
        peer.learn(GentleOutcome::Off(GentleOff::NotAnswered));
        peer.learn(GentleOutcome::Off(GentleOff::HandshakeRetransmitted));
        assert_eq!(peer.redundancy(), Redundancy::Unanswered);
        peer.learn(GentleOutcome::Off(GentleOff::NotAsked));
        assert_eq!(peer.redundancy(), Redundancy::Off);
    }
}
