//! One direction of a link: middleboxes, then MTU, then queue and rate, then loss, then delay, jitter,
//! reordering and duplication.
//!
//! The fate of a packet is determined when it is offered: the bottleneck is first in, first out, so the
//! packet's departure is known. So a packet in flight is only an entry in a queue of due times. Losses
//! happen behind the bottleneck, so a lost packet has used it. A draw depends on how many packets entered
//! before, so queue, loss and delay never change each other's draws.

use crate::counters::Counters;
use crate::delay::DelayLine;
use crate::loss::{LossSpec, Model};
use crate::middlebox::{Flows, Middlebox, MiddleboxSpec, Passed, header};
use crate::packet::LinkPacket;
use crate::queue::{Admission, Depth, Queue};
use crate::rate::Serialiser;
use crate::seeds::{Name, draws};
use crate::spec::{DirectionSpec, Mtu};
use crate::up_down::Direction;
use alloc::sync::Arc;
use alloc::vec::Vec;
use brisk_wire::Instant;

/// The outcome of an offered packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offered {
    /// The packet is in flight, or a middlebox holds it and may join it with the next packet.
    Queued,
    /// The queue before the bottleneck was full.
    DroppedQueue,
    /// A loss model dropped the packet. On a real path the sender would not know.
    DroppedLoss,
    /// A middlebox dropped the packet.
    DroppedMiddlebox {
        /// An IP packet that the middlebox sends back instead, to be offered to the opposite direction.
        reply: Option<Vec<u8>>,
    },
    /// The packet exceeded the MTU.
    DroppedMtu {
        /// The MTU of the path, in bytes.
        mtu: u16,
        /// The ICMP error that a router sends back, to be offered to the opposite direction. `None` on a path
        /// that sends no ICMP errors, and for packets without bytes.
        icmp: Option<Vec<u8>>,
    },
}

impl Offered {
    /// Returns the IP packet that goes back to the sender, if there is one: offer it to the opposite
    /// direction.
    pub fn answer(self) -> Option<Vec<u8>> {
        match self {
            Offered::DroppedMiddlebox { reply } => reply,
            Offered::DroppedMtu { mtu: _, icmp } => icmp,
            Offered::Queued | Offered::DroppedQueue | Offered::DroppedLoss => None,
        }
    }
}

/// One direction of a path. Packets go in by [`LinkDirection::offer`] and come out of [`LinkDirection::poll`]
/// when due.
#[derive(Debug)]
pub struct LinkDirection<P> {
    middleboxes: Vec<Middlebox<P>>,
    mtu: Option<Mtu>,
    bottleneck: Option<(Queue, Serialiser)>,
    losses: Vec<Model>,
    line: DelayLine<P>,
    /// Counts of events; packets in flight are counted on request.
    counters: Counters,
    /// Packets between two middleboxes, kept to reuse the memory.
    entering: Vec<P>,
    leaving: Vec<P>,
}

/// The parameters of one direction of a link.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) seed: u64,
    /// Separates the direction's random draws from those of other directions under the same seed.
    pub(crate) name: &'a str,
    pub(crate) direction: Direction,
    /// The state of middleboxes for connections, if one of them needs it.
    pub(crate) flows: Option<&'a Arc<Flows>>,
    /// Time from which outages and rate traces count.
    pub(crate) began: Instant,
}

impl<P: LinkPacket> LinkDirection<P> {
    /// Returns a single direction whose clock begins at zero. `name` separates its random draws from those of
    /// other directions under the same `seed`. Middleboxes that need both directions of a connection need
    /// [`Link`](crate::Link) instead.
    pub fn new(spec: &DirectionSpec, seed: u64, name: &str) -> Self {
        let flows = Flows::wanted_by(&[spec]);
        LinkDirection::of_link(
            spec,
            Setting { seed, name, direction: Direction::Up, flows: flows.as_ref(), began: Instant::ZERO },
        )
    }

    pub(crate) fn of_link(spec: &DirectionSpec, setting: Setting<'_>) -> Self {
        let mut direction = LinkDirection {
            middleboxes: Vec::new(),
            mtu: None,
            bottleneck: None,
            losses: Vec::new(),
            line: DelayLine::new(),
            counters: Counters::default(),
            entering: Vec::new(),
            leaving: Vec::new(),
        };
        direction.renew(spec, setting);
        direction
    }

    /// Configures this direction like [`LinkDirection::of_link`], in the same storage.
    pub(crate) fn renew(&mut self, spec: &DirectionSpec, setting: Setting<'_>) {
        let Setting { seed, name, direction, flows, began } = setting;
        let LinkDirection { middleboxes, mtu, bottleneck, losses, line, counters, entering, leaving } = self;
        let loss = |(index, loss): (usize, &LossSpec)| {
            loss.model(draws(seed, Name::new(name).with("/loss/").numbered(index as u64)), began)
        };
        let middlebox = |(index, middlebox): (usize, &MiddleboxSpec)| {
            let own = draws(seed, Name::new(name).with("/middlebox/").numbered(index as u64));
            Middlebox::new(*middlebox, direction, seed, own, spec.mtu.map(|mtu| mtu.bytes), flows)
        };
        middleboxes.clear();
        middleboxes.extend(spec.middleboxes.iter().enumerate().map(middlebox));
        if direction == Direction::Down {
            middleboxes.reverse();
        }
        *mtu = spec.mtu;
        let serialiser = spec.rate.as_ref().and_then(|rate| Serialiser::new(rate, nanos_of(began)));
        let queue = || Queue::new(spec.queue.unwrap_or(Depth::DEFAULT), spec.ecn_mark);
        *bottleneck = serialiser.map(|serialiser| (queue(), serialiser));
        losses.clear();
        losses.extend(spec.losses.iter().enumerate().map(loss));
        line.renew(spec, seed, name);
        *counters = Counters::default();
        entering.clear();
        leaving.clear();
    }

    /// Removes the packets in flight and hands them to `to`.
    pub(crate) fn clear(&mut self, to: &mut impl FnMut(P)) {
        self.line.clear(to);
    }

    /// Offers a packet to the direction at `now`; times must not decrease from call to call. If a middlebox
    /// cuts the packet into pieces, the result is that of the first dropped piece, if any.
    #[inline]
    pub fn offer(&mut self, packet: P, now: Instant) -> Offered {
        self.release_held(now);
        self.counters.offered += 1;
        self.counters.offered_bytes += packet.wire_len() as u64;
        let offered = match self.middleboxes.is_empty() {
            true => self.enter(packet, now),
            false => self.pass(0, packet, now),
        };
        debug_assert!(self.counters().balanced(), "{:?}", self.counters());
        offered
    }

    /// Returns the time of the next event in [`LinkDirection::poll`]. At that time `poll` may return no
    /// packet, because a middlebox may only release a packet into the path.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        let due = self.line.next_due().map(instant_of);
        let held = self.middleboxes.iter().filter_map(Middlebox::deadline).min();
        match (due, held) {
            (Some(due), Some(held)) => Some(due.min(held)),
            (due, held) => due.or(held),
        }
    }

    /// Returns the next packet that is due by `now`, and its due time (whole microseconds, rounded up). Call
    /// it until it returns `None`.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Option<(Instant, P)> {
        self.release_held(now);
        let (due, packet) = self.line.leave(nanos_of(now))?;
        for middlebox in &mut self.middleboxes {
            middlebox.observe(&packet);
        }
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.wire_len() as u64;
        debug_assert!(self.counters().balanced(), "{:?}", self.counters());
        Some((instant_of(due), packet))
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        let held = self.middleboxes.iter().map(Middlebox::held).sum::<usize>();
        Counters { in_flight: (self.line.len() + held) as u64, ..self.counters }
    }

    /// Releases the packets that middleboxes have held for too long.
    #[inline]
    fn release_held(&mut self, now: Instant) {
        if !self.middleboxes.is_empty() {
            self.release_overdue(now);
        }
    }

    #[inline(never)]
    fn release_overdue(&mut self, now: Instant) {
        loop {
            let overdue =
                |(index, middlebox): (usize, &Middlebox<P>)| middlebox.deadline().map(|at| (at, index));
            let next = self.middleboxes.iter().enumerate().filter_map(overdue).min();
            let Some((deadline, index)) = next.filter(|(deadline, _)| *deadline <= now) else {
                break;
            };
            if let Some(packet) = self.middleboxes.get_mut(index).and_then(Middlebox::release) {
                // `offer` has already returned `Queued`, so only the counters show what happened to the
                // packet.
                self.pass(index + 1, packet, deadline);
            }
        }
    }

    /// Passes a packet through the middleboxes from number `first` on, and into the path.
    #[inline(never)]
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

    /// Passes a packet from the middleboxes through MTU, queue, rate and loss to the line.
    #[inline(always)]
    fn enter(&mut self, mut packet: P, now: Instant) -> Offered {
        let len = packet.wire_len();
        if let Some(mtu) = self.mtu.filter(|mtu| len > usize::from(mtu.bytes)) {
            self.counters.dropped_mtu += 1;
            let icmp =
                if mtu.silent { None } else { packet.bytes().and_then(|ip| header::too_big(ip, mtu.bytes)) };
            return Offered::DroppedMtu { mtu: mtu.bytes, icmp };
        }
        let drawn = self.line.draw();
        let mut lost = false;
        for model in &mut self.losses {
            // Each model processes each packet, even one that another model has already lost.
            lost |= model.lose(now, len);
        }
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
        self.counters.reordered += u64::from(drawn.is_reordered());
        if drawn.twice {
            self.counters.duplicated += 1;
            self.line.enter(packet.duplicate(), departure, drawn);
        }
        self.line.enter(packet, departure, drawn);
        Offered::Queued
    }
}

fn nanos_of(instant: Instant) -> u64 {
    instant.as_micros().saturating_mul(1000)
}

/// Rounds up, so that no packet is due too early by a fraction of a microsecond.
fn instant_of(nanos: u64) -> Instant {
    Instant::from_micros(nanos.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, LinkSpec, Ratio};
    use alloc::string::String;
    use alloc::vec;
    use brisk_wire::{ChecksumFill, Ecn, IcmpKind, IpMeta, Packet, TcpHeader, emit, parse};
    use proptest::prelude::*;

    fn link(text: &str, seed: u64) -> Link<Vec<u8>> {
        Link::new(&LinkSpec::parse(text).unwrap_or_else(|error| panic!("{error}")), seed)
    }

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Returns a packet that its number identifies.
    fn numbered(number: u32, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len.max(4)];
        packet[..4].copy_from_slice(&number.to_be_bytes());
        packet
    }

    fn number(packet: &[u8]) -> u32 {
        header::read_u32(packet, 0)
    }

    fn drain(direction: &mut LinkDirection<Vec<u8>>, now: Instant) -> Vec<(u64, u32)> {
        core::iter::from_fn(|| direction.poll(now))
            .map(|(due, packet)| (due.as_micros(), number(&packet)))
            .collect()
    }

    #[test]
    fn a_transparent_link_delivers_at_once() {
        let mut up = link("", 1).up;
        assert_eq!(up.offer(numbered(1, 1500), ms(3)), Offered::Queued);
        assert_eq!(up.next_departure(), Some(ms(3)));
        assert_eq!(drain(&mut up, ms(3)), [(3000, 1)]);
        assert_eq!(up.next_departure(), None);
    }

    #[test]
    fn packets_queue_behind_each_other_and_overflow_is_dropped() {
        let mut down = link("--rtt 20ms --rate 12mbit --queue 3000", 1).down;
        let offered: Vec<Offered> = (0..3).map(|i| down.offer(numbered(i, 1500), ms(0))).collect();
        assert_eq!(offered, [Offered::Queued, Offered::Queued, Offered::DroppedQueue]);
        assert_eq!(drain(&mut down, ms(11)), [(11_000, 0)]);
        assert_eq!(drain(&mut down, ms(100)), [(12_000, 1)]);
        let counters = down.counters();
        assert_eq!((counters.dropped_queue, counters.max_queue_bytes, counters.in_flight), (1, 3000, 0));
    }

    #[test]
    fn a_rate_without_a_queue_gets_128_kilobytes() {
        let mut down = link("--rate 1mbit", 1).down;
        let queued = (0..100).filter(|i| down.offer(numbered(*i, 1500), ms(0)) == Offered::Queued).count();
        assert_eq!(queued, 128_000 / 1500);
    }

    #[test]
    fn lost_packet_uses_the_bottleneck() {
        let mut down = link("--rate 12mbit --loss list:1", 1).down;
        assert_eq!(down.offer(numbered(1, 1500), ms(0)), Offered::DroppedLoss);
        down.offer(numbered(2, 1500), ms(0));
        assert_eq!(drain(&mut down, ms(9)), [(2000, 2)]);
    }

    #[test]
    fn policer_drops_excess_packets_without_delaying_others() {
        let mut down = link("--loss policer:12mbit,3kB", 1).down;
        let offered: Vec<Offered> = (0..3).map(|i| down.offer(numbered(i, 1500), ms(0))).collect();
        assert_eq!(offered, [Offered::Queued, Offered::Queued, Offered::DroppedLoss]);
        assert_eq!(down.offer(numbered(3, 1500), ms(1)), Offered::Queued);
        assert_eq!(drain(&mut down, ms(9)), [(0, 0), (0, 1), (1000, 3)]);
        assert_eq!(down.counters().dropped_loss, 1);
    }

    #[test]
    fn steps_of_the_rate_count_from_the_beginning_of_the_link() {
        let spec = LinkSpec::parse("--rate 12mbit,3mbit@1s").unwrap();
        let mut down = Link::<Vec<u8>>::starting_at(&spec, 1, ms(500)).down;
        down.offer(numbered(1, 1500), ms(1400));
        down.offer(numbered(2, 1500), ms(1500));
        assert_eq!(drain(&mut down, ms(9000)), [(1_401_000, 1), (1_504_000, 2)]);
    }

    #[test]
    fn a_duplicate_follows_directly() {
        let mut down = link("--duplicate 100% --rate 12mbit", 1).down;
        down.offer(numbered(1, 1500), ms(0));
        down.offer(numbered(2, 1500), ms(0));
        assert_eq!(drain(&mut down, ms(9)), [(1000, 1), (1000, 1), (2000, 2), (2000, 2)]);
        assert_eq!(down.counters().duplicated, 2);
    }

    #[test]
    fn a_packet_above_the_mtu_is_answered_by_icmp() {
        let ip = IpMeta::new([10, 7, 0, 2].into(), [10, 7, 0, 1].into());
        let tcp = TcpHeader { src_port: 4000, dst_port: 80, ..TcpHeader::default() };
        let mut packet = Vec::new();
        emit(&ip, &tcp, &[&[0; 1460]], ChecksumFill::Full, &mut packet).unwrap();

        let answer = link("--mtu 1400", 1).up.offer(packet.clone(), ms(0)).answer().unwrap();
        let Ok(Packet::Icmp(icmp)) = parse(&answer, brisk_wire::ChecksumCheck::Verify) else {
            panic!("not ICMP")
        };
        assert_eq!((icmp.kind, icmp.from), (IcmpKind::PacketTooBig { mtu: 1400 }, ip.dst));
        assert_eq!((icmp.src.port(), icmp.dst.port()), (4000, 80));

        let silent = link("--mtu 1400,silent", 1).up.offer(packet.clone(), ms(0));
        assert_eq!(silent, Offered::DroppedMtu { mtu: 1400, icmp: None });
        assert_eq!(link("--mtu 1500", 1).up.offer(packet, ms(0)), Offered::Queued);
    }

    #[test]
    fn a_long_queue_marks_ecn_capable_packets_only() {
        let mut down = link("--rate 1mbit --ecn-mark 1p", 1).down;
        for ecn in [Ecn::Ect0, Ecn::Ect0, Ecn::Ect0, Ecn::NotEct] {
            let ip = IpMeta { ecn, ..IpMeta::new([10, 7, 0, 2].into(), [10, 7, 0, 1].into()) };
            let mut packet = Vec::new();
            emit(&ip, &TcpHeader::default(), &[&[0; 100]], ChecksumFill::Full, &mut packet).unwrap();
            down.offer(packet, ms(0));
        }
        let ecn = |packet: Vec<u8>| match parse(&packet, brisk_wire::ChecksumCheck::Verify) {
            Ok(Packet::Tcp(segment)) => segment.ip.ecn,
            other => panic!("{other:?}"),
        };
        let marks: Vec<Ecn> =
            core::iter::from_fn(|| down.poll(ms(1000))).map(|(_, packet)| ecn(packet)).collect();
        assert_eq!(marks, [Ecn::Ect0, Ecn::Ect0, Ecn::Ce, Ecn::NotEct]);
        assert_eq!(down.counters().marked, 1);
    }

    #[test]
    fn outages_count_from_the_beginning_of_the_link() {
        let spec = LinkSpec::parse("--loss outage:1s..2s").unwrap();
        let mut up = Link::<Vec<u8>>::starting_at(&spec, 1, ms(500)).up;
        assert_eq!(up.offer(numbered(1, 40), ms(1499)), Offered::Queued);
        assert_eq!(up.offer(numbered(1, 40), ms(1500)), Offered::DroppedLoss);
    }

    /// Returns which of 5,000 packets are lost.
    fn losses(text: &str, seed: u64) -> Vec<bool> {
        let mut down = link(text, seed).down;
        (0..5000)
            .map(|i| {
                let now = Instant::from_micros(u64::from(i) * 300);
                drain(&mut down, now);
                down.offer(numbered(i, 1000), now) == Offered::DroppedLoss
            })
            .collect()
    }

    #[test]
    fn another_element_does_not_shift_the_losses() {
        let plain = losses("--loss 3%", 5);
        assert_eq!(plain, losses("--loss 3% --rtt 80ms --jitter 3ms --reorder 2%,5ms --duplicate 5%", 5));
        assert_eq!(plain, losses("--loss 3% --rate 100mbit", 5));
        assert_ne!(plain, losses("--loss 3%", 6));
        let both = losses("--loss 3%+1%", 5);
        assert!(
            plain.iter().zip(&both).all(|(plain, both)| !plain || *both),
            "the first model loses the same packets"
        );
    }

    #[test]
    fn directions_have_independent_losses() {
        let mut link = link("--loss 50%", 5);
        let lost = |direction: &mut LinkDirection<Vec<u8>>| -> Vec<bool> {
            (0..100).map(|i| direction.offer(numbered(i, 40), ms(0)) == Offered::DroppedLoss).collect()
        };
        assert_ne!(lost(&mut link.down), lost(&mut link.up));
    }

    #[test]
    fn a_busy_link_delivers_exactly_its_rate() {
        let mut down = link("--rate 20mbit --queue 10p", 1).down;
        let (mut delivered, mut last) = (0, 0);
        for tick in 0..100_000u64 {
            let now = Instant::from_micros(tick * 100);
            down.offer(numbered(0, 1500), now);
            while let Some((due, _)) = down.poll(now) {
                (delivered, last) = (delivered + 1, due.as_micros());
            }
        }
        // 1,500 bytes at 20 Mbit/s are 600 us each.
        assert_eq!((delivered, last), (16_666, 16_666 * 600));
    }

    #[derive(Clone, Debug)]
    struct Step {
        gap: u64,
        len: usize,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let gap = prop_oneof![3 => Just(0), 2 => 1u64..500, 1 => 500u64..20_000];
        prop::collection::vec((gap, 4usize..1500).prop_map(|(gap, len)| Step { gap, len }), 1..150)
    }

    fn texts() -> impl Strategy<Value = String> {
        let flag = |options: &'static [&'static str]| prop::sample::select(options);
        (
            flag(&[
                "",
                "--rate 5mbit",
                "--rate 5mbit,300kbit@5ms,2mbit@90ms",
                "--rate 300kbit --queue 4p",
                "--rate 1mbit --queue 5kB",
            ]),
            flag(&[
                "",
                "--loss 10%",
                "--loss after:5%,50%",
                "--loss ge:p=5%,r=30%+1%",
                "--loss outage:5ms..9ms,every=50ms",
                "--loss policer:1mbit,5kB",
            ]),
            flag(&["", "--jitter 4ms", "--jitter 100us"]),
            flag(&["", "--reorder 10%,3ms", "--reorder 100%,1ms"]),
            flag(&["", "--duplicate 10%", "--duplicate 100%"]),
            flag(&["", "--rtt 30ms", "--mtu 1000", "--middlebox coalesce"]),
        )
            .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].join(" "))
    }

    /// Offers all steps, polling in between as a driver does; returns the delivered packets.
    fn run(direction: &mut LinkDirection<Vec<u8>>, steps: &[Step]) -> Vec<(u64, u32)> {
        let (mut now, mut out) = (0, Vec::new());
        for (i, step) in steps.iter().enumerate() {
            now += step.gap;
            let instant = Instant::from_micros(now);
            out.extend(drain(direction, instant));
            direction.offer(numbered(i as u32, step.len), instant);
        }
        while let Some(next) = direction.next_departure() {
            out.extend(drain(direction, next));
        }
        out
    }

    proptest! {
        #[test]
        fn offered_packets_are_delivered_dropped_or_in_flight(
            text in texts(),
            steps in steps(),
            seed in any::<u64>(),
        ) {
            let mut down = link(&text, seed).down;
            for (i, step) in steps.iter().enumerate() {
                down.offer(numbered(i as u32, step.len), Instant::from_micros(i as u64 * step.gap.min(1)));
                prop_assert!(down.counters().balanced(), "{text}: {:?}", down.counters());
            }
            let out = drain(&mut down, Instant::from_micros(u64::MAX));
            let counters = down.counters();
            prop_assert!(counters.balanced() && counters.in_flight == 0, "{text}: {counters:?}");
            prop_assert_eq!(counters.delivered, out.len() as u64);
            prop_assert_eq!(counters.offered, steps.len() as u64);
        }

        #[test]
        fn the_same_seed_gives_the_same_run(text in texts(), steps in steps(), seed in any::<u64>()) {
            let first = run(&mut link(&text, seed).down, &steps);
            prop_assert_eq!(&first, &run(&mut link(&text, seed).down, &steps));
            prop_assert!(first.windows(2).all(|pair| pair[0].0 <= pair[1].0), "due times go back: {first:?}");
        }

        #[test]
        fn order_is_kept_unless_reordering_is_asked_for(
            steps in steps(),
            seed in any::<u64>(),
            jitter in 1u64..30,
            rate in prop::sample::select(&["", "--rate 2mbit"][..]),
        ) {
            let text = alloc::format!("--rtt 10ms --jitter {jitter}ms --loss 5% --duplicate 5% {rate}");
            let out = run(&mut link(&text, seed).down, &steps);
            prop_assert!(out.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{out:?}");
        }

        #[test]
        fn the_queue_bound_holds(steps in steps(), bound in 1500u64..20_000, rate in 1u64..5000) {
            let text = alloc::format!("--rate {rate}kbit --queue {bound}");
            let mut down = link(&text, 1).down;
            run(&mut down, &steps);
            prop_assert!(down.counters().max_queue_bytes <= bound);
        }

        #[test]
        fn no_bytes_make_a_direction_panic(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..20),
            share in 0u32..=100,
        ) {
            let text = alloc::format!(
                "--duplicate {} --rate 1mbit --ecn-mark 0p --mtu 100 --middlebox {}",
                Ratio::from_percent(share),
                "strip-option:34+strip-ga+clamp-mss:500+strip-syn-data:3+rewrite-payload+corrupt:50%+clear-reserved\
                 +set-ecn:ect0+coalesce+split+rewrite-seq+nat+drop-after-handshake+drop-unseen-ack+drop-old+synproxy+rst-option:8",
            );
            let mut up = link(&text, 1).up;
            for mut packet in packets {
                // Half of the packets look like IPv4 with TCP inside.
                if packet.len() % 2 == 0 && packet.len() > 40 {
                    let len = packet.len() as u16;
                    packet[..10].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 64, 6]);
                    packet[32] = (packet[32] & 0x3f) | 0x50;
                }
                up.offer(packet, ms(0));
                while up.poll(ms(1)).is_some() {}
            }
        }
    }
}
