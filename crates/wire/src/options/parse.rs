//! Reading an option area. It never fails; see [`Options::parse`] for the rules.

use super::{MAX_WINDOW_SCALE, OptionProfile, Options, RawOption, RawOptions, SackBlock, Timestamps, kind};
use crate::fast_open::{self, Cookie, FastOpen};
use crate::gentle::{Gentle, Reading};
use crate::seq::SeqNum;

impl Options {
    /// Reads the option area of a segment; `syn` tells whether it has the SYN flag.
    ///
    /// - A malformed option is ignored. A list that is broken ends where it breaks; what came before
    ///   counts.
    /// - An option that comes twice counts as its last well-formed instance. Fast Open in its standard
    ///   form wins over the experimental form wherever they stand.
    /// - Options of the handshake (MSS, window scale, SACK permitted) elsewhere, SACK blocks in the
    ///   handshake, unknown kinds and unknown experiments go to [`Options::unknown`].
    /// - A GA option outside of the handshake that is malformed, or that comes twice with one of the
    ///   two saying `ENC`, sets [`Options::malformed_gentle`] and leaves [`Options::gentle`] empty.
    pub fn parse(area: &[u8], syn: bool, profile: &OptionProfile) -> Options {
        let mut options = Options::default();
        for option in RawOptions::new(area) {
            match option {
                RawOption::Nop { .. } => {}
                RawOption::Tlv { kind, content, .. } => options.take(kind, content, syn, profile),
                RawOption::Malformed { kind, rest, .. } => {
                    // The ExID of a GA option whose length is broken may still be legible.
                    let value = rest.get(1..).unwrap_or_default();
                    options.malformed_gentle |= !syn && gentle_value(kind, value, profile).is_some();
                }
            }
        }
        if options.malformed_gentle {
            options.gentle = None;
        }
        options
    }

    fn take(&mut self, kind: u8, content: &[u8], syn: bool, profile: &OptionProfile) {
        if let Some(value) = gentle_value(kind, content, profile) {
            return self.take_gentle(Gentle::read(value, syn));
        }
        match (kind, syn) {
            (kind::TIMESTAMPS, _) => self.take_timestamps(content),
            (kind::SACK, false) => self.take_sack(content),
            (kind::FAST_OPEN, _) => self.take_fast_open(content, false),
            (kind::MSS, true) => {
                if let Ok(mss) = content.try_into() {
                    self.mss = Some(u16::from_be_bytes(mss));
                }
            }
            (kind::WINDOW_SCALE, true) => {
                if let [shift] = *content {
                    self.window_scale = Some(shift.min(MAX_WINDOW_SCALE));
                }
            }
            (kind::SACK_PERMITTED, true) => self.sack_permitted |= content.is_empty(),
            (kind::EXPERIMENT_2, _) => match experiment(content) {
                Some((fast_open::EXPERIMENTAL_ID, cookie)) => self.take_fast_open(cookie, true),
                _ => self.keep(kind, content),
            },
            _ => self.keep(kind, content),
        }
    }

    fn take_timestamps(&mut self, content: &[u8]) {
        if let (Some((value, rest)), 8) = (content.split_first_chunk(), content.len())
            && let Some((echo, _)) = rest.split_first_chunk()
        {
            self.timestamps =
                Some(Timestamps { value: u32::from_be_bytes(*value), echo: u32::from_be_bytes(*echo) });
        }
    }

    fn take_sack(&mut self, content: &[u8]) {
        let (blocks, rest) = content.as_chunks::<8>();
        if blocks.is_empty() || !rest.is_empty() {
            return;
        }
        self.sack.clear();
        for &[a, b, c, d, e, f, g, h] in blocks.iter().take(self.sack.capacity()) {
            self.sack.push(SackBlock {
                start: SeqNum(u32::from_be_bytes([a, b, c, d])),
                end: SeqNum(u32::from_be_bytes([e, f, g, h])),
            });
        }
    }

    fn take_fast_open(&mut self, cookie: &[u8], experimental: bool) {
        let standard_seen = self.fast_open.is_some_and(|seen| !seen.experimental);
        if experimental && standard_seen {
            return;
        }
        if let Some(cookie) = Cookie::new(cookie) {
            self.fast_open = Some(FastOpen { cookie, experimental });
        }
    }

    fn take_gentle(&mut self, reading: Reading) {
        match reading {
            Reading::Option(gentle) => {
                // Nobody sends two. If one of them says that the payload is a XOR, there is no telling
                // what the payload is.
                let encoded = |option: &Gentle| option.is_encoded();
                if self.gentle.as_ref().is_some_and(|first| encoded(first) || encoded(&gentle)) {
                    self.malformed_gentle = true;
                }
                self.gentle = Some(gentle);
            }
            Reading::Ignore => {}
            Reading::Malformed => self.malformed_gentle = true,
        }
    }

    /// Keeps an option that has no meaning here. An area has at most 40 bytes, so it always fits; a
    /// caller that hands in a longer one loses the rest.
    fn keep(&mut self, kind: u8, content: &[u8]) {
        let _ = self.unknown.push(kind, content);
    }
}

/// The value after the ExID if the option is a GA option of this profile.
fn gentle_value<'a>(kind: u8, content: &'a [u8], profile: &OptionProfile) -> Option<&'a [u8]> {
    if kind != profile.ga_kind && !matches!(kind, kind::EXPERIMENT_1 | kind::EXPERIMENT_2) {
        return None;
    }
    experiment(content).filter(|(exid, _)| *exid == profile.ga_exid).map(|(_, value)| value)
}

/// The 16-bit ExID of an experimental option and what follows it (RFC 6994 section 3).
fn experiment(content: &[u8]) -> Option<(u16, &[u8])> {
    content.split_first_chunk().map(|(exid, value)| (u16::from_be_bytes(*exid), value))
}
