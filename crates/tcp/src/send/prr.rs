//! Proportional Rate Reduction (RFC 9937): the window during fast recovery and CWR.
//!
//! Sends in proportion to what the receiver reports delivered, so that the window is at `ssthresh`
//! when recovery ends, whatever was lost: neither silence at the start nor a burst at the end.

/// PRR of one connection. It is active from [`Prr::enter`] to [`Prr::exit`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Prr {
    episode: Option<PrrEpisode>,
}

/// State of one reduction; names as in RFC 9937 section 6, bytes.
#[derive(Clone, Debug)]
struct PrrEpisode {
    ssthresh: u32,
    recover_fs: u32,
    prr_delivered: u64,
    prr_out: u64,
    cwnd: Option<u32>,
}

impl Prr {
    /// PRR that is not active.
    pub(crate) fn new() -> Self {
        Prr::default()
    }

    /// A reduction to `ssthresh` begins. `recover_fs` is
    /// [`AckOutcome::undelivered_before`](crate::outcome::AckOutcome::undelivered_before).
    pub(crate) fn enter(&mut self, ssthresh: u32, recover_fs: u32) {
        self.episode = Some(PrrEpisode {
            ssthresh,
            recover_fs: recover_fs.max(1),
            prr_delivered: 0,
            prr_out: 0,
            cwnd: None,
        });
    }

    /// True while a reduction is under way.
    pub(crate) fn is_active(&self) -> bool {
        self.episode.is_some()
    }

    /// The reduction is over. Returns its `ssthresh`, which the window is set to, if one was active.
    pub(crate) fn exit(&mut self) -> Option<u32> {
        self.episode.take().map(|episode| episode.ssthresh)
    }

    /// Computes the window after an acknowledgement that reports `delivered` bytes and leaves `pipe`
    /// bytes in flight. `una_advanced`: SND.UNA moved. `new_loss`: this acknowledgement caused bytes
    /// to be marked lost. Without an active reduction it returns `pipe + delivered`.
    ///
    /// An entry by a timer or by a mechanism passes at least one segment as `delivered`, so that the
    /// first retransmission leaves at once.
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
        let snd =
            episode.snd_cnt(i64::from(delivered), i64::from(pipe), una_advanced && !new_loss, i64::from(mss));
        let cwnd = pipe.saturating_add(u32::try_from(snd).unwrap_or(u32::MAX));
        episode.cwnd = Some(cwnd);
        cwnd
    }

    /// `bytes` were sent, new or again.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        if let Some(episode) = &mut self.episode {
            episode.prr_out += u64::from(bytes);
        }
    }
}

impl PrrEpisode {
    /// SndCnt of RFC 9937 section 6.2: how many bytes this acknowledgement lets go.
    fn snd_cnt(&mut self, delivered: i64, pipe: i64, good_ack: bool, mss: i64) -> i64 {
        self.prr_delivered += delivered as u64;
        let (prr_delivered, prr_out) = (self.prr_delivered as i64, self.prr_out as i64);
        let ssthresh = i64::from(self.ssthresh);
        let snd = if pipe > ssthresh {
            let sum = self.prr_delivered.saturating_mul(u64::from(self.ssthresh));
            let share = sum.div_ceil(u64::from(self.recover_fs));
            i64::try_from(share).unwrap_or(i64::MAX) - prr_out
        } else {
            // "PRR-SSRB": make up for what was not sent before, one segment more per good ACK.
            let mut snd = (prr_delivered - prr_out).max(delivered);
            if good_ack {
                snd += mss;
            }
            snd.min(ssthresh - pipe)
        };
        // "Force a fast retransmit upon entering recovery."
        if prr_out == 0 && snd <= 0 { mss } else { snd.max(0) }
    }
}
