//! Memory that outlives a [`World`](crate::World): hosts, links, lists and buffers.
//!
//! Allocating and freeing a world takes as long as simulating a transaction of 5 kB in it. So a caller of
//! many simulations passes the arena from one world to the next. All parts are reset in between, so that no
//! state of a world affects the next one.

use brisk_link::{Link, LinkSpec};
use brisk_tcp::error::ConfigError;
use brisk_tcp::{Stack, StackConfig};

use crate::host::Host;
use crate::schedule::Schedule;
use crate::side::Side;

/// An address as a number, which is faster to compare. IPv4 addresses are mapped to IPv6 (RFC 4291 section
/// 2.5.5.2); packets contain no mapped addresses.
pub(crate) type Address = u128;

const READ_CHUNK: usize = 64 << 10;
const SPARE_BUFFERS: usize = 512;

/// Memory that one world leaves to the next, so that many small worlds allocate little memory.
#[derive(Debug, Default)]
pub struct Arena {
    packets: Vec<Vec<u8>>,
    /// The buffer that applications read into.
    pub(crate) scratch: Vec<u8>,
    /// Hosts of earlier worlds; the last one is used next.
    idle: Vec<Host>,
    lists: Lists,
}

#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) hosts: Vec<Host>,
    /// The host of each address, sorted by address.
    pub(crate) by_address: Vec<(Address, usize)>,
    pub(crate) links: Vec<Link<Vec<u8>>>,
    /// The schedule. Its sources are the directions of the links, `up` first, and then the hosts.
    pub(crate) schedule: Schedule,
}

impl Arena {
    /// Returns empty lists for a new world, with links of these descriptions and seeds.
    pub(crate) fn prepare<'a>(&mut self, links: impl ExactSizeIterator<Item = (&'a LinkSpec, u64)>) -> Lists {
        self.scratch.resize(READ_CHUNK, 0);
        let mut lists = std::mem::take(&mut self.lists);
        let Lists { hosts: _, by_address, links: old, schedule } = &mut lists;
        by_address.clear();
        schedule.clear();
        old.truncate(links.len());
        for (index, (spec, seed)) in links.enumerate() {
            match old.get_mut(index) {
                Some(link) => link.renew(spec, seed),
                None => old.push(Link::new(spec, seed)),
            }
        }
        lists
    }

    /// Returns a buffer to write a packet into; [`Arena::packet`] then takes the packet.
    pub(crate) fn blank(&mut self) -> &mut Vec<u8> {
        if self.packets.is_empty() {
            self.packets.push(Vec::new());
        }
        let last = self.packets.len() - 1;
        &mut self.packets[last]
    }

    /// Takes the packet that was written last.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        self.packets.pop().unwrap_or_default()
    }

    /// Keeps the buffer of a delivered packet for reuse.
    pub(crate) fn recycle(&mut self, packet: Vec<u8>) {
        if self.packets.len() < SPARE_BUFFERS {
            self.packets.push(packet);
        }
    }

    /// Returns a host without applications and connections.
    ///
    /// # Errors
    /// Those of [`Stack::new`].
    #[inline]
    pub(crate) fn host(
        &mut self,
        name: &str,
        side: Side,
        config: StackConfig,
        seed: u64,
    ) -> Result<Host, ConfigError> {
        match self.idle.pop() {
            None => Ok(Host::new(name, side, Box::new(Stack::new(config, seed)?))),
            Some(mut host) => host.renew(name, side, config, seed).map(|()| host),
        }
    }

    /// Keeps the parts of a world for the next one, which uses its hosts in the same order.
    pub(crate) fn keep(&mut self, mut lists: Lists) {
        self.idle.extend(lists.hosts.drain(..).rev());
        for link in &mut lists.links {
            link.clear(&mut |packet| self.recycle(packet));
        }
        self.lists = lists;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::hash::{DefaultHasher, Hasher};
    use std::io::{self, Write};
    use std::rc::Rc;
    use std::time::Duration;

    use brisk_link::LinkSpec;
    use brisk_tcp::TcpConfig;
    use brisk_tcp::config::{CorrectiveConfig, FecCode, ProactiveConfig};

    use super::*;
    use crate::application::Exchange;
    use crate::fast_open::PriorKnowledge;
    use crate::neighbours::{self, NeighbourSpec};
    use crate::page::{self, Activity, LoadSpec, Page, Wait, Work};
    use crate::transaction::{Records, TransactionResult, TransactionSpec, run};

    const LINKS: [&str; 4] = [
        "--rtt 200ms --loss 2%",
        "--rtt 60ms --rate 10mbit --queue 20p --loss 3% --reorder 2%,4ms --duplicate 1% --jitter 3ms",
        "--rtt 100ms --loss after:1%,50% --middlebox split",
        "--rtt 40ms --loss 4% --mtu 900 --middlebox drop-syn-data",
    ];

    #[derive(Clone, Default)]
    struct Digest(Rc<RefCell<DefaultHasher>>);

    impl Write for Digest {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Hasher::write(&mut *self.0.borrow_mut(), bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the result of a transaction, and digests of its capture and its event trace.
    fn all_of(spec: &TransactionSpec<'_>, seed: u64, arena: &mut Arena) -> (TransactionResult, [u64; 2]) {
        let [capture, trace] = [(); 2].map(|()| Digest::default());
        let records =
            Records { capture: Some(Box::new(capture.clone())), trace: Some(Box::new(trace.clone())) };
        let result = run(spec, seed, arena, records).unwrap();
        (result, [capture, trace].map(|digest| digest.0.borrow().finish()))
    }

    /// Returns TCP with each mechanism, one at a time.
    fn arms() -> Vec<TcpConfig> {
        let with = |set: fn(&mut TcpConfig)| {
            let mut tcp = TcpConfig::default();
            set(&mut tcp);
            tcp
        };
        let solomon =
            || CorrectiveConfig { code: FecCode::ReedSolomon, parities: 3, ..CorrectiveConfig::default() };
        let mut both = with(|tcp| tcp.mechanisms.proactive = Some(ProactiveConfig::default()));
        both.mechanisms.corrective = Some(solomon());
        vec![
            TcpConfig::default(),
            TcpConfig::of_2012(),
            TcpConfig::of_2012_with_reactive(),
            with(|tcp| tcp.mechanisms.corrective = Some(CorrectiveConfig::default())),
            both,
            TcpConfig::planned(20),
        ]
    }

    /// Calls `visit` with every variant in every kind of transaction over a link.
    fn each_kind(text: &str, mut visit: impl FnMut(&TransactionSpec<'_>)) {
        let link = LinkSpec::parse(text).unwrap();
        let known = PriorKnowledge::over(&link).unwrap();
        for tcp in arms() {
            let spec = TransactionSpec {
                client: tcp.clone(),
                server: tcp.clone(),
                ..TransactionSpec::new(&link, 12_000)
            };
            visit(&spec);
            visit(&TransactionSpec { known: Some(&known), fast_open: true, ..spec.clone() });
            visit(&TransactionSpec { established: true, earlier: 2, response: 40_000, ..spec });
        }
    }

    /// Runs worlds with additional and different hosts, which leave their memory to the next world.
    fn disturb(arena: &mut Arena, seed: u64) {
        let link = LinkSpec::parse(LINKS[1]).unwrap();
        let download = |host, waits| Activity {
            work: Work::Download { host, request: 300, response: 9_000, think: Duration::ZERO },
            waits,
        };
        let mut activities = vec![download(0, Vec::new())];
        activities.extend((1..6).map(|host| download(host, vec![Wait::Share(0, 300)])));
        let page = Page::new("small", activities).unwrap();
        page::load(&LoadSpec::new(&link, &page), seed, arena).unwrap();
        let beside = NeighbourSpec {
            link: &link,
            plain: 2,
            others: 2,
            tcp: TcpConfig::planned(20),
            short: Some(Exchange { pause: Duration::from_millis(100), ..Exchange::of(10_000) }),
            takes: Duration::from_secs(1),
        };
        neighbours::run(&beside, seed, arena).unwrap();
    }

    #[test]
    fn used_arena_gives_the_same_packets_events_and_results() {
        let mut used = Arena::default();
        let mut seed = 0;
        for _ in 0..3 {
            for link in LINKS {
                each_kind(link, |spec| {
                    seed += 1;
                    let new = all_of(spec, seed, &mut Arena::default());
                    assert_eq!(all_of(spec, seed, &mut used), new, "seed {seed}");
                });
                disturb(&mut used, seed);
            }
        }
    }

    #[test]
    fn results_do_not_depend_on_earlier_simulations_in_the_arena() {
        let link = LinkSpec::parse(LINKS[0]).unwrap();
        let page = Page::new(
            "one",
            vec![Activity {
                work: Work::Download { host: 0, request: 300, response: 30_000, think: Duration::ZERO },
                waits: Vec::new(),
            }],
        )
        .unwrap();
        let mut used = Arena::default();
        for seed in 0..20 {
            disturb(&mut used, seed);
            let load = |arena: &mut Arena| page::load(&LoadSpec::new(&link, &page), seed, arena).unwrap();
            assert_eq!(load(&mut used), load(&mut Arena::default()), "seed {seed}");
        }
    }
}
