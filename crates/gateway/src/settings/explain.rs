//! Errors of the parser in an operator's words: the key, its value, and the remedy.

use std::ops::Range;

use super::places::Places;

/// Keys whose value is a time, with their permitted values.
const TIMES: [(&str, &str); 10] = [
    ("first_bytes_wait", "\"0s\" to \"1s\""),
    ("first_bytes_limit", "\"0s\" to \"10s\""),
    ("replay_tolerance", "\"1s\" to \"1h\""),
    ("ephemeral_lifetime", "\"0s\" to \"1m\""),
    ("drain_timeout", "a time, for instance \"30s\""),
    ("connect_timeout", "a time, for instance \"10s\""),
    ("header_timeout", "\"100ms\" to \"60s\""),
    ("first_byte_timeout", "a time, for instance \"1m\"; \"0s\" for none"),
    ("idle_timeout", "a time, for instance \"1h\"; \"0s\" for none"),
    ("half_closed_timeout", "a time, for instance \"5m\"; \"0s\" for none"),
];

/// Returns the permitted values of a key.
pub(super) fn permitted_values(key: &str) -> &'static str {
    if let Some((_, time)) = TIMES.iter().find(|(time, _)| *time == key) {
        return time;
    }
    match key {
        "mtu" => "576 to 65535 (bytes)",
        "weight" => "1 to 1000",
        "priority" => "0 to 255",
        "threads" => "1 to 64",
        "max_connections" => "1 to 4294967295",
        "plain" | "kernel_tcp" | "socks5" | "connect" | "transparent" | "watch" | "as_client" => {
            "true or false"
        }
        "listen" => "\"ADDR:PORT\" or \":PORT\", for instance \"127.0.0.1:8080\"",
        "peer" | "to" | "origin" | "direct" => "\"HOST:PORT\", for instance \"127.0.0.1:80\"",
        "send_proxy" => "\"v1\" or \"v2\"",
        "fallback" => "\"none\" or \"direct\"",
        "gateway" => "an address, for instance \"10.7.0.1\"",
        "addr" | "client_addr" => "a list of addresses, for instance [\"10.7.0.2/24\"]",
        "proxy_from" => "a list of networks, for instance [\"10.0.0.0/8\"]",
        "origins" => "names and addresses, for instance { web = \"10.0.0.5:80\" }",
        "allow" => "a list of rules, for instance [\"origin.example:443\"]",
        "key_file" | "peer_keys" | "users_file" | "token_file" => {
            "a path in quotes, for instance \"/etc/brisk/key\""
        }
        "device" => "\"packet:IFACE\", \"xdp:IFACE\", \"tun:NAME\" or \"udp:ADDR:PORT\"",
        "client_device" => "\"packet:IFACE\", \"xdp:IFACE\" or \"tun:NAME\"",
        "packet" => "the name of an interface in quotes, for instance \"eth0\"",
        "max_overhead" => "a share in quotes, for instance \"25%\"",
        "client_mechanisms" => "a list in quotes, for instance \"fast_open,path,congestion=bbr\"",
        "mechanisms" => "a list in quotes, for instance \"all\" or \"fast_open,corrective\"",
        "label" => "the label of a public key in quotes, each once, for instance \"edge Rome\"",
        "max_rate" => "bits per second in quotes, for instance \"50mbit\"",
        "frontends" => "[[frontends]] above each one, and its keys below",
        "backends" => "[[backends]] above each one, and its keys below",
        "listener" => "[[listener]] above each one, and its keys below",
        _ => {
            "[frontend], [[backends]], [[listener]], [backend], [edge], [[frontends]], [hop], [limits] or [admin], and their keys below"
        }
    }
}

/// Rewords a parser's `message` about the bytes `at` of `text`.
pub(super) fn explained(message: &str, at: &Range<usize>, text: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let there = text.get(at.clone()).unwrap_or_default();
    if let Some(unknown) = message.strip_prefix("unknown field `") {
        return unknown_key(unknown).unwrap_or_else(|| message.to_owned());
    }
    if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("the key {key} is missing: write {key} = {}", permitted_values(key));
    }
    if message.starts_with("duplicate key") {
        return match text.get(..at.start).is_some_and(|before| before.ends_with('[')) {
            true => format!("the section [{there}] occurs twice: put its keys into one"),
            false => format!("the key '{there}' occurs twice: remove one"),
        };
    }
    if message.starts_with("string values must be quoted") {
        return format!("a text needs quotes: write \"{there}\"");
    }
    let ours = ["invalid type", "invalid value", "unknown variant", "invalid IP address", "wanted string"];
    // The TOML parser returns a date as a map with this private key.
    let is_date = message.contains("$__toml_private");
    match is_date || ours.iter().any(|begins| message.starts_with(begins)) {
        true => wrong_value(at, text).unwrap_or_else(|| message.to_owned()),
        false => message.to_owned(),
    }
}

/// Returns the error for a value that its key does not permit.
fn wrong_value(at: &Range<usize>, text: &str) -> Option<String> {
    let places = Places::of(text);
    let path = places.of_value(at.start)?;
    let key = path.rsplit('.').next()?;
    let written = places.written(text, path)?;
    let is_time = TIMES.iter().any(|(time, _)| *time == key);
    if is_time && let Ok(seconds) = written.parse::<u64>() {
        return Some(format!("{key} = {written}: add the unit, for instance \"{seconds}s\""));
    }
    match written.starts_with('[') && !written.ends_with(']') || written.starts_with(&format!("[{key}")) {
        true => Some(format!("{key}: write {}", permitted_values(key))),
        false => Some(format!("{key} = {written}: write {}", permitted_values(key))),
    }
}

/// Rewords ``UNKNOWN`, expected one of ...``, with the key that was probably meant.
fn unknown_key(rest: &str) -> Option<String> {
    let (unknown, expected) = rest.split_once('`')?;
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    Some(format!("there is no key '{unknown}' here; {}", brisk_link::suggest("", unknown, &known)))
}
