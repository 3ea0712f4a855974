//! Arriving segments, in the order and with the numbers of RFC 9293 section 3.10.7, and with the rules of RFC
//! 5961 against blind attacks. The effects of an acknowledgement are in [`crate::connection::acknowledge`].
//!
//! Comments mark the steps that belong to Corrective, Proactive and Fast Open.

use alloc::vec::Vec;

use brisk_wire::{Ecn, Flags, Gentle, IcmpKind, Options, SeqNum};

use crate::connection::gentle::SegmentVerdict;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::gentle::proactive::Coalesced;
use crate::connection::handshake::repeat_interval;
use crate::connection::observation::Observation;
use crate::connection::outbox::Control;
use crate::connection::state::{Input, State};
use crate::connection::{Aftermath, Connection, Env, Events, Urgency};
use crate::error::CloseReason;
use crate::mechanism::corrective::decoder::Recovered;
use crate::outcome::{Arrived, LossCause, LossOutcome, Rebuilt};
#[cfg(feature = "historical")]
use crate::outcome::{CongestionSignal, Reaction, Repair};
use crate::path::LargePacket;
use crate::receive::{ArrivalKind, Paws, Received};
use crate::time::{Duration, Instant, Micros};

/// A SYN that arrives again within this time of our SYN-ACK, or within half a round trip if that is longer,
/// is a copy. Our copy of the SYN-ACK has answered it. No retransmission timer is that short.
pub(crate) const COPIES_MEET: Duration = Duration::from_millis(25);

impl Connection {
    /// Processes a segment of this connection (RFC 9293 section 3.10.7).
    pub(crate) fn on_segment(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) -> Aftermath {
        self.counters.segments_in += 1;
        match self.state {
            // 3.10.7.1 CLOSED: the stack answers, as if there were no connection. The listener handles
            // 3.10.7.2 LISTEN.
            State::Closed => {}
            State::SynSent => {
                self.on_segment_in_syn_sent(segment, now);
                // Fast Open: segments that overtook the SYN-ACK are processed by the ordinary rules.
                if self.state != State::SynSent
                    && let Some(client) = self.fast_open.client_mut()
                {
                    for mut early in client.take_early() {
                        let is_old = |value| self.rx.timestamps.paws(value, now) == Paws::Old;
                        if early.timestamp().is_some_and(is_old) {
                            early.remove_timestamp();
                        }
                        if self.state != State::Closed {
                            self.on_segment_after_syn(&early.arrived(), now, env);
                        }
                    }
                }
            }
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => self.on_segment_after_syn(segment, now, env),
        }
        self.update_timers(now);
        self.aftermath(self.urgency(), now)
    }

    /// 3.10.7.3 SYN-SENT STATE.
    fn on_segment_in_syn_sent(&mut self, segment: &Arrived<'_>, now: Instant) {
        let has_ack = segment.flags.contains(Flags::ACK);

        // First, check the ACK bit.
        // "If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set [...])"
        let acceptable = self.handshake.iss.lt(segment.ack) && segment.ack.le(self.tx.scoreboard.nxt());
        if has_ack && !(acceptable && self.echoes_our_timestamp(segment, now)) {
            if !segment.flags.contains(Flags::RST) {
                self.outbox.reset_limited(segment.ack, now);
            }
            return;
        }

        // Second, check the RST bit. "If the ACK was acceptable, then signal to the user 'error: connection
        // reset' [...]. Otherwise (no ACK), drop the segment and return."
        if segment.flags.contains(Flags::RST) {
            if has_ack && !self.fast_open.defers_reset(&mut self.handshake.syn.copy) {
                self.end(self.refusal(Some(segment.seq)));
            }
            return;
        }

        // Third, check the security: there is none here.

        // Fourth, check the SYN bit.
        if segment.flags.contains(Flags::SYN) && has_ack {
            self.on_syn_ack(segment, now);
        } else if segment.flags.contains(Flags::SYN) {
            // A SYN crossed ours (RFC 9293 figure 8). Its data, if any, is neither delivered nor
            // acknowledged: the peer retransmits it.
            self.ecn.on_syn(segment.flags);
            self.learn_peer(segment, now);
            self.fast_open.on_simultaneous_open();
            self.enter(self.state.after(Input::Syn));
            self.handshake.syn.due = true;
        }
        // Fifth, if neither of the SYN or RST bits is set, drop the segment. Fast Open: an answer to the data
        // of our SYN may have overtaken the SYN-ACK.
        else if has_ack {
            let since = self.handshake.since_last_syn(now);
            let limit = self.rx.window.announced_on_syn() as usize;
            self.fast_open.queue_early(segment, limit, since, &mut self.tx.rto, now);
        }
    }

    /// 3.10.7.4 OTHER STATES: from SYN-RECEIVED on.
    pub(crate) fn on_segment_after_syn(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) {
        let has = |flags| segment.flags.contains(flags);

        // Proactive: the parts of a segment that a device has coalesced are processed one by one.
        match self.gentle.on_coalesced(segment, &self.rx) {
            Coalesced::Whole => {}
            Coalesced::Parts => {
                let size = segment.segment_size;
                let last = (segment.payload.len() - 1) / size;
                for (index, payload) in segment.payload.chunks(size).enumerate() {
                    let ends = Flags::FIN | Flags::PSH;
                    let flags = if index < last { segment.flags.without(ends) } else { segment.flags };
                    let seq = segment.seq + (index * size) as u32;
                    self.on_segment_after_syn(&Arrived { seq, flags, payload, ..*segment }, now, env);
                }
                return;
            }
            Coalesced::Copies => {
                self.counters.copies_dropped += segment.payload.len().div_ceil(segment.segment_size) as u64;
                return;
            }
        }
        // Corrective and Proactive: parity is not part of the stream, and the second instance of a segment is
        // dropped.
        if !self.passes_gentle(segment, now) {
            return;
        }
        // SYN-RECEIVED: the peer sends its SYN again because our SYN-ACK was lost.
        if self.state == State::SynReceived
            && has(Flags::SYN)
            && !has(Flags::RST)
            && segment.seq == self.handshake.irs
        {
            if has(Flags::ACK) {
                // Simultaneous open: the SYN-ACK acknowledges our SYN; the peer's SYN is known already.
                let rest =
                    Arrived { seq: segment.seq + 1, flags: segment.flags.without(Flags::SYN), ..*segment };
                self.on_segment_after_syn(&rest, now, env);
            } else if !self.take_syn_part(segment, now) {
                self.on_repeated_syn(segment, now);
            }
            return;
        }

        // First, check the sequence number; before it PAWS (RFC 7323 section 5.3). "If there is a Timestamps
        // option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is valid, and if the RST bit is
        // not set, then treat the arriving segment as not acceptable."
        let timestamps = segment.options.timestamps.filter(|_| self.handshake.agreed.timestamps);
        if let Some(timestamps) = timestamps.filter(|_| !has(Flags::RST))
            && self.rx.timestamps.paws(timestamps.value, now) == Paws::Old
        {
            self.counters.paws += 1;
            return self.answer_unacceptable(segment, now);
        }
        let is_acceptable = self.rx.window.acceptable(self.rx.rcv_nxt(), segment.seq, segment.len())
            || self.state.is_synchronized() && self.rx.is_tail_probe(segment);
        if !is_acceptable {
            self.counters.out_of_window += 1;
            // "If the RCV.WND is zero, no segments will be acceptable, but special allowance should be made
            // to accept valid ACKs, URGs, and RSTs."
            let at_edge = segment.seq == self.rx.rcv_nxt();
            if at_edge && has(Flags::ACK) && !has(Flags::SYN) && !has(Flags::RST) {
                self.rx.ack.force();
            } else if !(at_edge && has(Flags::RST)) {
                if self.handshake.is_syn_ack_again(segment) {
                    let has_received =
                        self.counters.payload_bytes_received > 0 || self.rx.assembler.is_complete();
                    if !has_received && self.fast_open.on_repeated_syn_ack(&self.handshake, &self.config, now)
                    {
                        self.give_up(CloseReason::TimedOut);
                    }
                }
                if !has(Flags::RST) {
                    self.answer_unacceptable(segment, now);
                }
                return;
            }
        }

        // Second, check the RST bit (RFC 5961 section 3.2). "If the RST bit is set and the sequence number
        // exactly matches the next expected sequence number (RCV.NXT), then TCP endpoints MUST reset the
        // connection"; "If [...] does not exactly match [...] MUST send an acknowledgment (challenge ACK)".
        if has(Flags::RST) {
            if segment.seq != self.rx.rcv_nxt() {
                return self.outbox.challenge(self.config.challenge_interval, env, &mut self.counters, now);
            }
            self.outbox.clear();
            // Data that the reset acknowledges counts as acknowledged, even if the peer discards it.
            if has(Flags::ACK) && segment.ack.le(self.tx.scoreboard.nxt()) {
                self.counters.payload_bytes_acked += self.tx.release_acked(segment.ack);
            }
            let age = self.handshake.established.map(|at| Micros::between(at, now));
            let young = age.zip(self.tx.rtt.srtt()).is_some_and(|(age, srtt)| age <= srtt);
            self.fast_open.on_reset(young, self.counters.payload_bytes_received > 0);
            let refuses = self.state == State::SynReceived && !self.fast_open.is_opened_by_syn();
            return self.end(if refuses { CloseReason::Refused } else { CloseReason::Reset });
        }

        // Third, check security: there is none here.

        // Fourth, check the SYN bit (RFC 5961 section 4.2).
        if has(Flags::SYN) {
            return self.outbox.challenge(self.config.challenge_interval, env, &mut self.counters, now);
        }

        // Fifth, check the ACK field.
        if !has(Flags::ACK) {
            // "[...] if the ACK bit is off, drop the segment and return". Fast Open: data after the SYN that
            // opened this connection is accepted.
            let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
            if self.state == State::SynReceived
                && !segment.flags.intersects(Flags::FIN | Flags::URG)
                && self.fast_open.server_mut().is_some_and(|server| server.takes_after_syn(len))
            {
                self.take_payload(segment, now);
            }
            return;
        }
        let (una, nxt) = (self.tx.scoreboard.una(), self.tx.scoreboard.nxt());
        if self.state == State::SynReceived {
            // "If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state [...]. If the segment
            // acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST>".
            if !(una.lt(segment.ack) && segment.ack.le(nxt)) {
                return self.outbox.reset_limited(segment.ack, now);
            }
            self.fast_open.rewind_syn_data(segment.ack, self.handshake.iss, &mut self.tx.scoreboard);
            if let Some(server) = self.fast_open.server().filter(|_| self.handshake.syn.sent > 1) {
                let echoed = self.echo_rtt(segment, now);
                if server.resend_dropped_data(segment.ack, echoed, &mut self.tx, now) {
                    self.tx.rate.on_spurious(now);
                    self.counters.undos += 1;
                }
            }
            self.reduce_initial_window(segment, now);
            self.establish(now);
            if self.fast_open.server_mut().is_some_and(|server| server.release_parts()) {
                self.rx.ack.force();
            }
        } else if segment.ack.gt(nxt) || segment.ack.lt(una - self.tx.window.max_snd_wnd()) {
            // RFC 5961 section 5.2: "The ACK value is considered acceptable only if it is in the range of
            // ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT)."
            return self.outbox.challenge(self.config.challenge_interval, env, &mut self.counters, now);
        }
        // Fast Open: a cookie outside the handshake.
        if segment.options.fast_open.is_some_and(|option| self.fast_open.on_option(option)) {
            self.rx.ack.force();
        }
        if let Some(timestamps) = timestamps {
            // RFC 7323 section 4.3: "if SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent, then SEG.TSval
            // is copied to TS.Recent".
            self.rx.timestamps.on_accepted(segment.seq, timestamps.value, self.rx.ack.last_ack_sent(), now);
            if !segment.payload.is_empty()
                && let Some(rtt) = self.rx.timestamps.rtt(timestamps.echo, self.handshake.opened, now)
            {
                self.rx.window.on_rtt(rtt.into());
            }
        }
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.on_received(now);
        }
        self.acknowledge(segment, now);
        if self.state == State::Closed {
            return;
        }

        // Sixth, check the URG bit.
        if has(Flags::URG)
            && self.state.receives()
            && self.urgent.on_pointer(segment.seq, segment.urgent, self.rx.read_next)
        {
            self.events.insert(Events::READABLE);
        }

        // Seventh, process the segment text. Eighth, check the FIN bit.
        self.take_payload(segment, now);
    }

    /// Passes a segment to Corrective and Proactive, and carries out their decision. True if it continues to
    /// the other steps.
    pub(crate) fn passes_gentle(&mut self, segment: &Arrived<'_>, now: Instant) -> bool {
        if !self.gentle.seen || !self.gentle.decides(segment) {
            return true;
        }
        match self.with_gentle(|gentle, parts| gentle.on_segment(segment, parts, now)) {
            SegmentVerdict::Process => return true,
            SegmentVerdict::Drop => {}
            #[cfg(feature = "historical")]
            SegmentVerdict::Answer => self.answer_at_once(),
            SegmentVerdict::Parity(recovered) => {
                if let Some(recovered) = recovered {
                    self.take_repair(recovered, segment, true, now);
                }
                // F1: the flags of a parity segment count like the flags of any other segment.
                #[cfg(feature = "historical")]
                if self.gentle.is_f1()
                    && self
                        .with_gentle(|gentle, parts| gentle.read_signals(segment, parts, now))
                        .is_some_and(|report| report.repaired)
                {
                    let board = &self.tx.scoreboard;
                    let undelivered = board.outstanding().saturating_sub(board.sacked_bytes());
                    let (by, reaction) = (Repair::Parity, Reaction::Proportional);
                    let signal = CongestionSignal { ack: segment.ack, by, reaction };
                    self.answer_masked_loss(signal, undelivered, now);
                }
            }
        }
        false
    }

    /// Processes the segment text (seventh) and checks the FIN bit (eighth).
    pub(crate) fn take_payload(&mut self, segment: &Arrived<'_>, now: Instant) {
        let fin = segment.flags.contains(Flags::FIN);
        if segment.payload.is_empty() && !fin {
            return;
        }
        if !self.state.receives() {
            // The peer repeats its FIN or data before it: report again what has arrived.
            self.rx.report_old(segment);
            self.rx.ack.force();
            return;
        }
        let after_our_fin = matches!(self.state, State::FinWait1 | State::FinWait2);
        let refused = self.rx.closed || (self.rx.refuses && after_our_fin);
        let text_end = segment.seq + segment.payload.len() as u32;
        if refused && text_end.gt(self.rx.rcv_nxt()) {
            // RFC 9293 section 3.6.1: data that nobody will read is answered by a reset. A FIN beyond RCV.NXT
            // also shows that there was data. The reset has the form of any answer to a segment with ACK
            // (section 3.5.2), as in Linux.
            self.counters.discarded_bytes += segment.payload.len() as u64;
            self.outbox.push(Control::Reset(segment.ack));
            self.end(CloseReason::DataAfterClose);
            return;
        }
        let slow_sender = self.ecn.on_arrived(segment.ecn, segment.flags, !segment.payload.is_empty());
        let (range, payload, fin) = self.rx.trim(segment);
        self.urgent.on_payload(range.start, payload);
        let arrival = self.rx.take(range, payload, fin);
        if !matches!(arrival.kind, ArrivalKind::Duplicate | ArrivalKind::Empty) {
            self.gentle.on_taken(segment, self.tx.rtt.srtt(), &mut self.counters, now);
        }
        let rcv_nxt = self.rx.rcv_nxt();
        self.rx.sack.on_arrival(&arrival, rcv_nxt);
        self.rx.window.on_data(rcv_nxt, now);
        let received = Received {
            segment_size: segment.segment_size as u32,
            half_closes: matches!(self.state, State::Established | State::SynReceived),
            push: segment.flags.contains(Flags::PSH),
            rcv_nxt,
            rcv_wnd: self.rx.rcv_wnd(),
            srtt: self.tx.rtt.srtt(),
            rto: self.tx.timeout(),
        };
        self.rx.ack.on_data(&arrival, &received, now);
        if !self.handshake.agreed.sack {
            let segments = segment.payload.len().div_ceil(segment.segment_size.max(1)) as u32;
            self.rx.owe_duplicates(&arrival, segments);
        }
        self.counters.payload_bytes_received += u64::from(arrival.advanced);
        if arrival.is_above_hole() {
            self.counters.out_of_order += 1;
        }
        if arrival.advanced > 0 || arrival.fin_reached {
            self.events.insert(Events::READABLE);
        }
        let early_fin = segment.flags.contains(Flags::FIN) && arrival.kind == ArrivalKind::OutOfOrder;
        self.fast_open.on_arrival(arrival.advanced > 0, early_fin && segment.payload.is_empty());
        // Eighth, check the FIN bit.
        if arrival.fin_reached {
            self.gentle.end_history(&mut self.rx);
            self.advance_state(Input::Fin, now);
        }
        if slow_sender {
            self.rx.ack.on_slow_sender(self.rx.rcv_wnd());
        }
        // Corrective: fewer bytes are missing now, so waiting parities may repair the rest.
        if self.gentle.active.is_some()
            && let Some(recovered) = self.with_gentle(|gentle, parts| gentle.on_data(segment, parts, now))
        {
            self.take_repair(recovered, segment, false, now);
        }
    }

    /// Delivers repaired data as if it had arrived. `segment` is the parity if `parity` is true, else the
    /// data that waiting parities needed.
    pub(crate) fn take_repair(
        &mut self,
        recovered: Recovered,
        segment: &Arrived<'_>,
        parity: bool,
        now: Instant,
    ) {
        let Recovered { runs, range, parities: _ } = recovered;
        self.counters.repaired_by_parity += runs.len() as u64;
        self.counters.observe(Observation::Repaired { range, runs: runs.len() as u32 });
        let options = Options::default();
        for Rebuilt { seq, payload, fin } in &runs {
            self.counters.parity.repaired_bytes += payload.len() as u64;
            if parity {
                // A parity that repairs data at RCV.NXT updates TS.Recent.
                let (stamps, rcv_nxt) = (segment.options.timestamps, self.rx.rcv_nxt());
                if let Some(stamps) = stamps.filter(|_| self.handshake.agreed.timestamps && *seq == rcv_nxt) {
                    self.rx.timestamps.on_accepted(*seq, stamps.value, rcv_nxt, now);
                }
            }
            let flags = if *fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
            let repaired = Arrived {
                seq: *seq,
                ack: self.tx.scoreboard.una(),
                flags,
                window: 0,
                urgent: 0,
                options: &options,
                payload,
                ecn: Ecn::NotEct,
                segment_size: payload.len(),
            };
            self.take_payload(&repaired, now);
        }
        self.rx.ack.force();
    }

    /// Moves through the closing states.
    pub(crate) fn advance_state(&mut self, input: Input, now: Instant) {
        let next = self.state.after(input);
        if next == self.state {
            return;
        }
        self.enter(next);
        match next {
            State::TimeWait | State::Closed => self.end(CloseReason::Finished),
            State::FinWait2 if self.released => {
                self.fin_wait_2_until = Some(now + self.config.fin_wait_2_timeout);
            }
            State::SynSent
            | State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => {}
        }
    }

    /// Answers as in RFC 9293 section 3.10.7.4: "If an incoming segment is not acceptable, an acknowledgment
    /// should be sent in reply [...]: `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`", with a DSACK if the segment
    /// repeated old data. A segment that has neither ACK nor SYN gets no answer, because it would be dropped
    /// inside the window too (Linux: the same).
    fn answer_unacceptable(&mut self, segment: &Arrived<'_>, now: Instant) {
        if !segment.flags.intersects(Flags::ACK | Flags::SYN) {
            return;
        }
        self.rx.report_old(segment);
        if segment.is_empty() || segment.flags.contains(Flags::SYN) {
            // Prevents two confused ends from acknowledging each other for ever.
            let interval = if self.handshake.is_syn_ack_again(segment) {
                repeat_interval(&self.config)
            } else {
                self.config.challenge_interval
            };
            if !self.outbox.may_answer(interval, now) {
                return;
            }
        }
        self.answer_at_once();
    }

    /// Processes a repeated SYN in SYN-RECEIVED: the SYN-ACK was lost, or this is a copy. A retransmission
    /// has no option of Corrective and Proactive, so a SYN with that option is a copy. An identical SYN-ACK
    /// answers a copy, and the agreement remains.
    pub(crate) fn on_repeated_syn(&mut self, syn: &Arrived<'_>, now: Instant) {
        let half_way = self.path.known.rtt.map_or(COPIES_MEET, |rtt| COPIES_MEET.max(rtt.srtt / 2));
        let near = self.handshake.syn.last_sent.is_some_and(|at| now.saturating_since(at) <= half_way);
        let answered = self.handshake.syn.copy != PlainCopy::Off || self.gentle.plans();
        if near && answered && self.handshake.syn.timeouts == 0
            || !self.outbox.may_answer(repeat_interval(&self.config), now)
        {
            return;
        }
        if syn.options.gentle.is_some() && self.gentle.sent_option().is_some() && self.handshake.syn.sent == 1
        {
            self.handshake.syn.copy = PlainCopy::Due;
        } else {
            self.handshake.syn.due = true;
        }
    }

    /// Processes a repetition of the SYN that opened this connection, with a further part of its data. True
    /// if the part is accepted.
    pub(crate) fn take_syn_part(&mut self, segment: &Arrived<'_>, now: Instant) -> bool {
        let Some(Gentle::Part { offset }) = segment.options.gentle else { return false };
        let start = self.handshake.irs + 1 + offset;
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        if !self.fast_open.server_mut().is_some_and(|server| server.takes_part(start, len)) {
            return false;
        }
        self.take_payload(&Arrived { seq: start, flags: Flags::PSH, ..*segment }, now);
        // The acknowledgement must wait until the handshake is complete.
        self.rx.on_ack_sent();
        true
    }

    /// Acknowledges at once. Before the handshake is complete no other segment would carry the
    /// acknowledgement.
    pub(crate) fn answer_at_once(&mut self) {
        if self.state == State::SynReceived {
            self.outbox.push(Control::ChallengeAck);
        } else {
            self.rx.ack.force();
        }
    }

    /// Acknowledges at once data for which there was no memory, so that the sender sees that its peer is
    /// alive.
    pub(crate) fn answer_refused_data(&mut self) -> Urgency {
        if self.state.receives() && self.state.is_synchronized() {
            self.rx.ack.force();
        }
        self.urgency()
    }
}

/// ICMP errors about the connection (RFC 5927, RFC 1191, RFC 8201, RFC 9293 section 3.9.2.2).
impl Connection {
    /// Processes an ICMP error that quotes a segment of ours with sequence number `seq`. RFC 5927 section
    /// 4.1: a sequence number that is not outstanding means that the error is forged or stale. A packet that
    /// is too big may also be parity. Its sequence number is below SND.UNA, and it may be longer than the
    /// data that it covers.
    ///
    /// Returns true if the quote was accepted as genuine.
    pub(crate) fn on_icmp(&mut self, kind: IcmpKind, seq: SeqNum, now: Instant) -> bool {
        let (una, nxt) = (self.tx.scoreboard.una(), self.tx.scoreboard.nxt());
        let is_parity = matches!(kind, IcmpKind::PacketTooBig { .. })
            && self.gentle.sent_parity_at(seq, self.tx.rtt.srtt(), now);
        if (seq.lt(una) || seq.ge(nxt)) && !is_parity {
            return false;
        }
        match kind {
            IcmpKind::PacketTooBig { mtu } => {
                let shrunk = self.tx.mtu.on_icmp(mtu, now);
                if self.fast_open.opens_fast() && self.state == State::SynSent {
                    // Only the SYN itself can have been too large.
                    if seq == una {
                        self.fast_open.on_syn_too_big(&mut self.handshake.syn, &mut self.tx.rto);
                    }
                } else if shrunk {
                    self.shrink_segments();
                }
            }
            IcmpKind::PortUnreachable | IcmpKind::ProtocolUnreachable => {
                self.on_hard_error(self.refusal(None))
            }
            IcmpKind::NetUnreachable | IcmpKind::HostUnreachable | IcmpKind::AdminProhibited => {
                let is_net = kind == IcmpKind::NetUnreachable;
                let reason = if is_net { CloseReason::NetworkUnreachable } else { CloseReason::Unreachable };
                self.soft_error = Some(reason);
                self.on_hard_error(reason);
            }
            IcmpKind::TimeExceeded => self.soft_error = Some(CloseReason::Unreachable),
            IcmpKind::ParameterProblem | IcmpKind::SourceQuench => {}
        }
        true
    }

    /// Returns the close reason of a connection whose SYN was refused by a reset with this sequence number,
    /// or by an ICMP error. `Refused` promises that no program has received the data of the SYN, so the data
    /// may be sent elsewhere. A closed port answers with sequence number 0 (RFC 9293 3.10.7.1). Any other
    /// number belongs to a connection that the SYN had opened. If the SYN was sent again, an earlier one may
    /// have opened a connection that has ended.
    fn refusal(&self, reset: Option<SeqNum>) -> CloseReason {
        let has_sent_data = self.fast_open.client().is_some_and(|client| client.data() > 0);
        let is_of_closed_port = reset.is_none_or(|seq| seq == SeqNum(0));
        if has_sent_data && !(is_of_closed_port && self.handshake.syn.sent == 1) {
            return CloseReason::Reset;
        }
        CloseReason::Refused
    }

    /// Processes a hard error, which ends a connection that is being opened (RFC 5927 section 5.2, RFC 5461).
    /// An open connection treats the error as soft and relies on its timers. A connection that has delivered
    /// data of the SYN does the same (as Linux with Fast Open).
    fn on_hard_error(&mut self, reason: CloseReason) {
        let is_opening = match self.state {
            State::SynSent => true,
            State::SynReceived => !self.fast_open.syn_data_taken,
            _ => false,
        };
        if is_opening {
            self.outbox.clear();
            self.end(reason);
        }
    }

    /// Reduces a segment size that is in doubt. The newest large packet that has arrived over the same path
    /// (`arrived`) may remove the doubt.
    pub(crate) fn suspect_size(&mut self, arrived: Option<LargePacket>, now: Instant) {
        if self.tx.suspect_size(arrived, now) {
            self.shrink_segments();
        }
    }

    /// Limits packets to `mtu` bytes, the new maximum of the device.
    pub(crate) fn limit_mtu(&mut self, mtu: u16) {
        if !self.tx.mtu.limit(mtu) {
            return;
        }
        if self.fast_open.opens_fast() && self.state == State::SynSent {
            self.fast_open.on_syn_too_big(&mut self.handshake.syn, &mut self.tx.rto);
        } else {
            self.shrink_segments();
        }
    }

    /// Retransmits outstanding segments that are larger than the new MSS as smaller ones, without a
    /// congestion response (RFC 1191 section 6.4).
    pub(crate) fn shrink_segments(&mut self) {
        self.adopt_mss();
        let mss = self.tx.mss();
        let board = &mut self.tx.scoreboard;
        let too_big: Vec<_> =
            board.in_flight().filter(|record| record.payload() > mss).map(|record| record.range).collect();
        let newly_lost = too_big.into_iter().map(|range| board.mark_lost(range)).sum();
        board.resplit(mss);
        if newly_lost > 0 {
            self.tx.recovery.on_too_big(self.tx.scoreboard.nxt());
        }
        self.count_loss(&LossOutcome { newly_lost, lost_again: 0 }, 0, LossCause::TooBig);
    }
}
