//! The transports of the hop to a backend ([`Transport`]), and which of them the path carries.
//!
//! The first transport is tried alone for at least [`HEAD_START`]. If its handshake has not completed by
//! then, the next one is opened in parallel with **the same** first message, or as soon as the first is
//! reported unreachable. If other connections are answered over the first transport meanwhile, only packets
//! of this connection were lost. Then the first transport gets another head start, up to [`MAX_HEAD_STARTS`]
//! in all, because a connection over the kernel's TCP does not survive a change of address. The first answer
//! is accepted, and the other transport is dropped. Over an encrypted hop the backend acts on that message
//! once, whichever transport delivers it ([`crate::hop::replay`]).
//!
//! If a later transport answers first, new connections begin with it, and the earlier ones are tried again
//! after [`RETRY_PAUSE`]. If the watch makes these trials, the pause is constant, so that the watch notices
//! within three seconds that the path carries an earlier transport again. Without a watch, clients'
//! connections make the trials, and a failed trial costs its connection the head start. So the pause doubles
//! with each failure, up to [`MAX_RETRY_PAUSE`].

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::hop::dial::DialError;

/// Transport of a connection of the hop. The variants are in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Brisk's TCP on the usual device: inside UDP by default.
    Usual,
    /// Brisk's TCP without UDP, through a packet socket.
    Packet,
    /// The kernel's TCP.
    Kernel,
}

impl Transport {
    /// All transports, in order.
    pub(crate) const ALL: [Transport; 3] = [Transport::Usual, Transport::Packet, Transport::Kernel];

    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Usual => "brisk",
            Transport::Packet => "packet",
            Transport::Kernel => "kernel-tcp",
        }
    }
}

/// Time for which a transport is tried alone; three round trips if they take longer.
pub(crate) const HEAD_START: Duration = Duration::from_millis(400);
/// Limit of successive head starts of a transport that answers other connections.
const MAX_HEAD_STARTS: u32 = 5;
/// Time from a failure of a transport until it is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum of this time if clients' connections make the trials.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(60);
/// A transport is given up if all trials have failed for this time.
const GIVE_UP_AFTER: Duration = Duration::from_secs(15);

/// The task that tries a lost transport again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trials {
    Watch,
    Connections,
}

/// Memory of each transport with brisk's TCP. The kernel's TCP is the last one, and is always tried.
#[derive(Debug, Default)]
pub(crate) struct Transports {
    usual: Memory,
    packet: Memory,
}

impl Transports {
    /// Returns the memory of a transport; `None` for the kernel's TCP.
    pub(crate) fn memory(&self, transport: Transport) -> Option<&Memory> {
        match transport {
            Transport::Usual => Some(&self.usual),
            Transport::Packet => Some(&self.packet),
            Transport::Kernel => None,
        }
    }

    /// Returns `available` in order, without the transports before the first one that may work; all of them
    /// if none works.
    pub(crate) fn beginning_with_working(
        &self,
        available: &[Transport],
        mut works: impl FnMut(Transport, &Memory) -> bool,
    ) -> Vec<Transport> {
        let works =
            |transport: &Transport| self.memory(*transport).is_none_or(|memory| works(*transport, memory));
        let first = available.iter().position(works).unwrap_or(0);
        available.get(first..).unwrap_or_default().to_vec()
    }
}

/// Record of whether a path carries brisk's TCP over one transport.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    lost: Option<Lost>,
    /// Time of the last answer to a handshake over this transport.
    worked: Option<Instant>,
    /// Time of the last answer of any kind.
    answered: Option<Instant>,
}

/// The state of a transport that the path does not carry, as far as known.
#[derive(Clone, Copy, Debug)]
struct Lost {
    since: Instant,
    again_at: Instant,
    pause: Duration,
}

impl Memory {
    /// True while connections begin with another transport.
    pub(crate) fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// True if the transport is due for a trial.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.lock().lost.is_some_and(|lost| lost.again_at <= now)
    }

    /// Records the failure of a connection that began at `began`. If the transport has carried an answer
    /// since then, only packets of this connection were lost, and nothing is recorded. Returns true if the
    /// failure is certain enough to give up open connections over this transport; a path or a machine that
    /// was busy for a moment must not end them.
    pub(crate) fn lost(&self, trials: Trials, began: Instant, now: Instant) -> bool {
        let mut state = self.lock();
        if state.worked.is_some_and(|worked| worked > began) {
            return false;
        }
        let Some(Lost { since, again_at, pause }) = state.lost else {
            state.lost = Some(Lost { since: now, again_at: now + RETRY_PAUSE, pause: RETRY_PAUSE });
            return false;
        };
        let trial = again_at <= now;
        let pause = match (trial, trials) {
            (true, Trials::Connections) => (2 * pause).min(MAX_RETRY_PAUSE),
            // Before the pause has passed, other connections report the same failure.
            (true, Trials::Watch) | (false, _) => pause,
        };
        state.lost = Some(Lost { since, again_at: now + pause, pause });
        trial && now.saturating_duration_since(since) >= GIVE_UP_AFTER
    }

    /// True if the transport has carried an answer of any kind since `began`.
    pub(crate) fn has_answered_since(&self, began: Instant) -> bool {
        self.lock().answered.is_some_and(|answered| answered > began)
    }

    /// Records an answer to a handshake over this transport.
    pub(crate) fn works(&self, now: Instant) {
        *self.lock() = State { lost: None, worked: Some(now), answered: Some(now) };
    }

    /// Records an answer on an open connection, which does not show that another can be opened.
    pub(crate) fn answers(&self, now: Instant) {
        self.lock().answered = Some(now);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the connections over a backend that no answer will arrive any more. They cannot detect this
/// themselves.
#[derive(Debug, Default)]
pub(crate) struct PathChanges(watch::Sender<Changes>);

/// Number of reports of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    process: u64,
    usual: u64,
    packet: u64,
}

/// The changes on a backend's path since a connection began.
#[derive(Debug)]
pub(crate) struct PathState {
    changes: watch::Receiver<Changes>,
    /// The reports at the beginning of the connection.
    before: Changes,
}

impl PathChanges {
    /// Returns the path state for a connection that begins now.
    pub(crate) fn begin(&self) -> PathState {
        let changes = self.0.subscribe();
        let before = *changes.borrow();
        PathState { changes, before }
    }

    /// Reports that the host of the backend is up, but no process listens on the backend's port any more.
    pub(crate) fn process_gone(&self) {
        self.0.send_modify(|changes| changes.process += 1);
    }

    /// Reports that the path has carried another transport, but not this one, for some time.
    pub(crate) fn lost(&self, transport: Transport) {
        self.0.send_modify(|changes| match transport {
            Transport::Usual => changes.usual += 1,
            Transport::Packet => changes.packet += 1,
            Transport::Kernel => {}
        });
    }
}

impl PathState {
    /// Resolves when a connection over `transport` will get no answer any more; returns the reason.
    pub(crate) async fn broken(mut self, transport: Transport) -> &'static str {
        let before = self.before;
        let is_over =
            |changes: &Changes| changes.process > before.process || is_lost(transport, &before, changes);
        match self.changes.wait_for(is_over).await.map(|changes| changes.process > before.process) {
            Ok(true) => "the backend's process has ended",
            Ok(false) => "the path no longer carries brisk's TCP",
            // The backend was removed from the configuration; the connection detects a failure itself.
            Err(_) => std::future::pending().await,
        }
    }
}

/// True if the path has stopped carrying `transport` between `before` and `now`.
fn is_lost(transport: Transport, before: &Changes, now: &Changes) -> bool {
    match transport {
        Transport::Usual => now.usual > before.usual,
        Transport::Packet => now.packet > before.packet,
        Transport::Kernel => false,
    }
}

/// Returns the first answer of two attempts. `next` begins as soon as `this` is reported unreachable before
/// it is `connected`. `next` also begins if `this` is not `connected` after `head_start`, but not while the
/// transport of `this` answers others (`answers_others`, with the beginning of the head start). Any other
/// failure of `this` alone is returned: the backend may have read the message, or this side lacks a port or
/// memory. Once both have begun, an error is returned only if both fail: if possible, one that is not
/// retryable.
pub(crate) async fn first_of<T>(
    this: impl Future<Output = Result<T, DialError>>,
    mut connected: watch::Receiver<bool>,
    head_start: Duration,
    answers_others: impl Fn(Instant) -> bool,
    next: impl Future<Output = Result<T, DialError>>,
) -> Result<T, DialError> {
    let (mut this, mut next) = (pin!(this), pin!(next));
    let handshake = connected.clone();
    let silent = async {
        for _ in 0..MAX_HEAD_STARTS {
            let began = Instant::now();
            let connected = connected.wait_for(|connected| *connected);
            if matches!(tokio::time::timeout(head_start, connected).await, Ok(Ok(_))) {
                std::future::pending::<()>().await;
            }
            if !answers_others(began) {
                break;
            }
        }
    };
    let early = tokio::select! {
        answered = &mut this => Some(answered),
        () = silent => None,
    };
    let (first, other) = match early {
        Some(Err(error)) if !*handshake.borrow() && error.is_unreachable() => (error, next.await),
        Some(answered) => return answered,
        None => tokio::select! {
            answered = &mut this => match answered {
                Ok(answered) => return Ok(answered),
                Err(refused) => (refused, next.await),
            },
            answered = &mut next => match answered {
                Ok(answered) => return Ok(answered),
                Err(refused) => (refused, this.await),
            },
        },
    };
    other.map_err(|second| if first.is_retryable() { second } else { first })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::io;

    use super::*;

    fn failed(kind: io::ErrorKind) -> Result<&'static str, DialError> {
        let error = kind.into();
        Err(match kind {
            io::ErrorKind::ConnectionReset => DialError::Connection(error),
            _ => DialError::Unopened(error),
        })
    }

    async fn after(ms: u64, answer: Result<&'static str, DialError>) -> Result<&'static str, DialError> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        answer
    }

    async fn race(
        ours: impl Future<Output = Result<&'static str, DialError>>,
        connected: bool,
        kernel: impl Future<Output = Result<&'static str, DialError>>,
    ) -> Result<&'static str, DialError> {
        let (_told, connected) = watch::channel(connected);
        first_of(ours, connected, HEAD_START, |_| false, kernel).await
    }

    #[tokio::test(start_paused = true)]
    async fn kernel_tcp_waits_longer_while_the_transport_answers_others() {
        for (answers, head_starts) in [(0, 1), (1, 2), (3, 4), (99, MAX_HEAD_STARTS)] {
            let (begin, answered) = (tokio::time::Instant::now(), std::cell::Cell::new(0));
            let answers_others = |_| answered.replace(answered.get() + 1) < answers;
            let (_told, connected) = watch::channel(false);
            first_of(pending(), connected, HEAD_START, answers_others, ready(Ok("kernel"))).await.unwrap();
            assert_eq!(begin.elapsed(), HEAD_START * head_starts);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn kernel_tcp_starts_after_the_head_start_without_a_handshake() {
        let begin = tokio::time::Instant::now();
        assert_eq!(race(pending(), false, ready(Ok("kernel"))).await.unwrap(), "kernel");
        assert_eq!(begin.elapsed(), HEAD_START);
        assert_eq!(race(after(300, Ok("ours")), false, ready(Ok("kernel"))).await.unwrap(), "ours");
        // The origin takes long, but the path works.
        assert_eq!(race(after(5000, Ok("ours")), true, ready(Ok("kernel"))).await.unwrap(), "ours");
        assert_eq!(race(after(500, Ok("ours")), false, after(200, Ok("kernel"))).await.unwrap(), "ours");
    }

    #[tokio::test(start_paused = true)]
    async fn transport_that_is_refused_leaves_it_to_the_next_at_once() {
        let begin = tokio::time::Instant::now();
        let refused = || after(40, failed(io::ErrorKind::ConnectionRefused));
        assert_eq!(race(refused(), false, ready(Ok("kernel"))).await.unwrap(), "kernel");
        assert_eq!(begin.elapsed(), Duration::from_millis(40));
        assert!(race(refused(), false, refused()).await.unwrap_err().is_retryable());
        // A reset may come from a backend that has read the message.
        let reset = after(40, failed(io::ErrorKind::ConnectionReset));
        assert!(!race(reset, false, ready(Ok("kernel"))).await.unwrap_err().is_retryable());
    }

    #[tokio::test(start_paused = true)]
    async fn transport_that_is_unreachable_leaves_it_to_the_next_at_once() {
        use io::ErrorKind::{AddrInUse, HostUnreachable, NetworkUnreachable, OutOfMemory, QuotaExceeded};
        for kind in [HostUnreachable, NetworkUnreachable] {
            let begin = tokio::time::Instant::now();
            let early = || after(40, failed(kind));
            assert_eq!(race(early(), false, ready(Ok("kernel"))).await.unwrap(), "kernel", "{kind}");
            assert_eq!(begin.elapsed(), Duration::from_millis(40));
            // After the handshake the backend may have read the message.
            assert!(race(early(), true, ready(Ok("kernel"))).await.is_err(), "{kind}");
        }
        // A failure of this side says nothing about the transport.
        for kind in [AddrInUse, OutOfMemory, QuotaExceeded] {
            assert!(race(after(40, failed(kind)), false, ready(Ok("kernel"))).await.is_err(), "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_attempt_leaves_it_to_the_other() {
        let reset = || failed(io::ErrorKind::ConnectionReset);
        assert_eq!(race(after(500, reset()), false, after(900, Ok("kernel"))).await.unwrap(), "kernel");
        assert_eq!(race(after(900, Ok("ours")), false, reset_now()).await.unwrap(), "ours");
        // The request must not be sent elsewhere if one of the two may have delivered it.
        let refused = || failed(io::ErrorKind::ConnectionRefused);
        for (ours, kernel, nothing) in
            [(reset(), refused(), false), (refused(), reset(), false), (refused(), refused(), true)]
        {
            let failed = race(after(500, ours), false, ready(kernel)).await.unwrap_err();
            assert_eq!(failed.is_retryable(), nothing, "{failed}");
        }
    }

    async fn reset_now() -> Result<&'static str, DialError> {
        failed(io::ErrorKind::ConnectionReset)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_learns_only_of_later_changes_of_its_transport() {
        let reason = async |path_state: PathState, transport| {
            tokio::time::timeout(Duration::from_secs(1), path_state.broken(transport)).await.ok()
        };
        let changes = PathChanges::default();
        changes.process_gone();
        let [usual, packet, kernel] = Transport::ALL.map(|_| changes.begin());
        changes.lost(Transport::Usual);
        assert!(reason(usual, Transport::Usual).await.is_some_and(|why| why.contains("path")));
        assert_eq!(reason(packet, Transport::Packet).await, None);
        assert_eq!(reason(kernel, Transport::Kernel).await, None);
        let packet = changes.begin();
        changes.lost(Transport::Packet);
        assert!(reason(packet, Transport::Packet).await.is_some_and(|why| why.contains("path")));
        let kernel = changes.begin();
        changes.process_gone();
        assert!(reason(kernel, Transport::Kernel).await.is_some_and(|why| why.contains("process")));
        let (left, changes) = (changes.begin(), drop(changes));
        assert_eq!((reason(left, Transport::Usual).await, changes), (None, ()));
    }

    /// Returns the pauses between eight failed trials in seconds; each with true if the failure was certain.
    fn pauses(trials: Trials) -> Vec<(u64, bool)> {
        let (memory, mut now) = (Memory::default(), Instant::now());
        assert!(!memory.is_lost() && !memory.is_due(now));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let certain = memory.lost(trials, now, now);
            // Another task that sees the same failure does not count as another trial.
            assert!(!memory.lost(trials, now, now) && memory.is_lost());
            let pause = (1..=60).find(|seconds| memory.is_due(now + Duration::from_secs(*seconds))).unwrap();
            pauses.push((pause, certain));
            // A trial of the watch waits for its answer.
            now += Duration::from_secs(pause)
                + if trials == Trials::Watch { 4 * TIME_LIMIT } else { Duration::ZERO };
        }
        memory.works(now);
        assert!(!memory.is_lost() && !memory.is_due(now));
        pauses
    }

    /// Time limit of the watch; the first answer may take four times as long.
    const TIME_LIMIT: Duration = Duration::from_millis(600);

    #[test]
    fn failed_trials_by_connections_double_the_pause_and_those_of_the_watch_do_not() {
        let seconds = |trials| pauses(trials).into_iter().map(|(pause, _)| pause).collect::<Vec<_>>();
        assert_eq!(seconds(Trials::Connections), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(seconds(Trials::Watch), [1; 8]);
    }

    #[test]
    fn a_transport_that_is_lost_for_15_seconds_is_given_up() {
        let certain = |trials| pauses(trials).iter().position(|(_, certain)| *certain);
        assert_eq!((certain(Trials::Connections), certain(Trials::Watch)), (Some(4), Some(5)));
    }

    #[test]
    fn failed_handshake_is_no_loss_of_the_transport_if_another_was_answered_since() {
        let (memory, began) = (Memory::default(), Instant::now());
        let [answered, later] = [1, 2].map(|ms| began + Duration::from_millis(ms));
        memory.works(answered);
        memory.lost(Trials::Watch, began, later);
        assert!(!memory.is_lost(), "the path lost packets of one connection");
        memory.lost(Trials::Watch, later, later);
        assert!(memory.is_lost());
    }

    #[test]
    fn answer_on_an_open_connection_does_not_return_to_a_lost_transport() {
        let (memory, began) = (Memory::default(), Instant::now());
        let later = began + Duration::from_millis(1);
        memory.answers(later);
        assert!(memory.has_answered_since(began) && !memory.has_answered_since(later));
        memory.lost(Trials::Watch, began, later);
        memory.answers(later);
        assert!(memory.is_lost());
    }

    #[test]
    fn connections_begin_with_the_first_transport_that_works() {
        let (transports, now) = (Transports::default(), Instant::now());
        let begin = |available: &[Transport]| {
            transports.beginning_with_working(available, |_, memory| !memory.is_lost())
        };
        let [usual, packet, kernel] = Transport::ALL;
        assert_eq!(begin(&Transport::ALL), Transport::ALL);
        transports.usual.lost(Trials::Watch, now, now);
        assert_eq!(begin(&Transport::ALL), [packet, kernel]);
        assert_eq!(begin(&[usual, kernel]), [kernel]);
        assert_eq!(begin(&[usual]), [usual], "the only transport is tried although it is lost");
        transports.packet.lost(Trials::Watch, now, now);
        assert_eq!(begin(&Transport::ALL), [kernel]);
        transports.usual.works(now);
        assert_eq!(begin(&Transport::ALL), Transport::ALL);
    }
}
