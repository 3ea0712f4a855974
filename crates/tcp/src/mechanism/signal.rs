//! The report of a repaired loss and its answer: R_SUCC, R_ACK, R_FAIL and STOP.
//!
//! The end that repaired a loss sets R_SUCC on every segment. The other end reduces its window, at most once
//! per round trip, and answers with R_ACK; this ends R_SUCC. ECN-Echo of RFC 3168 works alike. In F2 each
//! episode has an *episode parity*, an alternating bit that has nothing to do with parity segments. So a
//! repeated R_SUCC causes no second reduction, and a stale R_ACK ends no later episode. Corrective and
//! Proactive share this state.

use brisk_wire::gentle::{A_PAR, R_ACK, R_SUCC, S_PAR, STOP};
use brisk_wire::{Gentle, SeqNum};

use super::capability::Profile;
use crate::outcome::Arrived;
use crate::time::{Instant, Micros};

/// Number of segments with STOP.
const STOPS: u8 = 3;

/// The signals of an arriving segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RepairReport {
    /// True if the report of a repair is new, so that it may reduce the window.
    pub(crate) repaired: bool,
    /// True if there is a report of a repair, new or repeated.
    pub(crate) reported: bool,
    /// This many bytes from SEG.ACK on could not be repaired.
    pub(crate) failed: Option<u32>,
    /// The peer accepts no parity any more.
    pub(crate) stop: bool,
}

/// The signals of one connection, in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    profile: Profile,
    /// As the receiver: true during an episode that the peer has not confirmed, and its episode parity.
    succ: bool,
    s_par: bool,
    /// As the receiver: true if no reported range of the episode had been lost.
    refuted: bool,
    /// As the receiver: the failure that the next acknowledgement reports, bytes from RCV.NXT.
    fail: Option<u32>,
    stops: u8,
    /// As the sender: episode parity of the last answered episode, and whether the answer must still leave.
    last_par: bool,
    r_ack_pending: bool,
    /// The newest segment since the first R_SUCC.
    last_succ: Option<Stamp>,
    /// F1: time when R_ACK last left.
    r_ack_sent: Option<Instant>,
}

/// Order of two segments of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    seq: SeqNum,
    ack: SeqNum,
    ts: Option<u32>,
}

impl Stamp {
    fn of(segment: &Arrived<'_>) -> Stamp {
        let ts = segment.options.timestamps.map(|stamps| stamps.value);
        Stamp { seq: segment.seq, ack: segment.ack, ts }
    }

    fn newer_than(&self, other: &Stamp) -> bool {
        let ticked = match (self.ts, other.ts) {
            (Some(this), Some(that)) => crate::receive::timestamps::older(that, this),
            _ => false,
        };
        ticked || self.seq.gt(other.seq) || self.ack.gt(other.ack)
    }
}

impl Signals {
    pub(crate) fn new(profile: Profile) -> Self {
        Signals {
            profile,
            succ: false,
            s_par: false,
            refuted: false,
            fail: None,
            stops: 0,
            last_par: false,
            r_ack_pending: false,
            last_succ: None,
            r_ack_sent: None,
        }
    }

    /// Receiver: records a repair. Repairs before the peer's answer belong to the same episode. If the report
    /// was wrong and the peer has undone its reduction, another episode begins.
    pub(crate) fn on_repair(&mut self) {
        if !self.succ || self.refuted {
            self.s_par = !self.s_par;
        }
        (self.succ, self.refuted) = (true, false);
    }

    /// Receiver: records that no reported range had been lost. A DSACK shows this to the peer.
    pub(crate) fn on_refuted(&mut self) {
        self.refuted = true;
    }

    /// Receiver: true from a repair to its confirmation.
    pub(crate) fn is_reporting(&self) -> bool {
        self.succ
    }

    /// Receiver: records a failed repair. The next acknowledgement reports the missing bytes from RCV.NXT.
    pub(crate) fn on_failure(&mut self, lost_len: u32) {
        self.fail = Some(lost_len.min(STOP - 1));
    }

    /// Receiver: records that no more parity is accepted.
    pub(crate) fn on_stop(&mut self) {
        (self.fail, self.stops) = (None, STOPS);
    }

    /// Returns the failure that an acknowledgement reports in its option if it leaves now, in addition to
    /// [`Signals::flags`].
    pub(crate) fn failure(&self) -> Option<u32> {
        if self.stops > 0 { Some(STOP) } else { self.fail }
    }

    /// Returns the flags of every outgoing segment.
    pub(crate) fn flags(&self) -> u8 {
        let f2 = !self.profile.is_f1();
        let mut flags = 0;
        if self.succ {
            flags |= R_SUCC | if f2 && self.s_par { S_PAR } else { 0 };
        }
        if self.r_ack_pending {
            flags |= R_ACK | if f2 && self.last_par { A_PAR } else { 0 };
        }
        flags
    }

    /// Records that a segment with this option left.
    pub(crate) fn on_sent(&mut self, option: Option<Gentle>, now: Instant) {
        if let Some(Gentle::Fail { .. }) = option {
            self.fail = None;
            self.stops = self.stops.saturating_sub(1);
        }
        if self.r_ack_pending
            && option.and_then(|option| option.flags()).is_some_and(|flags| flags & R_ACK != 0)
        {
            self.r_ack_sent = Some(now);
            // In F1 one segment with R_ACK is enough.
            self.r_ack_pending = !self.profile.is_f1();
        }
    }

    /// Returns the signals of an acceptable segment. `expected`: this end sent parity or copies that may have
    /// repaired something. Otherwise a report is forged.
    pub(crate) fn on_segment(
        &mut self,
        segment: &Arrived<'_>,
        expected: bool,
        srtt: Option<Micros>,
        now: Instant,
    ) -> RepairReport {
        let flags = segment.options.gentle.and_then(|option| option.flags()).unwrap_or(0);
        let mut report = RepairReport::default();
        if flags & R_ACK != 0 {
            self.take_confirmation(flags);
        }
        let stamp = Stamp::of(segment);
        let reports = flags & R_SUCC != 0;
        // An old acknowledgement that the network delayed must not open an episode again.
        let stale = self.last_succ.is_some_and(|last| stamp.ack.lt(last.ack));
        if reports && expected && !stale {
            report.reported = true;
            report.repaired = self.take_report(flags, srtt, now);
        }
        if (reports && expected || self.last_succ.is_some())
            && self.last_succ.is_none_or(|last| stamp.newer_than(&last))
        {
            // The stamp follows every newer segment. So comparisons of its numbers stay valid, and a delayed
            // report of an earlier episode is older, too.
            let ack = self.last_succ.map_or(stamp.ack, |last| last.ack.max(stamp.ack));
            self.last_succ = Some(Stamp { ack, ..stamp });
            if !reports && !self.profile.is_f1() {
                self.r_ack_pending = false;
            }
        }
        match segment.options.gentle {
            Some(Gentle::Fail { lost_len: STOP, .. }) => report.stop = true,
            Some(Gentle::Fail { lost_len, .. }) => report.failed = Some(lost_len),
            Some(
                Gentle::Short { .. }
                | Gentle::EncF1 { .. }
                | Gentle::EncF2 { .. }
                | Gentle::EncRs { .. }
                | Gentle::Part { .. }
                | Gentle::Capability(_),
            )
            | None => {}
        }
        report
    }

    fn take_confirmation(&mut self, flags: u8) {
        if self.profile.is_f1() || (flags & A_PAR != 0) == self.s_par {
            self.succ = false;
        }
    }

    /// Processes R_SUCC; true if it opens an episode.
    fn take_report(&mut self, flags: u8, srtt: Option<Micros>, now: Instant) -> bool {
        if self.profile.is_f1() {
            // The bit alone does not distinguish a repetition from a new loss. Within a round trip of the
            // answer it counts as a repetition.
            let overdue = match (self.r_ack_sent, srtt) {
                (Some(sent), Some(srtt)) => Micros::between(sent, now) >= srtt,
                (None, _) | (_, None) => true,
            };
            self.r_ack_pending |= overdue;
            return overdue;
        }
        let par = flags & S_PAR != 0;
        let opens = par != self.last_par;
        (self.last_par, self.r_ack_pending) = (par, true);
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_wire::{Ecn, Flags, Options, Timestamps};

    fn arrive(signals: &mut Signals, seq: u32, at_ms: u64, flags: Option<u8>) -> RepairReport {
        arrive_when(true, signals, seq, at_ms, flags)
    }

    /// `plausible`: data is outstanding that may have been repaired.
    fn arrive_when(
        plausible: bool,
        signals: &mut Signals,
        seq: u32,
        at_ms: u64,
        flags: Option<u8>,
    ) -> RepairReport {
        let options = Options {
            timestamps: Some(Timestamps { value: at_ms as u32, echo: 0 }),
            gentle: flags.map(|flags| Gentle::Short { flags }),
            ..Options::default()
        };
        let srtt = Some(Micros::from_millis(100));
        signals.on_segment(&segment(seq, 1, &options), plausible, srtt, Instant::from_millis(at_ms))
    }

    fn segment(seq: u32, ack: u32, options: &Options) -> Arrived<'_> {
        Arrived {
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags: Flags::ACK,
            window: 1,
            urgent: 0,
            options,
            payload: &[],
            ecn: Ecn::NotEct,
            segment_size: 0,
        }
    }

    #[test]
    fn repair_is_reported_until_it_is_confirmed() {
        let mut receiver = Signals::new(Profile::F2);
        assert_eq!(receiver.flags(), 0);
        receiver.on_repair();
        assert_eq!(receiver.flags(), R_SUCC | S_PAR);
        receiver.on_repair();
        assert_eq!(receiver.flags(), R_SUCC | S_PAR, "merged into the episode");
        arrive(&mut receiver, 1, 10, Some(R_ACK));
        assert_eq!(receiver.flags(), R_SUCC | S_PAR, "a confirmation of another episode");
        arrive(&mut receiver, 1, 10, Some(R_ACK | A_PAR));
        assert_eq!(receiver.flags(), 0);
        receiver.on_repair();
        assert_eq!(receiver.flags(), R_SUCC, "the next episode has the other parity");
    }

    #[test]
    fn a_repair_behind_a_refuted_report_is_an_episode_of_its_own() {
        let mut receiver = Signals::new(Profile::F2);
        receiver.on_repair();
        receiver.on_refuted();
        assert_eq!(receiver.flags(), R_SUCC | S_PAR, "it is reported until it is confirmed");
        receiver.on_repair();
        assert_eq!(receiver.flags(), R_SUCC, "a new episode");
        receiver.on_repair();
        assert_eq!(receiver.flags(), R_SUCC, "merged into that episode");
    }

    #[test]
    fn report_opens_an_episode_once_and_is_confirmed() {
        let mut sender = Signals::new(Profile::F2);
        let report = arrive(&mut sender, 1, 10, Some(R_SUCC | S_PAR));
        assert!(report.repaired);
        assert_eq!(sender.flags(), R_ACK | A_PAR);
        let again = arrive(&mut sender, 1, 20, Some(R_SUCC | S_PAR));
        assert!(again.reported && !again.repaired);
        arrive(&mut sender, 1, 15, None);
        assert_eq!(sender.flags(), R_ACK | A_PAR, "an older segment ends nothing");
        arrive(&mut sender, 1, 30, None);
        assert_eq!(sender.flags(), 0);
        assert!(arrive(&mut sender, 1, 40, Some(R_SUCC)).repaired, "the other parity: a second loss");
    }

    #[test]
    fn a_report_older_than_a_later_one_is_ignored() {
        let report = |signals: &mut Signals, ack: u32, flags: Option<u8>| {
            let gentle = flags.map(|flags| Gentle::Short { flags });
            let options = Options { gentle, ..Options::default() };
            signals.on_segment(&segment(1, ack, &options), true, None, Instant::ZERO)
        };
        let profiles = [
            Profile::F2,
            #[cfg(feature = "historical")]
            Profile::F1,
        ];
        for profile in profiles {
            let mut sender = Signals::new(profile);
            assert!(report(&mut sender, 1000, Some(R_SUCC | S_PAR)).repaired);
            assert!(report(&mut sender, 3000, Some(R_SUCC)).repaired);
            assert_eq!(
                report(&mut sender, 1000, Some(R_SUCC | S_PAR)),
                RepairReport::default(),
                "{profile:?}"
            );
            report(&mut sender, 5000, None);
            assert_eq!(
                report(&mut sender, 4000, Some(R_SUCC | S_PAR)),
                RepairReport::default(),
                "its episode is over"
            );
            for gigabyte in 1..5u32 {
                report(&mut sender, 5000u32.wrapping_add(gigabyte << 30), None);
            }
            assert!(report(&mut sender, 6000, Some(R_SUCC | S_PAR)).repaired, "four gigabytes later");
        }
    }

    #[test]
    fn report_of_an_impossible_repair_is_ignored() {
        let mut sender = Signals::new(Profile::F2);
        assert_eq!(arrive_when(false, &mut sender, 1, 10, Some(R_SUCC | S_PAR)), RepairReport::default());
        assert_eq!(sender.flags(), 0);
    }

    #[test]
    fn stop_is_sent_three_times_and_outweighs_a_failure() {
        let mut receiver = Signals::new(Profile::F2);
        receiver.on_failure(3000);
        assert_eq!(receiver.failure(), Some(3000));
        receiver.on_stop();
        for _ in 0..3 {
            assert_eq!(receiver.failure(), Some(STOP));
            receiver.on_sent(Some(Gentle::Fail { flags: 0x20, lost_len: STOP }), Instant::ZERO);
        }
        assert_eq!(receiver.failure(), None);
    }

    /// In F2 a confirmation contains the episode parity of the episode that it confirms, even if that is 0.
    #[test]
    fn a_confirmation_repeats_the_parity_of_the_report() {
        let mut sender = Signals::new(Profile::F2);
        assert!(arrive(&mut sender, 1, 10, Some(R_SUCC | S_PAR)).repaired);
        assert_eq!(sender.flags(), R_ACK | A_PAR);
        assert!(arrive(&mut sender, 1, 20, Some(R_SUCC)).repaired, "a second loss");
        assert_eq!(sender.flags(), R_ACK);
    }

    #[cfg(feature = "historical")]
    #[test]
    fn f1_confirms_once_and_ignores_a_repetition_within_a_round_trip() {
        let mut sender = Signals::new(Profile::F1);
        assert!(arrive(&mut sender, 1, 100, Some(R_SUCC)).repaired);
        assert_eq!(sender.flags(), R_ACK);
        sender.on_sent(Some(Gentle::Short { flags: R_ACK }), Instant::from_millis(110));
        assert_eq!(sender.flags(), 0);
        assert!(!arrive(&mut sender, 1, 150, Some(R_SUCC)).repaired);
        assert!(arrive(&mut sender, 1, 210, Some(R_SUCC)).repaired, "its carrier was lost");
    }
}
