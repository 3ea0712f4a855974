//! A client that has connected to the server before.
//!
//! Fast Open saves time from the second connection on. A [`PriorKnowledge`] is the state after two earlier
//! connections over the same path. The client has the server's cookie, knows the properties of the path, and
//! knows whether the path passes data on a SYN; the server knows the path too. The earlier connections use
//! the path of the measurement with its middleboxes, but without load and loss. The state is computed once,
//! and restored at the start of every transaction.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use brisk_link::{DirectionSpec, LinkSpec};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{ConnectConfig, FastOpenConfig, ListenConfig, StackConfig};
use brisk_tcp::error::ConfigError;
use brisk_tcp::fast_open::{CookieKey, EarlyResponse, FastOpenConnect, FastOpenListen, KeySource};
use brisk_tcp::stack::Stack;
use brisk_wire::Instant;

use crate::addresses::{CLIENT, PORT, SERVER};
use crate::application::{Client, ClientPlan, Connections, Exchange, Server};
use crate::world::{Side, World};

/// Fast Open key of every simulated server, so that a cookie is valid in other worlds too.
const KEY: [u8; 16] = *b"brisk simulation";
/// Maximum time of each earlier transaction: longer than the stack takes to give up a connection.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the Fast Open configuration of a simulated server.
pub(crate) fn keys() -> FastOpenConfig {
    let primary = CookieKey::new(KEY);
    FastOpenConfig { keys: Some(KeySource::Fixed { primary, backup: None }), ..FastOpenConfig::default() }
}

/// Returns the Fast Open configuration of a listener with this TCP. With an initial window above the default,
/// the early response may fill that window. Only servers of a gateway pair have such a window, and they
/// respond only to authenticated requests.
pub fn listening(tcp: &TcpConfig) -> FastOpenListen {
    let early_response = match tcp.initial_window > TcpConfig::default().initial_window {
        true => EarlyResponse::Authenticated,
        false => EarlyResponse::Standard,
    };
    FastOpenListen { early_response, ..FastOpenListen::default() }
}

/// A client's memory of servers and paths, and a server's memory of the path to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriorKnowledge {
    /// The client's cookies, exported.
    cookies: String,
    /// The client's path memory, exported.
    paths: Option<String>,
    /// The server's path memory, exported.
    server: Option<String>,
}

impl PriorKnowledge {
    /// Computes the state of client and server after two connections over this path.
    ///
    /// # Errors
    /// None in practice: the configuration is the default one.
    pub fn over(link: &LinkSpec) -> Result<PriorKnowledge, ConfigError> {
        PriorKnowledge::with(&[SERVER], link)
    }

    /// Returns the memory of a client's stack, without that of the servers.
    pub(crate) fn of_client(client: &Stack, now: Instant) -> PriorKnowledge {
        PriorKnowledge {
            cookies: client.export_fast_open_cache(now),
            paths: Some(client.export_paths(now)),
            server: None,
        }
    }

    /// Returns the cookies without the path memory, as the kernel's TCP stores them for a known server.
    #[must_use]
    pub fn forget_paths(self) -> PriorKnowledge {
        PriorKnowledge { cookies: self.cookies, paths: None, server: None }
    }

    /// Computes the state after two connections to each of several servers over this path.
    ///
    /// # Errors
    /// Those of [`PriorKnowledge::over`].
    pub(crate) fn with(servers: &[IpAddr], link: &LinkSpec) -> Result<PriorKnowledge, ConfigError> {
        PriorKnowledge::make(servers, &quiet(link), 1, &TcpConfig::default(), &[Exchange::of(100); 2])
    }

    /// Returns the memory of both ends after many transactions over this path, with its losses: round-trip
    /// time, window and loss rate.
    ///
    /// # Errors
    /// The configuration is out of range.
    pub fn after(
        link: &LinkSpec,
        seed: u64,
        tcp: &TcpConfig,
        exchanges: &[Exchange],
    ) -> Result<PriorKnowledge, ConfigError> {
        PriorKnowledge::make(&[SERVER], link, seed, tcp, exchanges)
    }

    fn make(
        servers: &[IpAddr],
        link: &LinkSpec,
        seed: u64,
        tcp: &TcpConfig,
        exchanges: &[Exchange],
    ) -> Result<PriorKnowledge, ConfigError> {
        let patience = TIME_LIMIT * exchanges.len() as u32;
        let mut world = World::new(link, seed);
        let client = world.add_host(Side::A, "client", &[CLIENT], StackConfig::default())?;
        let server_stack = StackConfig { fast_open: keys(), ..StackConfig::default() };
        let server = world.add_host(Side::B, "server", servers, server_stack)?;
        let mut visits = Vec::new();
        for address in servers.iter().map(|ip| SocketAddr::new(*ip, PORT)) {
            let listen =
                ListenConfig { tcp: tcp.clone(), fast_open: Some(listening(tcp)), ..ListenConfig::default() };
            world.add_app(server, Instant::ZERO, Server::new(address, listen));
            visits.push(world.add_app(client, Instant::ZERO, Client::new(visit(address, tcp, exchanges))));
        }
        let over = |world: &World| {
            visits.iter().all(|visit| world.app::<Client>(*visit).is_some_and(Client::is_over))
        };
        world.run_while(Instant::ZERO + patience, over);
        let now = world.now();
        let stack = world.stack(client);
        Ok(PriorKnowledge {
            cookies: stack.export_fast_open_cache(now),
            paths: Some(stack.export_paths(now)),
            server: Some(world.stack(server).export_paths(now)),
        })
    }

    /// Restores the client's memory.
    pub(crate) fn recall(&self, client: &mut Stack) {
        let cookies = client.import_fast_open_cache(&self.cookies, Instant::ZERO);
        debug_assert!(cookies.is_ok(), "the export is valid");
        remember(client, self.paths.as_deref());
    }

    /// Restores the server's memory.
    pub(crate) fn recall_at_server(&self, server: &mut Stack) {
        remember(server, self.server.as_deref());
    }
}

fn remember(stack: &mut Stack, paths: Option<&str>) {
    let recalled = paths.map_or(Ok(()), |paths| stack.import_paths(paths, Instant::ZERO));
    debug_assert!(recalled.is_ok(), "the export is valid");
}

/// Returns a plan of consecutive transactions: the first gets the cookie, the second sends data with the SYN.
fn visit(server: SocketAddr, tcp: &TcpConfig, exchanges: &[Exchange]) -> ClientPlan {
    ClientPlan {
        server,
        connect: ConnectConfig {
            tcp: tcp.clone(),
            fast_open: Some(FastOpenConnect::insured()),
            ..ConnectConfig::default()
        },
        connections: Connections::Fresh,
        greeting: 0,
        exchanges: exchanges.to_vec(),
    }
}

/// Returns the path without losses and other random effects. A browser that loads a page over this path
/// learns the length of its queue.
pub(crate) fn lossless(link: &LinkSpec) -> LinkSpec {
    let lossless = |direction: &DirectionSpec| DirectionSpec {
        rate: direction.rate.clone(),
        queue: direction.queue,
        ..quiet_direction(direction)
    };
    LinkSpec { down: lossless(&link.down), up: lossless(&link.up), seed: link.seed }
}

fn quiet_direction(direction: &DirectionSpec) -> DirectionSpec {
    DirectionSpec {
        delay: direction.delay,
        middleboxes: direction.middleboxes.clone(),
        ..DirectionSpec::default()
    }
}

/// Returns the path with only its delay and middleboxes, so that nothing depends on chance or load.
fn quiet(link: &LinkSpec) -> LinkSpec {
    LinkSpec { down: quiet_direction(&link.down), up: quiet_direction(&link.up), seed: link.seed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::{TransactionSpec, transaction};
    use brisk_link::LinkSpec;

    #[test]
    fn earlier_connections_save_a_round_trip() {
        let link = LinkSpec::parse("--rtt 100ms").unwrap();
        let prior_knowledge = PriorKnowledge::over(&link).unwrap();
        let spec = TransactionSpec::new(&link, 5_000);
        let known = TransactionSpec { known: Some(&prior_knowledge), fast_open: true, ..spec.clone() };
        let took = |spec: &TransactionSpec<'_>| transaction(spec, 1).unwrap().completion;
        assert_eq!(took(&spec), Some(Duration::from_millis(200)));
        assert_eq!(took(&known), Some(Duration::from_millis(100)));
    }

    #[test]
    fn a_lost_syn_costs_one_round_trip_and_a_half() {
        let link = LinkSpec::parse("--rtt 100ms --loss up:list:1").unwrap();
        let prior_knowledge = PriorKnowledge::over(&link).unwrap();
        let known = TransactionSpec {
            known: Some(&prior_knowledge),
            fast_open: true,
            ..TransactionSpec::new(&link, 5_000)
        };
        let completion = transaction(&known, 1).unwrap().completion;
        assert_eq!(
            completion,
            Some(Duration::from_millis(350)),
            "a client without the round-trip time needs 1200 ms"
        );
    }
    #[test]
    fn path_that_drops_data_on_a_syn_costs_half_a_round_trip() {
        let link = LinkSpec::parse("--rtt 100ms --middlebox drop-syn-data").unwrap();
        let prior_knowledge = PriorKnowledge::over(&link).unwrap();
        let known = TransactionSpec {
            known: Some(&prior_knowledge),
            fast_open: true,
            ..TransactionSpec::new(&link, 5_000)
        };
        assert_eq!(transaction(&known, 1).unwrap().completion, Some(Duration::from_millis(250)));
    }
}
