//! Corrective on a path with every kind of fault. The bytes that arrive are those that were sent, or the
//! connection fails with an error.

use std::ops::Add;
use std::time::Duration;

use brisk_tcp::config::{
    ConnectConfig, CorrectiveConfig, EcnMode, FecCode, FecProfile, ListenConfig, MechanismConfig,
    ProactiveConfig, StackConfig, TcpConfig,
};
use brisk_tcp::connection::ConnStats;
use brisk_tcp::mechanism::GentleOutcome;
use brisk_wire::{Gentle, Segment, TcpHeader};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::harness::{A, B, Channel, Pair, Side, packet, pattern, stack_config};
use crate::hostile::Exchange;

/// Fault that the path applies to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Removes the option.
    Strip,
    /// Changes a byte of parity, and the checksum with it.
    Flip,
    /// Changes a length of the option.
    Lie,
    /// Splits the payload into two segments with the same options.
    Split,
    /// Splits a segment that is not parity.
    SplitData,
    /// Removes the option of parity, so that parity looks like data.
    Alone,
}

/// The random faults of a path.
struct Path {
    chance: ChaCha8Rng,
    permille: u32,
    faults: Vec<Fault>,
}

impl Path {
    fn new(seed: u64, all: &[Fault]) -> Path {
        let mut chance = ChaCha8Rng::seed_from_u64(seed ^ 0x9e37);
        let faults = all.iter().copied().filter(|_| chance.next_u32() % 2 == 0).collect();
        Path { permille: [0, 20, 200, 1000][chance.next_u32() as usize % 4], chance, faults }
    }

    /// Applies a fault to a packet; `None` if the packet is unchanged.
    fn change(&mut self, segment: &Segment<'_>) -> Option<Vec<(TcpHeader, Vec<u8>)>> {
        if self.faults.is_empty() || self.chance.next_u32() % 1000 >= self.permille {
            return None;
        }
        let fault = self.faults[self.chance.next_u32() as usize % self.faults.len()];
        let (mut tcp, mut payload) = (segment.tcp.clone(), segment.payload.to_vec());
        let parity = tcp.options.gentle.is_some_and(|option| option.is_encoded());
        match fault {
            Fault::Strip => tcp.options.gentle = None,
            Fault::Flip if parity && !payload.is_empty() => {
                let at = self.chance.next_u32() as usize % payload.len();
                payload[at] ^= 1 << (self.chance.next_u32() % 8);
            }
            Fault::Lie => match &mut tcp.options.gentle {
                Some(Gentle::EncF2 { enc_len, start_off, .. } | Gentle::EncRs { enc_len, start_off, .. }) => {
                    let by = 1 + self.chance.next_u32() % 3000;
                    if by.is_multiple_of(2) {
                        *enc_len = (*enc_len).saturating_sub(by).max(1)
                    } else {
                        *start_off += by
                    }
                }
                Some(Gentle::Fail { lost_len, .. }) => *lost_len /= 2,
                _ => return None,
            },
            Fault::Split | Fault::SplitData
                if payload.len() > 1 && !(parity && fault == Fault::SplitData) =>
            {
                let second = payload.split_off(payload.len() / 2);
                let mut rest = tcp.clone();
                rest.seq = tcp.seq + payload.len() as u32;
                tcp.flags = tcp.flags.without(brisk_wire::Flags::FIN);
                return Some(vec![(tcp, payload), (rest, second)]);
            }
            Fault::Alone if parity => tcp.options.gentle = None,
            Fault::Flip | Fault::Split | Fault::SplitData | Fault::Alone => return None,
        }
        Some(vec![(tcp, payload)])
    }
}

/// Returns the faults that the path may apply to a profile. F1 accepts changed bytes and lengths, and parity
/// in two parts.
fn faults(profile: FecProfile) -> &'static [Fault] {
    match profile {
        #[cfg(feature = "historical")]
        FecProfile::F1 => &[Fault::Strip, Fault::SplitData, Fault::Alone],
        _ => &[Fault::Strip, Fault::Flip, Fault::Lie, Fault::Split, Fault::Alone],
    }
}

fn configs(chance: &mut ChaCha8Rng, profile: FecProfile) -> TcpConfig {
    let mut below = |limit: u32| chance.next_u32() % limit;
    let code = [FecCode::Xor, FecCode::XorInterleaved, FecCode::ReedSolomon][below(3) as usize];
    let corrective = CorrectiveConfig {
        profile,
        code,
        parities: 1 + below(4) as u8,
        delay_divisor: [1, 4, 16][below(3) as usize],
        tail_ack: below(2) == 0,
        ..CorrectiveConfig::default()
    };
    let proactive = (below(3) == 0).then(ProactiveConfig::default);
    let mechanisms =
        MechanismConfig { corrective: Some(corrective), proactive, ..MechanismConfig::default() };
    TcpConfig {
        nodelay: below(2) == 0,
        ecn: if below(4) == 0 { EcnMode::On } else { EcnMode::Off },
        mechanisms,
        ..TcpConfig::default()
    }
}

/// Parity, copies and retransmissions are the same whether their data is in one buffer or in many.
#[test]
fn given_bytes_are_sent_and_repaired_like_copied_ones() {
    let corrective = Some(CorrectiveConfig::default());
    let proactive = Some(ProactiveConfig::default());
    for (corrective, proactive) in
        [(None, None), (corrective, None), (None, proactive), (corrective, proactive)]
    {
        let mechanisms = MechanismConfig { corrective, proactive, ..MechanismConfig::default() };
        let tcp = TcpConfig { mechanisms, ..TcpConfig::default() };
        let [copied, given] = [false, true].map(|gives| {
            let mut pair = Pair::new(9);
            pair.channel =
                Channel { loss: 20, duplicate: 10, jitter: Duration::from_millis(3), ..pair.channel };
            let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
            let connect = ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() };
            let (at_a, at_b) = pair.established_at(listener, &connect);
            pair.gives = gives;
            for len in [100_000, 50, 9_000, 4_096, 200_000] {
                pair.transfer(A, at_a, at_b, &pattern(len), Duration::from_secs(60));
            }
            let stats = pair.a.conn_stats(at_a).expect("open");
            let lost = stats.counters.segments_lost + stats.counters.masked_losses;
            assert!(lost > 0, "it had something to repair");
            pair.seen.iter().map(|seen| (seen.at, seen.from, seen.tcp.clone(), seen.len)).collect::<Vec<_>>()
        });
        assert!(copied == given, "{:?}", tcp.mechanisms);
    }
}

/// Counters of parity in the exchanges of one or more seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Repairs {
    /// Runs of bytes that were rebuilt.
    runs: u64,
    /// Their bytes.
    bytes: u64,
    /// Repairs that the checksum stopped.
    stopped: u64,
    /// Exchanges that ended in an error.
    failed: u64,
}

impl Add for Repairs {
    type Output = Repairs;

    fn add(self, other: Repairs) -> Repairs {
        Repairs {
            runs: self.runs + other.runs,
            bytes: self.bytes + other.bytes,
            stopped: self.stopped + other.stopped,
            failed: self.failed + other.failed,
        }
    }
}

/// Runs one transfer each way on a path of `seed`; returns the repairs. Panics if a byte is wrong.
fn exchange(seed: u64, profile: FecProfile) -> Repairs {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let tcp = configs(&mut chance, profile);
    let size = 1 + (chance.next_u32() % 40_000) as usize;
    let mut pair = Pair::with_configs(seed, stack_config(A), stack_config(B));
    pair.channel = Channel {
        delay: Duration::from_millis(u64::from(chance.next_u32() % 60)),
        jitter: Duration::from_millis([0, 0, 15][chance.next_u32() as usize % 3]),
        loss: [0, 20, 100][chance.next_u32() as usize % 3],
        duplicate: [0, 30][chance.next_u32() as usize % 2],
    };
    let mut path = Path::new(seed, faults(profile));
    pair.mangle = Some(Box::new(move |from: Side, segment: &Segment<'_>| {
        let to = from.other();
        let changed = path.change(segment)?;
        let again = changed
            .iter()
            .map(|(tcp, payload)| packet(from.addr(tcp.src_port), to.addr(tcp.dst_port), tcp, payload));
        Some(again.collect())
    }));
    let mut repaired = [Repairs::default(); 2];
    let transfer = Exchange { seed, size, tcp: &tcp, limit: Duration::from_secs(900) };
    let whole = transfer.run(&mut pair, |pair, side, id| {
        if let Some(ConnStats { counters, .. }) = pair.stack(side).conn_stats(id) {
            repaired[usize::from(side == B)] = Repairs {
                runs: counters.repaired_by_parity,
                bytes: counters.parity.repaired_bytes,
                stopped: counters.parity.failed_checksum,
                failed: 0,
            };
        }
    });
    repaired[0] + repaired[1] + Repairs { failed: u64::from(!whole), ..Repairs::default() }
}

/// The part that every test run includes.
#[test]
fn not_a_byte_is_wrong_whatever_the_path_does_to_parity() {
    let Repairs { runs, failed, .. } =
        (0..150).map(|seed| exchange(seed, FecProfile::F2)).fold(Repairs::default(), Add::add);
    assert!(runs > 20 && failed < 15, "parity was at work: {runs} repairs, {failed} of 150 exchanges failed");
}

/// F1 on both ends. Only timestamps protect it from a path that removes the option.
#[cfg(feature = "historical")]
#[test]
fn not_a_byte_of_f1_is_wrong_whatever_is_done_to_its_options() {
    let exchanges = (0..200).map(|seed| exchange(seed, FecProfile::F1));
    let Repairs { runs, failed, .. } = exchanges.fold(Repairs::default(), Add::add);
    assert!(runs > 20 && failed < 20, "parity was at work: {runs} repairs, {failed} of 200 exchanges failed");
}

/// Returns a number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs the number of paths given by `BRISK_SEEDS`, from the seed `BRISK_FIRST_SEED` on, and prints the
/// repairs. So several processes can share a million paths.
fn try_many(profile: FecProfile, otherwise: u64) {
    let (first, paths) = (number("BRISK_FIRST_SEED", 0), number("BRISK_SEEDS", otherwise));
    let mut sum = Repairs::default();
    for (tried, seed) in (1..=paths).zip(first..) {
        sum = sum + exchange(seed, profile);
        if tried % 50_000 == 0 || tried == paths {
            let Repairs { runs, bytes, stopped, failed } = sum;
            println!(
                "{tried} paths from seed {first}: {runs} repairs of {bytes} bytes, none wrong; {stopped} \
                 stopped by the checksum, {failed} exchanges ended in an error"
            );
        }
    }
}

/// `cargo test --release -p brisk-tcp --test pair not_a_byte_of_many -- --ignored --nocapture`; see
/// [`try_many`].
#[test]
#[ignore = "a million paths take half an hour: run it by hand, in release"]
fn not_a_byte_of_many_is_wrong() {
    try_many(FecProfile::F2, 1_000_000);
}

/// `cargo test --release -p brisk-tcp --test pair not_a_byte_of_f1_on_many -- --ignored --nocapture`; see
/// [`try_many`].
#[cfg(feature = "historical")]
#[test]
#[ignore = "a hundred thousand paths take minutes: run it by hand, in release"]
fn not_a_byte_of_f1_on_many_paths_is_wrong() {
    try_many(FecProfile::F1, 100_000);
}

/// If only one end uses a mechanism, only the offer in its SYN is visible.
#[test]
fn beside_an_unaware_peer_everything_but_the_syn_is_as_without() {
    let traffic = |corrective: Option<CorrectiveConfig>| {
        let mechanisms = MechanismConfig { corrective, ..MechanismConfig::default() };
        let tcp = TcpConfig { mechanisms, ..TcpConfig::default() };
        let mut pair = Pair::new(3);
        pair.record = true;
        let listener = pair.listen(B, 80, ListenConfig::default());
        let at_a = pair.connect_with(A, 80, &ConnectConfig { tcp, ..ConnectConfig::default() });
        pair.run_ms(500);
        let (at_b, _) = pair.b.accept(listener).expect("connected");
        let data = pattern(60_000);
        let _ = pair.write(A, at_a, &data);
        for _ in 0..20 {
            pair.run_ms(100);
            let _ = pair.read(B, at_b);
        }
        let seen = core::mem::take(&mut pair.seen);
        seen.into_iter().skip(1).map(|seen| (seen.at, seen.from, seen.tcp, seen.len)).collect::<Vec<_>>()
    };
    assert_eq!(traffic(None), traffic(Some(CorrectiveConfig::default())));
}

#[test]
fn repair_memory_is_freed_with_the_connections() {
    let mut pair = Pair::with_configs(1, stack_config(A), stack_config(B));
    let mechanisms =
        MechanismConfig { corrective: Some(CorrectiveConfig::default()), ..MechanismConfig::default() };
    let tcp = TcpConfig { mechanisms, ..TcpConfig::default() };
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    pair.transfer(A, at_a, at_b, &pattern(20_000), Duration::from_secs(10));
    assert!(pair.b.repair_memory() >= 20_000 / 2, "{}", pair.b.repair_memory());
    pair.abort(A, at_a);
    pair.run_ms(50);
    pair.release(B, at_b);
    assert_eq!((pair.b.connections(), pair.b.repair_memory()), (0, 0));
}

#[test]
fn offer_of_a_syn_is_kept_until_its_answer_arrives() {
    let cold = StackConfig { warm_half_open: 0, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), cold);
    let mechanisms =
        MechanismConfig { corrective: Some(CorrectiveConfig::default()), ..MechanismConfig::default() };
    let tcp = TcpConfig { mechanisms, ..TcpConfig::default() };
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    let agreed = [pair.a.conn_stats(at_a), pair.b.conn_stats(at_b)].map(|stats| stats.expect("open").gentle);
    assert!(matches!(agreed[0], GentleOutcome::On(_)), "{agreed:?}");
    assert_eq!(agreed[0], agreed[1]);
}

/// Returns the bytes that B keeps for repairs after each of these transfers (connection, bytes). `limit`: B's
/// limit.
fn kept_after(limit: usize, transfers: &[(usize, usize)]) -> Vec<usize> {
    let tight = StackConfig { fec_mem_total: limit, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), tight);
    let mechanisms =
        MechanismConfig { corrective: Some(CorrectiveConfig::default()), ..MechanismConfig::default() };
    let tcp = TcpConfig { mechanisms, ..TcpConfig::default() };
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
    let open: Vec<_> = (0..4).map(|_| pair.established_at(listener, &connect)).collect();
    let transfer = |&(which, bytes): &(usize, usize)| {
        let (at_a, at_b) = open[which];
        pair.transfer(A, at_a, at_b, &pattern(bytes), Duration::from_secs(10));
        pair.b.repair_memory()
    };
    transfers.iter().map(transfer).collect()
}

#[test]
fn longest_silent_connection_gives_up_its_repair_memory() {
    let transfers = [(0, 20_000), (1, 12_000), (0, 1_000), (2, 16_000), (3, 12_000)];
    let free = kept_after(usize::MAX / 2, &transfers);
    assert!(free.is_sorted() && free[1] > free[0], "{free:?}");
    // The fourth transfer exceeds nine tenths of the limit.
    let limit = free[3] * 100 / 95;
    let kept = kept_after(limit, &transfers);
    assert_eq!(kept[..3], free[..3]);
    assert_eq!(kept[3], free[3] - (free[1] - free[0]), "the second gave up");
    assert!(kept[4] <= limit / 10 * 9, "and somebody again: {kept:?} of {limit}");
}
