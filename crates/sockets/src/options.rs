//! `setsockopt` and `getsockopt`: the options that packet scripts use, ours and packetdrill's. Other options
//! give `ENOPROTOOPT`. Values that Linux refuses give Linux's error number.

use std::time::Duration;

use crate::settings::{Settings, retransmissions_in};
use brisk_tcp::Stack;
use brisk_tcp::config::{BufferConfig, PacingConfig};
use brisk_tcp::fast_open::{CookieKey, KeySource};
use brisk_tcp::stack::ConnMut;
use brisk_wire::Instant;

use crate::errno::{Answer, Errno};
use crate::error_queue::Offsets;
use crate::host::Host;
use crate::socket::{Family, MAX_WAITING, Role, Socket};
use crate::tcp_info;

/// Options of linux/tcp.h that the C library's headers lack.
const TCP_FASTOPEN_KEY: i32 = 33;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const TCP_INQ: i32 = 36;
const TCP_CC_INFO: i32 = 26;
/// Minimum of TCP_WINDOW_CLAMP.
const MIN_CLAMP: i32 = 1152;
const TCP_NOTSENT_LOWAT: i32 = 25;
const SO_ZEROCOPY: i32 = 60;
const SO_MEMINFO: i32 = 55;

pub(crate) fn set(host: &mut Host, fd: i32, level: i32, name: i32, value: &[u8]) -> Answer<()> {
    let now = host.now;
    let fast_open = level == libc::SOL_TCP && matches!(name, libc::TCP_FASTOPEN | libc::TCP_FASTOPEN_CONNECT);
    let (socket, stack, settings) = if fast_open { host.parts_now(fd)? } else { host.parts(fd)? };
    match level {
        libc::SOL_SOCKET => {
            int(value)?;
            set_socket(socket, stack, name, value)?;
        }
        libc::SOL_TCP => set_tcp(socket, stack, settings, name, value)?,
        libc::SOL_IP => set_ip(socket, stack, name, value)?,
        libc::SOL_IPV6 if socket.family == Family::V6 => set_ipv6(socket, stack, name, value)?,
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    socket.renew_listeners(stack, settings, now);
    Ok(())
}

/// Reads a C int; a shorter value is an error.
fn int(value: &[u8]) -> Answer<i32> {
    let bytes = value.first_chunk().ok_or(Errno(libc::EINVAL))?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// Reads a struct timeval; zero means no limit.
fn timeval(value: &[u8]) -> Answer<Option<Duration>> {
    let (secs, rest) = value.split_first_chunk::<8>().ok_or(Errno(libc::EINVAL))?;
    let micros = rest.first_chunk::<8>().ok_or(Errno(libc::EINVAL))?;
    let (secs, micros) = (i64::from_ne_bytes(*secs), i64::from_ne_bytes(*micros));
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM));
    }
    let span = Duration::from_secs(u64::try_from(secs).unwrap_or(0)) + Duration::from_micros(micros as u64);
    Ok(Some(span).filter(|span| !span.is_zero()))
}

/// Returns the buffer for a requested size. Linux doubles the size for its own records, so the program's
/// share is half. A negative size requests the maximum.
fn send_buffer(value: i32, max: usize) -> BufferConfig {
    let bytes = (value as u32 as usize).min(max).saturating_mul(2).clamp(4608, 1 << 30);
    BufferConfig { initial: bytes, max: bytes }
}

fn receive_buffer(value: i32, max: usize) -> BufferConfig {
    let bytes = (value as u32 as usize).min(max).clamp(1152, (1 << 30) - 1);
    BufferConfig { initial: bytes, max: bytes }
}

fn set_socket(socket: &mut Socket, stack: &mut Stack, name: i32, value: &[u8]) -> Answer<()> {
    match name {
        libc::SO_SNDBUF => {
            socket.tcp.send_buffer = send_buffer(int(value)?, socket.options.max_send_buffer);
        }
        libc::SO_RCVBUF => {
            socket.tcp.receive_buffer = receive_buffer(int(value)?, socket.options.max_receive_buffer);
            socket.options.receive_buffer_set = true;
        }
        libc::SO_KEEPALIVE => {
            let on = int(value)? != 0;
            socket.tcp.keepalive = on.then_some(socket.options.keepalive);
            apply_keepalive(socket, stack);
        }
        libc::SO_LINGER => {
            let on = int(value)? != 0;
            let secs = int(value.get(4..).unwrap_or(&[]))?;
            let limit = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
            socket.options.linger = on.then_some(limit);
        }
        libc::SO_RCVTIMEO => socket.options.receive_timeout = timeval(value)?,
        SO_ZEROCOPY => match int(value)? {
            on @ (0 | 1) => socket.options.zerocopy = on == 1,
            _ => return Err(Errno(libc::EINVAL)),
        },
        libc::SO_MAX_PACING_RATE => set_pacing_rate(socket, stack, value)?,
        libc::SO_TIMESTAMPING => set_timestamping(socket, int(value)? as u32)?,
        // Two options without effect. Linux stores one bit of the first.
        libc::SO_REUSEADDR => {
            keep(socket, libc::SOL_SOCKET, name, &i32::from(int(value)? != 0).to_ne_bytes());
        }
        libc::SO_MARK => keep(socket, libc::SOL_SOCKET, name, value),
        // Read-only options (SO_ERROR) are refused too.
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    Ok(())
}

/// Sets SO_MAX_PACING_RATE: bytes per second in four or eight bytes; all ones mean no limit. As in Linux, a
/// limit switches pacing on.
fn set_pacing_rate(socket: &mut Socket, stack: &mut Stack, value: &[u8]) -> Answer<()> {
    let rate = match value.first_chunk::<8>() {
        Some(bytes) => u64::from_ne_bytes(*bytes),
        None => match int(value)? as u32 {
            u32::MAX => u64::MAX,
            rate => u64::from(rate),
        },
    };
    let max_rate = (rate != u64::MAX).then_some(rate.max(1));
    socket.tcp.pacing = max_rate.map(|_| PacingConfig { max_rate, ..PacingConfig::default() });
    if let Some(mut conn) = open_conn(socket, stack) {
        conn.set_pacing(socket.tcp.pacing);
    }
    keep(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value);
    Ok(())
}

fn set_timestamping(socket: &mut Socket, flags: u32) -> Answer<()> {
    let offsets = Offsets { acknowledged: socket.acknowledged, written: socket.written };
    if !socket.errors.set_flags(flags, socket.conn().map(|_| offsets)) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

fn keep(socket: &mut Socket, level: i32, name: i32, value: &[u8]) {
    socket.options.kept.retain(|(known_level, known, _)| (*known_level, *known) != (level, name));
    socket.options.kept.push((level, name, value.to_vec()));
}

fn apply_keepalive(socket: &mut Socket, stack: &mut Stack) {
    socket.tcp.keepalive = socket.tcp.keepalive.map(|_| socket.options.keepalive);
    if let Some(mut conn) = open_conn(socket, stack) {
        conn.set_keepalive(socket.tcp.keepalive);
    }
}

fn open_conn<'a>(socket: &Socket, stack: &'a mut Stack) -> Option<ConnMut<'a>> {
    socket.conn().and_then(|id| stack.conn_mut(id))
}

/// Checks that a value is in Linux's range.
fn within(value: i32, range: core::ops::RangeInclusive<i32>) -> Answer<i32> {
    if range.contains(&value) { Ok(value) } else { Err(Errno(libc::EINVAL)) }
}

fn set_tcp(
    socket: &mut Socket,
    stack: &mut Stack,
    settings: &Settings,
    name: i32,
    value: &[u8],
) -> Answer<()> {
    match name {
        libc::TCP_CONGESTION => return set_congestion(socket, value),
        TCP_FASTOPEN_KEY => return set_fast_open_key(socket, value),
        _ => {}
    }
    let number = int(value)?;
    if set_tcp_limits(socket, stack, settings, name, number)?
        || set_tcp_fast_open(socket, settings, name, number)?
    {
        return Ok(());
    }
    match name {
        libc::TCP_NODELAY => {
            socket.tcp.nodelay = number != 0;
            if let Some(mut conn) = open_conn(socket, stack) {
                conn.set_nodelay(number != 0);
            }
        }
        libc::TCP_CORK => {
            socket.options.cork = number != 0;
            if let Some(mut conn) = open_conn(socket, stack) {
                conn.set_cork(number != 0);
            }
        }
        TCP_NOTSENT_LOWAT => {
            socket.options.notsent_lowat = (number != 0 && number != -1).then_some(number as u32);
            keep(socket, libc::SOL_TCP, name, value);
        }
        TCP_INQ => socket.options.inq = within(number, 0..=1)? == 1,
        libc::TCP_WINDOW_CLAMP => set_window_clamp(socket, stack, number)?,
        libc::TCP_DEFER_ACCEPT => {
            let (retransmissions, seconds) = retransmissions_in(number);
            socket.options.defer_accept = retransmissions;
            keep(socket, libc::SOL_TCP, name, &seconds.to_ne_bytes());
        }
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    Ok(())
}

/// Sets TCP_WINDOW_CLAMP: at least half of Linux's minimum receive buffer. 0 (no bound) is valid only without
/// a connection.
fn set_window_clamp(socket: &mut Socket, stack: &mut Stack, number: i32) -> Answer<()> {
    let clamp = match number {
        0 if socket.conn().is_some() => return Err(Errno(libc::EINVAL)),
        0 => None,
        bytes => Some(bytes.max(MIN_CLAMP) as u32),
    };
    socket.tcp.window.clamp = clamp;
    if let Some(mut conn) = open_conn(socket, stack) {
        conn.set_window_rules(socket.tcp.window);
    }
    keep(socket, libc::SOL_TCP, libc::TCP_WINDOW_CLAMP, &clamp.unwrap_or(0).to_ne_bytes());
    Ok(())
}

/// Sets an option that ends or limits a connection. Returns false for other options.
fn set_tcp_limits(
    socket: &mut Socket,
    stack: &mut Stack,
    settings: &Settings,
    name: i32,
    number: i32,
) -> Answer<bool> {
    let secs = |number: i32| Duration::from_secs(number as u64);
    match name {
        libc::TCP_MAXSEG => {
            let mss = if number == 0 { None } else { Some(within(number, 88..=32767)? as u16) };
            socket.tcp.max_segment = mss;
        }
        libc::TCP_SYNCNT => socket.tcp.syn_retries = within(number, 1..=127)? as u32,
        libc::TCP_LINGER2 => {
            // As in Linux, 0 selects the system's timeout, and a negative value ends the connection at once.
            let limit =
                if number == 0 { settings.tcp.fin_wait_2_timeout } else { secs(number.clamp(0, 120)) };
            socket.tcp.fin_wait_2_timeout = limit;
            keep(socket, libc::SOL_TCP, name, &number.max(-1).to_ne_bytes());
            if let Some(mut conn) = open_conn(socket, stack) {
                conn.set_fin_wait_2_timeout(limit);
            }
        }
        libc::TCP_USER_TIMEOUT => {
            let millis = within(number, 0..=i32::MAX)? as u64;
            let limit = (millis > 0).then(|| Duration::from_millis(millis));
            socket.tcp.user_timeout = limit;
            if let Some(mut conn) = open_conn(socket, stack) {
                conn.set_user_timeout(limit);
            }
        }
        libc::TCP_KEEPIDLE => socket.options.keepalive.idle = secs(within(number, 1..=32767)?),
        libc::TCP_KEEPINTVL => socket.options.keepalive.interval = secs(within(number, 1..=32767)?),
        libc::TCP_KEEPCNT => socket.options.keepalive.count = within(number, 1..=127)? as u32,
        _ => return Ok(false),
    }
    if matches!(name, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) {
        apply_keepalive(socket, stack);
    }
    Ok(true)
}

fn set_tcp_fast_open(socket: &mut Socket, settings: &Settings, name: i32, number: i32) -> Answer<bool> {
    let fresh = socket.role == Role::Fresh;
    match name {
        libc::TCP_FASTOPEN => {
            if number < 0 || matches!(socket.role, Role::Connection(_)) {
                return Err(Errno(libc::EINVAL));
            }
            socket.options.fast_open_queue = Some(number.min(MAX_WAITING) as u16);
        }
        libc::TCP_FASTOPEN_CONNECT => {
            let on = within(number, 0..=1)? == 1;
            if !settings.fast_open_client_allowed {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            if !fresh {
                return Err(Errno(libc::EINVAL));
            }
            socket.options.fast_open_connect = on;
        }
        TCP_FASTOPEN_NO_COOKIE => {
            let on = within(number, 0..=1)? == 1;
            if matches!(socket.role, Role::Connection(_)) {
                return Err(Errno(libc::EINVAL));
            }
            socket.options.fast_open_no_cookie = on;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets the congestion control from a name that ends, as in Linux, at the first zero byte.
fn set_congestion(socket: &mut Socket, value: &[u8]) -> Answer<()> {
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    let algorithm = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
    socket.tcp.congestion = algorithm.ok_or(Errno(libc::ENOENT))?;
    Ok(())
}

/// Sets one key of 16 bytes, or two.
fn set_fast_open_key(socket: &mut Socket, value: &[u8]) -> Answer<()> {
    let key = |bytes: &[u8]| bytes.first_chunk::<16>().map(|bytes| CookieKey::new(*bytes));
    let primary = key(value).ok_or(Errno(libc::EINVAL))?;
    let backup = match value.len() {
        16 => None,
        32 => key(&value[16..]),
        _ => return Err(Errno(libc::EINVAL)),
    };
    socket.options.fast_open_keys = Some(KeySource::Fixed { primary, backup });
    keep(socket, libc::SOL_TCP, TCP_FASTOPEN_KEY, value);
    Ok(())
}

fn set_traffic_class(socket: &mut Socket, stack: &mut Stack, class: i32) {
    socket.tcp.dscp = (class >> 2) as u8 & 63;
    if let Some(mut conn) = open_conn(socket, stack) {
        conn.set_dscp(socket.tcp.dscp);
    }
}

/// Reads a value of `SOL_IP`: as in Linux an int, a byte, or nothing for zero.
fn int_or_byte(value: &[u8]) -> i32 {
    int(value).unwrap_or_else(|_| value.first().map_or(0, |byte| i32::from(*byte)))
}

fn set_ip(socket: &mut Socket, stack: &mut Stack, name: i32, value: &[u8]) -> Answer<()> {
    if value.is_empty() && name == libc::IP_FREEBIND {
        return Err(Errno(libc::EINVAL));
    }
    let value = int_or_byte(value);
    match name {
        libc::IP_TOS => set_traffic_class(socket, stack, value),
        libc::IP_MTU_DISCOVER => keep(socket, libc::SOL_IP, name, &within(value, 0..=5)?.to_ne_bytes()),
        libc::IP_FREEBIND => keep(socket, libc::SOL_IP, name, &i32::from(value != 0).to_ne_bytes()),
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    Ok(())
}

fn set_ipv6(socket: &mut Socket, stack: &mut Stack, name: i32, value: &[u8]) -> Answer<()> {
    let number = int(value)?;
    match name {
        libc::IPV6_V6ONLY if socket.local.is_some() => return Err(Errno(libc::EINVAL)),
        libc::IPV6_V6ONLY => socket.options.v6_only = number != 0,
        libc::IPV6_TCLASS => set_traffic_class(socket, stack, within(number, -1..=255)?.max(0)),
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    Ok(())
}

/// getsockopt(): returns at most `len` bytes.
pub(crate) fn get(host: &mut Host, fd: i32, level: i32, name: i32, len: usize) -> Answer<Vec<u8>> {
    let now = host.now;
    let (socket, stack, _) = host.parts(fd)?;
    let mut value = match level {
        libc::SOL_SOCKET => get_socket(socket, stack, name)?,
        libc::SOL_TCP => get_tcp(socket, stack, name, now)?,
        libc::SOL_IPV6 if socket.family == Family::V4 => return Err(Errno(libc::EOPNOTSUPP)),
        libc::SOL_IP | libc::SOL_IPV6 => get_ip(socket, stack, level, name)?,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    // Linux returns a small number of `SOL_IP` as one byte if the buffer is smaller than an int.
    if level == libc::SOL_IP && (1..4).contains(&len) && value[1..].iter().all(|byte| *byte == 0) {
        value.truncate(1);
    }
    value.truncate(len);
    Ok(value)
}

fn number(value: impl Into<i64>) -> Vec<u8> {
    (value.into() as i32).to_ne_bytes().to_vec()
}

fn kept(socket: &Socket, level: i32, name: i32) -> Option<Vec<u8>> {
    let found =
        socket.options.kept.iter().find(|(known_level, known, _)| (*known_level, *known) == (level, name));
    found.map(|(_, _, value)| value.clone())
}

fn get_socket(socket: &mut Socket, stack: &Stack, name: i32) -> Answer<Vec<u8>> {
    let span = |limit: Option<Duration>| {
        let limit = limit.unwrap_or_default();
        let mut bytes = (limit.as_secs() as i64).to_ne_bytes().to_vec();
        bytes.extend(i64::from(limit.subsec_micros()).to_ne_bytes());
        bytes
    };
    Ok(match name {
        libc::SO_ERROR => {
            let error = socket.error.take().or_else(|| socket.soft_error.take());
            number(error.map_or(0, |error| error.0))
        }
        libc::SO_SNDBUF => number(socket.tcp.send_buffer.initial as i64),
        // A size that the system chose is returned unchanged, a size that the program requested doubled.
        libc::SO_RCVBUF => match socket.options.receive_buffer_set {
            true => number(2 * socket.tcp.receive_buffer.initial as i64),
            false => number(socket.options.system_receive_buffer as i64),
        },
        libc::SO_KEEPALIVE => number(socket.tcp.keepalive.is_some()),
        libc::SO_RCVTIMEO => span(socket.options.receive_timeout),
        libc::SO_LINGER => {
            let linger = socket.options.linger;
            let mut bytes = number(linger.is_some());
            bytes.extend(number(linger.map_or(0, |limit| limit.as_secs() as i64)));
            bytes
        }
        SO_ZEROCOPY => number(socket.options.zerocopy),
        libc::SO_TIMESTAMPING => number(i64::from(socket.errors.flags())),
        SO_MEMINFO => memory_info(socket, stack),
        libc::SO_MAX_PACING_RATE => kept(socket, libc::SOL_SOCKET, name).unwrap_or_else(|| number(-1)),
        libc::SO_REUSEADDR | libc::SO_MARK => {
            kept(socket, libc::SOL_SOCKET, name).unwrap_or_else(|| number(0))
        }
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    })
}

/// Returns the nine numbers of SO_MEMINFO: RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED,
/// OPTMEM, BACKLOG, DROPS.
fn memory_info(socket: &Socket, stack: &Stack) -> Vec<u8> {
    let stats = socket.conn().and_then(|id| stack.conn_stats(id));
    let (received, queued) =
        stats.map_or((0, 0), |stats| (stats.receive_queue as u32, stats.send_queue as u32));
    let (rcvbuf, sndbuf) = (socket.tcp.receive_buffer.initial as u32, socket.tcp.send_buffer.initial as u32);
    [received, rcvbuf.saturating_mul(2), 0, sndbuf, 0, queued, 0, 0, 0]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect()
}

fn get_tcp(socket: &mut Socket, stack: &Stack, name: i32, now: Instant) -> Answer<Vec<u8>> {
    let stats = socket.conn().and_then(|id| stack.conn_stats(id));
    let keepalive = socket.options.keepalive;
    Ok(match name {
        libc::TCP_INFO => tcp_info::bytes(socket, stack, now),
        // CUBIC and Reno report no figures.
        TCP_CC_INFO => Vec::new(),
        libc::TCP_MAXSEG => {
            let connected = stats.filter(|_| socket.connected).map(|stats| stats.mss as i64);
            // Before the peer answers, Linux assumes time stamps and subtracts their length.
            let stamps = if socket.conn().is_some() && socket.tcp.timestamps { 12 } else { 0 };
            number(connected.unwrap_or(socket.tcp.max_segment.map_or(536 - stamps, i64::from)))
        }
        libc::TCP_NODELAY => number(socket.tcp.nodelay),
        libc::TCP_CORK => number(socket.options.cork),
        libc::TCP_SYNCNT => number(i64::from(socket.tcp.syn_retries)),
        libc::TCP_LINGER2 if kept(socket, libc::SOL_TCP, name) == Some(number(-1)) => number(-1),
        libc::TCP_LINGER2 => number(socket.tcp.fin_wait_2_timeout.as_secs() as i64),
        libc::TCP_KEEPIDLE => number(keepalive.idle.as_secs() as i64),
        libc::TCP_KEEPINTVL => number(keepalive.interval.as_secs() as i64),
        libc::TCP_KEEPCNT => number(i64::from(keepalive.count)),
        libc::TCP_USER_TIMEOUT => number(socket.tcp.user_timeout.map_or(0, |limit| limit.as_millis() as i64)),
        libc::TCP_CONGESTION => {
            let mut name = socket.tcp.congestion.to_string().into_bytes();
            name.resize(16, 0);
            name
        }
        libc::TCP_FASTOPEN => number(i64::from(socket.options.fast_open_queue.unwrap_or(0))),
        libc::TCP_FASTOPEN_CONNECT => number(socket.options.fast_open_connect),
        TCP_FASTOPEN_NO_COOKIE => number(socket.options.fast_open_no_cookie),
        TCP_FASTOPEN_KEY => kept(socket, libc::SOL_TCP, TCP_FASTOPEN_KEY).unwrap_or_default(),
        TCP_INQ => number(socket.options.inq),
        libc::TCP_DEFER_ACCEPT | libc::TCP_WINDOW_CLAMP | TCP_NOTSENT_LOWAT => {
            kept(socket, libc::SOL_TCP, name).unwrap_or_else(|| number(0))
        }
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    })
}

fn get_ip(socket: &Socket, stack: &Stack, level: i32, name: i32) -> Answer<Vec<u8>> {
    let ecn = socket.conn().and_then(|id| stack.conn_info(id)).is_some_and(|info| info.ecn);
    // On a connection with ECN, the traffic class includes ECT(0).
    let class = i64::from(socket.tcp.dscp) << 2 | if ecn { 2 } else { 0 };
    Ok(match (level, name) {
        (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => number(class),
        (libc::SOL_IPV6, libc::IPV6_V6ONLY) => number(socket.options.v6_only),
        // By default the path MTU is discovered (IP_PMTUDISC_WANT).
        (libc::SOL_IP, libc::IP_MTU_DISCOVER) => kept(socket, level, name).unwrap_or_else(|| number(1)),
        (libc::SOL_IP, libc::IP_FREEBIND) => kept(socket, level, name).unwrap_or_else(|| number(0)),
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    })
}
