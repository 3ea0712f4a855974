//! The choice of the next segment. `poll_transmit` runs the three steps; the rest of this file chooses.
//!
//! The order is: control segments, the handshake, copies, lost data, a tail loss probe, parity, new
//! data, parity behind the burst, an acknowledgement alone. Each asks the [`Budget`] how much may leave.

use alloc::vec::Vec;

use brisk_wire::OptionProfile;

use crate::connection::decision::{Choice, Data};
use crate::connection::gentle::Turn;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::gentle::proactive::CopiedRun;
use crate::connection::reactive::ProbeTimer;
use crate::connection::segment::Built;
use crate::connection::sender::Sharing;
use crate::connection::state::State;
use crate::connection::{Connection, Env, MAX_PIECES};
use crate::outcome::Origin;
use crate::receive::Owed;
use crate::send::budget::Budget;
use crate::send::push::BurstPush;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// How much new data may leave, and what stopped it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// This many payload bytes, perhaps with the FIN.
    Send { len: u32, fin: bool },
    /// The congestion window or pacing.
    Congestion,
    /// The peer's window, Nagle, the cork, or nothing to send.
    Nothing,
}

impl Connection {
    /// Writes the next packet into `out`, if there is one to send: decide, build, account.
    pub(crate) fn poll_transmit(&mut self, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Option<Built> {
        loop {
            let Some(choice) = self.choose(now, env) else {
                self.update_timers(now);
                return None;
            };
            let segment = self.build(&choice, now);
            let built = self.emit(&segment, env, out);
            self.account(&choice, &segment, built, out.len() + built.in_place_len(), now);
            // A packet that cannot be built (no room for the header) is gone like a lost one.
            if !out.is_empty() {
                return Some(built);
            }
        }
    }

    /// True if [`Connection::choose`] would surely find nothing to send; the facts that it records in that
    /// case are recorded. False: it has to be asked.
    #[inline]
    pub(crate) fn has_nothing_to_send(&mut self, now: Instant) -> bool {
        let owes = match self.rx.ack.owed() {
            Owed::Nothing => false,
            Owed::Now => true,
            Owed::At(due) => due <= now,
        };
        if owes
            || self.tx.unsent() > 0
            || self.tx.fin_unsent()
            || !self.state.is_synchronized()
            || !self.outbox.is_empty()
            || self.may_send_beside_new()
        {
            return false;
        }
        (self.tx.paced, self.tx.held) = (false, false);
        if self.state.sends() && !self.tx.scoreboard.is_empty() {
            self.note_burst_end(false);
        }
        debug_assert!(self.finds_nothing(now), "{:?} has something to send", self.state);
        self.update_timers(now);
        true
    }

    /// There may be lost data to send, or a probe, or what Corrective and Proactive want.
    fn may_send_beside_new(&self) -> bool {
        self.gentle.active.is_some()
            || self.tx.scoreboard.has_lost()
            || self.reactive.as_ref().is_some_and(ProbeTimer::is_due)
    }

    /// True if [`Connection::choose`] agrees with [`Connection::has_nothing_to_send`].
    fn finds_nothing(&mut self, now: Instant) -> bool {
        let env = Env {
            challenge: &mut |_| false,
            super_segment: 0,
            sends_twice: false,
            partial_checksum: false,
            payload_in_place: false,
            option_profile: &OptionProfile::default(),
        };
        self.choose(now, &env).is_none()
    }

    /// Chooses the next segment; `None`: nothing now.
    pub(crate) fn choose(&mut self, now: Instant, env: &Env<'_>) -> Option<Choice> {
        if let Some(control) = self.outbox.pop() {
            return Some(Choice::Control(control));
        }
        match self.state {
            State::Closed => return None,
            State::SynSent | State::SynReceived if self.handshake.syn.due => {
                return Some(Choice::Syn(self.syn_gentle_option(now, env.option_profile)));
            }
            State::SynReceived if self.handshake.syn.copy == PlainCopy::Due => return Some(Choice::SynCopy),
            State::SynSent => return self.choose_syn_copy().or_else(|| self.choose_after_syn()),
            State::SynReceived => return self.choose_early(now, env),
            State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => {}
        }
        (self.tx.paced, self.tx.held) = (false, false);
        if self.gentle.active.is_some() {
            if self.owes_failure() {
                return Some(Choice::Ack);
            }
            if let Some(copy) = self.poll_gentle(Turn::Copies, now) {
                return Some(copy);
            }
        }
        if self.state.sends() {
            let data = if self.may_send_beside_new() || self.tx.recovery.prefers_new_data() {
                self.choose_data(now, env)
            } else {
                self.choose_new(now, env)
            };
            if data.is_some() {
                return data;
            }
        }
        self.choose_ack(now)
    }

    /// Data, for the first time or again, or parity.
    fn choose_data(&mut self, now: Instant, env: &Env<'_>) -> Option<Choice> {
        let first = if self.tx.recovery.prefers_new_data() { self.choose_new(now, env) } else { None };
        first
            .or_else(|| self.choose_lost(now))
            .or_else(|| self.choose_probe(now))
            .or_else(|| self.poll_gentle(Turn::Parity, now))
            .or_else(|| self.choose_new(now, env))
            .or_else(|| self.poll_gentle(Turn::ParityBehindBurst, now))
    }

    /// The first range that is declared lost.
    fn choose_lost(&mut self, now: Instant) -> Option<Choice> {
        if !self.tx.scoreboard.has_lost() {
            return None;
        }
        if self.tx.recovery.holds_retransmissions() {
            return None;
        }
        let limit = self.payload_limit();
        let mut lost = self.tx.scoreboard.next_lost(limit)?;
        // Of what lies beyond a window that the peer has drawn back, only the first segment is sent again
        // (RFC 9293 section 3.8.6).
        let una = self.tx.scoreboard.una();
        let window = self.tx.window.snd_wnd().saturating_sub(lost.start.since(una));
        if lost.start != una && window < lost.len() {
            lost = self.tx.scoreboard.next_lost(limit.min(window))?;
        }
        let range = self.tx.queue.within_record(lost);
        let budget = self.tx.budget(now);
        if let Some(retest) = self.choose_retest(&budget) {
            return Some(retest);
        }
        // A segment that ends because its record does is charged as a full one: small records would leave
        // after a timeout in a burst of many (Linux's window counts segments).
        let charged = if range.len() < lost.len() { range.len().max(self.tx.mss()) } else { range.len() };
        let permitted = charged <= budget.of(Origin::Retransmit);
        self.tx.paced = !permitted && budget.is_paced(range.len());
        self.tx.held |= !permitted;
        permitted.then(|| self.again(range, Origin::Retransmit))
    }

    /// A range that was sent before.
    fn again(&self, range: SeqRange, origin: Origin) -> Choice {
        let fin = self.tx.queue.fin_queued() && range.end.gt(self.tx.queue.end());
        Choice::Data(Data {
            range,
            segment_size: self.payload_limit(),
            origin,
            fin,
            mtu_probe: false,
            twice: false,
            burst: None,
        })
    }

    /// A range that was sent before, in one segment larger than the MSS.
    pub(crate) fn again_as_probe(&self, range: SeqRange) -> Choice {
        let fin = self.tx.queue.fin_queued() && range.end.gt(self.tx.queue.end());
        let segment_size = range.len();
        Choice::Data(Data {
            range,
            segment_size,
            origin: Origin::Retransmit,
            fin,
            mtu_probe: true,
            twice: false,
            burst: None,
        })
    }

    /// A tail loss probe: one segment of new data if the peer's window takes it, else the tail again.
    fn choose_probe(&self, now: Instant) -> Option<Choice> {
        if !self.reactive.as_ref().is_some_and(ProbeTimer::is_due) {
            return None;
        }
        let budget = self.tx.budget(now);
        let nxt = self.tx.scoreboard.nxt();
        let segment_size = self.probe_limit();
        let record = self.tx.queue.record_end(nxt).map_or(u32::MAX, |end| end.since(nxt));
        let window = budget.of(Origin::TailLossProbe);
        let len = self.tx.unsent().min(segment_size).min(window).min(record);
        if len > 0 {
            let fin = self.tx.fin_unsent() && len == self.tx.unsent() && len < window;
            let range = SeqRange::with_len(nxt, len + u32::from(fin));
            return Some(Choice::Data(Data {
                range,
                segment_size,
                origin: Origin::TailLossProbe,
                fin,
                mtu_probe: false,
                twice: false,
                burst: None,
            }));
        }
        // Of a tail longer than a segment may be now, the last part is enough.
        let tail = self.tx.scoreboard.tail()?;
        let surplus = tail.payload().saturating_sub(segment_size);
        let range = SeqRange::new(tail.range.start + surplus, tail.range.end);
        Some(self.again(range, Origin::TailLossProbe))
    }

    /// Data that was never sent, as a run of segments that one header can describe.
    pub(crate) fn choose_new(&mut self, now: Instant, env: &Env<'_>) -> Option<Choice> {
        if self.tx.unsent() == 0 && !self.tx.fin_unsent() {
            // How much flew counts also where the data ended before the window did.
            if !self.tx.scoreboard.is_empty() {
                self.note_burst_end(false);
            }
            return None;
        }
        self.restart_after_idle(now);
        if self.tx.mtu.raise_stale(now) {
            self.adopt_mss();
        }
        let mut budget = self.tx.budget(now);
        if let Some(bytes) = self.unproven_budget() {
            budget.peer = budget.peer.min(bytes);
        }
        let limit = self.payload_limit();
        if let Some(probe) = self.choose_mtu_probe(&budget, limit, now) {
            return Some(probe);
        }
        self.plan_flight(&budget);
        // A plan may have shorter segments.
        let mss = if self.gentle.planner.is_some() { self.payload_limit() } else { limit };
        let (most, twice) = self.longest_run(mss, &budget, env, now);
        match self.extent(&budget, mss, most, now) {
            Extent::Send { len, fin } => {
                let range = SeqRange::with_len(self.tx.scoreboard.nxt(), len + u32::from(fin));
                let burst = self.burst_with(SeqRange::with_len(range.start, len), &budget);
                Some(Choice::Data(Data {
                    range,
                    segment_size: mss,
                    origin: Origin::New,
                    fin,
                    mtu_probe: false,
                    twice: twice && len > mss,
                    burst,
                }))
            }
            Extent::Congestion => {
                self.note_burst_end(true);
                None
            }
            Extent::Nothing => {
                self.note_burst_end(false);
                None
            }
        }
    }

    /// The burst that ends with this new data, for now; `None` if the ends of bursts carry no PSH.
    fn burst_with(&self, payload: SeqRange, budget: &Budget) -> Option<BurstPush> {
        self.config.push_bursts.then(|| self.tx.burst_with(payload, budget))
    }

    pub(crate) fn note_burst_end(&mut self, limited: bool) {
        // Where the controller names a rate, that is what holds data back most of the time.
        let limited = limited && !(self.tx.paced && self.tx.rate.congestion.pacing_rate().is_some());
        let board = &self.tx.scoreboard;
        let (una, nxt, pipe) = (board.una(), board.nxt(), self.tx.rate.pipe_with(board.pipe()));
        let had_data = nxt != self.tx.usage.burst_end() || self.tx.unsent() > 0 || self.tx.fin_unsent();
        let full = had_data && pipe.saturating_add(self.tx.mss()) > self.tx.rate.congestion.cwnd();
        self.tx.usage.on_burst(una, nxt, limited || full);
    }

    /// RFC 5681 section 4.1: "a TCP SHOULD set cwnd to no more than RW before beginning transmission if the
    /// TCP has not sent data in an interval exceeding the retransmission timeout". As in Linux the window
    /// halves for each timeout of silence until it is RW (RFC 2861 section 3.1). A window probe begins no
    /// transmission.
    fn restart_after_idle(&mut self, now: Instant) {
        // The silence of one member is not that of its path.
        let is_member = self.tx.sharing == Sharing::Member;
        if !self.config.slow_start_after_idle || !self.tx.scoreboard.is_empty() || is_member {
            return;
        }
        let rto = self.tx.timeout();
        if self.tx.unsent() == 0 {
            return self.decay_for_fin(rto, now);
        }
        let idle = Micros::between(self.tx.last_sent, now);
        if idle <= rto || self.tx.usable_window() == 0 {
            return;
        }
        let cwnd = self.tx.rate.congestion.cwnd();
        let restart = self.unasked_window();
        let halvings = (idle.0 - 1) / rto.0.max(1);
        let decayed = cwnd.checked_shr(halvings).unwrap_or(0);
        self.tx.rate.congestion.on_idle_restart(now, decayed.max(restart.min(cwnd)));
        self.tx.last_sent = now;
        self.reopen_start();
    }

    /// A FIN alone begins no transmission. A window that nothing has grown for a timeout was not used and
    /// goes half of the way to what was (RFC 2861 section 3.1; Linux: tcp_cwnd_application_limited).
    fn decay_for_fin(&mut self, rto: Micros, now: Instant) {
        let (cwnd, used) = (self.tx.rate.congestion.cwnd(), self.unasked_window());
        if Micros::between(self.tx.usage.grown_at(), now) >= rto && used < cwnd {
            self.tx.rate.congestion.on_idle_restart(now, cwnd.midpoint(used));
            self.tx.usage.on_growth(now);
        }
    }

    /// Bytes that one transmission may hold: whole segments up to what the device takes. A segment with an
    /// urgent pointer travels alone, since the pointer is relative to its own header. And whether the device
    /// sends each of them twice.
    fn longest_run(&self, mss: u32, budget: &Budget, env: &Env<'_>, now: Instant) -> (u32, bool) {
        if self.urgent.pointer(self.tx.scoreboard.nxt()).is_some()
            || self.has_allowance()
            || self.plans_copies()
        {
            return (mss, false);
        }
        let run = (env.super_segment / mss * mss).min(self.planned_run(mss)).max(mss);
        let run = if env.payload_in_place { self.run_in_place(mss, run) } else { run };
        match self.copied_run(mss, budget, env, now) {
            CopiedRun::None => (run, false),
            CopiedRun::OneByOne => (mss, false),
            CopiedRun::Twice(bytes) => (run.min(bytes / mss * mss).max(mss), true),
        }
    }

    /// So much of a run that it may stay where it lies, if that is not much less.
    fn run_in_place(&self, mss: u32, run: u32) -> u32 {
        let pieces = self.queued(SeqRange::with_len(self.tx.scoreboard.nxt(), run));
        if pieces.len() <= MAX_PIECES {
            return run;
        }
        let in_place = pieces.iter().take(MAX_PIECES).map(|piece| piece.len() as u32).sum::<u32>();
        if in_place >= run / 4 { (in_place / mss * mss).max(mss) } else { run }
    }

    fn extent(&mut self, budget: &Budget, mss: u32, most: u32, now: Instant) -> Extent {
        let nxt = self.tx.scoreboard.nxt();
        let record = self.tx.queue.record_end(nxt);
        let unsent = record.map_or(self.tx.unsent(), |end| end.since(nxt));
        let offered = unsent.min(budget.peer);
        let allowed = budget.of(Origin::New).min(most);
        if offered > allowed {
            let whole = allowed / mss * mss;
            self.tx.paced = whole == 0 && budget.is_paced(mss);
            self.tx.held |= whole == 0;
            return if whole > 0 { Extent::Send { len: whole, fin: false } } else { Extent::Congestion };
        }
        let fin = record.is_none() && self.tx.fin_unsent() && offered == unsent && offered < budget.peer;
        let partial = offered % mss;
        // The end of a record with something behind it does not wait for more (Linux: only the last segment
        // does).
        let ends_record = record.is_some() && offered == unsent;
        if partial == 0 || ends_record || self.may_send_partial(offered, unsent, fin, budget, now) {
            return if offered > 0 || fin { Extent::Send { len: offered, fin } } else { Extent::Nothing };
        }
        let whole = offered - partial;
        if whole > 0 { Extent::Send { len: whole, fin: false } } else { Extent::Nothing }
    }

    /// Sender's silly window avoidance (RFC 9293 section 3.8.6.2.1) and Nagle's algorithm.
    fn may_send_partial(
        &mut self,
        offered: u32,
        unsent: u32,
        fin: bool,
        budget: &Budget,
        now: Instant,
    ) -> bool {
        if offered < unsent {
            // "(3) or if at least a fraction Fs of the maximum window can be sent"; Fs = 1/2.
            return self.tx.hold.overridden
                || (budget.pipe == 0 && offered >= self.tx.window.max_snd_wnd() / 2 && offered > 0);
        }
        let una = self.tx.scoreboard.una();
        // Urgent data does not wait for Nagle's algorithm (Linux: the same).
        let urgent = self.urgent.pointer(una).is_some();
        let rto = self.tx.rtt.rto_base();
        urgent || self.tx.hold.permits_partial(una, fin, rto, now)
    }

    /// A probe of the path MTU (RFC 4821): one segment larger than the MSS, made of new data. Not while
    /// SACK blocks of our own would make it larger than it was meant to be (Linux: the same).
    fn choose_mtu_probe(&mut self, budget: &Budget, payload_limit: u32, now: Instant) -> Option<Choice> {
        if payload_limit + self.tx.reserved < self.tx.mss() {
            return None;
        }
        let size = self.tx.next_mtu_probe(now)?;
        let range = SeqRange::with_len(self.tx.scoreboard.nxt(), size);
        if self.tx.queue.within_record(range) != range {
            return None;
        }
        (size <= budget.of(Origin::New)).then(|| {
            Choice::Data(Data {
                range,
                segment_size: size,
                origin: Origin::New,
                fin: false,
                mtu_probe: true,
                twice: false,
                burst: self.burst_with(range, budget),
            })
        })
    }

    /// An acknowledgement that nothing carried.
    pub(crate) fn choose_ack(&mut self, now: Instant) -> Option<Choice> {
        match self.rx.ack.owed() {
            Owed::Nothing => None,
            Owed::Now => Some(Choice::Ack),
            Owed::At(due) => (due <= now).then_some(Choice::Ack),
        }
    }

    /// Largest payload of a data segment now: SACK blocks of our own, a cookie and flags take from it.
    pub(crate) fn payload_limit(&self) -> u32 {
        let fast_open = self.fast_open_option_len();
        let blocks = if self.rx.sack.is_empty() { 0 } else { self.rx.sack.count(self.sack_room()) as u32 };
        let sack = if blocks == 0 { 0 } else { 4 + 8 * blocks };
        let options = (sack + fast_open + self.gentle_option_len()).max(self.tx.reserved);
        let most = self.tx.mss().saturating_sub(options).min(self.tx.window.segment_bound());
        most.min(self.planned_segment(self.tx.scoreboard.nxt())).max(1)
    }
}
