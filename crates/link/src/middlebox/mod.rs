//! Middleboxes: what devices on real paths do to TCP packets.
//!
//! NATs, firewalls, normalisers, proxies and accelerators drop, remove and rewrite unknown options, bits and
//! segments. A TCP that uses a new option or bit must work behind them or fall back (Honda et al., "Is it
//! still possible to extend TCP?", IMC 2011). Each box of this module does one such thing, so that a test can
//! show what it causes. A box processes one packet at a time and passes packets that are not TCP. Only
//! `corrupt` leaves wrong checksums. The boxes of a link stand in a row from A to B: packets in the direction
//! `up` pass them in the written order, packets in the direction `down` in reverse.

mod bits;
mod coalesce;
mod flows;
pub(crate) mod header;
mod options;
mod payload;
mod reset;
#[cfg(test)]
mod sample;
mod spec;
mod syn_proxy;
mod translate;

pub(crate) use flows::Flows;
pub use options::{OptionPattern, Scope};
pub use spec::{MIDDLEBOXES, MiddleboxSpec};

use crate::packet::LinkPacket;
use crate::seeds::Draws;
use crate::up_down::Direction;
use alloc::sync::Arc;
use alloc::vec::Vec;
use brisk_wire::{ChecksumFill, Instant};
use coalesce::Coalesce;
use header::Tcp;

/// The decision of a box that edits packets in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The packet goes on, edited or not.
    Pass,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender gets a RST.
    Reset,
}

/// The outcome of one packet at one box. Packets that go on are appended to a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Passed {
    /// The packet went on, or is held.
    Onward,
    /// The packet went on in `1 + extra` pieces.
    Split {
        /// Pieces beyond the first.
        extra: u64,
    },
    /// The packet was joined to the held packet.
    Joined,
    /// The packet was dropped.
    Dropped {
        /// The packet that its sender gets instead.
        reply: Option<Vec<u8>>,
    },
}

#[derive(Debug)]
pub(crate) struct Middlebox<P> {
    spec: MiddleboxSpec,
    direction: Direction,
    seed: u64,
    rng: Draws,
    flows: Arc<Flows>,
    /// Present only in the box that joins packets.
    coalesce: Option<Coalesce<P>>,
}

impl<P: LinkPacket> Middlebox<P> {
    /// Returns a box in its initial state. `seed` is the link's; it gives values that must be equal in both
    /// directions. `rng` is the generator of this box.
    pub(crate) fn new(
        spec: MiddleboxSpec,
        direction: Direction,
        seed: u64,
        rng: Draws,
        mtu: Option<u16>,
        flows: Option<&Arc<Flows>>,
    ) -> Self {
        let coalesce =
            if let MiddleboxSpec::Coalesce { size } = spec { Some(Coalesce::new(size, mtu)) } else { None };
        Middlebox { spec, direction, seed, rng, flows: flows.cloned().unwrap_or_default(), coalesce }
    }

    /// Processes a packet at `now`; appends the packets that go on to `onward`.
    pub(crate) fn pass(&mut self, mut packet: P, now: Instant, onward: &mut Vec<P>) -> Passed {
        if let Some(coalesce) = &mut self.coalesce {
            return coalesce.pass(packet, now, onward);
        }
        let Some((ip, tcp)) = packet.bytes_mut().and_then(|ip| Tcp::of(ip).map(|tcp| (ip, tcp))) else {
            onward.push(packet);
            return Passed::Onward;
        };
        if let MiddleboxSpec::Split { size } = self.spec {
            return split(packet, tcp, size, onward);
        }
        if self.spec == MiddleboxSpec::SynProxy {
            let reply = syn_proxy::pass(ip, tcp, self.direction, self.seed, &self.flows);
            if reply.is_some() {
                return Passed::Dropped { reply };
            }
            onward.push(packet);
            return Passed::Onward;
        }
        match self.edit(ip, tcp) {
            Verdict::Pass => {
                onward.push(packet);
                Passed::Onward
            }
            Verdict::Drop => Passed::Dropped { reply: None },
            Verdict::Reset => Passed::Dropped { reply: packet.bytes().and_then(reset::answer) },
        }
    }

    fn edit(&mut self, ip: &mut Vec<u8>, tcp: Tcp) -> Verdict {
        match self.spec {
            MiddleboxSpec::StripOption { option, scope } => options::strip(ip, tcp, option, scope),
            MiddleboxSpec::DropOption { option, scope } => {
                options::refuse(ip, tcp, option, scope, Verdict::Drop)
            }
            MiddleboxSpec::RstOption { option, scope } => {
                options::refuse(ip, tcp, option, scope, Verdict::Reset)
            }
            MiddleboxSpec::ClampMss { max } => options::clamp_mss(ip, tcp, max),
            MiddleboxSpec::DropSynData => payload::refuse_syn_data(ip, tcp, Verdict::Drop),
            MiddleboxSpec::RstSynData => payload::refuse_syn_data(ip, tcp, Verdict::Reset),
            MiddleboxSpec::StripSynData { keep } => payload::strip_syn_data(ip, tcp, keep),
            MiddleboxSpec::RewritePayload { share } => payload::rewrite(ip, tcp, share, &mut self.rng),
            MiddleboxSpec::Corrupt { share } => payload::corrupt(ip, share, &mut self.rng),
            MiddleboxSpec::ClearReserved => bits::clear_reserved(ip, tcp),
            MiddleboxSpec::SetReserved => bits::set_reserved(ip, tcp),
            MiddleboxSpec::DropReserved => bits::drop_reserved(ip, tcp),
            MiddleboxSpec::SetEcn { ecn } => bits::set_ecn(ip, ecn),
            MiddleboxSpec::RewriteSeq { sack } => translate::rewrite_seq(ip, tcp, sack, self.seed),
            MiddleboxSpec::Nat => translate::nat(ip, self.direction, self.seed),
            MiddleboxSpec::DropAfterHandshake { all } => self.flows.drop_after_handshake(ip, tcp, all),
            MiddleboxSpec::DropUnseenAck => self.flows.drop_unseen_ack(ip, tcp, self.direction),
            MiddleboxSpec::DropOld => self.flows.drop_old(ip, tcp, self.direction),
            // `pass` has handled these boxes, which do not edit packets.
            MiddleboxSpec::Coalesce { size: _ }
            | MiddleboxSpec::Split { size: _ }
            | MiddleboxSpec::SynProxy => Verdict::Pass,
        }
    }

    /// Processes a packet that arrives at the far end, if the box observes deliveries.
    pub(crate) fn observe(&mut self, packet: &P) {
        if self.spec.watches_deliveries()
            && let Some(ip) = packet.bytes()
            && let Some(tcp) = Tcp::of(ip)
        {
            self.flows.delivered(ip, tcp, self.direction);
        }
    }

    /// Returns the time when the box releases its held packet.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.coalesce.as_ref().and_then(Coalesce::deadline)
    }

    pub(crate) fn release(&mut self) -> Option<P> {
        self.coalesce.as_mut().and_then(Coalesce::release)
    }

    pub(crate) fn held(&self) -> usize {
        usize::from(self.deadline().is_some())
    }
}

/// Cuts a packet into pieces of at most `size` payload bytes, or into halves.
fn split<P: LinkPacket>(packet: P, tcp: Tcp, size: Option<u16>, onward: &mut Vec<P>) -> Passed {
    let size = size.unwrap_or(u16::try_from(tcp.payload_len().div_ceil(2)).unwrap_or(u16::MAX));
    let before = onward.len();
    if let Some(ip) = packet.bytes().filter(|_| size > 0 && tcp.payload_len() > usize::from(size)) {
        brisk_wire::split(ip, size, ChecksumFill::Full, &mut |piece| {
            let mut part = packet.duplicate();
            if let Some(bytes) = part.bytes_mut() {
                bytes.clear();
                bytes.extend_from_slice(piece);
            }
            onward.push(part);
        });
    }
    match onward.len() - before {
        0 => {
            onward.push(packet);
            Passed::Onward
        }
        pieces => Passed::Split { extra: pieces as u64 - 1 },
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{Sample, link};
    use crate::Offered;
    use alloc::vec;
    use alloc::vec::Vec;
    use brisk_wire::{Flags, Instant};

    #[test]
    fn segments_are_cut_into_halves_or_to_a_size() {
        let data = Sample { flags: Flags::ACK | Flags::PSH, payload: vec![7; 1001], ..Sample::data() };
        let lens = |text| data.travel_up(text).iter().map(|out| out.payload.len()).collect::<Vec<_>>();
        assert_eq!(lens("--middlebox split"), [501, 500]);
        assert_eq!(lens("--middlebox split:400"), [400, 400, 201]);
        assert_eq!(lens("--middlebox split:2000"), [1001]);

        let out = data.travel_up("--middlebox split");
        assert_eq!((out[1].seq, out[0].flags, out[1].flags), (data.seq + 501, Flags::ACK, data.flags));
        assert_eq!(out[0].options, out[1].options);
    }

    #[test]
    fn counters_balance_when_packets_are_cut_and_joined() {
        let mut up = link("--middlebox split:100 --middlebox coalesce").up;
        for _ in 0..3 {
            assert_eq!(up.offer(Sample::data().bytes(), Instant::ZERO), Offered::Queued);
            assert!(up.counters().balanced());
        }
        while let Some(next) = up.next_departure() {
            while up.poll(next).is_some() {}
        }
        let counters = up.counters();
        assert!(counters.balanced() && counters.in_flight == 0, "{counters:?}");
        assert!(counters.split > 0 && counters.coalesced > 0, "{counters:?}");
    }

    /// The shift of sequence numbers depends on the addresses. So in the direction `down` the box must undo
    /// it before the addresses are translated.
    #[test]
    fn packets_down_pass_the_boxes_in_reverse() {
        let mut link = link("--middlebox nat+rewrite-seq");
        let syn = Sample::syn();
        let seen = syn.travel(&mut link.up).remove(0);
        assert!(seen.src != syn.src && seen.seq != syn.seq);

        let answer = seen.answered();
        let back = answer.travel(&mut link.down).remove(0);
        assert_eq!((back.dst, back.ack), (syn.src, syn.seq + 1));
    }
}
