//! `brisk rules`: prints firewall rules, but does not apply them. The rules send clients to a transparent
//! frontend, or an origin's answers to a backend that connects from the clients' addresses.

use crate::failure::Failure;
use crate::{Common, output};

const EXAMPLES: &str = "\
Examples:
  brisk rules --listen-port 8080 --user brisk | sudo nft -f -
  brisk rules --listen-port 8080 --router eth1 --port 80,443
  brisk rules --listen-port 8080 --user brisk --remove | sudo nft -f -
  brisk rules --as-client | sudo nft -f -";

/// The flags of `rules`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Port of the frontend that runs with --transparent
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    listen_port: Option<u16>,
    /// Ports that clients connect to
    #[arg(long, value_name = "PORTS", default_value = "80,443", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// For clients of this host (REDIRECT): the user of the frontend, whose own connections are not
    /// redirected
    #[arg(long, value_name = "USER", conflicts_with = "router")]
    user: Option<String>,
    /// For clients behind this router (TPROXY): the interface on which they arrive
    #[arg(long, value_name = "IFACE")]
    router: Option<String>,
    /// For a backend with --as-client: deliver the origin's answers to the backend instead of the clients
    #[arg(long, conflicts_with_all = ["router", "user", "listen_port"])]
    as_client: bool,
    /// Print the commands that remove the rules
    #[arg(long)]
    remove: bool,
}

/// Prints the rules.
pub(crate) fn run(args: &Args, _common: &Common) -> Result<(), Failure> {
    for name in args.user.iter().chain(&args.router) {
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        {
            return Err(Failure::usage(format!("'{name}' is not the name of a user or an interface")));
        }
    }
    let whose = args.user.is_some() || args.router.is_some();
    if !(args.as_client || whose && args.listen_port.is_some()) {
        return Err(Failure::usage(
            "choose the connections: --listen-port PORT with --user NAME (clients of this host) or --router IFACE (clients \
             behind it), or --as-client (answers to a backend); see brisk rules --help",
        ));
    }
    output::print(&text(args))
}

fn text(args: &Args) -> String {
    if args.remove {
        let routes = "# ip rule del fwmark 1 lookup 100; ip route del local default dev lo table 100\n";
        let routed = args.router.is_some() || args.as_client;
        return format!("delete table inet brisk\n{}", if routed { routes } else { "" });
    }
    if args.as_client {
        return "# as root, once: ip rule add fwmark 1 lookup 100; ip route add local default dev lo table 100\n\
             # the same with ip -6; the origin's route to the clients leads over this host, which forwards the rest\n\
             table inet brisk {\n  chain prerouting {\n    type filter hook prerouting priority mangle;\n    \
             meta l4proto tcp socket transparent 1 meta mark set 1 accept\n  }\n}\n"
            .to_owned();
    }
    let ports = args.port.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    // The flags require the port for every rule that contains it.
    let to = args.listen_port.unwrap_or_default();
    // A browser with QUIC would bypass the gateway.
    let quic = if args.port.contains(&443) { "    udp dport 443 reject\n" } else { "" };
    match (&args.router, &args.user) {
        (Some(interface), _) => format!(
            "# as root, once: ip rule add fwmark 1 lookup 100; ip route add local default dev lo table 100\n\
             table inet brisk {{\n  chain prerouting {{\n    type filter hook prerouting priority mangle;\n    \
             meta l4proto tcp socket transparent 1 meta mark set 1 accept\n    \
             iifname \"{interface}\" fib daddr type local accept\n    \
             iifname \"{interface}\" tcp dport {{ {ports} }} tproxy to :{to} meta mark set 1 accept\n  }}\n  \
             chain forward {{\n    type filter hook forward priority filter;\n{quic}  }}\n}}\n"
        ),
        (None, user) => format!(
            "table inet brisk {{\n  chain output {{\n    type nat hook output priority -100;\n    \
             meta skuid \"{}\" accept\n    fib daddr type local accept\n    \
             tcp dport {{ {ports} }} redirect to :{to}\n  }}\n  \
             chain filter {{\n    type filter hook output priority filter;\n{quic}  }}\n}}\n",
            user.as_deref().unwrap_or_default()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(user: Option<&str>, router: Option<&str>) -> Args {
        Args {
            listen_port: Some(8080),
            port: vec![80, 443],
            user: user.map(str::to_owned),
            router: router.map(str::to_owned),
            as_client: false,
            remove: false,
        }
    }

    #[test]
    fn own_host_is_redirected_but_not_the_frontend() {
        let rules = text(&args(Some("brisk"), None));
        assert!(rules.contains("meta skuid \"brisk\" accept\n"), "{rules}");
        assert!(rules.contains("tcp dport { 80, 443 } redirect to :8080\n"), "{rules}");
        assert!(rules.contains("udp dport 443 reject"), "{rules}");
    }

    #[test]
    fn router_redirects_packets_of_one_interface() {
        let rules = text(&args(None, Some("eth1")));
        assert!(
            rules.contains("iifname \"eth1\" tcp dport { 80, 443 } tproxy to :8080 meta mark set 1"),
            "{rules}"
        );
        assert!(rules.contains("socket transparent 1"), "{rules}");
    }
    #[test]
    fn answers_to_a_clients_address_are_taken_by_the_backends_host() {
        let rules = text(&Args { as_client: true, listen_port: None, ..args(None, None) });
        assert!(
            rules.contains("socket transparent 1 meta mark set 1") && !rules.contains("tproxy"),
            "{rules}"
        );
    }
}
