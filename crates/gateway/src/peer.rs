//! Reports about a peer and the path to it: the redundancy that both sides agreed on, round-trip times and
//! losses.
//!
//! A frontend measures them on its watch, the connection with which it checks a backend. Each side counts the
//! losses of its own segments, so the backend reports those of the other direction. The frontend asks with
//! `QUESTION`. A backend that knows this byte answers with `UP_WITH_LOSS` and the losses; earlier releases
//! answer every byte like `PLAIN`.

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

/// Asks whether the backend is up, and for the losses of its segments to this side.
const QUESTION: u8 = 1;
/// Asks for a full segment.
pub(crate) const FULL: u8 = 2;
/// Asks whether the backend follows frontends whose address changes.
pub(crate) const REGISTER: u8 = 4;
/// Asks only whether the backend is up.
const PLAIN: u8 = 0;
/// The backend is up.
const UP: u8 = 0;
/// The backend is draining.
const DRAINING: u8 = 1;
/// The backend is up. Four bytes follow, big-endian: how many of a million segments to this frontend were
/// lost.
const UP_WITH_LOSS: u8 = 2;
/// The backend is up; a length of two bytes and that many bytes follow, in a full segment.
const UP_FULL: u8 = 3;

/// The backend follows frontends. The frontend then sends its secret, unless it has sent it already, and the
/// backend answers with `UP` or one of the next two.
const FOLLOWS: u8 = 4;
/// The frontend has another port.
const MOVED_PORT: u8 = 5;
/// The frontend has another address.
const MOVED_PATH: u8 = 6;

/// State of the agreement on parity and copies with a peer. Both sides must agree in the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redundancy {
    /// No handshake has shown the state yet.
    #[default]
    Unknown,
    /// Both sides agreed.
    Agreed,
    /// This side does not request it.
    Off,
    /// The peer did not offer it or did not answer.
    Unanswered,
    /// The path damages or drops the option.
    Blocked,
    /// Not on this connection: its handshake was repeated or had no space for the option, or the previous
    /// connection failed.
    Lapsed,
}

impl Redundancy {
    pub(crate) const ALL: [Redundancy; 6] = [
        Redundancy::Unknown,
        Redundancy::Agreed,
        Redundancy::Off,
        Redundancy::Unanswered,
        Redundancy::Blocked,
        Redundancy::Lapsed,
    ];

    /// Converts the outcome of one connection.
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

    /// Returns the name for reports.
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

    /// Returns the reason for reports.
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

/// Latest measurements of the path to a peer.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PathReport {
    /// Smoothed round-trip time.
    pub smoothed_rtt: Option<Duration>,
    /// Minimum round-trip time within 300 s; absent over the kernel's TCP.
    pub min_rtt: Option<Duration>,
    /// Share of lost segments to the peer, including repaired ones.
    pub loss_out: Option<f64>,
    /// Share of lost segments from the peer, as the peer counts it.
    pub loss_in: Option<f64>,
}

/// The known facts about a peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    path: Mutex<PathReport>,
    redundancy: AtomicU8,
    /// The state of the redundancy that was logged last.
    logged: AtomicU8,
}

impl Peer {
    /// Returns the path; empty before the first measurement.
    pub(crate) fn path(&self) -> PathReport {
        *self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the measurements of the watch.
    pub(crate) fn measured(&self, seen: PathReport) {
        *self.path.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Returns the state of the agreement on redundancy.
    pub(crate) fn redundancy(&self) -> Redundancy {
        Redundancy::from_byte(&self.redundancy)
    }

    /// Records the outcome of a new connection. An outcome that gives no information does not change the
    /// state.
    pub(crate) fn learn(&self, outcome: GentleOutcome) {
        match Redundancy::of(outcome) {
            Redundancy::Unknown | Redundancy::Lapsed => {}
            seen => self.redundancy.store(seen as u8, Ordering::Relaxed),
        }
    }

    /// Logs a change of the redundancy.
    pub(crate) fn log_redundancy(&self, backend: &str, log: &Log) {
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
    /// Returns the measurements of a connection of `endpoint` from `local` to `remote`. `stats` are those of
    /// the connection; the peer has reported `loss_in`.
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

/// Returns how many of a million segments that `endpoint` sent from `local` to `remote` were lost. Losses in
/// the endpoint's own queue do not count.
pub(crate) fn loss(endpoint: &Endpoint, local: IpAddr, remote: IpAddr) -> Option<u32> {
    endpoint.path(local, remote).loss.map(|loss| loss.per_million)
}

fn share(per_million: u32) -> f64 {
    f64::from(per_million) / 1e6
}

/// A backend's answer to a watch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Answer {
    /// The backend is up. The value is the share of lost segments from the backend to this side; an earlier
    /// release does not report it.
    Up(Option<f64>),
    Draining,
}

/// Asks the backend whether it is up.
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

/// The backend's answer to a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Registered {
    /// The backend is of an earlier release or is draining, the transport is not TCP in UDP, or the tunnel
    /// has no key.
    Refused,
    /// The backend will follow the frontend.
    Known,
    /// The address of this side has changed since its last registration; true if more than the port has
    /// changed.
    Moved(bool),
}

/// Sends the secret by which the backend recognises this frontend at another address ([`crate::roaming`]). If
/// the backend `is_known` to follow this frontend, the secret leaves before the backend agrees, which saves a
/// round trip.
pub(crate) async fn register(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    secret: &Secret,
    is_known: bool,
) -> io::Result<Registered> {
    write.write_all(&[REGISTER]).await?;
    if is_known {
        write.write_all(&secret.0).await?;
    }
    write.flush().await?;
    if read.read_u8().await? != FOLLOWS {
        return Ok(Registered::Refused);
    }
    if !is_known {
        write.write_all(&secret.0).await?;
        write.flush().await?;
    }
    Ok(match read.read_u8().await? {
        UP => Registered::Known,
        MOVED_PORT => Registered::Moved(false),
        MOVED_PATH => Registered::Moved(true),
        _ => Registered::Refused,
    })
}

/// Answers a registration: reads the secret and sends the result of `register`.
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

/// Number of full segments in an exchange. Brisk's TCP splits shorter flights into smaller segments.
const FULL_SEGMENTS: usize = 9;

/// Sends several full segments, each of `segment` bytes, and requests two full segments from the backend.
/// Returns the payload of each of the two; `None` if the backend is of an earlier release and sends none.
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

/// Answers a `question` of a watch. Depending on the question, the answer contains the loss towards the
/// frontend, or fills a `segment`.
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

/// Tells a watching frontend that this backend is draining.
pub(crate) async fn announce_draining(write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write.write_all(&[DRAINING]).await?;
    write.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answer that a frontend reads if the backend has the loss `loss`.
    async fn answered(loss: Option<u32>) -> Answer {
        let (mut near, mut far) = tokio::io::duplex(64);
        let backend = async {
            let question = far.read_u8().await.unwrap();
            answer(&mut far, question, || loss, 1400).await.unwrap();
        };
        let (mut read, mut write) = tokio::io::split(&mut near);
        tokio::join!(async { ask(&mut read, &mut write).await.unwrap() }, backend).0
    }

    #[tokio::test]
    async fn a_backend_reports_its_losses_towards_a_frontend() {
        assert_eq!(answered(None).await, Answer::Up(None));
        assert_eq!(answered(Some(50_000)).await, Answer::Up(Some(0.05)));
    }

    #[tokio::test]
    async fn a_frontend_of_an_earlier_release_gets_the_byte_that_it_knows() {
        let mut written = Vec::new();
        answer(&mut written, PLAIN, || Some(50_000), 1400).await.unwrap();
        assert_eq!(written, [UP]);
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
        let cases = [
            (Some(None), Registered::Known),
            (Some(Some(moved(false))), Registered::Moved(false)),
            (Some(Some(moved(true))), Registered::Moved(true)),
            (None, Registered::Refused),
        ];
        for ((known, expected), is_known) in cases.iter().flat_map(|case| [(*case, false), (*case, true)]) {
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
                    // An earlier release answers an unknown question like any other.
                    None => answer(&mut write, question, || None, 1400).await.unwrap(),
                }
            };
            let (mut read, mut write) = tokio::io::split(&mut near);
            let asked = async { register(&mut read, &mut write, &Secret([7; 32]), is_known).await.unwrap() };
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
