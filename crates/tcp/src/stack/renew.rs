//! A new stack in the storage of an old one.
//!
//! A simulation creates new stacks for every short transfer, so that only the seed determines the result.
//! Without the old storage each stack would have to grow its lists again.

use super::challenge::AnswerLimit;
use super::isn::SecretSource;
use super::moves::Moves;
use super::reset::RESETS_PER_SECOND;
use super::syn_cookie::SynCookieIssuer;
use super::{Allowances, Answers, Reports, Shard, Stack, StackStats};
use crate::config::StackConfig;
use crate::conn_id::first_generation;
use crate::error::ConfigError;
use crate::four_tuple::KeyedHash;
use crate::keys::{Purpose, Seed};
use crate::time::Instant;

impl Stack {
    /// Resets this stack to the state of [`Stack::new`] with `config` and `seed`. Only storage remains: that
    /// of connections, listeners, queues and memories.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// client.connect(address, &ConnectConfig::default(), now)?;
    /// client.renew(at("10.0.0.1"), 2)?;
    /// assert_eq!(client.connections(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::new`]; the stack is unchanged then.
    pub fn renew(&mut self, config: StackConfig, seed: impl Into<Seed>) -> Result<(), ConfigError> {
        self.reseed(config, &seed.into())
    }

    fn reseed(&mut self, config: StackConfig, seed: &Seed) -> Result<(), ConfigError> {
        config.validate()?;
        let hash = KeyedHash::new(seed);
        let first = first_generation(&hash);
        let Stack {
            config: old_config,
            stats,
            clock,
            slots,
            listeners,
            listening,
            requests,
            half_open,
            time_wait,
            demux,
            deadlines,
            ready,
            answers,
            early,
            events,
            reports,
            memory,
            lent,
            latest_tcp,
            secrets,
            ports,
            cookies,
            challenges,
            resets,
            allowances,
            fast_open,
            paths,
            gentle_memory,
            controllers,
            shard,
            moves,
        } = self;
        // Connections, listeners and TIME-WAITs.
        slots.renew(first);
        listeners.renew(first);
        listening.clear();
        *requests = None;
        half_open.clear();
        time_wait.renew(config.msl);
        demux.renew(hash.clone());
        // Queues.
        deadlines.clear();
        ready.clear();
        *answers = Answers::default();
        early.clear();
        events.clear();
        *reports = Reports::default();
        *lent = None;
        // Memories and counters.
        memory.renew(&config);
        fast_open.renew(&config, seed, &hash);
        gentle_memory.renew(config.path_entries, hash.clone());
        paths.renew(config.path_entries, hash);
        *allowances = Allowances::default();
        controllers.clear();
        *shard = Shard::default();
        *moves = Moves::default();
        *stats = StackStats::default();
        *clock = Instant::ZERO;
        *latest_tcp = None;
        // Random values.
        *secrets = SecretSource::new(seed);
        ports.renew(&config.ephemeral_ports, seed);
        *cookies = SynCookieIssuer::new(seed);
        *challenges = AnswerLimit::new(config.challenge_acks_per_second, seed, Purpose::ChallengeLimit);
        *resets = AnswerLimit::new(RESETS_PER_SECOND, seed, Purpose::ResetLimit);
        *old_config = config;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::config::{ConnectConfig, ListenConfig, TcpConfig};
    use crate::stack::Rx;
    use crate::time::Instant;

    const NOW: Instant = Instant::from_millis(1);

    fn config(last: u8) -> StackConfig {
        StackConfig { addresses: [[10, 0, 0, last].into()].into(), observe: true, ..StackConfig::default() }
    }

    fn pair(seed: u64) -> [Stack; 2] {
        [1, 2].map(|last| Stack::new(config(last), seed + u64::from(last)).expect("valid"))
    }

    /// Exchanges packets until neither stack has more, drops those for which `lost` is true, and records all
    /// of them.
    fn exchange(stacks: &mut [Stack; 2], lost: impl Fn(usize) -> bool, packets: &mut Vec<Vec<u8>>) {
        let mut packet = Vec::new();
        let mut moved = true;
        while core::mem::take(&mut moved) {
            for from in 0..2 {
                while stacks[from].poll_transmit(NOW, &mut packet).is_some() {
                    moved = true;
                    packets.push(packet.clone());
                    if !lost(from) {
                        stacks[1 - from].on_packet(&packet, Rx::default(), NOW);
                    }
                }
            }
        }
    }

    /// Returns the packets of two stacks until one connection is open, one in TIME-WAIT and one half open.
    fn conversation(stacks: &mut [Stack; 2]) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let remote: SocketAddr = ([10, 0, 0, 2], 80).into();
        let listen = ListenConfig { tcp: TcpConfig::planned(30), ..ListenConfig::default() };
        let listener = stacks[1].listen(remote, listen).expect("the port is free");
        let connect = ConnectConfig { tcp: TcpConfig::planned(30), ..ConnectConfig::default() };
        for is_closed in [false, true] {
            let client = stacks[0].connect(remote, &connect, NOW).expect("a port is free");
            exchange(stacks, |_| false, &mut packets);
            let (server, _) = stacks[1].accept(listener).expect("the handshake is over");
            stacks[1].write(server, &[7; 5_000], NOW).expect("there is room");
            exchange(stacks, |_| false, &mut packets);
            if is_closed {
                stacks[0].read(client, &mut [0; 5_000], NOW).expect("it has arrived");
                stacks[0].release(client, NOW);
                exchange(stacks, |_| false, &mut packets);
                stacks[1].release(server, NOW);
                exchange(stacks, |_| false, &mut packets);
            }
        }
        stacks[0].connect(remote, &connect, NOW).expect("a port is free");
        exchange(stacks, |from| from == 1, &mut packets);
        assert_eq!((stacks[0].time_waits(), stacks[1].half_open()), (1, 1));
        packets
    }

    fn fields(stack: &Stack) -> String {
        format!("{stack:?}")
    }

    #[test]
    fn renewed_stack_behaves_as_a_new_one() {
        let mut again = pair(1);
        conversation(&mut again);
        for (stack, last) in again.iter_mut().zip([1, 2]) {
            stack.renew(config(last), 5 + u64::from(last)).expect("valid");
        }
        let mut new = pair(5);
        assert_eq!(again.each_ref().map(fields), new.each_ref().map(fields));
        assert_eq!(conversation(&mut again), conversation(&mut new), "to the byte");
        assert_eq!(again.each_ref().map(fields), new.each_ref().map(fields));
    }

    #[test]
    fn failed_renewal_leaves_the_stack_unchanged() {
        let mut stacks = pair(1);
        conversation(&mut stacks);
        let before = fields(&stacks[0]);
        stacks[0].renew(StackConfig { mtu: 5, ..config(1) }, 2).expect_err("the MTU is out of range");
        assert_eq!(fields(&stacks[0]), before);
    }
}
