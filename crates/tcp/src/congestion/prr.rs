//! Proportional Rate Reduction (RFC 9937). It sets a loss-based controller's window during fast recovery and
//! CWR.
//!
//! PRR sends in proportion to the data that the receiver reports as delivered. So the window converges to
//! `ssthresh` during recovery, without silence at the start or a burst at the end. The older RFC 6937 makes
//! up for losses faster; the TCP of 2012 uses it.

use alloc::boxed::Box;

/// The speed at which proportional rate reduction makes up for losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PrrBound {
    /// One more segment per acknowledgement that advances and reports no new loss (RFC 9937).
    #[default]
    Rfc9937,
    /// One more segment per acknowledgement (RFC 6937, slow start reduction bound).
    Rfc6937,
}

/// PRR of one connection. It is active from [`Prr::enter`] to [`Prr::exit`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Prr {
    bound: PrrBound,
    episode: Option<Box<PrrEpisode>>,
}

/// State of one reduction; names as in RFC 9937 section 6, bytes.
#[derive(Clone, Debug)]
struct PrrEpisode {
    ssthresh: u32,
    recover_fs: u32,
    prr_delivered: u64,
    prr_out: u64,
    /// Bytes delivered before the reduction began, while loss detection waited for the answer to parity.
    held: u64,
    cwnd: Option<u32>,
}

impl Prr {
    pub(crate) fn new(bound: PrrBound) -> Self {
        Prr { bound, episode: None }
    }

    /// Begins a reduction to `ssthresh`. `recover_fs` is
    /// [`AckOutcome::undelivered_before`](crate::outcome::AckOutcome::undelivered_before).
    ///
    /// `held` bytes were delivered while loss detection waited for the answer to parity, and nothing was sent
    /// for them. While `pipe` is at most `ssthresh`, PRR makes up for bytes that were not sent, so they count
    /// then. Otherwise the second of two losses would wait a round trip for the first one's acknowledgement.
    pub(crate) fn enter(&mut self, ssthresh: u32, recover_fs: u32, held: u32) {
        self.episode = Some(Box::new(PrrEpisode {
            ssthresh,
            recover_fs: recover_fs.max(1),
            prr_delivered: 0,
            prr_out: 0,
            held: held.into(),
            cwnd: None,
        }));
    }

    /// True during a reduction.
    pub(crate) fn is_active(&self) -> bool {
        self.episode.is_some()
    }

    pub(crate) fn exit(&mut self) {
        self.episode = None;
    }

    /// Computes the window after an acknowledgement that reports `delivered` bytes and leaves `pipe` bytes in
    /// flight. `una_advanced`: SND.UNA moved. `new_loss`: this acknowledgement caused bytes to be marked
    /// lost. Without an active reduction it returns `pipe + delivered`.
    ///
    /// A timer delivers nothing, so the caller passes one segment as `delivered`. The first retransmission
    /// then leaves at once.
    pub(crate) fn on_ack(
        &mut self,
        delivered: u32,
        pipe: u32,
        una_advanced: bool,
        new_loss: bool,
        mss: u32,
    ) -> u32 {
        let Some(episode) = &mut self.episode else {
            return pipe.saturating_add(delivered);
        };
        if let (0, Some(cwnd)) = (delivered, episode.cwnd) {
            return cwnd;
        }
        let one_more = match self.bound {
            PrrBound::Rfc9937 => una_advanced && !new_loss,
            // RFC 6937 section 3: "limit = MAX(prr_delivered - prr_out, DeliveredData) + MSS".
            PrrBound::Rfc6937 => true,
        };
        let snd = episode.snd_cnt(i64::from(delivered), i64::from(pipe), one_more, i64::from(mss));
        let cwnd = pipe.saturating_add(u32::try_from(snd).unwrap_or(u32::MAX));
        episode.cwnd = Some(cwnd);
        cwnd
    }

    /// Counts `bytes` sent, new or repeated.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        if let Some(episode) = &mut self.episode {
            episode.prr_out += u64::from(bytes);
        }
    }
}

impl PrrEpisode {
    /// Returns SndCnt of RFC 9937 section 6.2: the bytes that this acknowledgement releases.
    fn snd_cnt(&mut self, delivered: i64, pipe: i64, good_ack: bool, mss: i64) -> i64 {
        let mss = mss.max(1);
        self.prr_delivered += delivered as u64;
        let (prr_delivered, prr_out) = (self.prr_delivered as i64, self.prr_out as i64);
        let ssthresh = i64::from(self.ssthresh);
        let snd = if pipe > ssthresh {
            let sum = self.prr_delivered.saturating_mul(u64::from(self.ssthresh));
            let share = i64::try_from(sum.div_ceil(u64::from(self.recover_fs))).unwrap_or(i64::MAX);
            // A part of a segment releases a whole segment, as if bytes were counted in segments.
            share.saturating_add(mss - 1) / mss * mss - prr_out
        } else {
            // "PRR-SSRB": makes up for bytes that were not sent before, with one segment more per good ACK.
            let mut snd = (prr_delivered + self.held as i64 - prr_out).max(delivered);
            if good_ack {
                snd += mss;
            }
            snd.min(ssthresh - pipe)
        };
        // "Force a fast retransmit upon entering recovery": a whole segment, as a part cannot leave.
        if prr_out == 0 { snd.max(mss) } else { snd.max(0) }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const MSS: u32 = 1000;

    #[test]
    fn one_loss_out_of_twenty_reduces_in_proportion() {
        // After the first example of RFC 9937: 20 segments in flight, the first lost, ssthresh 10. The 19
        // others come back as SACKs. The first SACK releases the fast retransmit; then about every second one
        // releases a segment.
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(10 * MSS, 20 * MSS, 0);
        let mut pipe = 20 * MSS - MSS;
        let mut sends = Vec::new();
        for sack in 0..19 {
            pipe -= MSS;
            let cwnd = prr.on_ack(MSS, pipe, false, sack == 0, MSS);
            let mut segments = 0;
            while cwnd >= pipe + MSS {
                pipe += MSS;
                segments += 1;
                prr.on_sent(MSS);
            }
            sends.push(segments);
        }
        assert_eq!(sends[0], 1, "a fast retransmit leaves at once");
        assert!(sends.iter().all(|segments| *segments <= 1), "no burst: {sends:?}");
        assert_eq!(sends.iter().sum::<u32>(), 10);
        assert_eq!(pipe, 9 * MSS + MSS);
        prr.exit();
        assert!(!prr.is_active());
    }

    #[test]
    fn below_ssthresh_good_acknowledgements_win_back_one_segment_more_each() {
        // RFC 9937: "If (SND.UNA is advanced and no further loss indicated) SndCnt += SMSS", which is
        // the pace of slow start.
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(10 * MSS, 20 * MSS, 0);
        assert_eq!(prr.on_ack(MSS, 2 * MSS, true, false, MSS), 4 * MSS);
        assert_eq!(prr.on_ack(0, 2 * MSS, false, false, MSS), 4 * MSS, "nothing delivered, nothing changes");
    }

    #[test]
    fn deliveries_during_the_hold_release_all_losses_at_once() {
        // Of 20 segments 17 were reported before three were declared lost: nothing is in flight any more.
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(14 * MSS, 3 * MSS, 0);
        assert_eq!(prr.on_ack(0, 0, false, true, MSS), MSS, "by itself one at a time");
        prr.enter(14 * MSS, 3 * MSS, 17 * MSS);
        assert_eq!(prr.on_ack(0, 0, false, true, MSS), 14 * MSS);
        // Above the threshold it has no effect.
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(10 * MSS, 20 * MSS, 0);
        let plain = prr.on_ack(MSS, 18 * MSS, false, true, MSS);
        prr.enter(10 * MSS, 20 * MSS, 3 * MSS);
        assert_eq!(prr.on_ack(MSS, 18 * MSS, false, true, MSS), plain);
    }

    #[test]
    fn while_losses_go_on_the_window_conserves_packets() {
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(10 * MSS, 20 * MSS, 0);
        assert_eq!(prr.on_ack(MSS, 2 * MSS, true, true, MSS), 3 * MSS);
        prr.on_sent(MSS);
        assert_eq!(prr.on_ack(MSS, 2 * MSS, false, false, MSS), 3 * MSS);
    }

    #[test]
    fn the_window_never_exceeds_ssthresh_by_catching_up() {
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(10 * MSS, 20 * MSS, 0);
        assert_eq!(prr.on_ack(15 * MSS, 5 * MSS, true, false, MSS), 10 * MSS);
    }

    #[test]
    fn the_first_retransmission_always_leaves() {
        // RFC 9937: "Force a fast retransmit upon entering recovery".
        let mut prr = Prr::new(PrrBound::Rfc9937);
        prr.enter(10 * MSS, 1000 * MSS, 0);
        assert_eq!(prr.on_ack(0, 30 * MSS, false, true, MSS), 31 * MSS);
        prr.on_sent(MSS);
        assert_eq!(prr.on_ack(1, 30 * MSS, false, true, MSS), 30 * MSS);
    }

    proptest! {
        #[test]
        fn extreme_acknowledgements_do_not_overflow(
            ssthresh: u32,
            recover_fs: u32,
            acks in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>(), any::<bool>(), any::<u32>()), 0..20),
            mss in 1u32..70_000,
        ) {
            let mut prr = Prr::new(PrrBound::Rfc9937);
            prr.enter(ssthresh, recover_fs, 0);
            for (delivered, pipe, advanced, loss, out) in acks {
                let cwnd = prr.on_ack(delivered, pipe, advanced, loss, mss);
                prop_assert!(delivered == 0 || cwnd >= pipe);
                prr.on_sent(out);
            }
        }

        #[test]
        fn bytes_sent_while_above_ssthresh_stay_in_proportion(
            segments in 10u32..200,
            delivered in prop::collection::vec(1u32..4, 1..40),
        ) {
            let (flight, ssthresh) = (segments * MSS, segments * MSS / 2);
            let mut prr = Prr::new(PrrBound::Rfc9937);
            prr.enter(ssthresh, flight, 0);
            let (mut pipe, mut total, mut out) = (flight, 0u64, 0u64);
            for count in delivered {
                let bytes = (count * MSS).min(pipe);
                pipe -= bytes;
                total += u64::from(bytes);
                if pipe <= ssthresh {
                    break;
                }
                let cwnd = prr.on_ack(bytes, pipe, false, false, MSS);
                let room = (cwnd - pipe) / MSS * MSS;
                prr.on_sent(room);
                pipe += room;
                out += u64::from(room);
                prop_assert!(out <= total * u64::from(ssthresh) / u64::from(flight) + u64::from(MSS));
            }
        }
    }
}
