//! Settings without effect, because another setting switches off their subject.

use super::{BackendSettings, EdgeSettings, Fallback, FrontendSettings, ListenerSettings, Settings};

/// A key that has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ignored {
    /// `frontend.send_proxy`.
    pub key: &'static str,
    /// Reason and requirement.
    pub why: &'static str,
}

impl Settings {
    /// Returns the settings without effect.
    pub fn ignored(&self) -> Vec<Ignored> {
        let Settings { frontend, peers: _, listeners, backend, edge, frontends, hop, limits: _, admin } =
            self;
        let is_edge = *edge != EdgeSettings::default()
            && *backend == BackendSettings::default()
            && *frontend == FrontendSettings::default();
        let of_a_pair = hop.key_file.is_some() || hop.peer_keys.is_some() || hop.plain.is_some();
        let is_direct = |listener: &ListenerSettings| {
            listener.direct.is_some() || listener.routes.iter().any(|route| route.direct.is_some())
        };
        let no_plain_listener = frontend.listen.is_none() && !listeners.is_empty() && !is_edge;
        let direct = frontend.fallback == Some(Fallback::Direct);
        let is_proxy = frontend.socks5 == Some(true) || frontend.connect == Some(true);
        let planner =
            |word: &str| matches!(word.trim(), "all" | "planner" | "planner=on" | "planner=one_sided");
        let without_planner = hop.mechanisms.as_deref().is_some_and(|list| !list.split(',').any(planner));
        let over_tun = hop.device.as_deref().is_some_and(|device| device.starts_with("tun:"));
        let checks = [
            (
                frontend.origin.is_some() && !direct,
                "frontend.origin",
                "origin has no effect without fallback = \"direct\"",
            ),
            (
                frontend.send_proxy.is_some() && !direct,
                "frontend.send_proxy",
                "send_proxy has no effect: a frontend sends the header only on direct connections, which are off (--direct); \
                 over the hop the backend sends it (backend.send_proxy)",
            ),
            (
                frontend.users_file.is_some() && !is_proxy,
                "frontend.users_file",
                "users_file has no effect: it is for the SOCKS5 and the HTTP proxy, and both are off (socks5, connect)",
            ),
            (
                frontend.client_addr.is_some() && frontend.client_device.is_none(),
                "frontend.client_addr",
                "client_addr has no effect: without client_device the kernel's TCP serves the clients",
            ),
            (
                frontend.client_mechanisms.is_some() && frontend.client_device.is_none(),
                "frontend.client_mechanisms",
                "client_mechanisms has no effect: without client_device the kernel's TCP serves the clients",
            ),
            (
                frontend.socks5 == Some(true) && no_plain_listener,
                "frontend.socks5",
                "socks5 has no effect: it is for the clients of frontend.listen, which is not set",
            ),
            (
                frontend.connect == Some(true) && no_plain_listener,
                "frontend.connect",
                "connect has no effect: it is for the clients of frontend.listen, which is not set",
            ),
            (
                frontend.transparent == Some(true) && no_plain_listener,
                "frontend.transparent",
                "transparent has no effect: it is for the clients of frontend.listen, which is not set",
            ),
            (
                listeners.iter().any(|listener| listener.send_proxy.is_some() && listener.direct.is_none()),
                "listener",
                "send_proxy has no effect without direct in the same listener; over the hop the backend sends the header \
                 (backend.send_proxy)",
            ),
            (
                is_edge && of_a_pair,
                "hop",
                "an edge has no other gateway: key_file, peer_keys and plain have no effect",
            ),
            (
                is_edge && listeners.iter().any(is_direct),
                "listener",
                "direct has no effect on an edge, which always connects to the origin itself",
            ),
            (
                hop.max_overhead.is_some() && without_planner,
                "hop.max_overhead",
                "max_overhead has no effect: it is the limit of the planner, which is not in mechanisms",
            ),
            (
                hop.kernel_tcp == Some(true) && over_tun,
                "hop.kernel_tcp",
                "kernel_tcp has no effect: a tun: device has no fallback over the kernel's TCP",
            ),
            (
                hop.ephemeral_lifetime.is_some() && hop.plain == Some(true),
                "hop.ephemeral_lifetime",
                "ephemeral_lifetime has no effect: a plain hop has no keys",
            ),
            (
                !frontends.is_empty() && hop.peer_keys.is_none(),
                "frontends",
                "[[frontends]] has no effect: its labels are those of public keys, and there are none (hop.peer_keys)",
            ),
            (
                admin.token_file.is_some() && admin.listen.is_none(),
                "admin.token_file",
                "token_file has no effect without an admin listener (admin.listen, --admin)",
            ),
        ];
        let ignored = checks.into_iter().filter(|(is_ignored, ..)| *is_ignored);
        ignored.map(|(_, key, why)| Ignored { key, why }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_without_effect_is_named() {
        let ignored = |text: &str| {
            let settings = Settings::parse(text, "brisk.toml").unwrap();
            settings.ignored().iter().map(|ignored| ignored.key).collect::<Vec<_>>()
        };
        assert_eq!(ignored("[frontend]\nsend_proxy = 'v2'"), ["frontend.send_proxy"]);
        let direct = "[frontend]\norigin = 'a:1'\nsend_proxy = 'v1'\nfallback = ";
        assert_eq!(ignored(&format!("{direct}'none'")), ["frontend.origin", "frontend.send_proxy"]);
        assert!(ignored(&format!("{direct}'direct'")).is_empty());
        let clients = "[frontend]\nclient_addr = ['10.7.0.2/24']\nclient_mechanisms = 'fast_open'\n";
        assert_eq!(ignored(clients), ["frontend.client_addr", "frontend.client_mechanisms"]);
        assert!(ignored(&format!("{clients}client_device = 'tun:brisk0'")).is_empty());
        let listener = "[frontend]\nsocks5 = true\n[[listener]]\nlisten = ':1'\n";
        assert_eq!(ignored(listener), ["frontend.socks5"]);
        assert_eq!(ignored("[[listener]]\nlisten = ':1'\nsend_proxy = 'v1'"), ["listener"]);
        assert_eq!(ignored("[hop]\nmechanisms = 'fast_open'\nmax_overhead = '5%'"), ["hop.max_overhead"]);
        assert!(ignored("[hop]\nmax_overhead = '5%'").is_empty());
        assert!(ignored("[hop]\nmechanisms = 'fast_open, planner'\nmax_overhead = '5%'").is_empty());
        assert_eq!(ignored("[frontend]\nusers_file = 'users'"), ["frontend.users_file"]);
        assert!(ignored("[frontend]\nusers_file = 'users'\nsocks5 = true").is_empty());
        assert_eq!(ignored("[[frontends]]\nlabel = 'a'"), ["frontends"]);
        assert_eq!(ignored("[admin]\ntoken_file = 'token'"), ["admin.token_file"]);
        assert!(ignored("[admin]\ntoken_file = 'token'\nlisten = ':1'").is_empty());
        assert_eq!(ignored("[hop]\ndevice = 'tun:x'\nkernel_tcp = true"), ["hop.kernel_tcp"]);
        assert!(ignored("[hop]\ndevice = 'tun:x'\nkernel_tcp = false").is_empty());
        assert!(ignored("[hop]\nkernel_tcp = true\nephemeral_lifetime = '1s'").is_empty());
        let edge = "[edge]\nlisten = ':1'\n[[listener]]\nlisten = ':2'\norigin = 'a'\n";
        assert_eq!(ignored(edge), [""; 0]);
        assert_eq!(ignored(&format!("{edge}direct = 'a:1'\n[hop]\nplain = true")), ["hop", "listener"]);
        assert_eq!(ignored("[hop]\nplain = true\nephemeral_lifetime = '1s'"), ["hop.ephemeral_lifetime"]);
    }
}
