//! The client's cache as text, to survive a restart.
//!
//! ```text
//! brisk-fast-open 1 1764000000
//! path 192.0.2.1 198.51.100.9 0 00abaaabe8e954c2 std 1460 100000 50000 540000 - 0
//! port 80 1 - 0 -
//! attachment 0 1 3540000
//! end 3 9f0a6c1de2b47533
//! ```
//!
//! Times are what is left of them, in milliseconds, when the text was written; the first line says when
//! that was in Unix seconds, if it was known. The last line counts the records and hashes the lines before
//! it: a file that was cut or damaged is refused as a whole. The text holds cookies, so whoever stores it
//! lets nobody else read it. One-time cookies are not written: a copy would be spent twice.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;
use core::str::FromStr;

use brisk_wire::{Cookie, FastOpen};
use siphasher::sip::SipHasher24;
use thiserror::Error;

use super::client::{ClientCache, PathKey, Port, Rtt};
use crate::time::{Duration, Instant};

const NAME: &str = "brisk-fast-open";
const VERSION: &str = "1";

/// Why a stored cache was not taken. The cache is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ImportError {
    /// Not a text of this kind.
    #[error("not a stored Fast Open cache; delete the file, it is written anew")]
    NotACache,
    /// Of another version.
    #[error("a stored Fast Open cache of another version; delete the file, it is written anew")]
    Version,
    /// Cut off, or changed since it was written.
    #[error("the stored Fast Open cache is damaged; delete the file, it is written anew")]
    Damaged,
    /// A line that cannot be read.
    #[error("line {0} of the stored Fast Open cache cannot be read; delete the file, it is written anew")]
    Line(usize),
}

impl ClientCache {
    /// Writes the cache. `unix`: seconds since 1970, if known.
    pub(crate) fn export(&self, unix: Option<u64>, now: Instant) -> String {
        let mut text = format!("{NAME} {VERSION} {}\n", or_dash(unix));
        let mut records = 0;
        let mut line = |text: &mut String, line: String| {
            records += 1;
            let _ = writeln!(text, "{line}");
        };
        for (key, path) in self.paths.iter() {
            let cookie = path.cookie.map_or_else(
                || "- std".to_string(),
                |option| {
                    format!("{} {}", hex(&option.cookie), if option.experimental { "exp" } else { "std" })
                },
            );
            let rtt = path.rtt.filter(|rtt| rtt.until > now).map_or_else(
                || "0 0 -".to_string(),
                |rtt| {
                    let left = left(Some(rtt.until), now);
                    format!("{} {} {left}", rtt.srtt.as_micros(), rtt.rttvar.as_micros())
                },
            );
            let PathKey { local, remote, partition } = key;
            let soft = left(path.soft_until, now);
            let (mss, episodes) = (or_dash(path.mss), path.soft_episodes);
            line(
                &mut text,
                format!("path {local} {remote} {partition} {cookie} {mss} {rtt} {soft} {episodes}"),
            );
            for port in &path.ports {
                let (disabled, request) = (left(port.disabled_until, now), left(port.request_after, now));
                let Port { port, syn_fail, req_fail, .. } = port;
                line(&mut text, format!("port {port} {syn_fail} {disabled} {req_fail} {request}"));
            }
        }
        for breaker in &self.breakers {
            let left = left(breaker.off_until, now);
            line(&mut text, format!("attachment {} {} {left}", breaker.attachment, breaker.times));
        }
        let sum = checksum(&text);
        let _ = writeln!(text, "end {records} {sum:016x}");
        text
    }

    /// Adds what [`ClientCache::export`] wrote, as far as it is not known better here.
    pub(crate) fn import(&mut self, text: &str, unix: Option<u64>, now: Instant) -> Result<(), ImportError> {
        let (saved, body) = checked(text)?;
        let elapsed = unix.zip(saved).map_or(0, |(unix, saved)| unix.saturating_sub(saved));
        let clock = Clock { now, elapsed: Duration::from_secs(elapsed) };
        // Read twice, so that a line that cannot be read leaves the cache as it was.
        self.emptied().read_lines(body, &clock)?;
        self.read_lines(body, &clock)
    }

    fn read_lines(&mut self, body: &str, clock: &Clock) -> Result<(), ImportError> {
        let mut path = None;
        for (index, line) in body.lines().enumerate() {
            let mut words = Words(line.split(' '));
            let read = match words.0.next() {
                Some("path") => self.read_path(&mut words, clock).map(|read| path = Some(read)),
                Some("port") => self.read_port(path, &mut words, clock),
                Some("attachment") => self.read_attachment(&mut words, clock),
                Some(_) | None => None,
            };
            // The first line of the body is the second of the file.
            read.filter(|()| words.0.next().is_none()).ok_or(ImportError::Line(index + 2))?;
        }
        Ok(())
    }

    /// A path, and whether it was taken: what this process has learnt itself is fresher.
    fn read_path(&mut self, words: &mut Words<'_>, clock: &Clock) -> Option<(PathKey, bool)> {
        let key = PathKey { local: words.read()?, remote: words.read()?, partition: words.read()? };
        let cookie = match words.0.next()? {
            "-" => None,
            text => Some(unhex(text)?),
        };
        let experimental = match words.0.next()? {
            "std" => false,
            "exp" => true,
            _ => return None,
        };
        let mss = words.read_or_dash()?;
        let (srtt, rttvar) = (Duration::from_micros(words.read()?), Duration::from_micros(words.read()?));
        let until = words.read_time(clock)?;
        let (soft_until, soft_episodes) = (words.read_time(clock)?, words.read()?);
        if self.paths.peek(&key).is_some() {
            return Some((key, false));
        }
        if let Some((_, path)) = self.paths.touch_or_insert(key, Default::default) {
            path.cookie = cookie.map(|cookie| FastOpen { cookie, experimental });
            path.mss = mss;
            path.rtt = until.map(|until| Rtt { srtt, rttvar, until });
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
        let port = Port {
            port: words.read()?,
            syn_fail: words.read()?,
            disabled_until: words.read_time(clock)?,
            req_fail: words.read()?,
            request_after: words.read_time(clock)?,
        };
        if taken && let Some(path) = self.paths.touch(&key) {
            *path.port_mut(port.port) = port;
        }
        Some(())
    }

    fn read_attachment(&mut self, words: &mut Words<'_>, clock: &Clock) -> Option<()> {
        let (attachment, times, off_until) = (words.read()?, words.read()?, words.read_time(clock)?);
        let breaker = self.breaker_or_insert(attachment);
        breaker.times = breaker.times.max(times);
        breaker.off_until = breaker.off_until.max(off_until);
        Some(())
    }
}

/// What it takes to turn what was left of a time into a time.
struct Clock {
    now: Instant,
    /// Since the text was written.
    elapsed: Duration,
}

struct Words<'a>(core::str::Split<'a, char>);

impl Words<'_> {
    fn read<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn read_or_dash<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.0.next()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    /// A time that is still to come; one that has passed is none.
    fn read_time(&mut self, clock: &Clock) -> Option<Option<Instant>> {
        let left: Option<u64> = self.read_or_dash()?;
        let left = left.and_then(|left| Duration::from_millis(left).checked_sub(clock.elapsed));
        Some(left.filter(|left| !left.is_zero()).map(|left| clock.now + left))
    }
}

/// When the text was written, and its records; the frame around them is in order.
fn checked(text: &str) -> Result<(Option<u64>, &str), ImportError> {
    let (first, rest) = text.split_once('\n').ok_or(ImportError::NotACache)?;
    let mut words = Words(first.split(' '));
    if words.0.next() != Some(NAME) {
        return Err(ImportError::NotACache);
    }
    if words.0.next() != Some(VERSION) {
        return Err(ImportError::Version);
    }
    let saved = words.read_or_dash().ok_or(ImportError::Damaged)?;
    let last = rest.rfind("end ").filter(|&at| at == 0 || rest.as_bytes().get(at - 1) == Some(&b'\n'));
    let (body, end) = last.and_then(|at| rest.split_at_checked(at)).ok_or(ImportError::Damaged)?;
    let covered = text.get(..first.len() + 1 + body.len()).ok_or(ImportError::Damaged)?;
    let expected = format!("end {} {:016x}\n", body.lines().count(), checksum(covered));
    if end == expected { Ok((saved, body)) } else { Err(ImportError::Damaged) }
}

/// Tells a damaged text; it is no protection against somebody who changes it on purpose.
fn checksum(text: &str) -> u64 {
    SipHasher24::new_with_key(&[0; 16]).hash(text.as_bytes())
}

fn left(until: Option<Instant>, now: Instant) -> String {
    let left = until.map(|until| until.saturating_since(now).as_millis()).filter(|&left| left > 0);
    or_dash(left)
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_string(), |value| value.to_string())
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
    use super::super::client::{Asker, ClientMemory, FastOpenConnect, Mode, Report};
    use super::super::outcome::{BlackHoleSign, SynAckClass};
    use super::*;
    use crate::fast_open::OffReason;
    use crate::stack::KeyedHash;
    use proptest::prelude::*;

    const MINUTE: u64 = 60_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn cache() -> ClientCache {
        ClientCache::new(ClientMemory::default(), KeyedHash::new(1))
    }

    fn asker(remote: &str) -> Asker {
        let local = if remote.starts_with('[') { "[2001:db8::1]:1" } else { "192.0.2.1:1" };
        let parse = |text: &str| text.parse().expect("an address");
        Asker::new(parse(local), parse(remote), &FastOpenConnect::default())
    }

    fn choose(
        cache: &mut ClientCache,
        remote: &str,
        now: u64,
    ) -> Result<(Mode, Option<Duration>), OffReason> {
        let plan = cache.choose(&asker(remote), &FastOpenConnect::default(), None, at(now));
        plan.map(|plan| (plan.mode, plan.srtt))
    }

    /// A server that works, one that is left alone, one without Fast Open, and an attachment that is off.
    fn full() -> ClientCache {
        let mut cache = cache();
        let cookie = Cookie::new(&[0xab; 8]).map(FastOpen::with_cookie);
        let rtt = Some((Duration::from_millis(100), Duration::from_millis(50)));
        let granted = Report::SynAck { class: SynAckClass::Granted, mss: Some(1460), cookie, rtt };
        cache.on_report(&asker("[2001:db8::9]:80"), &granted, at(0));
        for _ in 0..2 {
            cache.on_report(&asker("198.51.100.9:80"), &Report::Failed(Mode::Data), at(0));
        }
        let none = Report::SynAck { class: SynAckClass::NotSupported, mss: None, cookie: None, rtt: None };
        cache.on_report(&asker("198.51.100.10:80"), &none, at(0));
        cache
    }

    #[test]
    fn what_was_learnt_survives_a_restart_and_time_goes_on_meanwhile() {
        let text = full().export(Some(1000), at(MINUTE));
        let mut later = cache();
        later.import(&text, Some(1000 + 60), at(5)).expect("as written");
        let rtt = Some(Duration::from_millis(100));
        assert_eq!(choose(&mut later, "[2001:db8::9]:80", 5), Ok((Mode::Data, rtt)));
        assert_eq!(choose(&mut later, "[2001:db8::9]:80", 5 + 8 * MINUTE), Ok((Mode::Data, None)));
        assert_eq!(choose(&mut later, "198.51.100.9:80", 5 + 119_999), Err(OffReason::Disabled));
        assert_eq!(choose(&mut later, "198.51.100.9:80", 5 + 120_000), Ok((Mode::Request, None)));
        assert_eq!(choose(&mut later, "198.51.100.10:80", 5), Err(OffReason::NoCookieThere));
    }

    #[test]
    fn a_black_hole_survives_a_restart() {
        let mut before = cache();
        for remote in ["198.51.100.9:80", "198.51.100.10:80"] {
            before.on_report(&asker(remote), &Report::BlackHole(BlackHoleSign::Timeouts), at(0));
        }
        let mut later = cache();
        later.import(&before.export(None, at(0)), None, at(7)).expect("as written");
        assert_eq!(choose(&mut later, "198.51.100.11:80", 8), Err(OffReason::BlackHole));
    }

    #[test]
    fn what_is_known_here_goes_before_what_is_stored() {
        let mut here = cache();
        let cookie = Cookie::new(&[1; 4]).map(FastOpen::with_cookie);
        let granted = Report::SynAck { class: SynAckClass::Granted, mss: None, cookie, rtt: None };
        here.on_report(&asker("198.51.100.9:80"), &granted, at(0));
        here.import(&full().export(None, at(0)), None, at(1)).expect("as written");
        assert_eq!(choose(&mut here, "198.51.100.9:80", 2), Ok((Mode::Data, None)));
        assert_eq!(here.len(), 3);
    }

    #[test]
    fn a_text_of_another_kind_or_version_is_named() {
        let mut cache = cache();
        let mut import = |text: &str| cache.import(text, None, at(0));
        assert_eq!(import(""), Err(ImportError::NotACache));
        assert_eq!(import("hello\n"), Err(ImportError::NotACache));
        assert_eq!(import("brisk-fast-open 2 -\n"), Err(ImportError::Version));
        assert_eq!(import("brisk-fast-open 1 -\n"), Err(ImportError::Damaged));
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_and_nothing_is_taken() {
        let mut text = full().export(None, at(0));
        let end = text.rfind("end ").expect("the last line");
        text.truncate(end);
        text.push_str("port 80 1 - 0 - extra\n");
        let lines = text.lines().count() - 1;
        let sum = checksum(&text);
        let _ = writeln!(text, "end {lines} {sum:016x}");
        let mut cache = cache();
        assert_eq!(cache.import(&text, None, at(0)), Err(ImportError::Line(lines + 1)));
        assert_eq!(cache.len(), 0);
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
