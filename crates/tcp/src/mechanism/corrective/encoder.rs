//! The sending half of Corrective: the grouping of segments, the time of their parity, and the range that the
//! parity covers (Gentle Aggression section 5).
//!
//! Segments that are sent for the first time within a fraction of a round trip (by default a quarter) form a
//! group. Its parity leaves the same fraction of a round trip after its last packet. So a burst of losses
//! does not include the parity, and the parity arrives well before a retransmission. The encoder does not
//! know the bytes of the stream: [`Encoder::next`] returns ranges. The parity is computed from the send queue
//! when the packet is written.

use alloc::collections::VecDeque;

use arrayvec::ArrayVec;
use brisk_wire::SeqNum;

use super::code::{Code, Layout};
use crate::config::CorrectiveConfig;
use crate::mechanism::Profile;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

/// Limit of groups that wait for their parity. One more replaces the oldest.
const MAX_CLOSED: usize = 8;
/// Delay of parity while the round-trip time of the path is unknown.
const DELAY_WITHOUT_SAMPLE: Duration = Duration::from_millis(250);
/// `start_off` has 24 bits.
const MAX_OFFSET: u32 = 1 << 24;
/// Number of failures in a row, without a repair, after which parity pauses. The second time, parity ends for
/// this connection.
const FAILURES_IN_A_ROW: u32 = 8;
/// Number of groups without parity in a pause.
const PAUSE_GROUPS: u32 = 16;

/// Protection of the next groups. It may change between groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupParams {
    /// The code, which the connection must have agreed on.
    pub(crate) code: Code,
    /// Maximum number of blocks of a group, at most the code's limit.
    pub(crate) blocks: u32,
    /// Parities of a group; only [`Code::ReedSolomon`] has a choice. 0: no parity.
    pub(crate) parities: u8,
    /// Divisor of the round-trip time for the delay of parity; 0: parity leaves directly after the burst.
    pub(crate) delay_divisor: u32,
    /// True if the delay counts from the first packet of the group, as in F1, not from the last.
    pub(crate) from_first: bool,
}

/// A parity segment that may leave now: its coverage and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DueParity {
    /// Covered range, form, and length of the payload.
    pub(crate) layout: Layout,
    /// Index of the parity in its group, from 0.
    pub(crate) row: u8,
    /// Parities of the group.
    pub(crate) parities: u8,
    pub(crate) seq: SeqNum,
    /// A FIN follows the last encoded byte.
    pub(crate) fin_end: bool,
}

impl DueParity {
    /// Returns the sequence range that the segment seems to occupy.
    pub(crate) fn wire(&self) -> SeqRange {
        SeqRange::with_len(self.seq, self.layout.payload_len() as u32)
    }
}

/// Reason why a group has no parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsent {
    /// The group is acknowledged or completely reported by SACK.
    Delivered,
    /// The segments of the group do not fit the path any more.
    TooBig,
    /// Losses are being repaired, the peer's window is closed, or the allowance for parity is exhausted.
    State,
    /// The path has a standing queue, which parity must not join.
    Queue,
}

/// State of the sender when parity is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EncoderContext {
    /// SND.UNA.
    pub(crate) una: SeqNum,
    /// Current maximum payload of a parity segment.
    pub(crate) limit: u32,
    /// The sequence number of the FIN, once it was sent.
    pub(crate) fin: Option<SeqNum>,
    /// No parity may leave, because losses are being repaired.
    pub(crate) withheld: bool,
    /// SND.WND is zero.
    pub(crate) window_shut: bool,
    /// The path has a standing queue, which parity must not join.
    pub(crate) queue_stands: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    profile: Profile,
    params: GroupParams,
    open: Option<Group>,
    closed: VecDeque<Group>,
    /// A group whose parity is due, and its parities that have not left yet.
    ready: Option<ReadyGroup>,
    /// Latest time passed to the encoder. Parity due by then waits for the connection, not the clock.
    woken: Option<Instant>,
    failures_in_row: u32,
    /// Number of further groups without parity.
    paused: u32,
    has_paused: bool,
}

/// Segments that are protected together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    range: SeqRange,
    /// B: the largest payload of its segments.
    block: u32,
    first: Instant,
    last: Instant,
    params: GroupParams,
}

#[derive(Clone, Debug)]
struct ReadyGroup {
    group: Group,
    /// Parities that have not left yet.
    parities: ArrayVec<DueParity, 8>,
}

impl Group {
    fn blocks(&self) -> u32 {
        self.range.len().div_ceil(self.block)
    }

    /// Returns the delay of parity, a fraction of a round trip.
    fn delay(&self, rtt: Option<Duration>) -> Duration {
        match (self.params.delay_divisor, rtt) {
            (0, _) => Duration::ZERO,
            (divisor, Some(rtt)) => rtt / divisor,
            (_, None) => DELAY_WITHOUT_SAMPLE,
        }
    }

    /// Returns the time at which the group takes no more segments.
    fn closes(&self, rtt: Option<Duration>) -> Instant {
        self.first + self.delay(rtt)
    }

    /// Returns the time at which its parity leaves.
    fn due(&self, rtt: Option<Duration>) -> Instant {
        let delay = self.delay(rtt);
        if self.params.from_first {
            self.first + delay
        } else {
            (self.last + delay).min(self.first + delay.saturating_mul(2))
        }
    }
}

impl Encoder {
    /// Returns an encoder without a group.
    pub(crate) fn new(profile: Profile, code: Code, config: &CorrectiveConfig) -> Self {
        let params = GroupParams {
            code,
            blocks: config.blocks,
            parities: config.parities,
            delay_divisor: config.delay_divisor,
            from_first: profile.is_f1(),
        };
        Encoder {
            profile,
            params,
            open: None,
            closed: VecDeque::new(),
            ready: None,
            woken: None,
            failures_in_row: 0,
            paused: 0,
            has_paused: false,
        }
    }

    /// Sets the protection of the groups that begin from now on.
    pub(crate) fn set_params(&mut self, params: GroupParams) {
        self.params = params;
    }

    pub(crate) fn params(&self) -> GroupParams {
        self.params
    }

    /// Records data that left for the first time, in segments of `segment_size` bytes. `withheld`: no parity
    /// may leave now, because losses are being repaired.
    pub(crate) fn on_sent(
        &mut self,
        range: SeqRange,
        segment_size: u32,
        withheld: bool,
        rtt: Option<Duration>,
        now: Instant,
    ) {
        self.close_by_time(rtt, now);
        if self.params.parities == 0 || withheld {
            return self.close();
        }
        let mut start = range.start;
        while start.lt(range.end) {
            let end = range.end.min(start + segment_size.max(1));
            self.add(SeqRange::new(start, end), now);
            start = end;
        }
    }

    fn add(&mut self, segment: SeqRange, now: Instant) {
        if let Some(group) = &mut self.open {
            let grown = Group {
                range: SeqRange::new(group.range.start, segment.end),
                block: group.block.max(segment.len()),
                last: now,
                ..*group
            };
            if group.range.end == segment.start && grown.blocks() <= max_blocks(&group.params) {
                *group = grown;
                return self.close_if_full();
            }
            self.close();
        }
        let params = self.params;
        self.open = Some(Group { range: segment, block: segment.len(), first: now, last: now, params });
        self.close_if_full();
    }

    fn close_if_full(&mut self) {
        if self.open.is_some_and(|group| group.blocks() >= max_blocks(&group.params)) {
            self.close();
        }
    }

    fn close_by_time(&mut self, rtt: Option<Duration>, now: Instant) {
        if self.is_open_group_over(rtt, now) {
            self.close();
        }
    }

    /// Closes the open group.
    pub(crate) fn close(&mut self) {
        let Some(group) = self.open.take() else { return };
        if self.paused > 0 {
            self.paused -= 1;
            return;
        }
        if self.closed.len() == MAX_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(group);
    }

    /// Discards the open group, because parity of urgent data would come too late.
    pub(crate) fn discard_open(&mut self) {
        self.open = None;
    }

    /// Discards all groups, because after a retransmission timeout parity is not worth its bytes.
    pub(crate) fn clear(&mut self) {
        self.open = None;
        self.closed.clear();
        self.ready = None;
    }

    /// Returns the time for [`Encoder::on_timeout`].
    pub(crate) fn next_timeout(&self, rtt: Option<Duration>) -> Option<Instant> {
        let open = self.open.filter(|group| group.params.delay_divisor > 0);
        let closes = open.map(|group| group.closes(rtt));
        let due = self.closed.front().filter(|_| self.ready.is_none()).map(|group| group.due(rtt));
        let ahead = |at: &Instant| self.woken.is_none_or(|woken| *at > woken);
        closes.into_iter().chain(due).filter(ahead).min()
    }

    /// Advances the encoder's clock to `now`, and closes the open group if its time is over.
    pub(crate) fn on_timeout(&mut self, rtt: Option<Duration>, now: Instant) {
        self.woken = Some(now);
        self.close_by_time(rtt, now);
    }

    /// True if there is a group whose parity has not left.
    pub(crate) fn is_waiting(&self) -> bool {
        self.open.is_some() || self.ready.is_some() || !self.closed.is_empty()
    }

    /// True if the open group accepts no more segments at `now`.
    pub(crate) fn is_open_group_over(&self, rtt: Option<Duration>, now: Instant) -> bool {
        self.open.is_some_and(|group| group.params.delay_divisor > 0 && group.closes(rtt) <= now)
    }

    /// True if the open group ends with the current burst, because its parity has no delay.
    pub(crate) fn ends_with_burst(&self) -> bool {
        self.open.is_some_and(|group| group.params.delay_divisor == 0)
    }

    /// Returns the next parity of the current group. Confirm it by [`Encoder::sent`].
    pub(crate) fn next(&self, una: SeqNum, withheld: bool) -> Option<DueParity> {
        let parity = self.ready.as_ref()?.parities.first()?;
        // Acknowledgements may have arrived since the parity was planned, and its bytes may be gone.
        (!withheld && una.le(parity.layout.range().start)).then_some(*parity)
    }

    /// True if there is a current group, or the parity of another group is due. If [`Encoder::next`] returns
    /// none, [`Encoder::take_group`] goes on to the next group.
    pub(crate) fn is_due(&self, rtt: Option<Duration>, now: Instant) -> bool {
        self.ready.is_some() || self.closed.front().is_some_and(|group| group.due(rtt) <= now)
    }

    /// Makes the next group whose parity is due the current one. Returns the reason if that group has no
    /// parity. `sacked`: true for a range that is completely reported by SACK.
    pub(crate) fn take_group(
        &mut self,
        context: &EncoderContext,
        sacked: impl Fn(SeqRange) -> bool,
        rtt: Option<Duration>,
        now: Instant,
    ) -> Option<Unsent> {
        if self.ready.take().is_some_and(|ready| !ready.parities.is_empty()) {
            return Some(Unsent::Delivered);
        }
        let group = self.closed.pop_front_if(|group| group.due(rtt) <= now)?;
        match self.parities(&group, context, &sacked) {
            Ok(parities) => {
                self.ready = Some(ReadyGroup { group, parities });
                None
            }
            Err(why) => Some(why),
        }
    }

    /// Confirms that the next parity left or cannot leave.
    pub(crate) fn sent(&mut self) {
        if let Some(ready) = &mut self.ready
            && !ready.parities.is_empty()
        {
            ready.parities.remove(0);
        }
    }

    /// Returns the parities of a group in the order of sending; `Err` if it must not have any.
    fn parities(
        &self,
        group: &Group,
        context: &EncoderContext,
        sacked: impl Fn(SeqRange) -> bool,
    ) -> Result<ArrayVec<DueParity, 8>, Unsent> {
        let range = SeqRange::new(group.range.start.max(context.una), group.range.end);
        if range.is_empty() || !range.start.lt(range.end) || sacked(range) {
            return Err(Unsent::Delivered);
        }
        if context.withheld || context.window_shut {
            return Err(Unsent::State);
        }
        if context.queue_stands {
            return Err(Unsent::Queue);
        }
        if group.block > context.limit {
            return Err(Unsent::TooBig);
        }
        let code = group.params.code;
        // More parities than blocks would protect only each other.
        let blocks = range.len().div_ceil(group.block.max(1)).min(8) as u8;
        let rows = if code == Code::ReedSolomon { group.params.parities.min(blocks) } else { 1 };
        let plans = Layout::of_group(code, range, group.block)
            .into_iter()
            .flat_map(|layout| (0..rows).filter_map(move |row| self.position(layout, row, rows, context)));
        Ok(plans.take(8).collect())
    }

    /// Determines the position of a parity in the sequence space. It is left of the window, where it cannot
    /// be mistaken for data; in F1 it is the first byte that the parity covers.
    fn position(&self, layout: Layout, row: u8, parities: u8, context: &EncoderContext) -> Option<DueParity> {
        let range = layout.range();
        let seq = match self.profile.is_f1() {
            true => range.start,
            false => context.una - layout.payload_len() as u32,
        };
        let fin_end = !self.profile.is_f1() && context.fin == Some(range.end);
        let within = range.start.since(seq) < MAX_OFFSET;
        within.then_some(DueParity { layout, row, parities, seq, fin_end })
    }

    /// Records that the peer could not repair a group; parity may pause. True if parity does not suit this
    /// path.
    pub(crate) fn on_failure(&mut self) -> bool {
        self.failures_in_row += 1;
        if self.failures_in_row < FAILURES_IN_A_ROW {
            return false;
        }
        self.failures_in_row = 0;
        self.paused = PAUSE_GROUPS;
        core::mem::replace(&mut self.has_paused, true)
    }

    /// Records that the peer repaired a loss.
    pub(crate) fn on_success(&mut self) {
        self.failures_in_row = 0;
    }

    /// Returns the ranges of the groups whose parity has not left yet, each with the time of its parity.
    pub(crate) fn pending(&self, rtt: Option<Duration>) -> impl Iterator<Item = (SeqRange, Instant)> {
        let ready = self.ready.as_ref().map(|ready| ready.group);
        let open = self.open.filter(|_| self.paused == 0);
        let groups = ready.into_iter().chain(self.closed.iter().copied()).chain(open);
        groups.map(move |group| (group.range, group.due(rtt)))
    }
}

fn max_blocks(params: &GroupParams) -> u32 {
    params.blocks.min(params.code.blocks_max())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const RTT: Option<Duration> = Some(Duration::from_millis(100));

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn context(una: SeqNum) -> EncoderContext {
        EncoderContext {
            una,
            limit: 1432,
            fin: None,
            withheld: false,
            window_shut: false,
            queue_stands: false,
        }
    }

    /// Returns an encoder with three segments of 1000 bytes from `una`, sent at time 0.
    fn three_segments(una: SeqNum) -> Encoder {
        let mut encoder = Encoder::new(Profile::F2, Code::Xor, &CorrectiveConfig::default());
        encoder.on_sent(SeqRange::with_len(una, 3000), 1000, false, RTT, at(0));
        encoder
    }

    /// Returns the parity that leaves at `now`, or the reason why there will be none.
    fn poll(
        encoder: &mut Encoder,
        context: &EncoderContext,
        now: Instant,
    ) -> Option<Result<DueParity, Unsent>> {
        encoder.close_by_time(RTT, now);
        loop {
            if let Some(parity) = encoder.next(context.una, context.withheld) {
                return Some(Ok(parity));
            }
            if !encoder.is_due(RTT, now) {
                return None;
            }
            if let Some(why) = encoder.take_group(context, |_| false, RTT, now) {
                return Some(Err(why));
            }
        }
    }

    #[test]
    fn parity_position_is_right_when_sequence_numbers_wrap() {
        let una = SeqNum(0xffff_fc18);
        let mut encoder = three_segments(una);
        assert_eq!(poll(&mut encoder, &context(una), at(24)), None);
        let parity = poll(&mut encoder, &context(una), at(25)).and_then(Result::ok).expect("parity");
        let range = parity.layout.range();
        assert_eq!(parity.wire(), SeqRange::new(SeqNum(0xffff_f830), una));
        assert_eq!((range, range.start.since(parity.seq)), (SeqRange::with_len(una, 3000), 1000));
        assert!(range.contains(SeqNum(0)));
    }

    #[test]
    fn discarded_group_gets_no_parity() {
        let una = SeqNum(1);
        let mut encoder = three_segments(una);
        encoder.discard_open();
        encoder.close();
        assert_eq!(poll(&mut encoder, &context(una), at(25)), None);
    }

    #[test]
    fn group_due_in_a_standing_queue_gets_no_parity() {
        let una = SeqNum(1);
        let mut encoder = three_segments(una);
        let queue = EncoderContext { queue_stands: true, ..context(una) };
        assert_eq!(poll(&mut encoder, &queue, at(25)), Some(Err(Unsent::Queue)));
        assert_eq!(poll(&mut encoder, &context(una), at(25)), None);
    }

    #[test]
    fn closed_window_or_range_beyond_24_bits_gets_no_parity() {
        let una = SeqNum(1);
        let shut = EncoderContext { window_shut: true, ..context(una) };
        assert_eq!(poll(&mut three_segments(una), &shut, at(25)), Some(Err(Unsent::State)));
        // SEG.SEQ is SND.UNA - 1000.
        let parity = |distance: u32| poll(&mut three_segments(una + distance), &context(una), at(25));
        assert!(parity((1 << 24) - 1001).is_some_and(|polled| polled.is_ok()));
        assert_eq!(parity((1 << 24) - 1000), None);
    }

    /// Sends bursts of segments (milliseconds since the previous burst, sizes) without acknowledgements, so
    /// that all parity leaves. Returns the payload bytes of all parity, and the time until the last burst.
    fn parity_for(code: Code, bursts: &[(u64, Vec<u32>)]) -> (u64, Duration) {
        let una = SeqNum(u32::MAX - 20_000);
        let mut encoder = Encoder::new(Profile::F2, code, &CorrectiveConfig::default());
        let (mut now, mut nxt, mut bytes) = (at(0), una, 0);
        let mut run_until = |encoder: &mut Encoder, until: Instant| {
            while let Some(due) = encoder.next_timeout(RTT).filter(|due| *due <= until) {
                encoder.on_timeout(RTT, due);
                while let Some(polled) = poll(encoder, &context(una), due) {
                    bytes += polled.map_or(0, |parity| parity.layout.payload_len() as u64);
                    encoder.sent();
                }
            }
        };
        for (pause, sizes) in bursts {
            now += Duration::from_millis(*pause);
            run_until(&mut encoder, now);
            for size in sizes {
                encoder.on_sent(SeqRange::with_len(nxt, *size), *size, false, RTT, now);
                nxt += *size;
            }
        }
        run_until(&mut encoder, now + Duration::from_secs(1));
        (bytes, now.saturating_since(at(0)))
    }

    fn bursts(size: impl Strategy<Value = u32>) -> impl Strategy<Value = Vec<(u64, Vec<u32>)>> {
        prop::collection::vec((0u64..60, prop::collection::vec(size, 1..50)), 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        /// There is one parity per 16 blocks or per quarter of a round trip, whichever comes first. A code
        /// with two parities sends twice as many.
        #[test]
        fn parity_is_one_per_16_blocks_or_quarter_round_trip(
            bursts in (1u32..1433).prop_flat_map(|size| bursts(Just(size))),
            interleaved in any::<bool>(),
        ) {
            let (code, parities) = if interleaved { (Code::XorInterleaved, 2) } else { (Code::Xor, 1) };
            let (sent, span) = parity_for(code, &bursts);
            let data: u64 = bursts.iter().flat_map(|(_, sizes)| sizes).map(|size| u64::from(*size)).sum();
            let quarters = 1 + span.as_millis() as u64 / 25;
            let allowed = data + 16 * quarters * u64::from(bursts[0].1[0]);
            prop_assert!(16 * sent <= parities * allowed, "{sent} for {data} bytes in {span:?}");
            prop_assert!(sent > 0);
        }

        /// Segments of different sizes close a group when the next one would exceed 16 blocks. So the group
        /// has more than 15.
        #[test]
        fn segments_of_different_sizes_cost_hardly_more_parity(bursts in bursts(1u32..1433)) {
            let (sent, span) = parity_for(Code::Xor, &bursts);
            let sizes = || bursts.iter().flat_map(|(_, sizes)| sizes).map(|size| u64::from(*size));
            let quarters = 1 + span.as_millis() as u64 / 25;
            let allowed = sizes().sum::<u64>() + 15 * quarters * sizes().max().unwrap_or(0);
            prop_assert!(15 * sent <= allowed, "{sent} in {span:?}: {bursts:?}");
        }
    }
}
