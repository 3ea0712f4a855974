//! SYN cookies: a handshake that costs no memory until it completes (RFC 4987 section 3.6).
//!
//! When the half-open table is full, the parameters of a SYN travel in the sequence number of the SYN-ACK,
//! and return in the acknowledgement. The format is our own:
//!
//! ```text
//! ISS     31      27 26   24 23                               0
//!        +----------+-------+----------------------------------+
//!        | epoch    | MSS   | SipHash-2-4(key, four-tuple, IRS, |
//!        | mod 32   | index | epoch, MSS index, TS bits)       |
//!        +----------+-------+----------------------------------+
//!        \-- xor 8 bits of another hash --/
//! TSval   5    4    3         0   (low six bits; only if the peer offered timestamps)
//!        +----+----+-----------+
//!        |ECN |SACK| wscale, 15 = none
//!        +----+----+-----------+
//! ```
//!
//! An epoch lasts 64 s; a cookie is valid in its own and in the next. The hash includes the bits in the
//! timestamp, so a peer that changes them has no valid cookie. Without timestamps a connection from a cookie
//! has neither window scaling nor SACK nor ECN. A blind guess succeeds with 16 of 2^32 (eight MSS values, two
//! epochs), and only while cookies are being sent.

use core::cell::OnceCell;
use core::hash::{Hash, Hasher};

use brisk_wire::SeqNum;
use siphasher::sip::SipHasher24;

use crate::connection::SynCookieParams;
use crate::four_tuple::FourTuple;
use crate::keys::{Chance, Key, Purpose, Seed};
use crate::time::{Duration, Instant};

const EPOCH: Duration = Duration::from_secs(64);
/// Time after the last cookie for which an acknowledgement may contain one: its own epoch and the next.
pub(crate) const LIFETIME: Duration = Duration::from_secs(128);
/// Values to which the MSS of the peer is rounded down.
const MSS_TABLE: [u16; 8] = [256, 536, 1220, 1360, 1400, 1440, 1460, 8960];
const TIMESTAMP_BITS: u32 = 0x3f;
const NO_SCALE: u8 = 15;

/// The issuer of SYN cookies, which also checks them.
#[derive(Debug)]
pub(crate) struct SynCookieIssuer {
    seed: Seed,
    /// Derived for the first cookie: most stacks never send one.
    keys: OnceCell<SynCookieKeys>,
}

#[derive(Debug)]
struct SynCookieKeys {
    mac: Key,
    mask: Key,
}

impl SynCookieIssuer {
    pub(crate) fn new(seed: &Seed) -> Self {
        SynCookieIssuer { seed: seed.clone(), keys: OnceCell::new() }
    }

    fn keys(&self) -> &SynCookieKeys {
        self.keys.get_or_init(|| {
            let mut chance = Chance::new(&self.seed, Purpose::SynCookies);
            SynCookieKeys { mac: chance.key(), mask: chance.key() }
        })
    }

    /// Returns the initial sequence number that stores `params` for the SYN with sequence number `irs`;
    /// `None` if the peer's MSS is smaller than a cookie can store.
    pub(crate) fn generate(
        &self,
        tuple: &FourTuple,
        irs: SeqNum,
        params: &SynCookieParams,
        now: Instant,
    ) -> Option<SeqNum> {
        let index = MSS_TABLE.iter().rposition(|&mss| mss <= params.mss)?;
        let epoch = epoch_at(now);
        let head = (((epoch as u8) & 31) << 3) | index as u8;
        let mac = self.mac(tuple, irs, epoch, index, timestamp_bits(params));
        Some(SeqNum(u32::from(head ^ self.mask(tuple, irs)) << 24 | mac))
    }

    /// Returns the parameters in the cookie `iss`, if it is one of ours for this peer and not too old. `echo`
    /// is the echoed timestamp of the acknowledgement.
    pub(crate) fn check(
        &self,
        tuple: &FourTuple,
        irs: SeqNum,
        iss: SeqNum,
        echo: Option<u32>,
        now: Instant,
    ) -> Option<SynCookieParams> {
        let head = (iss.0 >> 24) as u8 ^ self.mask(tuple, irs);
        let index = usize::from(head & 7);
        let current = epoch_at(now);
        let age = (current as u8).wrapping_sub(head >> 3) & 31;
        let epoch = current.checked_sub(u64::from(age)).filter(|_| age <= 1)?;
        let bits = echo.map(|echo| (echo & TIMESTAMP_BITS) as u8);
        if self.mac(tuple, irs, epoch, index, bits) != iss.0 & 0x00ff_ffff {
            return None;
        }
        Some(params_of(*MSS_TABLE.get(index)?, bits))
    }

    fn mac(&self, tuple: &FourTuple, irs: SeqNum, epoch: u64, index: usize, bits: Option<u8>) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.keys().mac);
        (tuple, irs.0, epoch, index as u8, bits).hash(&mut hasher);
        (hasher.finish() & 0x00ff_ffff) as u32
    }

    fn mask(&self, tuple: &FourTuple, irs: SeqNum) -> u8 {
        let mut hasher = SipHasher24::new_with_key(&self.keys().mask);
        (tuple, irs.0).hash(&mut hasher);
        hasher.finish() as u8
    }
}

/// Returns the timestamp offset with which the present timestamp has `params` in its low bits. The clock is
/// set back by at most 63 ms, so that later timestamps of the plain `offset` are never smaller.
pub(crate) fn fold_into_offset(params: &SynCookieParams, offset: u32, now: Instant) -> u32 {
    let Some(bits) = timestamp_bits(params) else { return offset };
    let value = ((now.as_micros() / 1000) as u32).wrapping_add(offset);
    offset.wrapping_sub(value.wrapping_sub(u32::from(bits)) & TIMESTAMP_BITS)
}

fn epoch_at(now: Instant) -> u64 {
    now.as_micros() / EPOCH.as_micros() as u64
}

fn timestamp_bits(params: &SynCookieParams) -> Option<u8> {
    params.timestamps.then(|| {
        let scale = params.window_scale.map_or(NO_SCALE, |scale| scale.min(14));
        scale | u8::from(params.sack) << 4 | u8::from(params.ecn) << 5
    })
}

fn params_of(mss: u16, bits: Option<u8>) -> SynCookieParams {
    let Some(bits) = bits else {
        return SynCookieParams { mss, window_scale: None, sack: false, timestamps: false, ecn: false };
    };
    SynCookieParams {
        mss,
        window_scale: Some(bits & 15).filter(|&scale| scale != NO_SCALE),
        sack: bits & 16 != 0,
        timestamps: true,
        ecn: bits & 32 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    const FULL: SynCookieParams =
        SynCookieParams { mss: 1460, window_scale: Some(7), sack: true, timestamps: true, ecn: false };

    fn tuple(port: u16) -> FourTuple {
        FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], port)))
    }

    fn echo_of(params: &SynCookieParams, now: Instant) -> Option<u32> {
        let offset = fold_into_offset(params, 12_345, now);
        params.timestamps.then(|| ((now.as_micros() / 1000) as u32).wrapping_add(offset))
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn cookie_returns_the_parameters_of_the_syn() {
        let issuer = SynCookieIssuer::new(&1.into());
        for params in [
            FULL,
            SynCookieParams { window_scale: None, sack: false, ..FULL },
            SynCookieParams { ecn: true, window_scale: Some(14), ..FULL },
            SynCookieParams { mss: 536, window_scale: None, sack: false, timestamps: false, ecn: false },
        ] {
            let iss = issuer.generate(&tuple(1), SeqNum(77), &params, at(1000)).expect("expressible");
            let echo = echo_of(&params, at(1000));
            assert_eq!(issuer.check(&tuple(1), SeqNum(77), iss, echo, at(1001)), Some(params));
        }
    }

    #[test]
    fn the_mss_is_rounded_down_and_never_up() {
        let issuer = SynCookieIssuer::new(&1.into());
        let back = |mss| {
            let params = SynCookieParams { mss, ..FULL };
            let iss = issuer.generate(&tuple(1), SeqNum(77), &params, at(1000))?;
            issuer
                .check(&tuple(1), SeqNum(77), iss, echo_of(&params, at(1000)), at(1000))
                .map(|params| params.mss)
        };
        assert_eq!(back(1459), Some(1440));
        assert_eq!(back(65_495), Some(8960));
        assert_eq!(back(255), None, "no cookie can say so little");
    }

    #[test]
    fn a_cookie_lasts_its_epoch_and_the_next() {
        let issuer = SynCookieIssuer::new(&1.into());
        let iss = issuer.generate(&tuple(1), SeqNum(77), &FULL, at(64)).expect("expressible");
        let echo = echo_of(&FULL, at(64));
        assert!(issuer.check(&tuple(1), SeqNum(77), iss, echo, at(64 + 127)).is_some());
        assert!(issuer.check(&tuple(1), SeqNum(77), iss, echo, at(64 + 128)).is_none());
        assert!(
            issuer.check(&tuple(1), SeqNum(77), iss, echo, at(64 + 64 * 32)).is_none(),
            "the epoch wrapped"
        );
    }

    #[test]
    fn a_cookie_is_good_for_one_peer_one_syn_and_its_own_options() {
        let issuer = SynCookieIssuer::new(&1.into());
        let iss = issuer.generate(&tuple(1), SeqNum(77), &FULL, at(1000)).expect("expressible");
        let echo = echo_of(&FULL, at(1000));
        assert_eq!(issuer.check(&tuple(2), SeqNum(77), iss, echo, at(1000)), None);
        assert_eq!(issuer.check(&tuple(1), SeqNum(78), iss, echo, at(1000)), None);
        assert_eq!(issuer.check(&tuple(1), SeqNum(77), iss, echo.map(|echo| echo ^ 1), at(1000)), None);
        assert_eq!(issuer.check(&tuple(1), SeqNum(77), iss, None, at(1000)), None);
        assert_eq!(SynCookieIssuer::new(&2.into()).check(&tuple(1), SeqNum(77), iss, echo, at(1000)), None);
    }

    #[test]
    fn blind_guesses_fail() {
        let issuer = SynCookieIssuer::new(&1.into());
        let guessed = (0..200_000u32)
            .filter(|guess| {
                issuer
                    .check(&tuple(1), SeqNum(77), SeqNum(guess.wrapping_mul(2_654_435_761)), None, at(1000))
                    .is_some()
            })
            .count();
        assert!(guessed <= 1, "{guessed}");
    }

    #[test]
    fn the_clock_is_set_back_by_less_than_64_ms() {
        for millis in 0..200 {
            let now = Instant::from_millis(1_000_000 + millis);
            let back = 12_345u32.wrapping_sub(fold_into_offset(&FULL, 12_345, now));
            assert!(back < 64, "{back}");
        }
    }
}
