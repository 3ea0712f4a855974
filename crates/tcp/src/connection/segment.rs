//! Writes the segment that was chosen. Nothing is decided here.

use alloc::vec;
use alloc::vec::Vec;

use brisk_wire::{ChecksumFill, Ecn, Flags, Gentle, IpMeta, Options, SackBlocks, SeqNum, TcpHeader};

use crate::connection::control::Control;
use crate::connection::state::State;
use crate::connection::transmit::{Choice, Data};
use crate::connection::{Connection, Env};
use crate::mechanism::corrective::code::{parity, placed_pieces};
use crate::mechanism::{Offer, ParityPlan};
use crate::outcome::Origin;
use crate::seq_ranges::SeqRange;
use crate::time::Instant;

/// Pieces of the send queue that may stay where they are, of one packet.
pub(crate) const MOST_PIECES: usize = 2;

/// What [`Connection::poll_transmit`] wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Built {
    /// Payload bytes of each wire segment, if the packet must be cut.
    pub(crate) segment_size: Option<u16>,
    /// Each of them is sent twice in a row.
    pub(crate) twice: bool,
    /// Why it was sent.
    pub(crate) origin: Origin,
    /// Payload that stays in the send queue: the packet is the headers, and then this.
    pub(crate) in_place: Option<SeqRange>,
}

impl Built {
    /// A packet of one segment, whole.
    pub(crate) fn whole(origin: Origin) -> Built {
        Built { segment_size: None, twice: false, origin, in_place: None }
    }

    /// Bytes of payload that are not in the buffer.
    pub(crate) fn in_place_len(&self) -> usize {
        self.in_place.map_or(0, |range| range.len() as usize)
    }
}

impl Connection {
    /// Writes the next packet into `out`, if there is one to send: decide, build, account.
    pub(crate) fn poll_transmit(&mut self, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Option<Built> {
        loop {
            let Some(choice) = self.choose(now, env) else {
                self.update_timers(now);
                return None;
            };
            let built = self.build(&choice, now, env, out);
            self.account(&choice, built, out.len() + built.in_place_len(), now);
            // A packet that cannot be built (no room for the header) is gone like a lost one.
            if !out.is_empty() {
                return Some(built);
            }
        }
    }

    fn build(&mut self, choice: &Choice, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        match choice {
            Choice::Control(control) => self.build_control(*control, now, env, out),
            Choice::Syn => self.build_syn(now, env, out),
            Choice::SynCopy => {
                self.build_syn_copy(now, env, out);
                Built::whole(Origin::Duplicate)
            }
            Choice::AfterSyn(range) => {
                self.build_after_syn(*range, now, env, out);
                Built::whole(Origin::New)
            }
            Choice::Data(data) => self.build_data(data, now, env, out),
            Choice::Copy(_) => self.build_copy(env, out),
            Choice::Parity(plan) => self.build_parity(plan, now, env, out),
            Choice::Companion => {
                let mut header = self.ack_header(now);
                header.options.gentle = None;
                self.emit(&header, Ecn::NotEct, &[], env, out);
                Built::whole(Origin::Ack)
            }
            Choice::Ack(option) => self.build_ack(*option, now, env, out),
        }
    }

    fn build_control(&mut self, control: Control, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        let nxt = self.tx.scoreboard.nxt();
        let header = match control {
            Control::ChallengeAck => self.ack_header(now),
            Control::Poke => self.header(self.tx.scoreboard.una() - 1, Flags::ACK, now),
            Control::Abort => self.header(nxt, Flags::RST | Flags::ACK, now),
            Control::Reset(seq) => TcpHeader {
                ack: SeqNum(0),
                window: 0,
                options: Options::default(),
                ..self.header(seq, Flags::RST, now)
            },
        };
        self.emit(&header, Ecn::NotEct, &[], env, out);
        Built::whole(Origin::Ack)
    }

    fn build_syn(&mut self, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        let answer = self.state == State::SynReceived;
        let mut options = self.syn_options(now);
        options.fast_open = self.syn_fast_open_option();
        let data = self.syn_data();
        let offer = if answer { Offer::SynAck(&Options::default()) } else { Offer::Syn };
        self.offer_mechanisms(offer, &mut options);
        options.gentle = self.syn_gentle_option(&options, env.option_profile);
        let mut flags = Flags::SYN;
        if answer {
            flags |= Flags::ACK | self.ecn.syn_ack_flags();
        } else {
            if self.tx.handshake.sent > 0 {
                self.ecn.withdraw();
            }
            flags |= self.ecn.syn_flags();
        }
        let header = TcpHeader {
            src_port: self.tuple.local.port(),
            dst_port: self.tuple.remote.port(),
            seq: self.secrets.iss,
            ack: if answer { self.acknowledged() } else { SeqNum(0) },
            flags,
            // RFC 7323 section 2.2: "The window field in a segment where the SYN bit is set [...] MUST
            // NOT be scaled."
            window: self.rx.window.syn_window(),
            urgent: 0,
            options,
        };
        self.emit(&header, Ecn::NotEct, &self.tx.queue.pieces(data), env, out);
        Built::whole(Origin::New)
    }

    fn build_data(&mut self, data: &Data, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        let mut flags = Flags::ACK;
        if data.fin {
            flags |= Flags::FIN;
        }
        let len = data.payload_len();
        let payload_range = SeqRange::with_len(data.range.start, len);
        if self.tx.queue.push_at(payload_range) {
            flags |= Flags::PSH;
        }
        if self.config.push_bursts && data.origin == Origin::New && self.tx.ends_burst(payload_range, now) {
            flags |= Flags::PSH;
            self.tx.queue.mark_burst(payload_range.end);
        }
        // A probe that carries new data is data like any other (RFC 3168 section 6.1.5 speaks of
        // retransmissions).
        let fresh = data.range.end.gt(self.tx.scoreboard.nxt());
        let (ecn_flags, ecn) = self.ecn.mark(if fresh { Origin::New } else { data.origin }, len > 0);
        let mut header = self.header(data.range.start, flags | ecn_flags, now);
        if let Some(pointer) = self.urgent.pointer(data.range.start) {
            header.flags |= Flags::URG;
            header.urgent = pointer;
        }
        self.gentle_sent(header.options.gentle, now);
        self.keep_header(&header);
        let segment_size = (len > data.segment_size).then_some(data.segment_size as u16);
        let pieces = self.tx.queue.pieces(payload_range);
        // A single segment is copied faster than it is described.
        if env.payload_in_place && segment_size.is_some() && pieces.len() <= MOST_PIECES {
            self.emit_headers(&header, ecn, len, env, out);
            return Built {
                segment_size,
                twice: data.twice,
                origin: data.origin,
                in_place: Some(payload_range),
            };
        }
        self.emit(&header, ecn, &pieces, env, out);
        Built { segment_size, twice: data.twice, ..Built::whole(data.origin) }
    }

    /// The parity is computed from the send queue straight into the packet's payload.
    fn build_parity(&mut self, plan: &ParityPlan, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        let window = self.rx.unpromised_window();
        let mut header = self.header_with(plan.seq, Flags::ACK, window, now);
        header.options.sack = SackBlocks::default();
        let range = plan.layout.range();
        let crc32c = self.parity_checksum(plan);
        let pieces = self.tx.queue.pieces(range);
        let bytes = placed_pieces(range.start, &pieces);
        let mut payload = vec![0; plan.layout.payload_len()];
        parity(&plan.layout, plan.row, bytes, &mut payload);
        header.options.gentle = Some(self.parity_option(plan, crc32c, header.options.gentle));
        self.emit(&header, Ecn::NotEct, &[&payload], env, out);
        Built::whole(Origin::Parity)
    }

    fn build_ack(&mut self, option: Option<Gentle>, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Built {
        let mut header = self.ack_header(now);
        header.options.gentle = option.or_else(|| self.failure_option()).or(header.options.gentle);
        self.gentle_sent(header.options.gentle, now);
        self.keep_header(&header);
        self.emit(&header, Ecn::NotEct, &[], env, out);
        Built::whole(Origin::Ack)
    }

    /// The header of an acknowledgement alone.
    fn ack_header(&mut self, now: Instant) -> TcpHeader {
        let (ecn_flags, _) = self.ecn.mark(Origin::Ack, false);
        self.header(self.tx.scoreboard.nxt(), Flags::ACK | ecn_flags, now)
    }

    /// The header that every segment after the SYN shares.
    fn header(&mut self, seq: SeqNum, flags: Flags, now: Instant) -> TcpHeader {
        let window = self.rx.advertise();
        self.header_with(seq, flags, window, now)
    }

    fn header_with(&mut self, seq: SeqNum, flags: Flags, window: u16, now: Instant) -> TcpHeader {
        let ack = self.acknowledged();
        let reports = !self.rx.sack.is_empty() && ack == self.rx.rcv_nxt();
        let options = Options {
            timestamps: self.negotiated.timestamps.then(|| self.rx.timestamps.option(now)),
            sack: if reports { self.rx.sack.blocks(self.sack_room()) } else { SackBlocks::new() },
            fast_open: self.fast_open_option(),
            gentle: self.gentle_option(),
            ..Options::default()
        };
        TcpHeader {
            src_port: self.tuple.local.port(),
            dst_port: self.tuple.remote.port(),
            seq,
            ack,
            flags,
            window,
            urgent: 0,
            options,
        }
    }

    /// SACK blocks that fit beside the other options (RFC 2018 section 3); none without SACK.
    pub(crate) fn sack_room(&self) -> usize {
        let beside_flags = usize::from(self.gentle_option_len() > 0);
        match (self.negotiated.sack, self.negotiated.timestamps) {
            (false, _) => 0,
            (true, true) => 3 - beside_flags,
            (true, false) => 4 - beside_flags,
        }
    }

    pub(super) fn emit(
        &self,
        header: &TcpHeader,
        ecn: Ecn,
        payload: &[&[u8]],
        env: &Env<'_>,
        out: &mut Vec<u8>,
    ) {
        let ip = self.ip(ecn);
        let fill = if env.partial_checksum { ChecksumFill::Partial } else { ChecksumFill::Full };
        if brisk_wire::emit_with(&ip, header, payload, fill, env.option_profile, out).is_err() {
            out.clear();
        }
    }

    /// As [`Connection::emit`], for a payload that stays where it is.
    fn emit_headers(&self, header: &TcpHeader, ecn: Ecn, payload_len: u32, env: &Env<'_>, out: &mut Vec<u8>) {
        let len = payload_len as usize;
        if brisk_wire::emit_headers_with(&self.ip(ecn), header, len, env.option_profile, out).is_err() {
            out.clear();
        }
    }

    fn ip(&self, ecn: Ecn) -> IpMeta {
        let mut ip = IpMeta::new(self.tuple.local.ip(), self.tuple.remote.ip());
        ip.hop_limit = self.config.hop_limit;
        ip.dscp = self.config.dscp;
        ip.ecn = ecn;
        ip
    }
}
