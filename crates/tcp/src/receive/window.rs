//! The receive window: its size, the time of its updates, and which segments are in it.
//!
//! - The scale is chosen for the largest buffer, once (RFC 7323 section 2.3); windows in SYN
//!   segments are not scaled.
//! - Unless the [`WindowRules`] permit it, this end does not move the right edge to the left (RFC 9293
//!   section 3.8.6.2.1). Rounding to the scale may announce less, so this end remembers the largest edge ever
//!   announced and accepts data up to it (RFC 7323 section 2.4).
//! - Silly windows are not offered (RFC 9293 section 3.8.6.2.2).
//! - The buffer grows with the bytes that the application reads per round trip (Linux: right-sizing).

use brisk_wire::SeqNum;
use brisk_wire::gentle::{EARLY_SHIFT_MAX, EARLY_WINDOW};

use crate::auto_tuning::{self, Trial};
use crate::config::{BufferConfig, WindowRules};
use crate::time::{Duration, Instant, Micros};

/// Largest shift (RFC 7323 section 2.3).
const SCALE_MAX: u8 = 14;

/// Largest window without scaling.
const UNSCALED_MAX: u32 = 65_535;

#[derive(Clone, Debug)]
pub(crate) struct RecvWindow {
    config: BufferConfig,
    rules: WindowRules,
    /// MSS that this end announced, bytes: the unit of the initial window.
    mss: u32,
    /// The shift in use for announced windows; 0 until scaling is agreed.
    shift: u8,
    /// Bytes announced in the SYN.
    initial: u32,
    /// Window that an option of the SYN announced in place of the window field, bytes; 0 without the option.
    early: u32,
    /// Largest right edge ever announced.
    edge: SeqNum,
    sizing: RightSizing,
}

impl RecvWindow {
    /// Returns the window of a connection with this buffer configuration, whose peer sends at most `mss`
    /// bytes per segment.
    pub(crate) fn new(config: BufferConfig, rules: WindowRules, mss: u32) -> Self {
        let space = u32::try_from(config.initial).unwrap_or(u32::MAX).min(rules.clamp.unwrap_or(u32::MAX));
        let mss = mss.max(1);
        let whole = if space > mss { space - space % mss } else { space };
        let initial = whole.min(UNSCALED_MAX);
        RecvWindow {
            config,
            rules,
            mss,
            shift: 0,
            initial,
            early: 0,
            edge: SeqNum::default(),
            sizing: RightSizing::new(config, initial.min(10 * mss)),
        }
    }

    /// Returns the shift to offer in the SYN: the smallest that can announce the largest buffer.
    pub(crate) fn offered_scale(&self) -> u8 {
        let max = self.rules.clamp.map_or(self.config.max, |clamp| self.config.max.min(clamp as usize));
        let bits = usize::BITS - max.leading_zeros();
        (bits.saturating_sub(16) as u8).min(SCALE_MAX)
    }

    /// Changes the rules; the right edge follows them at the next announcement.
    pub(crate) fn set_rules(&mut self, rules: WindowRules) {
        self.rules = rules;
    }

    /// Returns the window field of a SYN or SYN-ACK (never scaled, RFC 7323 section 2.2).
    pub(crate) fn syn_window(&self) -> u16 {
        self.initial as u16
    }

    /// Returns the shift of [`EARLY_WINDOW`] that announces the largest part of the buffer. `None` if the
    /// window field of a SYN announces as much.
    pub(crate) fn early_shift(&self) -> Option<u8> {
        let max =
            self.rules.clamp.map_or(self.config.initial, |clamp| self.config.initial.min(clamp as usize));
        let units = u32::try_from(max).unwrap_or(u32::MAX) / EARLY_WINDOW;
        units.checked_ilog2().map(|shift| (shift as u8).min(EARLY_SHIFT_MAX)).filter(|shift| *shift > 0)
    }

    /// Records that the SYN leaves with that shift.
    pub(crate) fn announce_early(&mut self, shift: u8) {
        self.early = EARLY_WINDOW << shift;
    }

    /// True if an option of our SYN or SYN-ACK announces the window.
    pub(crate) fn is_early(&self) -> bool {
        self.early > 0
    }

    /// Returns the window of the SYN, bytes.
    pub(crate) fn announced_on_syn(&self) -> u32 {
        self.initial.max(self.early)
    }

    /// Scales windows from now on, because both ends sent the option (RFC 7323 section 2.2).
    pub(crate) fn agree_scaling(&mut self) {
        self.shift = self.offered_scale();
    }

    pub(crate) fn shift(&self) -> u8 {
        self.shift
    }

    /// Starts once the peer's ISN is known. The window of the SYN begins at `rcv_nxt` (IRS + 1).
    pub(crate) fn start(&mut self, rcv_nxt: SeqNum, now: Instant) {
        self.edge = rcv_nxt + self.announced_on_syn();
        self.sizing.start(now);
    }

    /// Returns RCV.WND: bytes from `rcv_nxt` to the largest right edge announced.
    pub(crate) fn rcv_wnd(&self, rcv_nxt: SeqNum) -> u32 {
        if rcv_nxt.lt(self.edge) { self.edge.since(rcv_nxt) } else { 0 }
    }

    /// Returns the right edge: RCV.NXT + RCV.WND.
    pub(crate) fn right_edge(&self, rcv_nxt: SeqNum) -> SeqNum {
        self.edge.max(rcv_nxt)
    }

    /// True if the segment of `len` sequence numbers is acceptable: the first or the last of them is in the
    /// window (the table of RFC 9293 section 3.10.7.4). With a closed window only an empty segment at RCV.NXT
    /// is acceptable; the caller makes the exceptions for ACKs, URGs and RSTs at RCV.NXT. An empty segment
    /// may also be at the right edge. A peer that has filled the window sends its acknowledgements from
    /// there, even if some of its data was lost (Linux: the same).
    pub(crate) fn acceptable(&self, rcv_nxt: SeqNum, seq: SeqNum, len: u32) -> bool {
        let wnd = self.rcv_wnd(rcv_nxt);
        let inside = |seq: SeqNum| seq.since(rcv_nxt) < wnd;
        match (len, wnd) {
            (0, _) => seq.since(rcv_nxt) <= wnd,
            (_, 0) => false,
            (_, _) => inside(seq) || inside(seq + (len - 1)),
        }
    }

    /// Returns the window field of a segment that leaves now. `free` is the free space of the receive queue,
    /// `rcv_mss` the size of the peer's segments.
    pub(crate) fn field(&self, rcv_nxt: SeqNum, free: usize, rcv_mss: u32) -> u16 {
        (self.offer(rcv_nxt, free, rcv_mss) >> self.shift) as u16
    }

    /// Records that a segment left with this window field.
    pub(crate) fn on_sent(&mut self, rcv_nxt: SeqNum, field: u16) {
        self.edge = self.right_edge(rcv_nxt).max(rcv_nxt + (u32::from(field) << self.shift));
    }

    /// Returns the window to announce, rounded to the scale.
    fn offer(&self, rcv_nxt: SeqNum, free: usize, rcv_mss: u32) -> u32 {
        let granule = 1u32 << self.shift;
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        let wanted = self.wanted(rcv_nxt, free, rcv_mss);
        let up = wanted.checked_next_multiple_of(granule).filter(|up| *up <= free);
        up.unwrap_or(wanted - wanted % granule).min(UNSCALED_MAX << self.shift)
    }

    /// True if an acknowledgement should leave only to open the window: reading has at least doubled the
    /// window, and it is not silly. This is Linux's rule, in the spirit of RFC 9293 section 3.8.6.2.2. It
    /// does not apply if only the 16 bits of this end's SYN or SYN-ACK limited the window, because the next
    /// ordinary segment announces the larger one. `irs` is the peer's initial sequence number.
    pub(crate) fn update_worthwhile(&self, irs: SeqNum, rcv_nxt: SeqNum, free: usize, rcv_mss: u32) -> bool {
        let current = self.rcv_wnd(rcv_nxt);
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        let of_syn = self.edge == irs + 1 + self.initial;
        let max = if of_syn { UNSCALED_MAX } else { UNSCALED_MAX << self.shift };
        let new = self.wanted(rcv_nxt, free, rcv_mss).min(max);
        new >> self.shift > 0 && new / 2 >= current && new > current
    }

    /// Returns the window before rounding to the scale.
    fn wanted(&self, rcv_nxt: SeqNum, free: u32, rcv_mss: u32) -> u32 {
        let current = self.rcv_wnd(rcv_nxt);
        let max = self.rules.clamp.unwrap_or(u32::MAX);
        let capacity = u32::try_from(self.sizing.capacity).unwrap_or(u32::MAX).min(max);
        let offer = avoid_silliness(free, capacity, rcv_mss, current, self.shift > 0).min(max);
        // RFC 9293 section 3.8.6.2.1: a receiver SHOULD NOT shrink the window.
        if self.rules.may_shrink { offer } else { offer.max(current) }
    }

    /// Takes a round trip measured by an echoed timestamp on arriving data.
    pub(crate) fn on_rtt(&mut self, rtt: Duration) {
        self.sizing.on_rtt(rtt);
    }

    /// Processes arriving data. Without timestamps, a round trip is at most the time to fill a window.
    pub(crate) fn on_data(&mut self, rcv_nxt: SeqNum, now: Instant) {
        let wnd = self.rcv_wnd(rcv_nxt);
        self.sizing.on_data(rcv_nxt, wnd, now);
    }

    /// Processes a read of `count` bytes; `min_rtt` is the minimum round trip to the peer. Returns the new
    /// capacity if the buffer should grow.
    pub(crate) fn on_read(&mut self, count: usize, min_rtt: Option<Micros>, now: Instant) -> Option<usize> {
        self.sizing.on_read(count, self.mss, min_rtt, now)
    }
}

/// Avoids silly windows (RFC 9293 section 3.8.6.2.2) as Linux does. Once more than half of the buffer is
/// used, a window below a segment or below a sixteenth of the buffer becomes 0. An unscaled window changes
/// only by whole segments.
fn avoid_silliness(free: u32, capacity: u32, rcv_mss: u32, current: u32, scaled: bool) -> u32 {
    let mss = rcv_mss.clamp(1, capacity.max(1));
    if free < capacity / 2 && (free < capacity / 16 || free < mss) {
        return 0;
    }
    if scaled {
        return free;
    }
    let within_a_segment = current <= free && free - current < mss;
    if within_a_segment { current } else { free - free % mss }
}

/// Dynamic right-sizing: the buffer follows the bytes that the application reads per round trip.
#[derive(Clone, Debug)]
struct RightSizing {
    capacity: usize,
    max: usize,
    /// Maximum number of bytes read in one of the rounds before this one.
    space: u64,
    /// Bytes read in this round so far.
    copied: u64,
    round_start: Instant,
    rtt: Option<Duration>,
    /// Without timestamps: the sequence number that ends the measurement, and its start.
    measure: Option<(SeqNum, Instant)>,
    /// True if timestamps measure the round trip: they give better samples than filled windows.
    by_timestamps: bool,
    /// Tries windows larger than a LAN or loopback path needs, and measures their benefit.
    trial: Trial,
}

impl RightSizing {
    fn new(config: BufferConfig, space: u32) -> Self {
        RightSizing {
            capacity: config.initial,
            max: config.max.max(config.initial),
            space: u64::from(space.max(1)),
            copied: 0,
            round_start: Instant::ZERO,
            rtt: None,
            measure: None,
            by_timestamps: false,
            trial: Trial::default(),
        }
    }

    fn start(&mut self, now: Instant) {
        self.round_start = now;
    }

    fn on_rtt(&mut self, sample: Duration) {
        self.rtt = Some(match self.rtt.filter(|_| self.by_timestamps) {
            Some(rtt) => rtt - rtt / 8 + sample / 8,
            None => sample,
        });
        self.by_timestamps = true;
    }

    fn on_data(&mut self, rcv_nxt: SeqNum, wnd: u32, now: Instant) {
        if self.by_timestamps {
            return;
        }
        if let Some((end, since)) = self.measure {
            if rcv_nxt.lt(end) {
                return;
            }
            let sample = now.saturating_since(since).max(Duration::from_micros(1));
            self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt.min(sample)));
        }
        self.measure = Some((rcv_nxt + wnd, now));
    }

    fn on_read(&mut self, count: usize, mss: u32, min_rtt: Option<Micros>, now: Instant) -> Option<usize> {
        self.copied += count as u64;
        let round = now.saturating_since(self.round_start);
        if round < self.rtt? {
            return None;
        }
        let (copied, space) = (self.copied, self.space);
        self.copied = 0;
        self.round_start = now;
        self.space = space.max(copied);
        let wanted = match min_rtt.filter(|min| auto_tuning::is_short(*min)) {
            Some(min) => {
                let (capacity, wanted) = (self.capacity as u64, wanted(copied, copied, mss));
                self.trial.on_round(copied, round.into(), min, capacity, wanted)
            }
            None if copied <= space => return None,
            None => wanted(copied, space, mss),
        };
        let capacity = usize::try_from(wanted).unwrap_or(usize::MAX).min(self.max);
        (capacity > self.capacity).then(|| {
            self.capacity = capacity;
            capacity
        })
    }
}

/// Returns the buffer size that a connection needs. `copied`: bytes read in this round trip; `before`: in an
/// earlier one. Twice the bytes read cover a round trip in which a loss is repaired. In addition, the growth
/// of a sender that doubles its window is extrapolated.
fn wanted(copied: u64, before: u64, mss: u32) -> u64 {
    let steady = 2 * u128::from(copied) + 16 * u128::from(mss);
    let growth = steady * u128::from(copied.saturating_sub(before)) / u128::from(before.max(1));
    u64::try_from(steady + 2 * growth).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NXT: SeqNum = SeqNum(1_000);
    const IRS: SeqNum = SeqNum(999);
    const BUFFER: BufferConfig = BufferConfig { initial: 128 << 10, max: 6 << 20 };
    const MSS: u32 = 1460;

    /// Returns the window field of a segment that leaves.
    fn advertise(window: &mut RecvWindow, rcv_nxt: SeqNum, free: usize, rcv_mss: u32) -> u16 {
        let field = window.field(rcv_nxt, free, rcv_mss);
        window.on_sent(rcv_nxt, field);
        field
    }

    /// Returns a window that starts at `NXT`, scaled by 7.
    fn scaled() -> RecvWindow {
        let mut window = RecvWindow::new(BUFFER, WindowRules::default(), MSS);
        window.agree_scaling();
        window.start(NXT, Instant::ZERO);
        window
    }

    fn unscaled(size: usize) -> RecvWindow {
        let mut window =
            RecvWindow::new(BufferConfig { initial: size, max: size }, WindowRules::default(), MSS);
        window.start(NXT, Instant::ZERO);
        window
    }

    #[test]
    fn the_early_window_is_taken_from_the_peer() {
        let shift = |initial| {
            let buffer = BufferConfig { initial, ..BUFFER };
            RecvWindow::new(buffer, WindowRules::default(), MSS).early_shift()
        };
        let shifts = [65_536, 131_071, 131_072, 262_143, 1 << 20].map(shift);
        assert_eq!(shifts, [None, None, Some(1), Some(1), Some(4)]);
        let mut window = RecvWindow::new(BUFFER, WindowRules::default(), MSS);
        window.announce_early(1);
        assert_eq!(window.syn_window(), 65_535, "a device on the path sees the same as in every SYN");
        window.agree_scaling();
        window.start(NXT, Instant::ZERO);
        assert_eq!(window.rcv_wnd(NXT), 131_072);
        assert!(window.acceptable(NXT, NXT + 131_071, 1) && !window.acceptable(NXT, NXT + 131_072, 1));
        assert_eq!(advertise(&mut window, NXT, 131_072, MSS), (131_072u32 >> window.shift()) as u16);
    }

    /// RFC 7323 section 2.3: the shift is limited to 14. The figures are Linux's for its two usual
    /// limits of the receive buffer.
    #[test]
    fn the_scale_is_the_least_that_announces_the_largest_buffer() {
        let scale = |max| {
            RecvWindow::new(BufferConfig { initial: 2048, max }, WindowRules::default(), MSS).offered_scale()
        };
        assert_eq!(scale(6_291_456), 7);
        assert_eq!(scale(15_728_640), 8);
        assert_eq!(scale(65_535), 0);
        assert_eq!(scale(65_536), 1);
        assert_eq!(scale(1 << 30), 14);
        assert_eq!(scale(2048), 0);
    }

    /// RFC 7323 section 2.2: "The window field in a segment where the SYN bit is set [...] MUST NOT be
    /// scaled."
    #[test]
    fn the_syn_announces_whole_segments_and_at_most_what_fits_unscaled() {
        assert_eq!(RecvWindow::new(BUFFER, WindowRules::default(), MSS).syn_window(), 65_535);
        let small = BufferConfig { initial: 65_536, max: 6 << 20 };
        assert_eq!(RecvWindow::new(small, WindowRules::default(), MSS).syn_window(), 64_240);
        let tiny = BufferConfig { initial: 1_000, max: 1_000 };
        assert_eq!(RecvWindow::new(tiny, WindowRules::default(), MSS).syn_window(), 1_000);
    }

    /// The receiver of parity ignores its window field. So parity does not replace a window update that is
    /// due.
    #[test]
    fn window_field_of_parity_does_not_move_the_edge() {
        let mut window = scaled();
        advertise(&mut window, NXT, 10_000, MSS);
        let edge = window.right_edge(NXT);
        let consumed = NXT + 60_000;
        assert_eq!(
            window.field(consumed, 128 << 10, MSS),
            advertise(&mut window.clone(), consumed, 128 << 10, MSS)
        );
        assert_eq!(window.right_edge(NXT), edge);
        assert!(window.update_worthwhile(NXT - 1, consumed, 128 << 10, MSS));
        advertise(&mut window, consumed, 128 << 10, MSS);
        assert!(!window.update_worthwhile(NXT - 1, consumed, 128 << 10, MSS));
    }

    /// The table of RFC 9293 section 3.10.7.4 (table 6).
    #[test]
    fn acceptability_follows_the_table() {
        let open = unscaled(10_000);
        let wnd = open.rcv_wnd(NXT);
        assert_eq!(wnd, 8_760);
        let acceptable = |seq: SeqNum, len| open.acceptable(NXT, seq, len);
        assert!(acceptable(NXT, 0) && acceptable(NXT + (wnd - 1), 0));
        assert!(acceptable(NXT + wnd, 0), "the acknowledgement of a peer that has filled the window");
        assert!(!acceptable(NXT - 1, 0) && !acceptable(NXT + (wnd + 1), 0));
        assert!(acceptable(NXT - 10, 11), "its end is in the window");
        assert!(!acceptable(NXT - 10, 10), "an old duplicate");
        assert!(acceptable(NXT + (wnd - 1), 100), "its start is in the window");
        assert!(!acceptable(NXT + wnd, 100));

        let closed = |seq: SeqNum, len| open.acceptable(NXT + wnd, seq, len);
        assert!(closed(NXT + wnd, 0));
        assert!(!closed(NXT + wnd, 1) && !closed(NXT + (wnd - 1), 0) && !closed(NXT + (wnd + 1), 0));
    }

    #[test]
    fn an_idle_receiver_announces_its_buffer() {
        let mut window = scaled();
        assert_eq!(advertise(&mut window, NXT, BUFFER.initial, MSS), (BUFFER.initial >> 7) as u16);
        assert_eq!(window.rcv_wnd(NXT), BUFFER.initial as u32);
    }

    /// RFC 9293 section 3.8.6.2.1: "A TCP receiver SHOULD NOT shrink the window, i.e., move the right window
    /// edge to the left". RFC 7323 section 2.4: data in the part that rounding takes away is accepted.
    #[test]
    fn the_right_edge_stays_when_nobody_reads() {
        let mut window = scaled();
        let size = BUFFER.initial as u32;
        advertise(&mut window, NXT, BUFFER.initial, MSS);
        for arrived in (0..size).step_by(1_448) {
            let field = u32::from(advertise(&mut window, NXT + arrived, (size - arrived) as usize, MSS)) << 7;
            assert_eq!(window.right_edge(NXT + arrived), NXT + size, "after {arrived} bytes");
            assert!(field <= size - arrived, "never more than is free");
            assert!(size - arrived - field < 128, "never less but by rounding");
        }
        assert!(window.acceptable(NXT + (size - 1), NXT + (size - 1), 1));
    }

    /// RFC 9293 section 3.8.6.2.2: "avoid advancing the right window edge in small increments".
    #[test]
    fn full_buffer_opens_the_window_only_by_a_useful_amount() {
        let mut window = scaled();
        advertise(&mut window, NXT, BUFFER.initial, MSS);
        let nxt = NXT + BUFFER.initial as u32;
        assert_eq!(advertise(&mut window, nxt, 0, MSS), 0);
        assert_eq!(advertise(&mut window, nxt, 8_000, MSS), 0, "less than a sixteenth of the buffer");
        assert!(!window.update_worthwhile(IRS, nxt, 8_000, MSS));
        assert!(window.update_worthwhile(IRS, nxt, 8_192, MSS));
        assert_eq!(advertise(&mut window, nxt, 8_192, MSS), 64);
    }

    #[test]
    fn reading_announces_the_window_once_it_has_doubled() {
        let mut window = scaled();
        advertise(&mut window, NXT, BUFFER.initial, MSS);
        let nxt = NXT + (BUFFER.initial as u32 - 20_000);
        assert!(!window.update_worthwhile(IRS, nxt, 39_000, MSS));
        assert!(window.update_worthwhile(IRS, nxt, 40_000, MSS));
        assert!(!window.update_worthwhile(IRS, NXT, BUFFER.initial, MSS), "nothing to announce");
    }

    /// A larger window is not worth an extra segment if only the 16 bits of the SYN-ACK limited it.
    #[test]
    fn no_window_update_only_for_the_16_bit_limit_of_a_syn_ack() {
        let mut window = scaled();
        let nxt = NXT + 100;
        assert!(
            !window.update_worthwhile(IRS, nxt, BUFFER.initial, MSS),
            "as after the request of a Fast Open"
        );
        assert!(
            window.update_worthwhile(IRS, NXT + 40_000, BUFFER.initial, MSS),
            "it has closed by more than half"
        );
        advertise(&mut window, nxt, 65_536, MSS);
        assert!(window.update_worthwhile(IRS, nxt, 131_072, MSS), "a scaled window has been announced");
    }

    /// RFC 9293 section 3.8.6.2.2 asks for worthwhile updates: below the granule of the scale the field stays
    /// 0.
    #[test]
    fn a_window_that_the_scale_rounds_to_nothing_is_not_announced() {
        let mut window =
            RecvWindow::new(BufferConfig { initial: 1_000, max: 6 << 20 }, WindowRules::default(), MSS);
        window.agree_scaling();
        window.start(NXT, Instant::ZERO);
        advertise(&mut window, NXT, 1_000, 50);
        let nxt = window.right_edge(NXT);
        assert!(!window.update_worthwhile(IRS, nxt, 100, 50), "100 bytes are none in units of 128");
        assert!(window.update_worthwhile(IRS, nxt, 130, 50));
    }

    /// RFC 9293 section 3.8.6.2.2: while at least half of the buffer is free, even less than a segment is
    /// offered.
    #[test]
    fn half_of_a_small_buffer_is_offered() {
        assert_eq!(avoid_silliness(1_000, 2_000, MSS, 0, true), 1_000);
        assert_eq!(avoid_silliness(999, 2_000, MSS, 0, true), 0);
    }

    #[test]
    fn without_scaling_windows_are_whole_segments() {
        let mut window = unscaled(10_000);
        assert_eq!(advertise(&mut window, NXT, 10_000, MSS), 8_760);
        assert_eq!(
            advertise(&mut window, NXT + 100, 10_000, MSS),
            8_660,
            "the edge moves by a whole segment or stays"
        );
        assert_eq!(advertise(&mut window, NXT + 220, 10_000, MSS), 8_760);
        let mut large = unscaled(1 << 20);
        assert_eq!(advertise(&mut large, NXT, 1 << 20, MSS), u16::MAX, "the field is full");
    }

    /// The peer sends a window per round trip and doubles it; the application reads at once.
    #[test]
    fn the_buffer_grows_with_what_is_read_per_round_trip() {
        let mut window = scaled();
        let rtt = Duration::from_millis(50);
        window.on_rtt(rtt);
        let mut now = Instant::ZERO;
        let mut burst = 14_600;
        for _ in 0..8 {
            now += rtt;
            if let Some(capacity) = window.on_read(burst, None, now) {
                assert!(capacity >= 2 * burst, "space for a lost round trip");
                assert_eq!(capacity, window.sizing.capacity);
            }
            burst *= 2;
        }
        assert!(window.sizing.capacity > 3 << 20);
        now += rtt;
        window.on_read(10 << 20, None, now);
        assert_eq!(window.sizing.capacity, BUFFER.max, "and not beyond its maximum");
    }

    #[test]
    fn a_round_ends_when_the_round_trip_is_over_and_not_later() {
        let mut window = scaled();
        let rtt = Duration::from_millis(50);
        window.on_rtt(rtt);
        let early = Instant::ZERO + (rtt - Duration::from_micros(1));
        assert_eq!(window.on_read(1 << 18, None, early), None);
        assert!(
            window.on_read(1 << 18, None, Instant::ZERO + rtt).is_some_and(|capacity| capacity >= 1 << 20)
        );
        assert_eq!(window.on_read(1 << 20, None, Instant::ZERO + rtt), None, "the next has begun");
    }

    #[test]
    fn a_steady_reader_keeps_its_buffer() {
        let mut window = scaled();
        window.on_rtt(Duration::from_millis(50));
        for round in 1..100u64 {
            assert_eq!(window.on_read(10_000, None, Instant::from_millis(50 * round)), None);
        }
        assert_eq!(window.sizing.capacity, BUFFER.initial);
    }

    #[test]
    fn without_a_round_trip_time_the_buffer_stays() {
        let mut window = scaled();
        assert_eq!(window.on_read(1 << 20, None, Instant::from_millis(900)), None);
    }

    #[test]
    fn without_timestamps_a_filled_window_bounds_the_round_trip() {
        let mut window = scaled();
        let wnd = window.rcv_wnd(NXT);
        window.on_data(NXT, Instant::from_millis(100));
        window.on_data(NXT + (wnd - 1), Instant::from_millis(150));
        assert_eq!(window.sizing.rtt, None);
        window.on_data(NXT + wnd, Instant::from_millis(160));
        assert_eq!(window.sizing.rtt, Some(Duration::from_millis(60)));
        window.on_rtt(Duration::from_millis(40));
        assert_eq!(window.sizing.rtt, Some(Duration::from_millis(40)), "a timestamp knows better");
        window.on_rtt(Duration::from_millis(48));
        assert_eq!(window.sizing.rtt, Some(Duration::from_millis(41)), "smoothed by an eighth");
    }

    #[test]
    fn on_a_short_path_the_buffer_does_not_follow_its_own_queue() {
        let grown = |min_rtt| {
            let mut sizing = RightSizing::new(BUFFER, 65_535);
            sizing.on_rtt(Duration::from_millis(1));
            // The application reads 2 MiB every millisecond, whatever the size of the buffer.
            let rounds =
                (1..500).filter_map(|ms| sizing.on_read(2 << 20, MSS, min_rtt, Instant::from_millis(ms)));
            rounds.last().unwrap_or(BUFFER.initial)
        };
        assert_eq!(grown(None), BUFFER.max);
        assert_eq!(grown(Some(Micros::from_millis(5))), BUFFER.max);
        // Four times the bytes of 60 us are 503 kB; the window is doubled once on trial.
        let short = grown(Some(Micros(60)));
        assert!((450_000..=2 * 503_316).contains(&short), "{short}");
    }
}
