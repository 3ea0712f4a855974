//! A client that has been to the server before.
//!
//! Fast Open pays from the second connection on. An [`Acquaintance`] is what a first connection over the
//! empty path teaches the client: the server's cookie, its MSS and the round-trip time. It is made once, by
//! two stacks that exchange a SYN and a SYN-ACK, and recalled at the start of every transaction.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, FastOpenConfig, ListenConfig, StackConfig};
use brisk_tcp::error::ConfigError;
use brisk_tcp::fast_open::{CookieKey, FastOpenConnect, FastOpenListen, KeySource};
use brisk_tcp::stack::{Rx, Stack};
use brisk_wire::Instant;

use crate::transaction::{CLIENT, PORT, SERVER};

/// The key of every simulated server: a cookie outlives the world in which it was given.
const KEY: [u8; 16] = *b"brisk simulation";

/// Fast Open of a simulated server.
pub(crate) fn keys() -> FastOpenConfig {
    let primary = CookieKey::new(KEY);
    FastOpenConfig { keys: Some(KeySource::Fixed { primary, backup: None }), ..FastOpenConfig::default() }
}

/// What a client remembers of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquaintance {
    stored: String,
}

impl Acquaintance {
    /// Makes the acquaintance over a path with this round-trip time.
    ///
    /// # Errors
    /// None in practice: the configuration is the default one.
    pub fn over(rtt: Duration) -> Result<Acquaintance, ConfigError> {
        let stack =
            |address| StackConfig { addresses: vec![address], fast_open: keys(), ..StackConfig::default() };
        let (mut client, mut server) = (Stack::new(stack(CLIENT), 1)?, Stack::new(stack(SERVER), 2)?);
        let (there, back) = (Instant::ZERO + rtt / 2, Instant::ZERO + rtt);
        let address = SocketAddr::new(SERVER, PORT);
        let listen = ListenConfig { fast_open: Some(FastOpenListen::default()), ..ListenConfig::default() };
        let connect =
            ConnectConfig { fast_open: Some(FastOpenConnect::default()), ..ConnectConfig::default() };
        // Both addresses are the stacks' own, and nothing has the port: neither can be refused.
        let listening = server.listen(address, listen).is_ok();
        let connecting = client.connect(address, &connect, Instant::ZERO).is_ok();
        debug_assert!(listening && connecting, "two fresh stacks");
        carry(&mut client, Instant::ZERO, &mut server, there);
        carry(&mut server, there, &mut client, back);
        Ok(Acquaintance { stored: client.export_fast_open_cache(back) })
    }

    /// Lets a client remember.
    pub(crate) fn recall(&self, client: &mut Stack) {
        let recalled = client.import_fast_open_cache(&self.stored, Instant::ZERO);
        debug_assert!(recalled.is_ok(), "as it was written");
    }
}

/// Brings what one stack sends to the other.
fn carry(from: &mut Stack, sent: Instant, to: &mut Stack, arrived: Instant) {
    let mut packet = Vec::new();
    while from.poll_transmit(sent, &mut packet).is_some() {
        to.on_packet(&packet, Rx::default(), arrived);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::{TransactionSpec, transaction};
    use brisk_link::LinkSpec;

    #[test]
    fn an_acquaintance_saves_a_round_trip() {
        let link = LinkSpec::parse("--rtt 100ms").unwrap();
        let acquaintance = Acquaintance::over(link.base_rtt()).unwrap();
        let spec = TransactionSpec::new(&link, 5_000);
        let known = TransactionSpec { fast_open: Some(&acquaintance), ..spec.clone() };
        let took = |spec: &TransactionSpec<'_>| transaction(spec, 1).unwrap().completion;
        assert_eq!(took(&spec), Some(Duration::from_millis(200)));
        assert_eq!(took(&known), Some(Duration::from_millis(100)));
    }

    #[test]
    fn a_lost_syn_costs_one_round_trip_and_a_half() {
        let link = LinkSpec::parse("--rtt 100ms --loss up:list:1").unwrap();
        let acquaintance = Acquaintance::over(link.base_rtt()).unwrap();
        let known = TransactionSpec { fast_open: Some(&acquaintance), ..TransactionSpec::new(&link, 5_000) };
        let completion = transaction(&known, 1).unwrap().completion;
        assert_eq!(completion, Some(Duration::from_millis(350)), "without a memory it would be 1200 ms");
    }
}
