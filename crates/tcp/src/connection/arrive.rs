//! A segment arrives: the steps of RFC 9293 section 3.10.7.4, one function each, with the blind-attack
//! rules of RFC 5961. What its acknowledgement changes is in [`crate::connection::acknowledge`].

use brisk_wire::{Flags, SeqNum};

use crate::connection::control::{Control, Events};
use crate::connection::state::{Input, State};
use crate::connection::{Aftermath, Connection, Env, Urgency};
use crate::error::CloseReason;
use crate::outcome::Arrived;
use crate::receive::{Arrival, ArrivalKind, Paws, Received};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

/// What a step says to the ones after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Go on with the next step.
    Continue,
    /// The segment has been dealt with.
    Done,
}

impl Connection {
    /// A segment for this connection arrived.
    pub(crate) fn on_segment(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) -> Aftermath {
        self.counters.segments_in += 1;
        if self.state == State::SynSent {
            self.on_segment_in_syn_sent(segment, now);
            self.take_early(now, env);
        } else if self.state != State::Closed {
            self.on_segment_after_syn(segment, now, env);
        }
        self.update_timers(now);
        self.aftermath(self.urgency(), now)
    }

    pub(crate) fn on_segment_after_syn(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) {
        if self.take_apart(segment, now, env) {
            return;
        }
        let steps = [
            Connection::check_gentle,
            Connection::check_repeated_syn,
            Connection::check_sequence,
            Connection::check_reset,
            Connection::check_syn,
            Connection::check_ack,
        ];
        for step in steps {
            if step(self, segment, now, env) == Verdict::Done {
                return;
            }
        }
        if let Some(option) = segment.options.fast_open {
            self.on_fast_open_option(option);
        }
        self.note_timestamp(segment, now);
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.on_heard(now);
        }
        self.acknowledge(segment, now);
        if self.state == State::Closed {
            return;
        }
        self.check_urgent(segment);
        self.take_payload(segment, now);
    }

    /// SYN-RECEIVED: the peer sends its SYN again because our SYN-ACK was lost.
    fn check_repeated_syn(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) -> Verdict {
        let plain_syn = segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::RST);
        if self.state == State::SynReceived && plain_syn && segment.seq == self.irs {
            if !segment.flags.contains(Flags::ACK) {
                if !self.take_syn_part(segment, now) {
                    self.on_repeated_syn(segment, now);
                }
                return Verdict::Done;
            }
            // Simultaneous open: the SYN-ACK acknowledges our SYN; its own SYN is known already.
            let rest = Arrived { seq: segment.seq + 1, flags: segment.flags.without(Flags::SYN), ..*segment };
            self.on_segment_after_syn(&rest, now, env);
            return Verdict::Done;
        }
        Verdict::Continue
    }

    /// First: PAWS (RFC 7323 section 5) and the sequence window.
    fn check_sequence(&mut self, segment: &Arrived<'_>, now: Instant, _env: &mut Env<'_>) -> Verdict {
        let reset = segment.flags.contains(Flags::RST);
        // "If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is
        // valid, and if the RST bit is not set, then treat the arriving segment as not acceptable."
        if let Some(timestamps) = segment.options.timestamps.filter(|_| self.negotiated.timestamps && !reset)
            && self.rx.timestamps.paws(timestamps.value, now) == Paws::Old
        {
            self.counters.paws += 1;
            self.answer_unacceptable(segment, now);
            return Verdict::Done;
        }
        if self.rx.window.acceptable(self.rx.rcv_nxt(), segment.seq, segment.len()) {
            return Verdict::Continue;
        }
        self.counters.out_of_window += 1;
        // RFC 9293 section 3.10.7.4: "If the RCV.WND is zero, no segments will be acceptable, but
        // special allowance should be made to accept valid ACKs, URGs, and RSTs."
        if segment.seq == self.rx.rcv_nxt() {
            if reset {
                return Verdict::Continue;
            }
            if segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::SYN) {
                self.rx.ack.force();
                return Verdict::Continue;
            }
        }
        if self.is_syn_ack_again(segment) {
            self.judge_repeated_syn_ack(now);
        }
        if !reset {
            self.answer_unacceptable(segment, now);
        }
        Verdict::Done
    }

    /// RFC 9293 section 3.10.7.4: "If an incoming segment is not acceptable, an acknowledgment should be sent
    /// in reply [...]: `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`", with a DSACK if the segment repeated old data.
    /// A segment with neither ACK nor SYN would be dropped inside the window too, and gets no answer (Linux:
    /// the same).
    fn answer_unacceptable(&mut self, segment: &Arrived<'_>, now: Instant) {
        if !segment.flags.intersects(Flags::ACK | Flags::SYN) {
            return;
        }
        let old = SeqRange::new(segment.seq, (segment.seq + segment.len()).min(self.rx.rcv_nxt()));
        // What rode on a SYN is no data that was sent twice: it gets a plain challenge.
        if !old.is_empty() && !segment.flags.contains(Flags::SYN) {
            self.rx.sack.on_duplicate(old);
            self.rx.ack.on_old_data(self.rx.rcv_wnd());
        }
        if segment.is_empty() || segment.flags.contains(Flags::SYN) {
            // So that two confused ends do not acknowledge each other for ever.
            let interval = if self.is_syn_ack_again(segment) {
                self.repeated_handshake_interval()
            } else {
                self.config.challenge_interval
            };
            if !self.answers.permits(interval, now) {
                return;
            }
        }
        self.answer_at_once();
    }

    /// Returns the least time between two answers to a SYN or SYN-ACK that comes again. A peer whose timers
    /// know the path as ours do repeats it more often than others.
    fn repeated_handshake_interval(&self) -> Duration {
        self.config
            .handshake_timers
            .map_or(self.config.challenge_interval, |timers| timers.floor.min(self.config.challenge_interval))
    }

    /// True if a repeated SYN may be answered now; the answer counts as sent.
    pub(crate) fn permits_repeated_syn_ack(&mut self, now: Instant) -> bool {
        let interval = self.repeated_handshake_interval();
        self.answers.permits(interval, now)
    }

    /// The SYN-ACK that was answered before.
    fn is_syn_ack_again(&self, segment: &Arrived<'_>) -> bool {
        segment.flags.contains(Flags::SYN | Flags::ACK) && segment.seq == self.irs
    }

    /// An acknowledgement leaves at once. Before the handshake is complete nothing else would carry it.
    pub(crate) fn answer_at_once(&mut self) {
        if self.state == State::SynReceived {
            self.outbox.push(Control::ChallengeAck);
        } else {
            self.rx.ack.force();
        }
    }

    /// Acknowledges at once where there was no memory for data: the sender sees that its peer lives.
    pub(crate) fn answer_refused_data(&mut self) -> Urgency {
        if self.state.receives() && self.state.is_synchronized() {
            self.rx.ack.force();
        }
        self.urgency()
    }

    /// Second: the RST bit (RFC 5961 section 3.2).
    fn check_reset(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) -> Verdict {
        if !segment.flags.contains(Flags::RST) {
            return Verdict::Continue;
        }
        // "If the RST bit is set and the sequence number exactly matches the next expected sequence
        // number (RCV.NXT), then TCP endpoints MUST reset the connection"; "If [...] does not exactly
        // match [...] MUST send an acknowledgment (challenge ACK)".
        if segment.seq == self.rx.rcv_nxt() {
            self.outbox.clear();
            self.judge_reset(now);
            self.end(if self.state == State::SynReceived && !self.is_opened_by_syn() {
                CloseReason::Refused
            } else {
                CloseReason::Reset
            });
        } else {
            self.challenge(now, env);
        }
        Verdict::Done
    }

    /// Fourth: the SYN bit (RFC 5961 section 4.2).
    fn check_syn(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) -> Verdict {
        if !segment.flags.contains(Flags::SYN) {
            return Verdict::Continue;
        }
        self.challenge(now, env);
        Verdict::Done
    }

    /// Fifth: the ACK bit (RFC 9293 section 3.10.7.4, RFC 5961 section 5.2).
    fn check_ack(&mut self, segment: &Arrived<'_>, now: Instant, env: &mut Env<'_>) -> Verdict {
        if !segment.flags.contains(Flags::ACK) {
            self.take_after_syn(segment, now);
            return Verdict::Done;
        }
        let una = self.tx.scoreboard.una();
        let nxt = self.tx.scoreboard.nxt();
        if self.state == State::SynReceived {
            // "If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state [...]. If the segment
            // acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST>".
            if una.lt(segment.ack) && segment.ack.le(nxt) {
                self.rewind_syn_data(segment.ack);
                self.judge_syn_ack_delivery(segment, now);
                self.judge_handshake_losses(segment, now);
                self.establish(now);
                self.own_up_to_parts();
                return Verdict::Continue;
            }
            self.reset_limited(segment.ack, now);
            return Verdict::Done;
        }
        // "The ACK value is considered acceptable only if it is in the range of
        // ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT)."
        let oldest = una - self.tx.window.max_snd_wnd();
        if segment.ack.gt(nxt) {
            self.challenge(now, env);
            return Verdict::Done;
        }
        if segment.ack.lt(oldest) {
            self.challenge(now, env);
            return Verdict::Done;
        }
        Verdict::Continue
    }

    /// Sends a challenge ACK if the limits of this connection and of the host permit.
    fn challenge(&mut self, now: Instant, env: &mut Env<'_>) {
        if self.answers.permits(self.config.challenge_interval, now) && (env.challenge)(now) {
            self.counters.challenge_acks += 1;
            self.outbox.push(Control::ChallengeAck);
        }
    }

    /// Answers a wrong acknowledgement of our SYN by a reset. A flood of forged ones is not answered by a
    /// flood.
    pub(crate) fn reset_limited(&mut self, seq: SeqNum, now: Instant) {
        if self.resets.permits(now) {
            self.outbox.push(Control::Reset(seq));
        }
    }

    /// RFC 7323 section 4.3: "if SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent, then SEG.TSval
    /// is copied to TS.Recent".
    fn note_timestamp(&mut self, segment: &Arrived<'_>, now: Instant) {
        if let Some(timestamps) = segment.options.timestamps.filter(|_| self.negotiated.timestamps) {
            self.rx.timestamps.on_accepted(segment.seq, timestamps.value, self.rx.ack.last_ack_sent(), now);
            if !segment.payload.is_empty()
                && let Some(rtt) = self.rx.timestamps.rtt(timestamps.echo, self.opened, now)
            {
                self.rx.window.on_rtt(rtt.into());
            }
        }
    }

    /// Eighth and before: moves through the closing states.
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

    /// Sixth: the URG bit.
    fn check_urgent(&mut self, segment: &Arrived<'_>) {
        if segment.flags.contains(Flags::URG)
            && self.state.receives()
            && self.urgent.on_pointer(segment.seq, segment.urgent, self.rx.read_next)
        {
            self.events.insert(Events::READABLE);
        }
    }

    /// Seventh and eighth: the text of the segment and the FIN bit.
    pub(crate) fn take_payload(&mut self, segment: &Arrived<'_>, now: Instant) {
        let fin = segment.flags.contains(Flags::FIN);
        if segment.payload.is_empty() && !fin {
            return;
        }
        if !self.state.receives() {
            // The peer repeats its FIN or data from before it: say again what has arrived.
            self.rx.ack.force();
            return;
        }
        let after_our_fin = matches!(self.state, State::FinWait1 | State::FinWait2);
        let refused = self.rx.closed || (self.rx.refuses && after_our_fin);
        if refused && segment.end().gt(self.rx.rcv_nxt()) && !segment.payload.is_empty() {
            // RFC 9293 section 3.6.1: data that nobody can read any more is answered by a reset. It has
            // the form of every answer to a segment with ACK (section 3.5.2), as Linux sends it.
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
            self.note_taken(segment, now);
        }
        self.note_arrival(&arrival, segment, now);
        if slow_sender {
            self.rx.ack.on_slow_sender(self.rx.rcv_wnd());
        }
        self.repair_with_more(segment, now);
    }

    /// What the arrival of data means for acknowledgement, SACK, window and state.
    fn note_arrival(&mut self, arrival: &Arrival, segment: &Arrived<'_>, now: Instant) {
        let rcv_nxt = self.rx.rcv_nxt();
        self.rx.sack.on_arrival(arrival, rcv_nxt);
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
        self.rx.ack.on_data(arrival, &received, now);
        if !self.negotiated.sack {
            let segments = segment.payload.len().div_ceil(segment.segment_size.max(1)) as u32;
            self.rx.owe_duplicates(arrival, segments);
        }
        self.counters.payload_bytes_received += u64::from(arrival.advanced);
        self.counters.out_of_order += u64::from(arrival.kind == ArrivalKind::OutOfOrder);
        if arrival.advanced > 0 || arrival.fin_reached {
            self.events.insert(Events::READABLE);
        }
        let early_fin = segment.flags.contains(Flags::FIN) && arrival.kind == ArrivalKind::OutOfOrder;
        self.judge_arrival(arrival.advanced > 0, early_fin && segment.payload.is_empty());
        if arrival.fin_reached {
            self.end_history();
            self.advance_state(Input::Fin, now);
        }
    }
}
