//! Builds a segment from a choice and writes it. This module decides nothing and changes no state.

use alloc::vec;
use alloc::vec::Vec;

use brisk_wire::{ChecksumFill, Ecn, Flags, Gentle, IpMeta, Options, SackBlocks, SeqNum, TcpHeader};

use crate::connection::decision::{Choice, Data, SynOption};
use crate::connection::outbox::Control;
use crate::connection::state::State;
use crate::connection::{Connection, Env};
use crate::mechanism::corrective::code::{parity, placed_pieces};
use crate::mechanism::proactive::copies::Copies;
use crate::outcome::Origin;
use crate::seq_ranges::SeqRange;
use crate::time::Instant;

/// Maximum number of pieces of the send queue in a packet that is sent in place.
pub(crate) const MAX_PIECES: usize = 2;

/// The packet that [`Connection::poll_transmit`] wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Built {
    /// Payload bytes of each wire segment, if the packet must be cut.
    pub(crate) segment_size: Option<u16>,
    /// True if each wire segment is sent twice in a row.
    pub(crate) twice: bool,
    /// Reason of the transmission.
    pub(crate) origin: Origin,
    /// Payload that stays in the send queue and follows the headers.
    pub(crate) in_place: Option<SeqRange>,
}

impl Built {
    /// Returns the bytes of payload that are not in the buffer.
    pub(crate) fn in_place_len(&self) -> usize {
        self.in_place.map_or(0, |range| range.len() as usize)
    }
}

/// A segment that is ready to be written.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: TcpHeader,
    ecn: Ecn,
    payload: Payload,
    /// Payload bytes of each wire segment, if there are several.
    segment_size: Option<u16>,
    /// True if the device sends each wire segment twice.
    twice: bool,
    origin: Origin,
}

/// Source of the payload of a segment.
#[derive(Debug)]
enum Payload {
    None,
    /// This range of the send queue.
    Queued(SeqRange),
    /// Parity of a range of the send queue.
    Parity(Vec<u8>),
}

impl Segment {
    /// Returns a segment that is not ECN-capable.
    fn new(origin: Origin, header: TcpHeader, payload: Payload) -> Self {
        Segment { header, ecn: Ecn::NotEct, payload, segment_size: None, twice: false, origin }
    }
}

impl Connection {
    #[inline]
    pub(crate) fn build(&self, choice: &Choice, now: Instant) -> Segment {
        match choice {
            Choice::Control(control) => {
                let header = match *control {
                    Control::ChallengeAck => self.ack_header(now),
                    Control::EmptyProbe => self.header(self.tx.scoreboard.una() - 1, Flags::ACK, now),
                    Control::Abort => self.header(self.tx.scoreboard.nxt(), Flags::RST | Flags::ACK, now),
                    Control::Reset(seq) => TcpHeader {
                        ack: SeqNum(0),
                        window: 0,
                        options: Options::default(),
                        ..self.header(seq, Flags::RST, now)
                    },
                };
                Segment::new(Origin::Ack, header, Payload::None)
            }
            Choice::Syn(gentle) => {
                let header = self.syn_header(*gentle, now);
                Segment::new(
                    Origin::New,
                    header,
                    Payload::Queued(self.fast_open.syn_data(self.handshake.iss, &self.tx)),
                )
            }
            Choice::SynCopy => {
                let (header, data) = self.syn_copy(now);
                Segment::new(Origin::Duplicate, header, Payload::Queued(data))
            }
            Choice::AfterSyn(range) => {
                let header = self.after_syn_header(*range, now);
                Segment::new(Origin::New, header, Payload::Queued(*range))
            }
            Choice::Data(data) => self.build_data(data, now),
            Choice::Copy(_) => match self.gentle.copier().and_then(Copies::front) {
                Some(copy) => {
                    let payload = SeqRange::with_len(copy.range.start, copy.payload_len());
                    let mut header = copy.header.clone();
                    if self.gentle.unmarked.is_some() && header.options.timestamps.is_some() {
                        // The echo shows which instance arrived.
                        header.options.timestamps = Some(self.rx.timestamps.option(now));
                    }
                    Segment::new(Origin::Duplicate, header, Payload::Queued(payload))
                }
                None => Segment::new(Origin::Duplicate, self.ack_header(now), Payload::None),
            },
            Choice::Parity(plan) => {
                // The receiver of parity reads neither the acknowledgement nor SACK blocks.
                let mut header = self.header(plan.seq, Flags::ACK, now);
                header.options.sack = SackBlocks::default();
                header.options.gentle = Some(self.gentle.parity_option(
                    plan,
                    header.options.gentle,
                    self.handshake.iss + 1,
                    &self.tx.queue,
                ));
                let range = plan.layout.range();
                let pieces = self.tx.queue.pieces(range);
                let mut payload = vec![0; plan.layout.payload_len()];
                parity(&plan.layout, plan.row, placed_pieces(range.start, &pieces), &mut payload);
                Segment::new(Origin::Parity, header, Payload::Parity(payload))
            }
            Choice::TailAck => {
                let mut header = self.ack_header(now);
                header.options.gentle = None;
                Segment::new(Origin::Ack, header, Payload::None)
            }
            Choice::Ack { .. } => {
                let mut header = self.ack_header(now);
                header.options.gentle = self.gentle.failure_option().or(header.options.gentle);
                Segment::new(Origin::Ack, header, Payload::None)
            }
        }
    }

    fn syn_header(&self, gentle: SynOption, now: Instant) -> TcpHeader {
        let answer = self.state == State::SynReceived;
        let flags = match (answer, self.handshake.syn.sent) {
            (true, _) => Flags::ACK | self.ecn.syn_ack_flags(),
            (false, 0) => self.ecn.syn_flags(),
            // A retransmitted SYN does not ask for ECN: the first may have been lost because of it.
            (false, _) => Flags(0),
        };
        TcpHeader {
            src_port: self.tuple.local_port(),
            dst_port: self.tuple.remote_port(),
            seq: self.handshake.iss,
            ack: if answer { self.fast_open.acknowledged(self.rx.rcv_nxt()) } else { SeqNum(0) },
            flags: Flags::SYN | flags,
            // RFC 7323 section 2.2: "The window field in a segment where the SYN bit is set [...] MUST
            // NOT be scaled."
            window: self.rx.window.syn_window(),
            urgent: 0,
            options: Options { gentle: gentle.option(), ..self.syn_options_with_fast_open(now) },
        }
    }

    /// Returns the header of the copy and its data. The copy of a SYN is a SYN without Fast Open, or the same
    /// SYN if that is permitted. The copy of a SYN-ACK has all options of the SYN-ACK.
    fn syn_copy(&self, now: Instant) -> (TcpHeader, SeqRange) {
        let answer = self.state == State::SynReceived;
        let (flags, ack, data) = if answer {
            (Flags::ACK | self.ecn.syn_ack_flags(), self.rx.rcv_nxt(), 0)
        } else {
            (self.ecn.syn_flags(), SeqNum(0), self.fast_open.copied_syn_data(&self.config).unwrap_or(0))
        };
        let gentle = if answer {
            self.gentle.sent_option()
        } else {
            self.config.handshake_copies.and(self.gentle.sent_option())
        };
        let fast_open = match answer {
            true => self.fast_open.server().and_then(|server| server.option()),
            false if self.fast_open.copied_syn_data(&self.config).is_some() => {
                self.fast_open.syn_option(self.handshake.syn.sent)
            }
            false => None,
        };
        let header = TcpHeader {
            src_port: self.tuple.local_port(),
            dst_port: self.tuple.remote_port(),
            seq: self.handshake.iss,
            ack,
            flags: Flags::SYN | flags,
            window: self.rx.window.syn_window(),
            urgent: 0,
            options: Options { gentle, fast_open, ..self.syn_options(now) },
        };
        (header, SeqRange::with_len(self.handshake.iss + 1, data))
    }

    /// Returns the header of a segment that follows the SYN before its answer.
    pub(crate) fn after_syn_header(&self, range: SeqRange, now: Instant) -> TcpHeader {
        let in_parts = self.fast_open.client().is_some_and(|client| client.connect.in_parts());
        let (seq, flags, options) = if in_parts {
            let offset = range.start.since(self.handshake.iss + 1);
            let options = Options { gentle: Some(Gentle::Part { offset }), ..self.syn_options(now) };
            (self.handshake.iss, Flags::SYN | self.ecn.syn_flags(), options)
        } else {
            let flags = if self.tx.queue.push_at(range) { Flags::PSH } else { Flags::default() };
            let timestamps = self.config.timestamps.then(|| self.rx.timestamps.option(now));
            (range.start, flags, Options { timestamps, ..Options::default() })
        };
        TcpHeader {
            src_port: self.tuple.local_port(),
            dst_port: self.tuple.remote_port(),
            seq,
            ack: SeqNum(0),
            flags,
            window: self.rx.window.syn_window(),
            urgent: 0,
            options,
        }
    }

    #[inline]
    fn build_data(&self, data: &Data, now: Instant) -> Segment {
        let len = data.payload_len();
        let payload = SeqRange::with_len(data.range.start, len);
        let mut flags = Flags::ACK;
        if data.fin {
            flags |= Flags::FIN;
        }
        if self.tx.queue.push_at(payload) || data.burst.is_some_and(|burst| burst.pushes()) {
            flags |= Flags::PSH;
        }
        // For ECN a probe that carries new data is new data: RFC 3168 section 6.1.5 is about retransmissions.
        let is_new = data.range.end.gt(self.tx.scoreboard.nxt());
        let (ecn_flags, ecn) = self.ecn.mark(if is_new { Origin::New } else { data.origin }, len > 0);
        let mut header = self.header(data.range.start, flags | ecn_flags, now);
        if let Some(pointer) = self.urgent.pointer(data.range.start) {
            header.flags |= Flags::URG;
            header.urgent = pointer;
        }
        Segment {
            header,
            ecn,
            payload: Payload::Queued(payload),
            segment_size: (len > data.segment_size).then_some(data.segment_size as u16),
            twice: data.twice,
            origin: data.origin,
        }
    }

    #[inline]
    fn ack_header(&self, now: Instant) -> TcpHeader {
        let (ecn_flags, _) = self.ecn.mark(Origin::Ack, false);
        self.header(self.tx.scoreboard.nxt(), Flags::ACK | ecn_flags, now)
    }

    /// Returns the fields of the header that all segments after the SYN share.
    #[inline]
    fn header(&self, seq: SeqNum, flags: Flags, now: Instant) -> TcpHeader {
        let ack = self.fast_open.acknowledged(self.rx.rcv_nxt());
        let reports = !self.rx.sack.is_empty() && ack == self.rx.rcv_nxt();
        let options = Options {
            timestamps: self.handshake.agreed.timestamps.then(|| self.rx.timestamps.option(now)),
            sack: if reports { self.rx.sack.blocks(self.sack_capacity()) } else { SackBlocks::new() },
            fast_open: self.fast_open.option(),
            gentle: self.gentle.option(),
            ..Options::default()
        };
        TcpHeader {
            src_port: self.tuple.local_port(),
            dst_port: self.tuple.remote_port(),
            seq,
            ack,
            flags,
            window: self.rx.window_field(),
            urgent: 0,
            options,
        }
    }

    /// Returns the number of SACK blocks that fit with the other options (RFC 2018 section 3); 0 without
    /// SACK.
    pub(crate) fn sack_capacity(&self) -> usize {
        let displaced = usize::from(self.gentle.option_len() > 0);
        match (self.handshake.agreed.sack, self.handshake.agreed.timestamps) {
            (false, _) => 0,
            (true, true) => 3 - displaced,
            (true, false) => 4 - displaced,
        }
    }

    /// Writes a segment into `out`, which stays empty if the options do not fit the header.
    pub(crate) fn emit(&self, segment: &Segment, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        let Segment { segment_size, twice, origin, .. } = *segment;
        let mut ip = IpMeta::new(self.tuple.local_ip(), self.tuple.remote_ip());
        ip.hop_limit = self.config.hop_limit;
        ip.dscp = self.config.dscp;
        ip.ecn = segment.ecn;
        let header = &segment.header;
        let fill = if env.partial_checksum { ChecksumFill::Partial } else { ChecksumFill::Full };
        let mut in_place = None;
        let written = match &segment.payload {
            Payload::None => brisk_wire::emit(&ip, header, &[], fill, out),
            Payload::Parity(parity) => brisk_wire::emit(&ip, header, &[parity], fill, out),
            Payload::Queued(range) => {
                let pieces = self.tx.queue.pieces(*range);
                // A single segment is faster to copy than to describe as pieces.
                if env.payload_in_place && segment_size.is_some() && pieces.len() <= MAX_PIECES {
                    in_place = Some(*range);
                    brisk_wire::emit_headers(&ip, header, range.len() as usize, out)
                } else {
                    brisk_wire::emit(&ip, header, &pieces, fill, out)
                }
            }
        };
        if written.is_err() {
            out.clear();
        }
        Built { segment_size, twice, origin, in_place }
    }
}
