//! Events inside a connection, for observers.

use super::state::State;
use crate::mechanism::{CopiesOff, Failure, Flight, Losses, ParityOff, Plan};
use crate::outcome::{CongestionState, LossCause, Origin, Repair, UndoCause};
use crate::seq_ranges::SeqRange;
use crate::time::Duration;

/// Event inside a connection with its reason; recorded only if `StackConfig::observe` is set.
///
/// ```
/// # use brisk_tcp::stack::Rx;
/// use brisk_tcp::connection::State;
/// use brisk_tcp::event::{Observation, Origin};
/// # use brisk_tcp::time::Instant;
/// use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
///
/// let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
/// let mut client = Stack::new(StackConfig { observe: true, ..at("10.0.0.1") }, 1)?;
/// let mut server = Stack::new(at("10.0.0.2"), 2)?;
/// # let (remote, now, mut packet) = ("10.0.0.2:80".parse()?, Instant::ZERO, Vec::new());
/// # let mut pass = |from: &mut Stack, to: &mut Stack| {
/// #     while from.poll_transmit(now, &mut packet).is_some() {
/// #         to.on_packet(&packet, Rx::default(), now);
/// #     }
/// # };
/// server.listen(remote, ListenConfig::default())?;
/// let conn = client.connect(remote, &ConnectConfig::default(), now)?;
/// // `pass` brings the packets of one stack to the other.
/// pass(&mut client, &mut server);
/// pass(&mut server, &mut client);
/// client.write(conn, b"hello", now)?;
/// pass(&mut client, &mut server);
/// let (mut states, mut bytes) = (Vec::new(), 0);
/// while let Some((of, _at, observation)) = client.poll_observation() {
///     assert_eq!(of, conn);
///     match observation {
///         Observation::State(state) => states.push(state),
///         Observation::Sent { origin: Origin::New, range } => bytes += range.len(),
///         _ => {}
///     }
/// }
/// assert_eq!((states.last(), bytes), (Some(&State::Established), 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Observation {
    /// The connection changed its RFC 9293 state.
    State(State),
    /// A segment with data, FIN or parity left.
    Sent {
        /// Sequence range of the segment.
        range: SeqRange,
        /// Reason of the transmission.
        origin: Origin,
    },
    /// Data was declared lost.
    LossDeclared {
        /// Bytes.
        bytes: u32,
        /// The algorithm.
        by: LossCause,
    },
    /// A tail loss probe left because an acknowledgement was overdue.
    ProbeSent {
        /// Sequence range of the segment.
        range: SeqRange,
        /// True if the probe carries new data; otherwise it repeats the last segment.
        new_data: bool,
    },
    /// A loss was repaired before loss detection found it; the window is reduced once for it.
    MaskedLoss {
        /// Means of the repair.
        by: Repair,
    },
    /// Data arrived only as copies, because the originals were lost.
    CopyUsed {
        /// Number of segments.
        segments: u32,
    },
    /// The planner decided about a flight.
    Planned {
        /// Data that is about to be sent.
        flight: Flight,
        /// Expected losses of the path.
        losses: Losses,
        /// The decision and its reason.
        plan: Plan,
    },
    /// Copying ended on this connection.
    CopiesOff {
        /// Reason.
        why: CopiesOff,
    },
    /// Parity repaired lost data.
    Repaired {
        /// Range that the parity covered.
        range: SeqRange,
        /// Runs of bytes that had been missing.
        runs: u32,
    },
    /// Parity could not repair the loss.
    RepairFailed {
        /// Bytes from RCV.NXT to the end of the covered range.
        lost_len: u32,
        /// Reason.
        why: Failure,
    },
    /// Parity ended in one direction, for good.
    ParityOff {
        /// True if parity is no longer sent; false if it is no longer accepted.
        sending: bool,
        /// Reason.
        why: ParityOff,
    },
    /// The retransmission timer fired.
    Timeout {
        /// The timeout that will be used next.
        rto: Duration,
    },
    /// The recovery state changed.
    Recovery {
        /// New state.
        state: CongestionState,
        /// Congestion window after the change, bytes.
        cwnd: u32,
        /// Slow-start threshold after the change, bytes.
        ssthresh: u32,
    },
    /// A reduction of the window was found to be spurious and undone.
    Undone {
        /// Evidence.
        why: UndoCause,
    },
    /// A round-trip sample was taken.
    RttSample {
        /// The sample.
        rtt: Duration,
        /// The smoothed estimate after it.
        srtt: Duration,
    },
    /// A zero-window probe left.
    WindowProbe,
    /// A keepalive probe left.
    KeepaliveProbe,
    /// The largest payload of a segment changed by path-MTU discovery.
    MssChanged {
        /// Payload bytes per segment.
        mss: u32,
    },
}
