//! A hostile wire against what recovery promises: loss, reordering, duplication, delay spikes and lost
//! acknowledgements by chance. `BRISK_SEEDS` sets how many wires are tried; the seed of a failure is in
//! its message.

use arrayvec::ArrayVec;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::connection::Counters;

/// What chance does to packets; rates in one of a thousand.
#[derive(Debug)]
pub(super) struct Hazard {
    rng: ChaCha8Rng,
    loss: [u32; 2],
    duplicate: u32,
    reorder: u32,
    /// Everything that is sent in such a stretch of time is held until its end.
    spike: Option<(Instant, Instant)>,
}

impl Hazard {
    fn of(&mut self, permille: u32) -> bool {
        self.rng.next_u32() % 1000 < permille
    }

    /// How much later than usual each copy of a packet arrives.
    pub(super) fn fate(&mut self, who: usize, now: Instant) -> ArrayVec<Duration, 2> {
        let mut copies = ArrayVec::new();
        let (lost, twice, late) = (self.of(self.loss[who]), self.of(self.duplicate), self.of(self.reorder));
        let by = Duration::from_millis(u64::from(self.rng.next_u32() % 60));
        let spike = self.spike.filter(|(from, until)| (*from..*until).contains(&now));
        let held = spike.map_or(Duration::ZERO, |(_, until)| until.saturating_since(now));
        if !lost {
            copies.push(held + if late { by } else { Duration::ZERO });
            if twice {
                copies.push(held + by);
            }
        }
        copies
    }
}

fn seeds(usual: u64) -> u64 {
    std::env::var("BRISK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

/// Watches C while it sends.
struct Watch {
    seed: u64,
    counters: Counters,
    /// SND.UNA, and the longest timeout in force since it moved there.
    progress: (SeqNum, Duration),
    /// SND.NXT at the last reduction that a timeout did not cause.
    cut: Option<SeqNum>,
}

impl Watch {
    fn look(&mut self, connection: &Connection, now: Instant) {
        let (seed, stats, view) = (self.seed, connection.stats(), connection.view());
        assert!(stats.cwnd >= view.mss && stats.ssthresh >= 2 * view.mss, "seed {seed}: {stats:?}");
        let since = if view.una == self.progress.0 { self.progress.1 } else { Duration::ZERO };
        self.progress = (view.una, since.max(stats.rto));
        if view.una != view.nxt {
            // "No stall beyond the RTO": whatever happens, something is tried again by then.
            let wake = connection.next_timeout();
            let in_time = wake.is_some_and(|at| at <= now + self.progress.1);
            assert!(in_time, "seed {seed}: nothing before {wake:?}: {stats:?}");
        }
        let Counters { reductions, timeouts, undos, .. } = stats.counters;
        if undos > self.counters.undos {
            self.cut = None;
        }
        if reductions > self.counters.reductions && timeouts == self.counters.timeouts {
            let inside = self.cut.is_some_and(|cut| view.una.lt(cut));
            assert!(!inside, "seed {seed}: reduced twice in one window: {stats:?}");
            self.cut = Some(view.nxt);
        }
        self.counters = stats.counters;
    }
}

/// 40 segments from C to S over a wire of `seed`; returns what C counted.
fn transfer(seed: u64, config: TcpConfig, hazard: impl FnOnce(ChaCha8Rng, Instant) -> Hazard) -> Counters {
    const LEN: usize = 40_000;
    let mut world = World::open(TcpConfig { max_segment: Some(1012), ..config });
    world.hazard = Some(hazard(ChaCha8Rng::seed_from_u64(seed), world.now));
    let now = world.now;
    let data = vec![7; LEN];
    assert_eq!(world.end(C).write(&data, now), Ok(LEN), "seed {seed}");
    let mut watch =
        Watch { seed, counters: Counters::default(), progress: (SeqNum(0), Duration::ZERO), cut: None };
    let (until, mut got) = (now + Duration::from_secs(600), 0);
    while got < LEN || !world.end(C).tx.scoreboard.is_empty() {
        assert!(world.step(until), "seed {seed}: {got} of {LEN} after ten minutes");
        got += world.read_all(S).len();
        let now = world.now;
        watch.look(world.end(C), now);
    }
    assert_eq!(got, LEN, "seed {seed}");
    world.run_for(3_000);
    world.end(C).stats().counters
}

fn configs(seed: u64) -> TcpConfig {
    match seed % 4 {
        0 | 1 => TcpConfig::default(),
        2 => TcpConfig::of_2012_with_reactive(),
        _ => TcpConfig { timestamps: false, ..TcpConfig::default() },
    }
}

#[test]
fn whatever_the_wire_does_nothing_stalls_and_a_window_is_reduced_once() {
    for seed in 0..seeds(150) {
        transfer(seed, configs(seed), |mut rng, now| {
            let mut below = |limit: u32| rng.next_u32() % limit;
            let loss = [below(100), below(100)];
            let (duplicate, reorder) = (below(50), below(100));
            let from = now + Duration::from_millis(u64::from(below(500)));
            let spike =
                (below(3) == 0).then(|| (from, from + Duration::from_millis(u64::from(below(1_500)))));
            Hazard { rng, loss, duplicate, reorder, spike }
        });
    }
}

#[test]
fn where_nothing_is_overtaken_or_late_no_reduction_is_taken_back() {
    // 353: the segment at SND.UNA was retransmitted in the recovery before.
    for seed in (0..seeds(60)).chain([353]) {
        let counters = transfer(seed, TcpConfig::default(), |mut rng, _| {
            let loss = [rng.next_u32() % 100, 0];
            Hazard { rng, loss, duplicate: 0, reorder: 0, spike: None }
        });
        assert_eq!(counters.undos, 0, "seed {seed}: {counters:?}");
    }
}

#[test]
fn where_nothing_is_lost_every_reduction_is_taken_back() {
    // 3521: a recovery begins with half a segment of room below ssthresh.
    for seed in (0..seeds(60)).chain([3521]) {
        let counters = transfer(seed, TcpConfig::default(), |rng, now| {
            let from = now + Duration::from_millis(250);
            let spike = (seed % 2 == 0).then(|| (from, from + Duration::from_millis(600)));
            Hazard { rng, loss: [0, 0], duplicate: 10, reorder: 30, spike }
        });
        assert_eq!(
            (counters.reductions, counters.masked_losses),
            (counters.undos, 0),
            "seed {seed}: {counters:?}"
        );
    }
}
