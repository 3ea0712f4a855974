//! The surroundings of a transaction: everything beyond its link and its sizes.

use std::time::Duration;

use brisk_link::{Link, LinkSpec, Offered};
use brisk_runtime::profile::Profile;
use brisk_sim::seeds;
use brisk_sim::transaction::{TransactionError, TransactionResult, TransactionSpec, transaction_in};
use brisk_sim::world::Arena;
use brisk_wire::Instant;
use rand_core::RngCore;

/// Time between two packets of a burst, as from a server on a gigabit link.
const SPACING: Duration = Duration::from_micros(12);
const PACKET: usize = 1500;

/// The surroundings of a transaction. The default has none.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scenario {
    /// Paths. Each transaction uses one of them, drawn from its seed. Empty: the path of the comparison.
    pub paths: Vec<LinkSpec>,
    /// Time for which the server computes a response.
    pub think: Duration,
    /// Number of earlier transactions on the open connection.
    pub earlier: u32,
    /// Variation of a page's computations between loads, thousandths.
    pub spread: u16,
    /// The second hop, over which the server fetches its responses.
    pub backend: Option<Backend>,
    /// Other flows on the same link. They are measured instead of the transaction.
    pub beside: Option<Beside>,
    /// Bursts of packets instead of connections.
    pub burst: Option<Burst>,
}

/// A second hop: the server fetches each response over an open connection before it answers.
#[derive(Clone, PartialEq, Debug)]
pub struct Backend {
    /// The path between the server and its backend.
    pub link: LinkSpec,
    /// The TCP of that hop, for each arm of the comparison.
    pub arms: Vec<Profile>,
}

/// Flows of the arm and plain bulk flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beside {
    /// Plain bulk flows.
    pub plain: u32,
    /// Flows, or clients, of the arm.
    pub others: u32,
    /// Duration.
    pub takes: Duration,
    /// Pause of the arm's clients before each response; `None`: bulk flows.
    pub pause: Option<Duration>,
}

/// Bursts that arrive at a queue which other traffic has filled to a random level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// Packets of the shortest burst, 1 or more.
    pub min: u32,
    /// Packets of the longest burst, at most 64.
    pub max: u32,
}

impl Backend {
    /// Fetches a response over the second hop.
    pub(crate) fn fetch(
        &self,
        arm: usize,
        request: u32,
        response: u64,
        seed: u64,
        arena: &mut Arena,
    ) -> Result<TransactionResult, TransactionError> {
        let tcp = &self.arms[arm].tcp;
        let spec = TransactionSpec {
            request,
            established: true,
            client: tcp.clone(),
            server: tcp.clone(),
            ..TransactionSpec::new(&self.link, response)
        };
        transaction_in(&spec, seeds::derive(seed, "backend"), arena)
    }
}

impl Burst {
    /// Sends a burst into the queue of the down direction; `lost_at` of the result has the lost packets.
    pub(crate) fn run(&self, link: &LinkSpec, seed: u64) -> TransactionResult {
        let mut rng = brisk_link::seeds::rng(seed, "burst");
        let mut below = |n: u32| rng.next_u32() % n.max(1);
        let packets = self.min + below(self.max.saturating_sub(self.min) + 1);
        let mut path: Link<Vec<u8>> = Link::new(link, seed);
        // Other traffic occupies part of the queue. Every level has the same probability.
        let free = (0..)
            .take_while(|_| matches!(path.down.offer(vec![0; PACKET], Instant::ZERO), Offered::Queued))
            .take(MAX_FREE as usize)
            .count();
        let mut path: Link<Vec<u8>> = Link::new(link, seed);
        for _ in 0..below(free as u32 + 1) {
            path.down.offer(vec![0; PACKET], Instant::ZERO);
        }
        let mut result = TransactionResult { segments: u64::from(packets), ..TransactionResult::default() };
        for position in 0..packets {
            let now = Instant::ZERO + SPACING * position;
            while path.down.poll(now).is_some() {}
            if !matches!(path.down.offer(vec![0; PACKET], now), Offered::Queued) {
                result.lost_at |= 1 << position;
                result.dropped += 1;
            }
        }
        result
    }
}

/// Maximum number of packets in a queue of [`Burst::run`].
const MAX_FREE: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_that_meets_a_full_queue_loses_its_end() {
        let link = LinkSpec::parse("--rtt 100ms --rate 4mbit --queue 20p").unwrap();
        let burst = Burst { min: 10, max: 10 };
        let met: Vec<TransactionResult> = (0..200).map(|seed| burst.run(&link, seed)).collect();
        assert!(met.iter().all(|burst| burst.segments == 10));
        let lossy: Vec<u64> = met.iter().map(|burst| burst.lost_at).filter(|lost| *lost != 0).collect();
        assert!(lossy.len() > 50, "about half of the levels leave no space for ten packets: {}", lossy.len());
        assert!(lossy.iter().all(|lost| lost >> 9 == 1), "the last packet is lost if any is");
        assert!(met.iter().all(|burst| u64::from(burst.lost_at.count_ones()) == burst.dropped));
    }
}
