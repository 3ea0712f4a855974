//! One direction of a link: middleboxes, then MTU, then queue and rate, then loss, then delay, jitter, reordering and
//! duplication.
//!
//! Everything about a packet is settled the moment it is offered (the bottleneck is first in, first out, so its
//! departure is known), which is why one queue of due times is all the state a direction keeps. A lost packet has
//! taken its place in the bottleneck: it is lost behind it. All draws belong to the packet's number, so what one
//! element does never shifts the chance of another.

use crate::counters::Counters;
use crate::delay::DelayLine;
use crate::loss::LossModel;
use crate::middlebox::{Flows, Middlebox, Passed, header};
use crate::parcel::Parcel;
use crate::queue::{Admission, Depth, Queue};
use crate::rate::Serialiser;
use crate::seeds::rng;
use crate::spec::{DirectionSpec, Mtu};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use brisk_wire::Instant;

/// Which way packets go; a link's two directions differ in nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the server's side (B) to the client's side (A).
    Down,
    /// From the client's side (A) to the server's side (B).
    Up,
}

/// What became of an offered packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offered {
    /// It is on the way (or held by a middlebox that may join it with its successor).
    Queued,
    /// The queue before the bottleneck was full.
    DroppedQueue,
    /// A loss model lost it. Nobody on a real path would know.
    DroppedLoss,
    /// A middlebox dropped it.
    DroppedMiddlebox {
        /// An IP packet that the middlebox sends back instead, to be offered to the opposite direction.
        reply: Option<Vec<u8>>,
    },
    /// It exceeded the MTU.
    DroppedMtu {
        /// The MTU of the path, in bytes.
        mtu: u16,
        /// The ICMP error that a router sends back, to be offered to the opposite direction; none on a path that is
        /// silent about it, and for parcels without bytes.
        icmp: Option<Vec<u8>>,
    },
}

impl Offered {
    /// The IP packet that goes back to the sender, if the drop was answered: offer it to the opposite direction.
    pub fn answer(self) -> Option<Vec<u8>> {
        match self {
            Offered::DroppedMiddlebox { reply } => reply,
            Offered::DroppedMtu { mtu: _, icmp } => icmp,
            Offered::Queued | Offered::DroppedQueue | Offered::DroppedLoss => None,
        }
    }
}

/// One direction of a path. Packets go in by [`Direction::offer`] and come out of [`Direction::poll`] when due.
#[derive(Debug)]
pub struct Direction<P> {
    middleboxes: Vec<Middlebox<P>>,
    mtu: Option<Mtu>,
    bottleneck: Option<(Queue, Serialiser)>,
    losses: Vec<Box<dyn LossModel + Send>>,
    line: DelayLine<P>,
    counters: Counters,
    /// Packets between two middleboxes, kept for their capacity.
    entering: Vec<P>,
    leaving: Vec<P>,
}

impl<P: Parcel> Direction<P> {
    /// A direction by itself, whose clock began at zero. `name` separates its chance from that of other directions
    /// under the same `seed`. Middleboxes that know both ways of a connection need [`Link`](crate::Link) instead.
    pub fn new(spec: &DirectionSpec, seed: u64, name: &str) -> Self {
        Direction::of_link(spec, seed, name, Way::Up, &Flows::wanted_by(&[spec]), Instant::ZERO)
    }

    pub(crate) fn of_link(
        spec: &DirectionSpec,
        seed: u64,
        name: &str,
        way: Way,
        flows: &Arc<Flows>,
        began: Instant,
    ) -> Self {
        let serialiser = spec.rate.as_ref().and_then(|rate| Serialiser::new(rate, nanos_of(began)));
        let queue = Queue::new(spec.queue.unwrap_or(Depth::DEFAULT), spec.ecn_mark);
        let loss = |(index, loss): (usize, &crate::LossSpec)| {
            loss.model(rng(seed, &format!("{name}/loss/{index}")), began)
        };
        let middlebox = |(index, middlebox): (usize, &crate::MiddleboxSpec)| {
            let own = rng(seed, &format!("{name}/middlebox/{index}"));
            Middlebox::new(*middlebox, way, seed, own, spec.mtu.map(|mtu| mtu.bytes), flows)
        };
        let mut middleboxes: Vec<Middlebox<P>> = spec.middleboxes.iter().enumerate().map(middlebox).collect();
        if way == Way::Down {
            middleboxes.reverse();
        }
        Direction {
            middleboxes,
            mtu: spec.mtu,
            bottleneck: serialiser.map(|serialiser| (queue, serialiser)),
            losses: spec.losses.iter().enumerate().map(loss).collect(),
            line: DelayLine::new(spec.delay, spec.jitter, spec.reorder, spec.duplicate, seed, name),
            counters: Counters::default(),
            entering: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Hands a packet to the direction at `now`; times never go back from call to call.
    pub fn offer(&mut self, packet: P, now: Instant) -> Offered {
        self.release_held(now);
        self.counters.offered += 1;
        self.counters.offered_bytes += packet.wire_len() as u64;
        let offered = match self.middleboxes.is_empty() {
            true => self.enter(packet, now),
            false => self.pass(0, packet, now),
        };
        self.count_in_flight();
        offered
    }

    /// When [`Direction::poll`] has something to do next; now and then that is a middlebox letting go of a packet, so
    /// that poll yields nothing yet.
    pub fn next_departure(&self) -> Option<Instant> {
        let due = self.line.next_due().map(instant_of);
        let held = self.middleboxes.iter().filter_map(Middlebox::deadline).min();
        match (due, held) {
            (Some(due), Some(held)) => Some(due.min(held)),
            (due, held) => due.or(held),
        }
    }

    /// The next packet that is due by `now`, and when it was due (whole microseconds, rounded up). Call until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<(Instant, P)> {
        self.release_held(now);
        let (due, packet) = self.line.leave(nanos_of(now))?;
        for middlebox in &mut self.middleboxes {
            middlebox.observe(&packet);
        }
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.wire_len() as u64;
        self.count_in_flight();
        Some((instant_of(due), packet))
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Lets middleboxes that wait for a successor go on with what they hold since too long.
    fn release_held(&mut self, now: Instant) {
        if self.middleboxes.is_empty() {
            return;
        }
        loop {
            let overdue =
                |(index, middlebox): (usize, &Middlebox<P>)| middlebox.deadline().map(|at| (at, index));
            let next = self.middleboxes.iter().enumerate().filter_map(overdue).min();
            let Some((deadline, index)) = next.filter(|(deadline, _)| *deadline <= now) else {
                break;
            };
            if let Some(packet) = self.middleboxes.get_mut(index).and_then(Middlebox::release) {
                // Its sender was told that it is queued; what becomes of it now only the counters tell.
                self.pass(index + 1, packet, deadline);
            }
        }
        self.count_in_flight();
    }

    /// Through the middleboxes from number `first` on, and into the path.
    fn pass(&mut self, first: usize, packet: P, now: Instant) -> Offered {
        let mut offered = Offered::Queued;
        self.entering.push(packet);
        for middlebox in self.middleboxes.iter_mut().skip(first) {
            for packet in self.entering.drain(..) {
                match middlebox.pass(packet, now, &mut self.leaving) {
                    Passed::Onward => {}
                    Passed::Split { extra } => self.counters.split += extra,
                    Passed::Joined => self.counters.coalesced += 1,
                    Passed::Dropped { reply } => {
                        self.counters.dropped_middlebox += 1;
                        offered = Offered::DroppedMiddlebox { reply };
                    }
                }
            }
            core::mem::swap(&mut self.entering, &mut self.leaving);
        }
        let mut packets = core::mem::take(&mut self.entering);
        for packet in packets.drain(..) {
            let entered = self.enter(packet, now);
            if offered == Offered::Queued {
                offered = entered;
            }
        }
        self.entering = packets;
        offered
    }

    /// Past the middleboxes: MTU, queue and rate, loss, and onto the line.
    fn enter(&mut self, mut packet: P, now: Instant) -> Offered {
        let len = packet.wire_len();
        if let Some(mtu) = self.mtu.filter(|mtu| len > usize::from(mtu.bytes)) {
            self.counters.dropped_mtu += 1;
            let icmp =
                if mtu.silent { None } else { packet.bytes().and_then(|ip| header::too_big(ip, mtu.bytes)) };
            return Offered::DroppedMtu { mtu: mtu.bytes, icmp };
        }
        let fate = self.line.draw();
        let lost = self.losses.iter_mut().fold(false, |lost, model| model.lose(now, len) || lost);
        let mut departure = nanos_of(now);
        if let Some((queue, serialiser)) = &mut self.bottleneck {
            match queue.arrive(departure, len) {
                Admission::Full => {
                    self.counters.dropped_queue += 1;
                    return Offered::DroppedQueue;
                }
                Admission::AdmittedAboveMark => {
                    let marked = packet.bytes_mut().is_some_and(|ip| header::mark_congestion(ip));
                    self.counters.marked += u64::from(marked);
                }
                Admission::Admitted => {}
            }
            departure = serialiser.departure(departure, len);
            queue.enter(departure, len);
            self.counters.max_queue_bytes = self.counters.max_queue_bytes.max(queue.bytes());
        }
        if lost {
            self.counters.dropped_loss += 1;
            return Offered::DroppedLoss;
        }
        self.counters.reordered += u64::from(fate.straggles());
        if fate.twice {
            self.counters.duplicated += 1;
            self.line.enter(packet.duplicate(), departure, fate);
        }
        self.line.enter(packet, departure, fate);
        Offered::Queued
    }

    fn count_in_flight(&mut self) {
        let held = self.middleboxes.iter().map(Middlebox::held).sum::<usize>();
        self.counters.in_flight = (self.line.len() + held) as u64;
        debug_assert!(self.counters.balanced(), "{:?}", self.counters);
    }
}

fn nanos_of(instant: Instant) -> u64 {
    instant.as_micros().saturating_mul(1000)
}

/// Rounded up: nothing is due before its last fraction of a microsecond.
fn instant_of(nanos: u64) -> Instant {
    Instant::from_micros(nanos.div_ceil(1000))
}
