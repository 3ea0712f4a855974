//! The keys. The program, its help, the reference and the examples take all properties of a key from its
//! declaration here.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use brisk_packet_io::share::Share;
use brisk_runtime::Prefix;
use brisk_runtime::profile::DEFAULT_MAX_OVERHEAD;

use super::Fallback;
use super::key::{Key, NameOf, ValueOf, section};
use super::kinds::{HostPort, Kind, Listening, Time, TimeLimit};
use crate::allow::Allow;
use crate::hop::ephemeral::{LONGEST_LIFETIME, USUAL_LIFETIME};
use crate::network::Network;
use crate::origins::Origins;
use crate::proxy::ProxyVersion;

/// The default mechanisms of brisk's TCP towards clients, which need nothing at the client.
pub const CLIENT_MECHANISMS: &str = "fast_open,path,planner=one_sided,congestion=bbr";

const NO_TIME: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

section! {
    /// `[hop]`.
    HopSettings, hop, HOP, Key::NONE;

    key_file: PathBuf, {
        flag: Some("key-file"),
        heading: Some("Security"),
        help: "File with the key of the hop, readable by its owner alone (or the key itself in BRISK_KEY)",
        more: "A backend accepts up to four keys, one on each line, the newest first",
        example: "\"/etc/brisk/key\"",
        is_set: true,
    };
    peer_keys: PathBuf, {
        flag: Some("peer-keys"),
        heading: Some("Security"),
        help: "File with the public keys of the other side, if the key is a key pair (brisk keygen --static)",
        example: "\"/etc/brisk/peers\"",
    };
    plain: bool, default false, {
        flag: Some("plain"),
        conflicts: &["key-file", "peer-keys"],
        heading: Some("Security"),
        help: "Use no key: everybody who reaches the hop can read and use it",
    };
    ephemeral_lifetime: Time, default USUAL_LIFETIME, range NO_TIME => LONGEST_LIFETIME, {
        flag: Some("ephemeral-lifetime"),
        heading: Some("Security"),
        help: "Lifetime of an ephemeral key pair: an attacker who takes over a gateway can decrypt recorded traffic at \
               most this far back; 0s: a new key pair for each connection, which costs 1.6 times the processor time per \
               request",
        more: "[Security](security.md)",
    };
    mechanisms: String, default "all".to_owned(), {
        flag: Some("mechanisms"),
        value_name: "LIST",
        help: "Mechanisms, separated by commas: fast_open, corrective, proactive, planner, path (path memory), \
               path=shared, congestion=bbr, congestion=cubic; all: the first four, path=shared and congestion=bbr",
        more: "`path=shared` includes the path memory and needs `congestion=bbr`. A list with neither `all` nor \
               `congestion` uses CUBIC. Reactive is on unless the list has `reactive=off`. \
               `planner=one_sided` needs nothing at the peer. [Mechanisms](mechanisms.md)",
        permits: "a list in quotes, for instance \"all\" or \"fast_open,corrective\"",
        edge: true,
        edge_default: Some(CLIENT_MECHANISMS),
    };
    max_overhead: String, default DEFAULT_MAX_OVERHEAD.to_owned(), {
        flag: Some("max-overhead"),
        value_name: "RATIO",
        help: "Upper limit of the redundancy that the planner adds, as a share of (bytes sent to the peer in the \
               last ten seconds + 1 MB), towards unmodified clients of a response; 0% switches redundancy off",
        permits: "a share in quotes, for instance \"25%\", from \"0%\" to \"200%\"",
        edge: true,
    };
    packet: String, {
        flag: Some("packet"),
        value_name: "IFACE",
        heading: Some("Device"),
        help: "Second transport for paths that carry no UDP: brisk's TCP without UDP through this interface; needs \
               CAP_NET_RAW",
        more: "[Without UDP](without-udp.md)",
        permits: "the name of an interface in quotes, for instance \"eth0\"",
        unset: "none",
        example: "\"eth0\"",
    };
    kernel_tcp: bool, default true, {
        flag: Some("no-kernel-tcp"),
        flag_help: Some("Do not fall back to the kernel's TCP if nothing else works"),
        help: "Fall back to the kernel's TCP if nothing else works; not available with tun:",
    };
    device: String, {
        flag: Some("device"),
        value_name: "DEVICE",
        heading: Some("Device"),
        help: "Device of the hop, or towards the clients of an edge: packet:IFACE, xdp:IFACE, tun:NAME or (hop only) \
               udp:ADDR:PORT",
        permits: "\"packet:IFACE\", \"xdp:IFACE\", \"tun:NAME\" or \"udp:ADDR:PORT\"",
        edge: true,
        unset: "TCP in UDP; an edge needs a device",
        example: "\"packet:eth0\"",
    };
    addr: Vec<Prefix>, {
        flag: Some("addr"),
        value_name: "ADDR/LEN",
        heading: Some("Device"),
        help: "The stack's own address with the length of its prefix, repeatable: 10.7.0.2/24; on packet: and xdp: one \
               of the interface's addresses",
        permits: "a list of addresses, for instance [\"10.7.0.2/24\"]",
        edge: true,
        unset: "all addresses of the interface",
        example: "[\"10.7.0.2/24\"]",
    };
    gateway: IpAddr, {
        flag: Some("gateway"),
        heading: Some("Device"),
        help: "The kernel's address on a tun: device, used as the stack's default route",
        edge: true,
        unset: "the first other address of the network",
        example: "\"10.7.0.1\"",
    };
    mtu: u16, range 576 => u16::MAX, {
        flag: Some("mtu"),
        heading: Some("Device"),
        help: "Largest IP packet on the device, bytes",
        edge: true,
        unset: "1500",
        example: "1500",
    };
}

section! {
    /// `[frontend]`.
    FrontendSettings, frontend, FRONTEND, Key::NONE;

    listen: Listening, {
        flag: Some("listen"),
        help: "Where clients connect: ADDR:PORT, or :PORT for every address",
        more: "A socket from systemd (`LISTEN_FDS`) serves the `[[listener]]` with its address; a socket with any other \
               address takes the place of this `listen`",
        example: "\":80\"",
        is_set: true,
    };
    client_device: String, {
        flag: Some("client-device"),
        value_name: "DEVICE",
        heading: Some("Device"),
        help: "Device for brisk's TCP towards the clients: packet:IFACE, xdp:IFACE or tun:NAME",
        more: "[On a frontend](edge.md#on-a-frontend)",
        permits: "\"packet:IFACE\", \"xdp:IFACE\" or \"tun:NAME\"",
        unset: "the kernel's TCP",
        example: "\"packet:eth0\"",
    };
    client_addr: Vec<Prefix>, {
        flag: Some("client-addr"),
        value_name: "ADDR/LEN",
        heading: Some("Device"),
        help: "The stack's own address on the device for clients with the length of its prefix, repeatable: 10.8.0.2/24; \
               necessary on tun:",
        permits: "a list of addresses, for instance [\"10.8.0.2/24\"]",
        unset: "the address of each listener, for :PORT all addresses of the interface",
        example: "[\"10.8.0.2/24\"]",
    };
    client_mechanisms: String, default CLIENT_MECHANISMS.to_owned(), {
        flag: Some("client-mechanisms"),
        value_name: "LIST",
        help: "Mechanisms towards the clients on the device for clients, separated by commas",
        more: "[Mechanisms](mechanisms.md)",
        permits: "a list in quotes, for instance \"fast_open,path,congestion=bbr\"",
    };
    first_bytes_wait: Time, default Duration::from_millis(5), range NO_TIME => SECOND, {
        flag: Some("first-bytes-wait"),
        help: "Time to wait for a client's first bytes, so that the hop's SYN carries them, while it is unknown which \
               side sends first",
        more: "[Which side sends first](mechanisms.md)",
    };
    first_bytes_limit: Time, default 2 * SECOND, range NO_TIME => 10 * SECOND, {
        flag: Some("first-bytes-limit"),
        help: "Upper limit of the wait for a client's first bytes if clients are known to send first (the wait is \
               then a round trip of the hop or more); 0s: wait for first_bytes_wait on every connection, \
               also if the server is known to send first",
    };
    proxy_from: Vec<Network>, {
        flag: Some("proxy-from"),
        value_name: "NETWORK",
        help: "Require and trust a PROXY header from these networks: 10.0.0.0/8; repeatable",
        permits: "a list of networks, for instance [\"10.0.0.0/8\"]",
        unset: "none",
        example: "[\"10.0.0.0/8\"]",
    };
    socks5: bool, default false, {
        flag: Some("socks5"),
        help: "Accept SOCKS5 clients, which name the origin; the backend must --allow it",
        more: "The client of a refused connection gets 0x02 if a rule forbids the origin, 0x04 otherwise. The first \
               connection to an origin takes one round trip more, because the frontend reports success only when the \
               backend has accepted it; for later ones the frontend reports success at once",
    };
    connect: bool, default false, {
        flag: Some("connect"),
        help: "Accept clients of an HTTP proxy (CONNECT, requests for http:// addresses); the backend must --allow the \
               origin",
        more: "As for `socks5`, with 403 in place of 0x02 and 502 in place of 0x04",
    };
    users_file: PathBuf, {
        flag: Some("users-file"),
        conflicts: &["transparent"],
        help: "File with the users of --socks5 and --connect: a line NAME:PASSWORD for each, readable by its owner alone",
        unset: "every client is served",
        example: "\"/etc/brisk/users\"",
    };
    transparent: bool, default false, {
        flag: Some("transparent"),
        help: "Accept clients that a firewall rule redirects here (see brisk rules); the backend must --allow the origin",
        more: "Clients that no rule has redirected are disconnected",
    };
    watch: bool, default true, {
        help: "Probe each backend four times a second; without probes, a backend is down after three failed connections in \
               a row",
        more: "While another backend or a fallback serves the clients, the frontend then lets one client at a time try \
               the failed backend, half a second after its last failure; a trial takes up to 2.4 s or twelve round \
               trips, whichever is longer",
    };
    fallback: Fallback, default Fallback::None, {
        help: "\"direct\": connect to the origin over the kernel's TCP while no backend is up; this bypasses the \
               encryption of the hop (flag: --direct)",
        more: "With `transparent` the client is connected to the address that it asked for, whatever the backends' \
               `allow` says. Clients that name their origin (`socks5`, `connect`) are refused, because the frontend \
               has no list of permitted origins",
    };
    origin: HostPort, {
        help: "The origin as this side reaches it, for fallback = \"direct\" (flag: --direct)",
        example: "\"origin.example:80\"",
    };
    send_proxy: ProxyVersion, {
        flag: Some("send-proxy"),
        help: "The PROXY header that the origin of --direct expects: v1 or v2",
        unset: "none",
        example: "\"v2\"",
    };
}

section! {
    /// `[backend]`.
    BackendSettings, backend, BACKEND, Key::NONE;

    listen: Listening, {
        flag: Some("listen"),
        help: "Where frontends connect: ADDR:PORT, or :PORT for every address",
        more: "The backend listens on UDP, and on TCP for the fallback transport",
        example: "\":7443\"",
        is_set: true,
    };
    to: HostPort, {
        flag: Some("to"),
        help: "The origin if a frontend asks for none: HOST:PORT; optional with origins or allow",
        more: "A name is looked up for each connection",
        example: "\"127.0.0.1:80\"",
        is_set: true,
    };
    as_client: bool, default false, {
        flag: Some("as-client"),
        help: "Connect to the origin from the client's own address; the origin's route to clients must lead over this \
               host (brisk rules --as-client)",
    };
    send_proxy: ProxyVersion, {
        flag: Some("send-proxy"),
        help: "Tell the origin the client's address in a PROXY header: v1 or v2",
        unset: "none",
        example: "\"v2\"",
    };
    origins: Origins, {
        flag: Some("origin"),
        help: "An origin that frontends may ask for by name: NAME=HOST:PORT; repeatable",
        more: "A name has 1 to 64 letters, digits, `-`, `_`, `.`",
        unset: "none",
        example: "{ web = \"10.0.0.5:80\" }",
    };
    allow: Vec<Allow>, {
        flag: Some("allow"),
        value_name: "RULE",
        help: "Another origin that frontends may ask for by address: HOST:PORT, *.DOMAIN:*, NETWORK:PORT; repeatable",
        permits: "a list of rules, for instance [\"origin.example:443\"]",
        unset: "none",
        example: "[\"*.example:443\"]",
    };
    replay_tolerance: Time, default 10 * SECOND, range SECOND => HOUR, {
        help: "Longest age of a first message at its arrival; an older one needs a confirmation, which costs a round trip",
    };
}

section! {
    /// `[edge]`.
    EdgeSettings, edge, EDGE, Key::NONE;

    listen: Listening, {
        flag: Some("listen"),
        help: "Where clients connect: ADDR:PORT of this host, or :PORT for every address of the device",
        example: "\":443\"",
        is_set: true,
    };
    to: HostPort, {
        flag: Some("to"),
        help: "The origin: HOST:PORT",
        more: "It serves the clients of `listen` and of each `[[listener]]` without `origin` and routes; a name is \
               looked up for each connection",
        example: "\"127.0.0.1:8443\"",
        is_set: true,
    };
    origins: Origins, {
        flag: Some("origin"),
        help: "An origin with a name, for listeners and routes: NAME=HOST:PORT; repeatable",
        unset: "none",
        example: "{ web = \"10.0.0.5:443\" }",
    };
    send_proxy: ProxyVersion, {
        flag: Some("send-proxy"),
        help: "Tell the origin the client's address in a PROXY header: v1 or v2",
        unset: "none",
        example: "\"v2\"",
    };
    share: Share, default Share::ALL, {
        flag: Some("share"),
        help: "Share of the clients, chosen by their address, that brisk's TCP serves; the kernel's TCP serves the \
               others; needs packet: or xdp:",
        more: "[Roll-out](edge.md#roll-out)",
    };
}

section! {
    /// `[limits]`.
    LimitSettings, limits, LIMITS, Key { heading: Some("Limits"), ..Key::NONE };

    max_connections: u32, default 10_000, range 1 => u32::MAX, {
        flag: Some("max-connections"),
        help: "Simultaneous connections; further ones wait",
    };
    threads: u8, range 1 => 64, {
        flag: Some("threads"),
        help: "Cores that serve connections, each with a stack of its own",
        more: "With several cores a gateway pair serves more requests a second, but its connections no longer share one \
               controller of the path",
        unset: "1; at an edge all cores that this process may use",
        example: "2",
    };
    drain_timeout: Time, default 30 * SECOND, {
        flag: Some("drain-timeout"),
        help: "Time that open connections have to end after SIGTERM",
    };
    connect_timeout: Time, default 10 * SECOND, {
        flag: Some("connect-timeout"),
        help: "Time limit for opening a connection to a backend or an origin",
    };
    header_timeout: Time, default 5 * SECOND, range Duration::from_millis(100) => MINUTE, {
        flag: Some("header-timeout"),
        help: "Time to receive the header of PROXY, SOCKS5 or CONNECT, or the first message of the hop",
        more: "On a backend the time starts with the first byte of that message; until then `connect_timeout` applies",
    };
    first_byte_timeout: TimeLimit, default MINUTE, {
        flag: Some("first-byte-timeout"),
        help: "Permitted time until the first byte from either end; 0s: no limit",
    };
    idle_timeout: TimeLimit, default HOUR, {
        flag: Some("idle-timeout"),
        help: "Permitted silence of both ends after the first byte; 0s: no limit",
    };
    half_closed_timeout: TimeLimit, default 5 * MINUTE, {
        flag: Some("half-closed-timeout"),
        help: "Permitted silence of one end after the other end has closed; 0s: no limit",
    };
}

section! {
    /// `[admin]`.
    AdminSettings, admin, ADMIN, Key { heading: Some("Admin"), ..Key::NONE };

    listen: Listening, {
        flag: Some("admin"),
        help: "Address of /metrics, /status, /healthz and /readyz: ADDR:PORT",
        unset: "none",
        example: "\"127.0.0.1:9413\"",
        is_set: true,
    };
    token_file: PathBuf, {
        flag: Some("admin-token-file"),
        help: "File with the token that admin requests must carry; required unless the address is loopback",
        more: "The token has at least 16 characters",
        example: "\"/etc/brisk/token\"",
    };
}

/// Returns a key of a table that may occur several times.
const fn entry(section: &'static str, name: &'static str, permits: &'static str, help: &'static str) -> Key {
    Key { section, name, permits, help, ..Key::NONE }
}

const HOST_PORT: &str = HostPort::PERMITTED;
const PROXY: &str = ProxyVersion::PERMITTED;
const ORIGIN_NAME: &str = "a name in quotes";

/// The keys of the tables that may occur several times.
pub(super) static TABLES: [&[Key]; 1] = [&[
    entry(
        "listener",
        "listen",
        "\"ADDR:PORT\", \"ADDR:FIRST-LAST\", \":PORT\" or \":FIRST-LAST\"",
        "Where clients connect; all listeners together have 1024 ports at most (flag: --listener)",
    ),
    entry("listener", "origin", ORIGIN_NAME, "The name of the origin at the backends"),
    entry(
        "listener",
        "direct",
        HOST_PORT,
        "The address of the same origin for a direct connection from the frontend, used while no backend is up; this \
         bypasses the encryption of the hop",
    ),
    entry("listener", "send_proxy", PROXY, "The PROXY header for the direct connection"),
    entry(
        "listener",
        "route",
        "a section [[listener.route]] for each route",
        "Origins of TLS clients by server name",
    ),
    entry("listener.route", "sni", "a name or \"*.DOMAIN\"", "The server name that a TLS client asks for"),
    entry("listener.route", "origin", ORIGIN_NAME, "The name of the origin at the backends"),
    entry("listener.route", "direct", HOST_PORT, "Like `direct` of a listener"),
    entry("listener.route", "send_proxy", PROXY, "Like `send_proxy` of a listener"),
    entry("backends", "peer", HOST_PORT, "A backend (flag: --peer)"),
    Key {
        unset: "0",
        ..entry(
            "backends",
            "priority",
            "0 to 255",
            "Requests go to the backends with the lowest number, among those that are up; with --peer a --peer b, a has \
             the lower number",
        )
    },
    Key {
        unset: "1",
        ..entry(
            "backends",
            "weight",
            "1 to 1000",
            "Relative share of the connections among backends of one priority",
        )
    },
    entry(
        "frontends",
        "label",
        "the label of a public key in quotes, each once, for instance \"edge Rome\"",
        "The label of the frontend's public key in `peer_keys`, or `key-` and the key's first eight digits",
    ),
    Key {
        unset: "none",
        ..entry(
            "frontends",
            "max_connections",
            "1 to 4294967295",
            "Simultaneous connections of this frontend; further ones are refused",
        )
    },
    Key {
        unset: "none",
        ..entry(
            "frontends",
            "max_rate",
            "bits per second in quotes, for instance \"50mbit\"",
            "Payload rate of all connections of this frontend together, in each direction; data beyond the rate \
             waits",
        )
    },
]];

/// The keys of the sections.
pub(super) static ALL: [&[Key]; 6] = [FRONTEND, BACKEND, EDGE, HOP, LIMITS, ADMIN];

/// Returns the keys of the sections and of the tables that may occur several times.
pub fn all() -> impl Iterator<Item = &'static Key> {
    ALL.iter().chain(&TABLES).copied().flatten()
}

/// Returns the key at `path`, for instance `hop.mtu` or `backends.0.weight`.
pub(super) fn at(path: &str) -> Option<&'static Key> {
    let names: Vec<&str> = path.split('.').filter(|name| name.parse::<usize>().is_err()).collect();
    let (name, section) = names.split_last()?;
    let section = section.join(".");
    all().find(|key| key.section == section && key.name == *name)
}
