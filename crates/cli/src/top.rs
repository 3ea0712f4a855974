//! `brisk top`: shows a running gateway in the terminal. The data is from `/status` of the admin listener.

use std::io::{IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::Value;

use crate::failure::Failure;
use crate::{Common, interrupt, output};

const EXAMPLES: &str = "\
Examples:
  brisk top
  brisk top 127.0.0.1:9413 --once
  brisk top 10.0.0.5:9413 --token-file token";

/// Default address of the admin listener.
const USUAL: &str = "127.0.0.1:9413";
/// Time limit for an answer.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The flags of `top`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The admin listener of the gateway
    #[arg(value_name = "HOST:PORT", default_value = USUAL, env = "BRISK_ADMIN", value_parser = address)]
    admin: SocketAddr,
    /// File with the admin token
    #[arg(long, value_name = "FILE", env = "BRISK_ADMIN_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Show the page once and exit
    #[arg(long)]
    once: bool,
}

/// Returns the address of HOST:PORT.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found =
        text.to_socket_addrs().map_err(|error| format!("{error}; write HOST:PORT, such as {USUAL}"))?;
    found.next().ok_or_else(|| format!("it has no address; write HOST:PORT, such as {USUAL}"))
}

/// Shows the page every second until `q` is pressed or a signal arrives.
pub(crate) fn run(args: &Args, _common: &Common) -> Result<(), Failure> {
    let read = |file: &PathBuf| {
        let unreadable = |error| Failure::failed(format!("--token-file {}: {error}", file.display()));
        std::fs::read_to_string(file).map_err(unreadable)
    };
    let token = args.token_file.as_ref().map(read).transpose()?;
    let token = token.as_deref().map(str::trim);
    if args.once || !std::io::stdout().is_terminal() {
        return output::print(&page(&status(args.admin, token)?));
    }
    let stop = interrupt::stop_flag()?;
    let keys = Keys::read_singly();
    while !stop.load(Ordering::Relaxed) {
        let page = match status(args.admin, token) {
            Ok(status) => page(&status),
            Err(failure) => format!("{}\n", failure.message),
        };
        let (rows, columns) =
            tcgetwinsize(std::io::stdout()).map_or((0, 0), |size| (size.ws_row, size.ws_col));
        // Moves to the top left corner, erases the rest of each line, then everything below.
        let shown = fitted(&page, rows, columns).replace('\n', "\x1b[K\n");
        output::print(&format!("\x1b[H{shown}\x1b[K\x1b[J"))?;
        for _ in 0..10 {
            if !stop.load(Ordering::Relaxed) && keys.quit_within(Duration::from_millis(100)) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The keyboard, if there is one. Until this is dropped, each key arrives at once and is not shown.
struct Keys(Option<Termios>);

impl Keys {
    fn read_singly() -> Keys {
        let Ok(before) = tcgetattr(stdin()) else { return Keys(None) };
        let mut singly = before.clone();
        // Ctrl-C remains a signal.
        singly.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        Keys(tcsetattr(stdin(), OptionalActions::Now, &singly).ok().map(|()| before))
    }

    /// Waits for this time; returns true as soon as `q` is pressed.
    fn quit_within(&self, wait: Duration) -> bool {
        let began = Instant::now();
        while let Some(left) = wait.checked_sub(began.elapsed()) {
            if self.0.is_none() {
                std::thread::sleep(left);
                return false;
            }
            let (input, left) = (stdin(), Timespec::try_from(left).ok());
            let mut ready = [PollFd::new(&input, PollFlags::IN)];
            if !matches!(poll(&mut ready, left.as_ref()), Ok(1..)) {
                return false;
            }
            let mut key = [0];
            match rustix::io::read(input, &mut key) {
                Ok(1..) if key == *b"q" => return true,
                Ok(1..) => {}
                // The terminal is closed and sends no more keys.
                Ok(0) | Err(_) => std::thread::sleep(wait.saturating_sub(began.elapsed())),
            }
        }
        false
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // A closed terminal needs no settings.
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Asks the admin listener.
fn status(admin: SocketAddr, token: Option<&str>) -> Result<Value, Failure> {
    let failed =
        |why: String| Failure::failed(format!("{admin}: {why}; start the gateway with --admin {admin}"));
    let fetch = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&admin, TIME_LIMIT)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        write!(stream, "GET /status.json HTTP/1.1\r\nHost: {admin}\r\n{bearer}Connection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    let response = fetch().map_err(|error| failed(error.to_string()))?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(|| failed("no HTTP answer".to_owned()))?;
    if !head.starts_with("HTTP/1.1 200") {
        // Errors of the gateway are a line of text; for any other answer the status is enough.
        let status = head.lines().next().unwrap_or_default();
        let text = Some(body.trim()).filter(|body| !body.starts_with('<') && body.lines().count() == 1);
        let remedy = if head.starts_with("HTTP/1.1 401") { ": --token-file FILE" } else { "" };
        return Err(Failure::failed(format!("{admin}: {}{remedy}", text.unwrap_or(status))));
    }
    serde_json::from_str(body).map_err(|_| failed("this is not an admin listener of brisk".to_owned()))
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or(0.0)
}

fn word<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or("-")
}

/// A value of 0 means that there is no measurement.
fn milliseconds(value: f64) -> String {
    if value > 0.0 { format!("{value} ms") } else { "-".to_owned() }
}

/// Formats bytes with a unit.
fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.1} kB", bytes / 1e3),
        bytes => format!("{bytes} B"),
    }
}

/// Returns the page, at most 80 columns wide.
fn page(status: &Value) -> String {
    let count = |path: &str| number(status, path);
    let uptime = count("/uptime_s");
    let empty = Vec::new();
    let list = |path: &str| status.pointer(path).and_then(Value::as_array).unwrap_or(&empty);
    let recent: f64 = list("/history")
        .iter()
        .filter(|second| number(second, "/at") + 10.0 >= uptime)
        .map(|second| number(second, "/connections"))
        // The `sum` of an empty list is -0.0.
        .fold(0.0, |sum, one| sum + one);
    let total = count("/connections/total");
    let used = 100.0 * count("/connections/fast_open/used") / total.max(1.0);
    let hop = match word(status, "/role") {
        "edge" => String::new(),
        _ => format!("   hop {}, {}", word(status, "/hop"), word(status, "/security")),
    };
    let mut page = format!(
        "brisk {} {}   up {uptime} s{hop}{}\nlistens on {}{}\n\n",
        word(status, "/role"),
        word(status, "/version"),
        if status["draining"] == true { "   DRAINING" } else { "" },
        word(status, "/listen"),
        status["clients"].as_str().map(|device| format!(" ({device})")).unwrap_or_default(),
    );
    if let Some(share) = status["share"].as_str() {
        let exempt = status["exempt"].as_u64().map(|count| format!(", {count} exempt")).unwrap_or_default();
        page += &format!("clients      {share} over brisk's TCP{exempt}\n");
    }
    page += &format!(
        "connections  open {}   per second {:.1}   total {total}   failed {}\n",
        count("/connections/open"),
        recent / 10.0,
        count("/connections/failed"),
    );
    page += &format!(
        "first byte   p50 {}   p95 {}   p99 {}   (two minutes)\n",
        milliseconds(count("/first_byte_ms/p50")),
        milliseconds(count("/first_byte_ms/p95")),
        milliseconds(count("/first_byte_ms/p99")),
    );
    page += &format!(
        "carried      up {}   down {}   hop out {}   hop in {}\n",
        size(count("/bytes/up")),
        size(count("/bytes/down")),
        size(count("/bytes/wire_out")),
        size(count("/bytes/wire_in")),
    );
    page += &format!(
        "losses       sent again by this side {}   redundant {}   timeouts {}\nrepaired     by probe {}   by parity {}   by copy {}\n",
        size(count("/bytes/retransmitted")),
        size(count("/bytes/redundant")),
        count("/timeouts"),
        count("/repaired/probe"),
        count("/repaired/parity"),
        count("/repaired/copy"),
    );
    page += &format!("Fast Open    used by {used:.0} % of the connections\n");
    page + &backends(list("/backends")) + &frontends(list("/frontends")) + &mechanisms(list("/mechanisms"))
}

/// Returns the part of the page that fits into a terminal, without a newline at the end, which would scroll
/// the first line away. A size of 0 is unknown.
fn fitted(page: &str, rows: u16, columns: u16) -> String {
    let size = |size: u16| if size == 0 { usize::MAX } else { size.into() };
    let lines: Vec<String> = page.lines().take(size(rows)).map(|line| cut(line, size(columns))).collect();
    lines.join("\n")
}

/// Formats the mechanisms: on, off, and the reason.
fn mechanisms(list: &[Value]) -> String {
    let mut page = "\n".to_owned();
    for mechanism in list {
        page += &format!(
            "{:<12} {:<10} {}\n",
            word(mechanism, "/name"),
            word(mechanism, "/state"),
            word(mechanism, "/reason")
        );
    }
    page
}

/// Formats the backends of a frontend; empty for a backend.
fn backends(list: &[Value]) -> String {
    if list.is_empty() {
        return String::new();
    }
    let mut page = format!(
        "\n{:<32} {:<9} {:<11} {:<11} {:>6}\n",
        "backend", "health", "transport", "redundancy", "conns"
    );
    for backend in list {
        page += &format!(
            "{:<32} {:<9} {:<11} {:<11} {:>6}\n",
            cut(word(backend, "/name"), 32),
            word(backend, "/health"),
            word(backend, "/transport"),
            word(backend, "/redundancy"),
            number(backend, "/connections"),
        );
    }
    page += &format!(
        "\n{:<22} {:>15} {:>13} {:>18} {:>7}\n",
        "path to", "RTT min/now, ms", "loss out/in, %", "requests p50/p99", "extra"
    );
    for backend in list {
        let value = |path: &str| backend.pointer(path).and_then(Value::as_f64);
        page += &format!(
            "{:<22} {:>15} {:>13} {:>14} RTT {:>7}\n",
            cut(word(backend, "/name"), 22),
            both(value("/min_rtt_ms"), value("/rtt_ms"), 1.0),
            both(value("/loss_out"), value("/loss_in"), 100.0),
            both(value("/rtts/p50"), value("/rtts/p99"), 1.0),
            percent(value("/extra")),
        );
    }
    page + "loss: to the backend / from it; extra: bytes on the hop beyond the payload\n"
}

/// Formats two values, each times `scale`, with one decimal.
fn both(one: Option<f64>, other: Option<f64>, scale: f64) -> String {
    let written = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.1}", scale * value));
    format!("{}/{}", written(one), written(other))
}

/// Formats the frontends of a backend that have keys of their own.
fn frontends(list: &[Value]) -> String {
    if list.is_empty() {
        return String::new();
    }
    let mut page = format!(
        "\n{:<17} {:>8} {:>7} {:>6} {:>8} {:>8} {:>6} {:>6} {:>6}\n",
        "frontend", "open", "total", "failed", "up", "down", "RTT ms", "extra", "loss"
    );
    for frontend in list {
        let count = |path: &str| number(frontend, path);
        let open = match frontend["max_connections"].as_u64() {
            Some(max) => format!("{}/{max}", count("/open")),
            None => count("/open").to_string(),
        };
        let rtt = frontend["rtt_ms"].as_f64().map_or("-".to_owned(), |rtt| format!("{rtt:.0}"));
        let extra = percent(frontend["extra"].as_f64());
        page += &format!(
            "{:<17} {open:>8} {:>7} {:>6} {:>8} {:>8} {rtt:>6} {extra:>6} {:>6}\n",
            cut(word(frontend, "/name"), 17),
            count("/total"),
            count("/failed"),
            size(count("/up")),
            size(count("/down")),
            percent(frontend["loss_out"].as_f64()),
        );
    }
    page + "extra: bytes on the hop beyond the payload; loss: towards the frontend\n"
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

/// Shortens a text to at most `max` characters.
fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some(_) => text.chars().take(max - 1).chain(['~']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_the_status() {
        let status = serde_json::json!({
            "role": "frontend", "version": "1", "uptime_s": 100, "listen": "[::]:80", "hop": "tcp-in-udp",
            "security": "sealed", "draining": false,
            "mechanisms": [{"name": "fast_open", "state": "on", "reason": "by configuration"}],
            "backends": [{"name": "a:7443", "health": "up", "transport": "brisk", "rtt_ms": 100.4, "min_rtt_ms": 99.8,
                "rtts": {"p50": 1.149, "p99": 2.5}, "extra": 0.274,
                "loss_out": 0.021, "loss_in": null, "redundancy": "agreed", "connections": 7}],
            "frontends": [{"name": "the frontend at the edge of Rome", "open": 2, "max_connections": 500, "total": 9,
                "failed": 1, "up": 1000, "down": 1000, "rtt_ms": 100.4, "extra": 0.05, "loss_out": 0.013}],
            "connections": {"open": 3, "total": 10, "failed": 1, "fast_open": {"used": 9}},
            "bytes": {"up": 1000, "down": 2_000_000, "wire_out": 1, "wire_in": 2, "retransmitted": 3, "redundant": 4},
            "repaired": {"probe": 1, "parity": 2, "copy": 3}, "timeouts": 5,
            "first_byte_ms": {"p50": 101.0, "p95": 150.0, "p99": 210.0},
            "history": [{"at": 95, "connections": 20}, {"at": 50, "connections": 900}],
        });
        let page = page(&status);
        for words in [
            "open 3   per second 2.0",
            "p50 101 ms",
            "down 2.0 MB",
            "used by 90 %",
            "a:7443",
            "a:7443                           up        brisk       agreed           7\n",
            "a:7443                      99.8/100.4         2.1/-        1.1/2.5 RTT  27.4 %\n",
            "the frontend at ~    2/500       9      1   1.0 kB   1.0 kB    100  5.0 %  1.3 %",
        ] {
            assert!(page.contains(words), "{words} is not in\n{page}");
        }
        let widest = page.lines().map(str::len).max();
        assert!(widest <= Some(80), "{widest:?} columns in\n{page}");
    }

    #[test]
    fn page_is_cut_to_the_size_of_the_terminal() {
        assert_eq!(fitted("first\nsecond\nthird\n", 2, 5), "first\nseco~");
        assert_eq!(fitted("first\nsecond\n", 0, 0), "first\nsecond");
    }
}
