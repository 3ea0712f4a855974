//! Each key of the configuration is declared once: the page of the manual, the examples and the behaviour
//! of a gateway follow from the declaration. `BRISK_WRITE=1 cargo test -p brisk-gateway --test keys` writes
//! page and examples.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use brisk_gateway::settings::{Key, all_keys, parse_duration};
use brisk_gateway::{BackendConfig, FrontendConfig, Hop, ServiceConfig, Settings};

const WIDTH: usize = 120;
const COLUMN: usize = 36;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Checks that the file has the text `wanted` from `begin` to `end`, or writes it.
fn check(name: &str, begin: &str, end: &str, wanted: &str) {
    let text = std::fs::read_to_string(path(name)).unwrap();
    let start = text.find(begin).unwrap_or_else(|| panic!("{name} has no {begin}")) + begin.len();
    let length = text[start..].find(end).unwrap_or_else(|| text[start..].trim_end().len());
    let found = &text[start..start + length];
    if std::env::var_os("BRISK_WRITE").is_some() {
        std::fs::write(path(name), [&text[..start], wanted, &text[start + length..]].concat()).unwrap();
        return;
    }
    assert!(
        found == wanted,
        "{name} differs from the declarations of keys (run with BRISK_WRITE=1):\n{wanted}"
    );
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn row(key: &Key) -> String {
    let Key { name, flag, help, more, unset, edge_default, .. } = key;
    let flag = flag.map(|flag| code(&format!("--{flag}"))).unwrap_or_default();
    let default = (key.default)().map_or_else(|| (*unset).to_owned(), |default| code(&default));
    let of_edge = edge_default.map(|default| format!("; of an edge `\"{default}\"`")).unwrap_or_default();
    let help = help.replace('*', "\\*");
    let meaning = if more.is_empty() { help } else { format!("{help}. {more}") };
    format!("| `{name}` | {flag} | {default}{of_edge} | {} | {meaning} |\n", key.permitted())
}

#[test]
fn handbook_has_each_key_with_flag_default_range_and_meaning() {
    let sections = [
        ("[hop]", "hop"),
        ("[frontend]", "frontend"),
        ("[[listener]]", "listener"),
        ("[[listener.route]]", "listener.route"),
        ("[[backends]]", "backends"),
        ("[backend]", "backend"),
        ("[edge]", "edge"),
        ("[[frontends]]", "frontends"),
        ("[limits]", "limits"),
        ("[admin]", "admin"),
    ];
    assert!(all_keys().all(|key| sections.iter().any(|(_, section)| *section == key.section)));
    let table: String = sections
        .iter()
        .map(|(title, section)| {
            let rows = all_keys().filter(|key| key.section == *section).map(row);
            format!("| **`{title}`** | | | | |\n{}", rows.collect::<String>())
        })
        .collect();
    check("docs/operating/settings.md", "|---|---|---|---|---|\n", "\n\n", table.trim_end());
}

/// Returns the lines of a key in an example.
fn lines(key: &Key, is_edge: bool, port: &str) -> String {
    let of_edge = key.edge_default.filter(|_| is_edge).map(|default| format!("\"{default}\""));
    let value = of_edge.or_else(key.default).unwrap_or_else(|| key.example.replace("9413", port));
    assert!(!value.is_empty(), "{} needs an example", key.path());
    // An edge cannot start without a device.
    let sign = if key.is_set || is_edge && key.name == "device" { "" } else { "# " };
    let mut line = format!("{:COLUMN$}", format!("{sign}{} = {value} ", key.name));
    let mut text = String::new();
    let range = (key.range)().map(|range| format!("; {range}")).unwrap_or_default();
    line.push('#');
    for word in format!("{}{range}", key.help).split(' ') {
        if line.len() + word.len() >= WIDTH {
            text += &(line + "\n");
            line = format!("{:COLUMN$} ", "#");
        }
        line.push(' ');
        line += word;
    }
    text + &line + "\n"
}

#[test]
fn examples_have_each_key_with_default_and_meaning() {
    for (name, port, sections) in [
        ("frontend", "9413", ["hop", "frontend", "limits", "admin"]),
        ("backend", "9414", ["hop", "backend", "limits", "admin"]),
        ("edge", "9415", ["edge", "hop", "limits", "admin"]),
    ] {
        let is_edge = name == "edge";
        for section in sections {
            let is_key = |key: &&Key| key.section == section && (!is_edge || section != "hop" || key.edge);
            let wanted: String = all_keys().filter(is_key).map(|key| lines(key, is_edge, port)).collect();
            let file = format!("packaging/examples/{name}.toml");
            check(&file, &format!("\n[{section}]\n"), "\n\n", wanted.trim_end());
        }
    }
}

#[test]
fn gateways_behave_as_the_declared_defaults_say() {
    let default = |path: &str| {
        let key = all_keys().find(|key| key.path() == path).unwrap();
        (key.default)().unwrap_or_else(|| panic!("{path} has no default")).replace('"', "")
    };
    let time = |path: &str| parse_duration(&default(path)).unwrap();
    let ServiceConfig { max_connections, drain_timeout, connect_timeout, timeouts, .. } =
        ServiceConfig::default();
    assert_eq!(max_connections.to_string(), default("limits.max_connections"));
    assert_eq!(drain_timeout, time("limits.drain_timeout"));
    assert_eq!(connect_timeout, time("limits.connect_timeout"));
    assert_eq!(timeouts.header, time("limits.header_timeout"));
    assert_eq!(timeouts.first_byte, time("limits.first_byte_timeout"));
    assert_eq!(timeouts.idle, time("limits.idle_timeout"));
    assert_eq!(timeouts.half_closed, time("limits.half_closed_timeout"));
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let frontend = FrontendConfig::new(address, address, Hop::Plain);
    assert_eq!(frontend.first_bytes_wait, time("frontend.first_bytes_wait"));
    assert_eq!(frontend.first_bytes_limit, time("frontend.first_bytes_limit"));
    assert_eq!(frontend.ephemeral_lifetime, time("hop.ephemeral_lifetime"));
    let backend = BackendConfig::new(address, None, Hop::Plain);
    assert_eq!(backend.replay_tolerance, time("backend.replay_tolerance"));
    assert_eq!(backend.ephemeral_lifetime, time("hop.ephemeral_lifetime"));
}

#[test]
fn flag_has_the_type_and_range_of_its_key() {
    let set = |path: &str, text: &str| {
        let mut settings = Settings::default();
        let key = all_keys().find(|key| key.path() == path).unwrap();
        key.set_checked(&mut settings, text).map(|()| settings)
    };
    assert_eq!(
        set("limits.header_timeout", "1s").unwrap().limits.header_timeout,
        Some(Duration::from_secs(1))
    );
    assert_eq!(set("limits.header_timeout", "0s").unwrap_err(), "write 100ms to 1m");
    assert_eq!(set("hop.mtu", "70000").unwrap_err(), "write 576 to 65535 (bytes)");
    assert_eq!(set("limits.max_connections", "0").unwrap_err(), "write 1 to 4294967295");
    assert_eq!(set("frontend.send_proxy", "v3").unwrap_err(), "write v1 or v2");
    assert_eq!(set("backend.allow", "a:1,b:2").unwrap().backend.allow.map(|rules| rules.len()), Some(2));
    assert_eq!(set("hop.kernel_tcp", "false").unwrap().hop.kernel_tcp, Some(false));
}
