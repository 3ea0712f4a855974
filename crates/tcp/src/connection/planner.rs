//! The planner on one connection: what it tells [`crate::mechanism::plan`], and what it makes of the answer.
//!
//! A plan is made when a flight begins: when there is data to send and what was planned before has left.
//! It sets how the encoder groups what follows, which segments the copier names, and how small segments are;
//! what it costs is all that may be spent until the next one.

use alloc::boxed::Box;
use alloc::vec::Vec;

use brisk_wire::SeqNum;

use crate::config::PlannerConfig;
use crate::connection::build::Built;
use crate::connection::choose::Choice;
use crate::connection::{Connection, State};
use crate::event::Probe;
use crate::mechanism::plan::{self, Flight, Losses, Means, Plan, Protection};
use crate::outcome::{Origin, Room};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

/// Segments that the assumed loss of an unknown path weighs as much as.
const PRIOR_SEGMENTS: u64 = 5;
/// Losses that tell what kind they are: of the last so many.
const KINDS: u32 = 8;
/// A packet was lost to a queue if the round-trip time before had risen by a quarter, and this much.
const QUEUE_RISE: Duration = Duration::from_millis(4);

/// How late an exchange is whose SYN or SYN-ACK was lost, in thousandths of a round trip: the timer of the
/// handshake, and the round trip of the request that then goes without Fast Open.
const LATE_HANDSHAKE: u32 = 2_500;
/// A SYN that comes again within this time is the other instance of one that left twice.
const SAME_SYN: Duration = Duration::from_millis(25);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Planner {
    config: PlannerConfig,
    /// What the books of the destination leave at this moment, bytes.
    allowance: u32,
    flight: Option<Planned>,
    kinds: LossKinds,
    /// The first SYN or SYN-ACK as it was written, while its second instance is to leave.
    handshake_copy: Option<Box<[u8]>>,
}

/// A flight that has a plan.
#[derive(Clone, Copy, Debug)]
struct Planned {
    range: SeqRange,
    plan: Plan,
}

/// Of which kind the last losses were: a bit each, set for one behind a rising round-trip time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LossKinds {
    seen: u32,
    queue: u32,
    latest: Option<Duration>,
}

impl LossKinds {
    fn on_loss(&mut self, min_rtt: Option<Duration>) {
        let queue = self.latest.is_some_and(|latest| is_queued(latest, min_rtt));
        self.queue = (self.queue << 1 | u32::from(queue)) & ((1 << KINDS) - 1);
        self.seen = (self.seen + 1).min(KINDS);
    }

    /// Most of them came from a queue, or one stands now and some did.
    fn is_queue(&self, min_rtt: Option<Duration>) -> bool {
        let queued = self.queue.count_ones();
        let now = self.latest.is_some_and(|latest| is_queued(latest, min_rtt));
        queued * 2 > self.seen || (now && queued > 0)
    }
}

fn is_queued(rtt: Duration, min_rtt: Option<Duration>) -> bool {
    min_rtt.is_some_and(|least| rtt >= least + least / 4 + QUEUE_RISE)
}

impl Planner {
    pub(crate) fn new(config: PlannerConfig) -> Self {
        Planner { config, allowance: 0, flight: None, kinds: LossKinds::default(), handshake_copy: None }
    }
}

/// What it hears.
impl Connection {
    /// The configuration of the planner, if there is one.
    pub(crate) fn planner_config(&self) -> Option<&PlannerConfig> {
        self.planner.as_ref().map(|planner| &planner.config)
    }

    /// What may be spent at this moment, by the books of the destination.
    pub(crate) fn set_allowance(&mut self, bytes: u32) {
        if let Some(planner) = &mut self.planner {
            planner.allowance = bytes;
        }
    }

    /// A round-trip sample was taken.
    pub(crate) fn plan_with_rtt(&mut self, rtt: Duration) {
        if let Some(planner) = &mut self.planner {
            planner.kinds.latest = Some(rtt);
        }
    }

    /// Something was lost, repaired or not.
    pub(crate) fn plan_with_loss(&mut self) {
        let min_rtt = self.tx.rtt.min_rtt();
        if let Some(planner) = &mut self.planner {
            planner.kinds.on_loss(min_rtt);
        }
    }
}

/// The handshake, which is protected first: nothing behind it helps if it is lost. Its second instance is the
/// first to the letter, with the data and options that rode on it: who uses Fast Open has accepted that a
/// request may arrive twice, and both instances belong to one connection.
impl Connection {
    /// The SYN or SYN-ACK was written for the first time.
    pub(crate) fn consider_handshake_copy(&mut self, packet: &[u8]) {
        if self.tx.handshake.sent > 0 || self.planner.is_none() {
            return;
        }
        let losses = self.expected_losses();
        let Some(planner) = &mut self.planner else { return };
        let PlannerConfig { expected_bytes, .. } = planner.config;
        let bytes = packet.len() as u32;
        if plan::doubles_handshake(bytes, LATE_HANDSHAKE, expected_bytes, &losses, planner.allowance) {
            planner.handshake_copy = Some(packet.into());
        }
    }

    pub(crate) fn choose_handshake_copy(&self) -> Option<Choice> {
        let waits = self.planner.as_ref().is_some_and(|planner| planner.handshake_copy.is_some());
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        (waits && opening).then_some(Choice::HandshakeCopy)
    }

    pub(crate) fn build_handshake_copy(&mut self, out: &mut Vec<u8>) -> Built {
        let copy = self.planner.as_mut().and_then(|planner| planner.handshake_copy.take());
        out.extend_from_slice(copy.as_deref().unwrap_or_default());
        Built { segment_size: None, origin: Origin::Duplicate }
    }

    /// A SYN that repeats the one which opened this connection may be its second instance: our answer is on
    /// its way, twice if that pays.
    pub(crate) fn is_second_instance(&self, now: Instant) -> bool {
        self.planner.is_some()
            && self.tx.handshake.timeouts == 0
            && now.saturating_since(self.opened) <= SAME_SYN
    }
}

/// What it decides.
impl Connection {
    /// New data may leave: is it planned how?
    pub(crate) fn plan_flight(&mut self, room: &Room) {
        let (nxt, unsent) = (self.tx.scoreboard.nxt(), self.tx.unsent());
        let Some(planner) = &self.planner else { return };
        let under_way = planner.flight.is_some_and(|flight| nxt.lt(flight.range.end));
        if unsent == 0 || under_way {
            return;
        }
        let flight = self.next_flight(room, unsent);
        let losses = self.expected_losses();
        let means = self.means();
        let earned = self.earned_by(&flight);
        let Some(planner) = &mut self.planner else { return };
        let plan = plan::plan(&flight, &losses, &means, planner.allowance.saturating_add(earned));
        planner.flight = Some(Planned { range: SeqRange::with_len(nxt, flight.bytes), plan });
        self.follow(&plan);
        self.counters.planned += 1;
        self.counters.planned_protected += u64::from(plan.protection != Protection::Nothing);
        self.probe(Probe::Planned { flight, losses, plan });
    }

    /// What leaves from now on: all that is written if the window takes it within a round trip, else what
    /// the window lets go now.
    fn next_flight(&self, room: &Room, unsent: u32) -> Flight {
        let mss = self.payload_limit();
        let by_window = room.cwnd.saturating_sub(room.pipe).min(room.peer).max(mss);
        let last = unsent <= room.cwnd;
        Flight {
            bytes: if last { unsent } else { by_window.min(unsent) },
            mss,
            headers: self.header_len() as u32,
            last,
            at_once: !last || unsent <= by_window,
        }
    }

    /// What the flight itself adds to the allowance.
    fn earned_by(&self, flight: &Flight) -> u32 {
        let percent = self.planner_config().map_or(0, |config| config.max_overhead);
        let bytes = u64::from(flight.bytes) + u64::from(flight.segments() * flight.headers);
        (bytes * u64::from(percent) / 100) as u32
    }

    /// What is known of losses: the memory of the path, this connection, and a guess where both are silent.
    pub(crate) fn expected_losses(&self) -> Losses {
        let assumed = self.planner_config().map_or(0, |config| config.assumed_loss);
        let own = self.losses();
        let known = self.known_path().loss;
        let (known_segments, known_loss) = known.map_or((0, 0), |known| (known.segments, known.per_million));
        let segments = PRIOR_SEGMENTS + u64::from(known_segments) + own.sent;
        let lost = PRIOR_SEGMENTS * u64::from(assumed)
            + u64::from(known_segments) * u64::from(known_loss)
            + own.lost * 1_000_000;
        let min_rtt = self.tx.rtt.min_rtt().or(self.known_path().rtt.map(|rtt| rtt.min_rtt));
        Losses {
            per_million: (lost / segments).min(500_000) as u32,
            burst_milli: known.map_or(1000, |known| known.burst_milli).max(1000),
            queue: self.planner.as_ref().is_some_and(|planner| planner.kinds.is_queue(min_rtt)),
        }
    }

    fn means(&self) -> Means {
        Means { parity: self.planned_parity(), copies: self.sends_copies() }
    }

    /// Sets the mechanisms as the plan says.
    fn follow(&mut self, plan: &Plan) {
        let (parities, group, pause) = match plan.protection {
            Protection::Parity { parities, group, pause } => (parities, group, pause),
            Protection::Nothing | Protection::Copies { .. } => (0, 2, false),
        };
        self.plan_parity(parities, group, pause);
        self.tx.allow_redundancy(plan.cost);
    }

    /// How long a copy of this segment waits, if the plan names it.
    pub(crate) fn planned_copy(&self, segment: &SeqRange) -> Option<Duration> {
        let Planned { range, plan } = self.planner.as_ref()?.flight?;
        let Protection::Copies { last, pause } = plan.protection else { return None };
        let named = range.end - last.saturating_mul(plan.segment).min(range.len());
        let wait = if pause { self.tx.rtt.srtt().unwrap_or_default() / 4 } else { Duration::ZERO };
        (segment.end.gt(named) && segment.start.lt(range.end)).then_some(wait)
    }

    /// Largest payload of a segment that begins at `seq`, if the plan cuts the flight.
    pub(crate) fn planned_segment(&self, seq: SeqNum) -> u32 {
        let flight = self.planner.as_ref().and_then(|planner| planner.flight);
        flight.filter(|flight| flight.range.contains(seq)).map_or(u32::MAX, |flight| flight.plan.segment)
    }
}
