use std::time::{Duration, Instant};

use crate::bench::{over_both, over_v4};
use crate::peer::{ACK, End, FIN, MSS_1460, PSH, Peer, RST, SYN, Segment};

fn is_fin(segment: &Segment) -> bool {
    segment.has(FIN)
}

/// Receives and acknowledges the FIN of the device under test.
async fn take_fin(peer: &mut Peer, end: &mut End) {
    let fin = peer.expect("the FIN", is_fin).await;
    end.take(&fin);
    peer.put(&end.segment(ACK, &[]));
}

#[test]
fn a_fin_is_sent_again_until_it_is_acknowledged() {
    over_both(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.close(fd).await.unwrap();
        let first = bench.peer.expect("the FIN", is_fin).await;
        for _ in 0..2 {
            let again = bench.peer.expect("the FIN again", is_fin).await;
            assert_eq!((again.seq, again.ack), (first.seq, first.ack));
        }
        end.take(&first);
        bench.peer.put(&end.segment(ACK, &[]));
        bench.peer.silent("a FIN that was acknowledged", is_fin).await;
        bench.peer.say(&mut end, FIN | ACK, &[]);
        bench.peer.expect("the last ACK", |segment| segment.is_bare_ack() && segment.ack == end.seq).await;
    });
}

#[test]
fn close_wait_answers_unacceptable_segments_and_still_sends() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.peer.say(&mut end, FIN | ACK, &[]);
        bench.peer.expect("the ACK of the FIN", |segment| segment.ack == end.seq).await;
        assert_eq!(bench.dut.info(fd).await[0], 8, "TCP_CLOSE_WAIT");
        let mut outside = end.segment(ACK, &[]);
        outside.seq = end.seq.wrapping_add(1 << 24);
        let mut unsent = end.segment(ACK, &[]);
        unsent.ack = end.ack.wrapping_add(1);
        for wrong in [outside, unsent] {
            bench.peer.put(&wrong);
            let answer = bench.peer.expect("an ACK", |segment| segment.is_bare_ack()).await;
            assert_eq!((answer.seq, answer.ack), (end.ack, end.seq));
            tokio::time::sleep(Duration::from_millis(550)).await;
        }
        bench.dut.send(fd, b"still here", 0).await.unwrap();
        let data = bench.peer.expect("data", |segment| segment.payload == b"still here").await;
        end.take(&data);
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.close(fd).await.unwrap();
        take_fin(&mut bench.peer, &mut end).await;
        // LAST-ACK has ended: further segments belong to no connection.
        bench.peer.put(&end.segment(ACK, &[]));
        bench.peer.expect("a reset", |segment| segment.has(RST)).await;
    });
}

#[test]
fn both_close_at_the_same_time() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.shutdown(fd, libc::SHUT_RDWR).await.unwrap();
        let fin = bench.peer.expect("the FIN", is_fin).await;
        bench.peer.say(&mut end, FIN | ACK, &[]);
        bench.peer.expect("the ACK", |segment| segment.ack == end.seq).await;
        assert_eq!(bench.dut.info(fd).await[0], 11, "TCP_CLOSING");
        end.take(&fin);
        bench.peer.put(&end.segment(ACK, &[]));
        // TIME-WAIT acknowledges a repeated FIN.
        let mut again = end.segment(FIN | ACK, &[]);
        again.seq = end.seq.wrapping_sub(1);
        tokio::time::sleep(Duration::from_millis(550)).await;
        bench.peer.put(&again);
        bench.peer.expect("the ACK again", |segment| segment.is_bare_ack() && segment.ack == end.seq).await;
    });
}

#[test]
fn a_reset_ends_time_wait_as_the_settings_say() {
    for (setting, ended) in [("time_wait_resets=on", true), ("time_wait_resets=off", false)] {
        over_v4(&[setting], async |mut bench| {
            let (fd, mut end) = bench.accepted().await;
            bench.dut.close(fd).await.unwrap();
            take_fin(&mut bench.peer, &mut end).await;
            bench.peer.say(&mut end, FIN | ACK, &[]);
            bench.peer.expect("the last ACK", |segment| segment.ack == end.seq).await;
            bench.peer.put(&end.segment(RST, &[]));
            let mut data = end.segment(ACK, b"x");
            data.ack = end.ack;
            tokio::time::sleep(Duration::from_millis(550)).await;
            bench.peer.put(&data);
            let answer = bench.peer.expect("an answer", |_| true).await;
            assert_eq!(answer.has(RST), ended, "{setting}: {answer:?}");
        });
    }
}

#[test]
fn fin_wait_2_ends_with_its_timeout() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.set_int(fd, libc::SOL_TCP, libc::TCP_LINGER2, 1).await;
        bench.dut.close(fd).await.unwrap();
        take_fin(&mut bench.peer, &mut end).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        bench.peer.put(&end.segment(FIN | ACK, &[]));
        bench.peer.expect("a reset", |segment| segment.has(RST)).await;
    });
}

#[test]
fn closing_a_listener_resets_unaccepted_connections() {
    over_both(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 5).await;
        let own = bench.peer_addr();
        let (end, _) = bench.peer.open(own, at, MSS_1460).await;
        // The handshake must be complete on the other side too.
        let started = Instant::now();
        while bench.dut.poll(&[(listener, libc::POLLIN)], 1000).await != Ok(vec![(listener, libc::POLLIN)]) {
            assert!(started.elapsed() < Duration::from_secs(20));
        }
        bench.dut.close(listener).await.unwrap();
        let reset = bench.peer.expect("a reset", |segment| segment.has(RST)).await;
        assert_eq!(reset.seq, end.ack);
        bench.peer.put(&End::new(bench.own_port(own), at).segment(SYN, &[]));
        bench.peer.expect("nobody listens", |segment| segment.has(RST | ACK)).await;
    });
}

impl crate::bench::Bench {
    /// Returns another port at the same address.
    fn own_port(&self, own: std::net::SocketAddr) -> std::net::SocketAddr {
        std::net::SocketAddr::new(own.ip(), own.port() + 1000)
    }
}

#[test]
fn closing_with_unread_data_resets() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.peer.say(&mut end, PSH | ACK, b"nobody reads this");
        bench.peer.expect("the ACK", |segment| segment.ack == end.seq).await;
        bench.dut.close(fd).await.unwrap();
        let reset = bench.peer.expect("a reset", |segment| segment.has(RST)).await;
        assert_eq!(reset.seq, end.ack);
    });
}

#[test]
fn linger_0_resets_and_a_longer_linger_waits() {
    over_v4(&[], async |mut bench| {
        let (fd, _) = bench.accepted().await;
        bench.dut.set_linger(fd, 0).await;
        bench.dut.close(fd).await.unwrap();
        let last = bench.peer.expect("the end", |segment| segment.has(RST) || segment.has(FIN)).await;
        assert!(last.has(RST));

        // Data without an acknowledgement: close() waits a second for it.
        let (fd, _) = bench.accepted().await;
        bench.dut.set_linger(fd, 1).await;
        bench.dut.send(fd, b"lost", 0).await.unwrap();
        let started = Instant::now();
        bench.dut.close(fd).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(990), "{:?}", started.elapsed());

        // Data with an acknowledgement: close() returns when it arrives.
        let (fd, mut end) = bench.accepted().await;
        bench.dut.set_linger(fd, 60).await;
        bench.dut.send(fd, b"arrives", 0).await.unwrap();
        let dut = bench.dut.clone();
        let closing = tokio::spawn(async move { dut.close(fd).await });
        let own = end.own;
        let data =
            bench.peer.expect("data", |segment| segment.to == own && !segment.payload.is_empty()).await;
        end.take(&data);
        bench.peer.put(&end.segment(ACK, &[]));
        let fin = bench.peer.expect("the FIN", |segment| segment.to == own && is_fin(segment)).await;
        end.take(&fin);
        bench.peer.put(&end.segment(ACK, &[]));
        assert_eq!(closing.await.unwrap(), Ok(0));
    });
}

#[test]
fn data_after_a_close_draws_a_reset() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.dut.close(fd).await.unwrap();
        take_fin(&mut bench.peer, &mut end).await;
        bench.peer.say(&mut end, PSH | ACK, b"nobody is there");
        bench.peer.expect("a reset", |segment| segment.has(RST)).await;
    });
}
