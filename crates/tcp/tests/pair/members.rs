//! Connections between the same addresses as members of one path: the shared window, its response to losses,
//! and its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use brisk_tcp::config::{
    CongestionAlgorithm, ConnectConfig, CorrectiveConfig, ListenConfig, ProactiveConfig, TcpConfig,
};
use brisk_tcp::error::WriteError;
use brisk_tcp::stack::SharedPath;
use brisk_tcp::{ConnId, ListenerId};
use brisk_wire::Flags;

use crate::harness::{A, B, Channel, Pair, pattern};

const MSS: u64 = 1448;

fn shared() -> TcpConfig {
    TcpConfig { congestion: CongestionAlgorithm::Bbr, share_path: true, ..TcpConfig::default() }
}

/// Bytes of a transfer that makes its connection a member.
const LONG: usize = 140_000;

/// Returns a pair over 20 ms with `n` connections from A to B that share a path. Each has made a long
/// transfer.
fn members(seed: u64, n: usize, channel: Channel) -> (Pair, ListenerId, Vec<(ConnId, ConnId)>) {
    let mut pair = Pair::new(seed);
    pair.channel = channel;
    pair.record = false;
    let listener = pair.listen(B, 80, ListenConfig::default());
    let connect = ConnectConfig { tcp: shared(), ..ConnectConfig::default() };
    let ends = (0..n).map(|_| member(&mut pair, listener, &connect)).collect();
    pair.run_ms(100);
    (pair, listener, ends)
}

/// Returns a connection from A to B that has become a member of its path.
fn member(pair: &mut Pair, listener: ListenerId, connect: &ConnectConfig) -> (ConnId, ConnId) {
    let (a, b) = pair.established_at(listener, connect);
    pair.transfer(A, a, b, &pattern(LONG), Duration::from_secs(60));
    (a, b)
}

fn path(pair: &Pair) -> Option<SharedPath> {
    pair.a.shared_path(A.ip(), B.ip())
}

/// The same data over each of several connections.
struct Transfers {
    ends: Vec<(ConnId, ConnId)>,
    data: Vec<u8>,
    written: Vec<usize>,
    read: Vec<usize>,
}

impl Transfers {
    fn new(ends: &[(ConnId, ConnId)], bytes: usize) -> Transfers {
        let n = ends.len();
        Transfers { ends: ends.to_vec(), data: pattern(bytes), written: vec![0; n], read: vec![0; n] }
    }

    /// Writes and reads as much as possible on each connection. Returns true when all data has arrived.
    fn go_on(&mut self, pair: &mut Pair) -> bool {
        for (index, &(a, b)) in self.ends.iter().enumerate() {
            while self.written[index] < self.data.len() {
                match pair.write(A, a, &self.data[self.written[index]..]) {
                    Ok(n) => self.written[index] += n,
                    Err(WriteError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            if let Ok(Some(bytes)) = pair.read(B, b) {
                let from = self.read[index];
                assert!(bytes == self.data[from..from + bytes.len()], "wrong bytes");
                self.read[index] += bytes.len();
            }
        }
        self.read.iter().all(|read| *read == self.data.len())
    }
}

#[test]
fn sharing_needs_bbr() {
    let error = TcpConfig { share_path: true, ..TcpConfig::default() }.validate().expect_err("refused");
    assert_eq!(error.key, "share_path");
    shared().validate().expect("allowed");
}

#[test]
fn connections_between_two_addresses_are_members_of_one_path() {
    let (mut pair, _, ends) = members(1, 3, Channel::default());
    assert_eq!(path(&pair).map(|path| path.members), Some(3));
    assert_eq!(pair.b.shared_path(B.ip(), A.ip()), None, "the listener's connections do not share");
    for (a, b) in ends {
        pair.release(A, a);
        pair.release(B, b);
    }
    pair.run(Duration::from_secs(5));
    assert_eq!(path(&pair).map(|path| (path.members, path.in_flight)), Some((0, 0)));
    pair.run(Duration::from_secs(10));
    assert_eq!(path(&pair), None, "ten seconds after the last member");
}

#[test]
fn a_connection_by_itself_shares_nothing() {
    let mut pair = Pair::new(1);
    let (a, b) = pair.established();
    pair.transfer(A, a, b, &pattern(100_000), Duration::from_secs(10));
    assert_eq!(path(&pair), None);
}

/// Runs until a member has sent more than a short transfer, but not all of its data.
fn begin_long_transfer(pair: &mut Pair, ends: &[(ConnId, ConnId)]) {
    let mut transfers = Transfers::new(ends, 8_000_000);
    pair.run_until(Duration::from_secs(10), |pair| {
        transfers.go_on(pair);
        transfers.read[0] > LONG
    });
    assert!(transfers.read[0] < 7_000_000 && path(pair).is_some_and(|path| path.in_flight > 0));
}

/// Returns the state of the path after a connection has sent these pieces, with silence in between.
fn members_after(pieces: &[usize]) -> Option<SharedPath> {
    let (mut pair, _, ends) = members(1, 0, Channel::default());
    assert!(ends.is_empty());
    let connect = ConnectConfig { tcp: shared(), ..ConnectConfig::default() };
    let listener = pair.listen(B, 81, ListenConfig::default());
    let (a, b) = pair.established_at(listener, &connect);
    for &bytes in pieces {
        pair.transfer(A, a, b, &pattern(bytes), Duration::from_secs(10));
        pair.run_ms(100);
    }
    path(&pair)
}

#[test]
fn short_transfers_make_no_member_however_many_they_are() {
    assert_eq!(members_after(&[30_000; 10]), None);
    assert_eq!(members_after(&[30_000, LONG]).map(|path| path.members), Some(1));
}

#[test]
fn a_short_transfer_joins_while_a_long_one_is_under_way() {
    let (mut pair, listener, ends) = members(1, 1, Channel::default());
    let connect = ConnectConfig { tcp: shared(), ..ConnectConfig::default() };
    let (kept, reader) = pair.established_at(listener, &connect);
    pair.transfer(A, kept, reader, &pattern(20_000), Duration::from_secs(10));
    assert_eq!(path(&pair).map(|path| path.members), Some(1), "the long transfer is over");
    pair.run_ms(100);
    begin_long_transfer(&mut pair, &ends);
    let _ = pair.write(A, kept, &pattern(20_000));
    pair.run_ms(1);
    assert_eq!(path(&pair).map(|path| path.members), Some(2));
}

#[test]
fn a_new_member_of_a_known_path_starts_at_its_rate() {
    let (mut pair, listener, ends) = members(1, 1, Channel::default());
    let (a, b) = ends[0];
    pair.transfer(A, a, b, &pattern(3_000_000), Duration::from_secs(20));
    begin_long_transfer(&mut pair, &ends);
    let connect = ConnectConfig { tcp: shared(), ..ConnectConfig::default() };
    let (a, _) = pair.established_at(listener, &connect);
    let window = path(&pair).expect("shared").cwnd;
    assert_eq!(pair.a.conn_stats(a).map(|stats| stats.cwnd), Some(window), "no initial window");
}

#[test]
fn the_members_together_stay_within_the_window_of_the_path() {
    for seed in 0..6 {
        let channel = Channel { loss: 5 * seed as u32, ..Channel::default() };
        let (mut pair, _, ends) = members(seed, 5, channel);
        let mut transfers = Transfers::new(&ends, 400_000);
        let mut over = 0;
        pair.run_until(Duration::from_secs(300), |pair| {
            let done = transfers.go_on(pair);
            let path = path(pair).expect("shared");
            // The pacer may exceed the window by a quantum.
            let quantum = u64::from(path.pacing_rate.unwrap_or(0) as u32 / 1000).max(2 * MSS);
            over = over.max(path.in_flight.saturating_sub(u64::from(path.cwnd) + quantum));
            done
        });
        assert_eq!(over, 0, "seed {seed}");
        pair.run(Duration::from_secs(2));
        let path = path(&pair).expect("shared");
        assert_eq!((path.in_flight, path.waiting), (0, 0), "seed {seed}");
    }
}

/// Lets members write, close, reset and time out. Returns the maximum number of bytes in flight beyond the
/// permitted ones. Permitted are the window of the path, a quantum of its pacer and a probe of each member.
fn most_beyond_the_window(seed: u64, mechanisms: TcpConfig) -> u64 {
    let loss = (seed % 5 * 15) as u32;
    let channel = Channel { loss, jitter: Duration::from_millis(seed % 3), ..Channel::default() };
    let mut pair = Pair::new(seed);
    pair.channel = channel;
    pair.record = false;
    let tcp = TcpConfig { congestion: CongestionAlgorithm::Bbr, share_path: true, ..mechanisms };
    let listen =
        ListenConfig { tcp: TcpConfig { share_path: false, ..tcp.clone() }, ..ListenConfig::default() };
    let listener = pair.listen(B, 80, listen);
    let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
    let mut ends: Vec<_> = (0..4).map(|_| member(&mut pair, listener, &connect)).collect();
    let data = pattern(200_000);
    let mut beyond = 0;
    for round in 0..60usize {
        let index = (round * 5 + seed as usize) % ends.len();
        let (a, b) = ends[index];
        match (round * 7 + seed as usize) % 20 {
            0 => pair.abort(A, a),
            1 => pair.abort(B, b),
            2 => pair.shutdown(A, a),
            // Timeouts: nothing arrives for a second and a half.
            3 => pair.channel.loss = 1000,
            _ => {
                let _ = pair.write(A, a, &data[..1000 << (round % 8)]);
            }
        }
        if (round * 7 + seed as usize) % 20 < 3 {
            pair.release(A, a);
            pair.release(B, b);
            ends.swap_remove(index);
        }
        let span = if pair.channel.loss == 1000 { 1_500 } else { 5 + 11 * (round as u64 % 7) };
        let end = pair.now + Duration::from_millis(span);
        let mut before = path(&pair).expect("shared");
        let mut packets_before = pair.a.stats().packets_out;
        while pair.step(end) {
            for &(_, b) in &ends {
                while matches!(pair.read(B, b), Ok(Some(bytes)) if !bytes.is_empty()) {}
            }
            let now = path(&pair).expect("shared");
            let packets = pair.a.stats().packets_out;
            let sent = (packets - packets_before) * MSS;
            packets_before = packets;
            let quantum = (now.pacing_rate.unwrap_or(0) / 1000).clamp(2 * MSS, 64 << 10);
            // While the path is unknown, each member may send its first four segments.
            let own = if now.is_known { 0 } else { 4 * MSS * u64::from(now.members) };
            let window = u64::from(now.cwnd.max(before.cwnd)) + own;
            let data = now.in_flight - now.redundancy;
            // Data in flight exceeds a window that shrinks. Data also counts as in flight again if its loss
            // proves spurious. Until such data arrives, only a probe of each member may be sent.
            let probes = MSS * u64::from(now.members);
            let exceeded = data.saturating_sub(sent).saturating_sub(window);
            let limit = exceeded.max(quantum) + probes;
            if sent > 0 {
                beyond = beyond.max(data.saturating_sub(window + limit));
            }
            before = now;
        }
        pair.channel.loss = loss;
        while ends.len() < 4 {
            ends.push(member(&mut pair, listener, &connect));
        }
    }
    beyond
}

#[test]
fn members_stay_within_the_window_whatever_happens_to_them() {
    for seed in 0..8 {
        for (name, mechanisms) in mechanisms() {
            assert_eq!(most_beyond_the_window(seed, mechanisms), 0, "seed {seed}, {name}");
        }
    }
}

fn mechanisms() -> [(&'static str, TcpConfig); 4] {
    let mut parity = TcpConfig::default();
    parity.mechanisms.corrective = Some(CorrectiveConfig::default());
    let mut copies = TcpConfig::default();
    copies.mechanisms.proactive = Some(ProactiveConfig::default());
    [
        ("plain", TcpConfig::default()),
        ("parity", parity),
        ("copies", copies),
        ("planner", TcpConfig::planned(25)),
    ]
}

#[test]
fn a_member_that_is_aborted_leaves_its_bytes_in_flight_for_a_while() {
    let (mut pair, _, ends) = members(1, 2, Channel::default());
    let mut transfers = Transfers::new(&ends[..1], 2_000_000);
    pair.run_until(Duration::from_secs(10), |pair| {
        transfers.go_on(pair);
        path(pair).is_some_and(|path| path.in_flight > 50_000)
    });
    pair.abort(A, ends[0].0);
    pair.run_ms(1);
    let gone = path(&pair).expect("shared");
    assert!(gone.departed > 10_000 && gone.members == 1, "{gone:?}");
    assert_eq!(gone.departed, gone.in_flight);
    pair.run_ms(500);
    assert_eq!(path(&pair).map(|path| path.in_flight), Some(0));
    let (a, b) = ends[1];
    pair.transfer(A, a, b, &pattern(100_000), Duration::from_secs(10));
}

#[test]
fn timeout_of_one_member_leaves_the_window_to_the_others() {
    let (mut pair, _, ends) = members(1, 2, Channel::default());
    let mut transfers = Transfers::new(&ends[..1], 3_000_000);
    pair.run_until(Duration::from_secs(20), |pair| transfers.go_on(pair));
    let port = pair.a.local_addr(ends[1].0).expect("open").port();
    // No more segments of the second member arrive.
    pair.tap = Some(Box::new(move |from, segment| {
        from == A && segment.tcp.src_port == port && segment.tcp.flags.contains(Flags::ACK)
    }));
    let _ = pair.write(A, ends[1].0, &pattern(20_000));
    let mut transfers = Transfers::new(&ends[..1], 3_000_000);
    let mut min = u32::MAX;
    pair.run_until(Duration::from_secs(20), |pair| {
        min = min.min(path(pair).expect("shared").cwnd);
        transfers.go_on(pair)
    });
    pair.run(Duration::from_secs(1));
    let timeouts = pair.a.conn_stats(ends[1].0).expect("open").counters.timeouts;
    assert!(timeouts > 0, "the member that is cut off has timed out");
    assert!(min >= 4 * MSS as u32, "{min}: the window did not collapse");
}

/// One member loses segments; a segment of the other arrives late, after it was sent again. The duplicate is
/// reported when both recoveries are over. It does not show that the losses of the first member were
/// mistakes.
#[test]
fn a_dsack_after_the_recovery_undoes_no_losses_of_another_member() {
    let (mut pair, _, ends) = members(1, 2, Channel::default());
    let [lossy, late] = [0, 1].map(|index| pair.a.local_addr(ends[index].0).expect("open").port());
    let held = Rc::new(RefCell::new(None));
    let holder = Rc::clone(&held);
    let (mut lossy_segments, mut late_segments) = (0, 0);
    pair.tap = Some(Box::new(move |from, segment| {
        let is_data = from == A && !segment.payload.is_empty();
        lossy_segments += u32::from(is_data && segment.tcp.src_port == lossy);
        late_segments += u32::from(is_data && segment.tcp.src_port == late);
        if is_data && segment.tcp.src_port == late {
            let is_late = late_segments == 100;
            if is_late {
                *holder.borrow_mut() = Some((segment.tcp.clone(), segment.payload.to_vec()));
            }
            return is_late;
        }
        is_data && (100..160).contains(&lossy_segments) && lossy_segments % 2 == 0
    }));
    let mut transfers = Transfers::new(&ends, 1_000_000);
    pair.run_until(Duration::from_secs(20), |pair| transfers.go_on(pair));
    pair.run_ms(500);
    let undos = |pair: &Pair| pair.a.conn_stats(ends[1].0).expect("open").counters.undos;
    assert!(path(&pair).expect("shared").is_known, "losses have ended the start of the path");
    assert_eq!(undos(&pair), 0);
    let (tcp, payload) = held.take().expect("a segment is late");
    pair.forge(B, &tcp, &payload);
    pair.run_ms(50);
    assert_eq!(undos(&pair), 1, "the member restores its own state");
    assert!(path(&pair).expect("shared").is_known, "the path keeps its response");
}

/// Thirty segments of one member arrive late. Their losses have ended the start of the path by then. The
/// other member is cut off. Its timeouts reduce nothing, so the first member may undo the response.
#[test]
fn a_member_that_is_cut_off_leaves_undos_to_the_others() {
    for is_cut_off in [false, true] {
        let (mut pair, _, ends) = members(1, 2, Channel::default());
        let [late, dead] = [0, 1].map(|index| pair.a.local_addr(ends[index].0).expect("open").port());
        let held = Rc::new(RefCell::new(Vec::new()));
        let holder = Rc::clone(&held);
        let mut segments = 0;
        pair.tap = Some(Box::new(move |from, segment| {
            if from != A || segment.payload.is_empty() {
                return false;
            }
            if segment.tcp.src_port == dead {
                return is_cut_off;
            }
            segments += u32::from(segment.tcp.src_port == late);
            let is_late = (300..360).contains(&segments) && segments % 2 == 0;
            if is_late {
                holder.borrow_mut().push((segment.tcp.clone(), segment.payload.to_vec()));
            }
            is_late
        }));
        let _ = pair.write(A, ends[1].0, &pattern(20_000));
        // The next timeout of the member that is cut off is seconds away then.
        for _ in 0..33 {
            pair.transfer(A, ends[0].0, ends[0].1, &pattern(5_000), Duration::from_secs(1));
            pair.run_ms(100);
        }
        let mut transfers = Transfers::new(&ends[..1], 1_000_000);
        pair.run_until(Duration::from_secs(20), |pair| transfers.go_on(pair));
        pair.run_ms(500);
        let counters = |pair: &Pair, index: usize| pair.a.conn_stats(ends[index].0).expect("open").counters;
        assert_eq!(counters(&pair, 1).timeouts > 0, is_cut_off);
        assert!(path(&pair).expect("shared").is_known, "losses have ended the start of the path");
        for (tcp, payload) in held.take() {
            pair.forge(B, &tcp, &payload);
        }
        pair.run_ms(50);
        assert_eq!(counters(&pair, 0).undos, 1);
        assert!(!path(&pair).expect("shared").is_known, "cut off: {is_cut_off}: the start goes on");
    }
}

#[test]
fn members_come_and_go_and_nothing_is_left() {
    let channel = Channel { loss: 20, jitter: Duration::from_millis(3), ..Channel::default() };
    let (mut pair, listener, mut ends) = members(7, 4, channel);
    let connect = ConnectConfig { tcp: shared(), ..ConnectConfig::default() };
    let data = pattern(60_000);
    for round in 0..40usize {
        let _ = pair.write(A, ends[round % ends.len()].0, &data);
        pair.run_ms(7);
        let (a, b) = ends.remove(round * 7 % ends.len());
        match round % 3 {
            0 => pair.abort(A, a),
            1 => pair.abort(B, b),
            _ => {}
        }
        pair.release(A, a);
        pair.release(B, b);
        ends.push(pair.established_at(listener, &connect));
    }
    for (a, b) in ends {
        pair.abort(A, a);
        pair.release(A, a);
        pair.release(B, b);
    }
    pair.run(Duration::from_secs(300));
    assert_eq!(path(&pair), None);
    assert_eq!(pair.a.connections() - pair.a.time_waits(), 0);
}

#[test]
fn a_path_that_was_silent_for_ten_seconds_starts_again() {
    let (mut pair, _, ends) = members(1, 1, Channel::default());
    let (a, b) = ends[0];
    pair.transfer(A, a, b, &pattern(3_000_000), Duration::from_secs(20));
    pair.run(Duration::from_secs(9));
    pair.transfer(A, a, b, &pattern(1_000), Duration::from_secs(20));
    assert!(path(&pair).expect("shared").cwnd > 20 * MSS as u32, "a short silence changes nothing");
    pair.run(Duration::from_secs(11));
    pair.transfer(A, a, b, &pattern(1_000), Duration::from_secs(20));
    assert!(path(&pair).expect("shared").cwnd <= 12 * MSS as u32, "{:?}", path(&pair));
}
