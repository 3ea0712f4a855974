use std::time::{Duration, Instant};

use crate::bench::{Bench, over_both, over_v4};
use crate::peer::{ACK, End, PSH, RST, Segment};

/// A minimum retransmission timeout that does not interfere on a busy machine.
const LATE_TIMEOUT: &[&str] = &["rto_var_floor=5s"];
const WITH_SACK: &[u8] = &[2, 4, 5, 180, 1, 1, 4, 2];

fn is_data(segment: &Segment) -> bool {
    !segment.payload.is_empty()
}

/// Returns the intervals between transmissions of the same bytes.
async fn gaps(bench: &mut Bench, seq: u32, count: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() <= count {
        let segment =
            bench.peer.expect("a transmission", |segment| is_data(segment) && segment.seq == seq).await;
        times.push(segment.at);
    }
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn unacknowledged_data_is_retransmitted_at_growing_intervals() {
    over_both(&[], async |mut bench| {
        let (fd, end) = bench.accepted().await;
        bench.dut.send(fd, b"lost", 0).await.unwrap();
        let gaps = gaps(&mut bench, end.ack, 4).await;
        // The first retransmission may be a tail loss probe. From the timeout on, each interval doubles; the
        // test may read late.
        assert!(gaps[3] >= gaps[1].mul_f64(1.3) && gaps[3] >= Duration::from_millis(500), "{gaps:?}");
    });
}

#[test]
fn an_acknowledged_retransmission_lets_the_rest_follow() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        end.window = 1460;
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.send(fd, &[1; 2000], 0).await.unwrap();
        for _ in 0..2 {
            let again = bench.peer.expect("data", is_data).await;
            assert_eq!(again.seq, end.ack);
        }
        end.ack = end.ack.wrapping_add(1460);
        bench.peer.put(&end.segment(ACK, &[]));
        let rest = bench.peer.expect("the rest", |segment| segment.seq == end.ack).await;
        assert_eq!(rest.payload.len(), 540);
    });
}

#[test]
fn closed_window_is_probed_and_data_follows_its_opening() {
    over_both(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        end.window = 0;
        bench.peer.put(&end.segment(ACK, &[]));
        // The device must know the window before the write.
        bench.peer.say(&mut end, PSH | ACK, b"x");
        bench.dut.recv(fd, 1, 0).await.unwrap();
        bench.dut.send(fd, b"held back", 0).await.unwrap();
        let mut probes = Vec::new();
        while probes.len() < 4 {
            let probe = bench
                .peer
                .expect("a probe", |segment| segment.seq == end.ack.wrapping_sub(1) || is_data(segment))
                .await;
            assert!(probe.payload.len() <= 1, "{probe:?}");
            probes.push(probe.at);
            bench.peer.put(&end.segment(ACK, &[]));
        }
        // Each interval doubles; the test may read late.
        assert!(probes[3] - probes[2] >= (probes[1] - probes[0]).mul_f64(1.3), "{probes:?}");
        end.window = 10_000;
        bench.peer.put(&end.segment(ACK, &[]));
        bench.peer.expect("the data", |segment| segment.payload == b"held back").await;
    });
}

#[test]
fn a_window_that_shrinks_is_respected() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.send(fd, &[1; 1460], 0).await.unwrap();
        let first = bench.peer.expect("data", is_data).await;
        // The window shrinks below its earlier size, so all later data must wait.
        end.take(&first);
        end.window = 0;
        bench.peer.put(&end.segment(ACK, &[]));
        bench.peer.say(&mut end, PSH | ACK, b"x");
        bench.dut.recv(fd, 1, 0).await.unwrap();
        bench.dut.send(fd, &[2; 1460], 0).await.unwrap();
        bench.peer.silent("data beyond the window", |segment| segment.payload.len() > 1).await;
        end.window = 100;
        bench.peer.put(&end.segment(ACK, &[]));
        let rest = bench.peer.expect("100 bytes", is_data).await;
        assert!(rest.payload.len() <= 100, "{rest:?}");
    });
}

#[test]
fn user_timeout_ends_a_connection_without_acknowledgements() {
    over_v4(&[], async |mut bench| {
        let (fd, end) = bench.accepted().await;
        bench.dut.set_int(fd, libc::SOL_TCP, libc::TCP_USER_TIMEOUT, 1000).await;
        let started = Instant::now();
        bench.dut.send(fd, b"lost", 0).await.unwrap();
        assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::ETIMEDOUT));
        assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
        // The connection is gone: a later ACK belongs to no connection.
        bench.peer.put(&end.segment(ACK, &[]));
        bench.peer.expect("a reset", |segment| segment.has(RST)).await;
    });
}

#[test]
fn user_timeout_ends_a_connection_with_a_closed_window() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.set_int(fd, libc::SOL_TCP, libc::TCP_USER_TIMEOUT, 1000).await;
        end.window = 0;
        bench.peer.say(&mut end, PSH | ACK, b"x");
        bench.dut.recv(fd, 1, 0).await.unwrap();
        bench.dut.send(fd, b"held back", 0).await.unwrap();
        // The peer does not answer the probes either.
        assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::ETIMEDOUT));
    });
}

#[test]
fn the_tail_of_a_flight_is_probed_before_the_timeout() {
    over_v4(LATE_TIMEOUT, async |mut bench| {
        let (fd, mut end) = bench.accepted_with(WITH_SACK).await;
        warm_up(&mut bench, fd, &mut end).await;
        bench.dut.send(fd, &[1; 4380], 0).await.unwrap();
        let mut last = end.ack;
        for _ in 0..3 {
            last = bench.peer.expect("a segment", is_data).await.seq;
        }
        // Without an acknowledgement, the probe repeats the last segment, not the first.
        let probe = bench.peer.expect("the probe", is_data).await;
        assert_eq!(probe.seq, last);
        // The SACK of the probe shows that the other segments are lost.
        let mut sack = end.segment(ACK, &[]);
        let sacked_to = last.wrapping_add(1460);
        sack.options =
            [vec![1, 1, 5, 10], last.to_be_bytes().to_vec(), sacked_to.to_be_bytes().to_vec()].concat();
        bench.peer.put(&sack);
        let again = bench.peer.expect("the lost segments", is_data).await;
        assert_eq!(again.seq, end.ack);
    });
}

/// Exchanges a few bytes, so that the round-trip time is known.
async fn warm_up(bench: &mut Bench, fd: i32, end: &mut End) {
    for _ in 0..3 {
        bench.dut.send(fd, b"ping", 0).await.unwrap();
        let data = bench.peer.expect("a ping", is_data).await;
        end.take(&data);
        bench.peer.put(&end.segment(ACK, &[]));
    }
}

#[test]
fn loss_shown_by_sack_is_repaired_and_reordering_is_tolerated() {
    over_v4(LATE_TIMEOUT, async |mut bench| {
        let (fd, mut end) = bench.accepted_with(WITH_SACK).await;
        warm_up(&mut bench, fd, &mut end).await;
        bench.dut.send(fd, &[1; 7300], 0).await.unwrap();
        let mut flight = Vec::new();
        for _ in 0..5 {
            flight.push(bench.peer.expect("a segment", is_data).await.seq);
        }
        let mut sack = end.segment(ACK, &[]);
        let (left, right) = (flight[1], flight[4].wrapping_add(1460));
        sack.options =
            [vec![1, 1, 5, 10], left.to_be_bytes().to_vec(), right.to_be_bytes().to_vec()].concat();
        bench.peer.put(&sack);
        bench.peer.expect("the first again", |segment| is_data(segment) && segment.seq == flight[0]).await;
        let info = bench.dut.info(fd).await;
        assert_eq!(info[1], 3, "TCP_CA_Recovery");
        end.ack = right;
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.send(fd, b"next", 0).await.unwrap();
        bench.peer.expect("the new data", |segment| segment.payload == b"next").await;
        assert_eq!(bench.dut.info(fd).await[1], 0, "TCP_CA_Open");

        // Two segments arrive in the wrong order: the SACK first reports the later one, then both are
        // acknowledged.
        end.ack = end.ack.wrapping_add(4);
        bench.peer.put(&end.segment(ACK, &[]));
        let retransmitted = bench.dut.info(fd).await[100..104].to_vec();
        bench.dut.send(fd, &[1; 2920], 0).await.unwrap();
        let second =
            bench.peer.expect("the second", |segment| end.ack.wrapping_add(1460) == segment.seq).await;
        let block = [second.seq.to_be_bytes(), second.seq.wrapping_add(1460).to_be_bytes()].concat();
        sack = end.segment(ACK, &[]);
        sack.options = [vec![1, 1, 5, 10], block].concat();
        bench.peer.put(&sack);
        end.take(&second);
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.send(fd, b"last", 0).await.unwrap();
        bench.peer.expect("the new data", |segment| segment.payload == b"last").await;
        let info = bench.dut.info(fd).await;
        assert!(
            info[1] <= 1 && info[100..104].len() == retransmitted.len(),
            "TCP_CA_Open or TCP_CA_Disorder"
        );
    });
}

#[test]
fn lost_retransmission_is_sent_again() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted_with(WITH_SACK).await;
        warm_up(&mut bench, fd, &mut end).await;
        bench.dut.send(fd, &[1; 5840], 0).await.unwrap();
        let mut flight = Vec::new();
        for _ in 0..4 {
            flight.push(bench.peer.expect("a segment", is_data).await.seq);
        }
        let mut sack = end.segment(ACK, &[]);
        let (left, right) = (flight[1], flight[3].wrapping_add(1460));
        sack.options =
            [vec![1, 1, 5, 10], left.to_be_bytes().to_vec(), right.to_be_bytes().to_vec()].concat();
        bench.peer.put(&sack);
        for _ in 0..3 {
            bench
                .peer
                .expect("the first again", |segment| is_data(segment) && segment.seq == flight[0])
                .await;
        }
    });
}

#[test]
fn cork_holds_less_than_a_segment() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.set_int(fd, libc::SOL_TCP, libc::TCP_CORK, 1).await;
        bench.dut.send(fd, &[1; 1000], 0).await.unwrap();
        bench.dut.send(fd, &[1; 1000], 0).await.unwrap();
        let full = bench.peer.expect("a full segment", is_data).await;
        assert_eq!(full.payload.len(), 1460);
        end.take(&full);
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.set_int(fd, libc::SOL_TCP, libc::TCP_CORK, 0).await;
        let rest = bench.peer.expect("the rest", is_data).await;
        assert_eq!((rest.seq, rest.payload.len()), (end.ack, 540));
    });
}

#[test]
fn the_mss_of_the_peer_and_of_the_program_bound_segments() {
    over_both(&[], async |mut bench| {
        let (fd, _) = bench.accepted_with(&[2, 4, 2, 24]).await;
        assert_eq!(bench.dut.get_int(fd, libc::SOL_TCP, libc::TCP_MAXSEG).await, 536);
        bench.dut.send(fd, &[1; 1200], 0).await.unwrap();
        for len in [536, 536, 128] {
            assert_eq!(bench.peer.expect("a segment", is_data).await.payload.len(), len);
        }
    });
}

#[test]
fn tcp_info_counts_data_in_flight() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted_with(WITH_SACK).await;
        warm_up(&mut bench, fd, &mut end).await;
        let number = |info: &[u8], at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().unwrap());
        let info = bench.dut.info(fd).await;
        assert_eq!((info[0], info[1], info[5] & 2), (1, 0, 2), "TCP_ESTABLISHED, TCP_CA_Open, SACK");
        assert_eq!((number(&info, 16), number(&info, 24)), (1460, 0), "snd_mss, unacked");
        let (rto, rtt, cwnd) = (number(&info, 8), number(&info, 68), number(&info, 80));
        assert!(rto >= 200_000 && rtt > 0 && rtt < 5_000_000 && cwnd >= 10, "{rto} {rtt} {cwnd}");
        bench.dut.send(fd, &[1; 2920], 0).await.unwrap();
        bench.peer.expect("data", is_data).await;
        assert_eq!(number(&bench.dut.info(fd).await, 24), 2, "unacked");
        // After a timeout segments leave one at a time.
        while bench.dut.info(fd).await[1] != 4 {
            bench.peer.expect("a retransmission", is_data).await;
        }
        assert_eq!(number(&bench.dut.info(fd).await, 80), 1, "snd_cwnd");
    });
}

#[test]
fn keepalive_probes_a_silent_peer_and_gives_up() {
    over_v4(&[], async |mut bench| {
        let (fd, end) = bench.accepted().await;
        for (name, value) in [(libc::TCP_KEEPIDLE, 1), (libc::TCP_KEEPINTVL, 1), (libc::TCP_KEEPCNT, 2)] {
            bench.dut.set_int(fd, libc::SOL_TCP, name, value).await;
        }
        bench.dut.set_int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1).await;
        let probe = bench.peer.expect("a probe", |segment| segment.seq == end.ack.wrapping_sub(1)).await;
        assert!(probe.payload.len() <= 1);
        bench.peer.put(&end.segment(ACK, &[]));
        assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::ETIMEDOUT));
    });
}
