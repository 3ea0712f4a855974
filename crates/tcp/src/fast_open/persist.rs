//! The client's cache as text that survives a restart.
//!
//! ```text
//! brisk-fast-open 4 1764000000
//! path 192.0.2.1 198.51.100.9 0 00abaaabe8e954c2 std - 0
//! port 80 1 - 0 - 0
//! black-hole 1 3540000
//! end 3 9f0a6c1de2b47533
//! ```
//!
//! The frame is that of [`crate::stored`]. The text has cookies, so a program must store it where others
//! cannot read it. One-time cookies are not written, because after a restart one could be used twice.
//! Round-trip times and MSS belong to the memory of paths and are not written here.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;

use brisk_wire::{Cookie, FastOpen};

use super::client::{BlackHoleState, ClientCache, PathKey, Port};
use crate::stored::{Clock, ImportError, Kind, Records, Stored, Words, left};
use crate::time::Instant;

const KIND: Kind = Kind { name: "brisk-fast-open", version: "4" };

impl ClientCache {
    /// Writes the cache. `unix`: seconds since 1970, if known.
    pub(crate) fn export(&self, unix: Option<u64>, now: Instant) -> String {
        KIND.write(unix, |records| self.write_records(records, now))
    }

    fn write_records(&self, records: &mut Records, now: Instant) {
        for (key, path) in self.paths.iter() {
            let cookie = path.cookie.map_or_else(
                || "- std".to_string(),
                |option| {
                    format!("{} {}", hex(&option.cookie), if option.experimental { "exp" } else { "std" })
                },
            );
            let PathKey { local, remote, partition } = key;
            let (soft, episodes) = (left(path.soft_until, now), path.soft_episodes);
            records.push(&format!("path {local} {remote} {partition} {cookie} {soft} {episodes}"));
            for port in &path.ports {
                let (disabled, request) = (left(port.disabled_until, now), left(port.request_after, now));
                let Port { port, syn_fail, req_fail, takes_data, proven, .. } = port;
                let takes = u8::from(*takes_data) + u8::from(*proven);
                records.push(&format!("port {port} {syn_fail} {disabled} {req_fail} {request} {takes}"));
            }
        }
        let BlackHoleState { times, off_until, .. } = &self.black_hole;
        if *times > 0 || off_until.is_some() {
            records.push(&format!("black-hole {times} {}", left(*off_until, now)));
        }
    }

    /// Adds the facts that [`ClientCache::export`] wrote, except for those that are already known.
    pub(crate) fn import(&mut self, text: &str, unix: Option<u64>, now: Instant) -> Result<(), ImportError> {
        let stored = KIND.read(text)?;
        let clock = stored.clock(unix, now);
        // Parsed twice, so that an invalid line does not change the cache.
        self.emptied().read_lines(&stored, &clock)?;
        self.read_lines(&stored, &clock)
    }

    fn read_lines(&mut self, stored: &Stored<'_>, clock: &Clock) -> Result<(), ImportError> {
        let mut path = None;
        stored.each(|words| match words.next() {
            Some("path") => self.read_path(words, clock).map(|read| path = Some(read)),
            Some("port") => self.read_port(path, words, clock),
            Some("black-hole") => self.read_black_hole(words, clock),
            Some(_) | None => None,
        })
    }

    /// Parses a path; also returns whether it was added. A path that is already known is kept, because this
    /// process's own facts are newer.
    fn read_path(&mut self, words: &mut Words<'_>, clock: &Clock) -> Option<(PathKey, bool)> {
        let key = PathKey { local: words.read()?, remote: words.read()?, partition: words.read()? };
        let cookie = match words.next()? {
            "-" => None,
            text => Some(unhex(text)?),
        };
        let experimental = match words.next()? {
            "std" => false,
            "exp" => true,
            _ => return None,
        };
        let (soft_until, soft_episodes) = (words.read_time(clock)?, words.read()?);
        if self.paths.peek(&key).is_some() {
            return Some((key, false));
        }
        if let Some((_, path)) = self.paths.touch_or_insert(key, Default::default) {
            path.cookie = cookie.map(|cookie| FastOpen { cookie, experimental });
            (path.soft_until, path.soft_episodes) = (soft_until, soft_episodes);
        }
        Some((key, true))
    }

    fn read_port(
        &mut self,
        path: Option<(PathKey, bool)>,
        words: &mut Words<'_>,
        clock: &Clock,
    ) -> Option<()> {
        let (key, taken) = path?;
        let (port, syn_fail, disabled_until) = (words.read()?, words.read()?, words.read_time(clock)?);
        let (req_fail, request_after, takes) = (words.read()?, words.read_time(clock)?, words.read::<u8>()?);
        let (takes_data, proven) = (takes > 0, takes > 1);
        let port = Port {
            port,
            syn_fail,
            disabled_until,
            req_fail,
            request_after,
            takes_data,
            proven,
            answered: proven,
            ..Port::default()
        };
        if taken && let Some(path) = self.paths.touch(&key) {
            *path.port_mut(port.port) = port;
        }
        Some(())
    }

    fn read_black_hole(&mut self, words: &mut Words<'_>, clock: &Clock) -> Option<()> {
        let (times, off_until) = (words.read()?, words.read_time(clock)?);
        self.black_hole.times = self.black_hole.times.max(times);
        self.black_hole.off_until = self.black_hole.off_until.max(off_until);
        Some(())
    }
}

fn hex(cookie: &Cookie) -> String {
    cookie.as_slice().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Cookie> {
    let mut bytes = [0; Cookie::MAX_LEN];
    if !text.is_ascii() || !text.len().is_multiple_of(2) || text.is_empty() {
        return None;
    }
    let bytes = bytes.get_mut(..text.len() / 2)?;
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Cookie::new(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::client::{Failures, FastOpenConnect, FastOpenReport, Mode, ServerKey};
    use super::super::outcome::{BlackHoleSign, SynAckClass};
    use super::*;
    use crate::fast_open::OffReason;
    use crate::four_tuple::KeyedHash;
    use crate::path::PathFacts;
    use proptest::prelude::*;
    use std::vec::Vec;

    const MINUTE: u64 = 60_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn cache() -> ClientCache {
        ClientCache::new(1024, core::time::Duration::from_secs(3600), KeyedHash::new(&1.into()))
    }

    fn server_key(remote: &str) -> ServerKey {
        let local = if remote.starts_with('[') { "[2001:db8::1]:1" } else { "192.0.2.1:1" };
        let parse = |text: &str| text.parse().expect("an address");
        ServerKey::new(parse(local), parse(remote), &FastOpenConnect::default())
    }

    fn choose(cache: &mut ClientCache, remote: &str, now: u64) -> Result<Mode, OffReason> {
        let (connect, known) = (FastOpenConnect::default(), PathFacts::default());
        cache.choose(&server_key(remote), &connect, None, &known, at(now)).map(|attempt| attempt.mode)
    }

    /// Returns a cache with a server that works, one that is avoided, and one without Fast Open.
    fn full() -> ClientCache {
        let mut cache = cache();
        let cookie = Cookie::new(&[0xab; 8]).map(FastOpen::with_cookie);
        let granted =
            FastOpenReport::SynAck { class: SynAckClass::Granted, cookie, known: Failures::default() };
        cache.on_report(&server_key("[2001:db8::9]:80"), &granted, at(0));
        for _ in 0..2 {
            cache.on_report(&server_key("198.51.100.9:80"), &FastOpenReport::Failed(Mode::Data), at(0));
        }
        let none = FastOpenReport::SynAck {
            class: SynAckClass::NotSupported,
            cookie: None,
            known: Failures::default(),
        };
        cache.on_report(&server_key("198.51.100.10:80"), &none, at(0));
        cache
    }

    #[test]
    fn memory_survives_a_restart_and_ages_meanwhile() {
        let text = full().export(Some(1000), at(MINUTE));
        let mut later = cache();
        later.import(&text, Some(1000 + 60), at(5)).expect("as written");
        assert_eq!(choose(&mut later, "[2001:db8::9]:80", 5), Ok(Mode::Data));
        assert_eq!(choose(&mut later, "198.51.100.9:80", 5 + 119_999), Err(OffReason::Disabled));
        assert_eq!(choose(&mut later, "198.51.100.9:80", 5 + 120_000), Ok(Mode::Request));
        assert_eq!(choose(&mut later, "198.51.100.10:80", 5), Err(OffReason::NoCookieThere));
    }

    /// The text distinguishes a server that has only accepted data of a SYN from one that has also answered
    /// it.
    #[test]
    fn proven_and_accepted_cookies_stay_apart() {
        let mut before = cache();
        let cookie = Cookie::new(&[0xab; 8]).map(FastOpen::with_cookie);
        let granted =
            FastOpenReport::SynAck { class: SynAckClass::Granted, cookie, known: Failures::default() };
        let accepted =
            FastOpenReport::SynAck { class: SynAckClass::Accepted, cookie: None, known: Failures::default() };
        let attempt = |cache: &mut ClientCache, remote: &str| {
            let (connect, known) = (FastOpenConnect::default(), PathFacts::default());
            cache
                .choose(&server_key(remote), &connect, None, &known, at(1))
                .map(|attempt| (attempt.untried, attempt.proven))
        };
        before.on_report(&server_key("198.51.100.9:80"), &granted, at(0));
        before.on_report(&server_key("198.51.100.9:80"), &accepted, at(0));
        let known = attempt(&mut before, "198.51.100.9:80");
        let mut later = cache();
        later.import(&before.export(None, at(0)), None, at(0)).expect("as written");
        assert_eq!(attempt(&mut later, "198.51.100.9:80"), known);
        assert_eq!(known.map(|(untried, _)| untried), Ok(false));

        // A server of which only a lost SYN is known.
        before.on_report(&server_key("198.51.100.10:80"), &granted, at(0));
        before.on_report(&server_key("198.51.100.10:80"), &FastOpenReport::Failed(Mode::Data), at(0));
        later = cache();
        later.import(&before.export(None, at(0)), None, at(0)).expect("as written");
        assert_eq!(attempt(&mut later, "198.51.100.10:80"), attempt(&mut before, "198.51.100.10:80"));
        assert_eq!(attempt(&mut later, "198.51.100.10:80").map(|(untried, _)| untried), Ok(true));
    }

    #[test]
    fn a_black_hole_survives_a_restart() {
        let mut before = cache();
        for remote in ["198.51.100.9:80", "198.51.100.10:80"] {
            before.on_report(&server_key(remote), &FastOpenReport::BlackHole(BlackHoleSign::Timeouts), at(0));
        }
        let mut later = cache();
        later.import(&before.export(None, at(0)), None, at(7)).expect("as written");
        assert_eq!(choose(&mut later, "198.51.100.11:80", 8), Err(OffReason::BlackHole));
    }

    #[test]
    fn facts_of_this_process_replace_stored_ones() {
        let mut here = cache();
        let cookie = Cookie::new(&[1; 4]).map(FastOpen::with_cookie);
        let granted =
            FastOpenReport::SynAck { class: SynAckClass::Granted, cookie, known: Failures::default() };
        here.on_report(&server_key("198.51.100.9:80"), &granted, at(0));
        here.import(&full().export(None, at(0)), None, at(1)).expect("as written");
        assert_eq!(choose(&mut here, "198.51.100.9:80", 2), Ok(Mode::Data));
        assert_eq!(here.len(), 3);
    }

    #[test]
    fn a_text_of_another_kind_or_version_is_named() {
        let mut cache = cache();
        let mut import = |text: &str| cache.import(text, None, at(0));
        assert_eq!(import(""), Err(ImportError::NotACache));
        assert_eq!(import("hello\n"), Err(ImportError::NotACache));
        assert_eq!(import("brisk-fast-open 3 -\n"), Err(ImportError::Version));
        assert_eq!(import("brisk-fast-open 4 -\n"), Err(ImportError::Damaged));
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_and_nothing_is_taken() {
        let good = full().export(None, at(0));
        let lines: Vec<&str> = good.lines().filter(|line| !line.starts_with("end ")).skip(1).collect();
        let text = KIND.write(None, |records| {
            lines.iter().for_each(|line| records.push(line));
            records.push("port 80 1 - 0 - extra");
        });
        let mut cache = cache();
        assert_eq!(cache.import(&text, None, at(0)), Err(ImportError::Line(lines.len() + 2)));
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn a_cookie_is_whole_bytes_in_hexadecimal() {
        assert_eq!(unhex("abcdef01"), Cookie::new(&[0xab, 0xcd, 0xef, 0x01]));
        let longest = "5a".repeat(Cookie::MAX_LEN);
        assert_eq!(unhex(&longest), Cookie::new(&[0x5a; Cookie::MAX_LEN]));
        let too_long = longest.clone() + "5a";
        for text in ["", "abcdef01a", "abcdefgh", "ab cd ef 01", "\u{b5}\u{b5}\u{b5}\u{b5}", &too_long] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_damaged_text_is_refused_as_a_whole(at_byte in 0usize..200, to in any::<u8>(), cut in any::<bool>()) {
            let text = full().export(Some(1), at(0));
            let mut bytes = text.clone().into_bytes();
            let at_byte = at_byte % bytes.len();
            if cut { bytes.truncate(at_byte) } else { bytes[at_byte] = to }
            if let Ok(damaged) = String::from_utf8(bytes) && damaged != text {
                let mut cache = cache();
                prop_assert!(cache.import(&damaged, None, at(0)).is_err());
                prop_assert_eq!(cache.len(), 0);
            }
        }
    }
}
