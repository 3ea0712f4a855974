use std::time::Duration;

use crate::bench::{over_both, over_v4};
use crate::peer::{ACK, End, ISN, MSS_1460, PSH, RST, SYN};

/// MSS, SACK permitted, time stamps, window scale 7.
const EVERYTHING: &[u8] = &[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];

#[test]
fn each_option_of_a_syn_is_answered() {
    over_both(&[], async |mut bench| {
        let (_, at) = bench.dut.listener(bench.dut_ip(), 5).await;
        let own = bench.peer_addr();
        let (_, full) = bench.peer.open(own, at, EVERYTHING).await;
        let mss = if own.is_ipv4() { 1460u16 } else { 1440 }.to_be_bytes();
        assert_eq!((full.option(2), full.option(4)), (Some(mss.to_vec()), Some(vec![])));
        assert_eq!(full.option(8).unwrap()[4..], [0, 0, 0, 9], "the peer's time stamp comes back");
        assert!(full.option(3).is_some());
        let other = bench.peer_addr();
        let (_, bare) = bench.peer.open(other, at, MSS_1460).await;
        assert_eq!((bare.option(3), bare.option(4), bare.option(8)), (None, None, None));
    });
}

#[test]
fn the_window_of_a_handshake_is_not_scaled() {
    over_v4(&[], async |mut bench| {
        let own = bench.peer_addr();
        let fd = bench.dut.socket(own.ip()).await;
        bench.dut.set_nonblocking(fd, true).await.unwrap();
        bench.dut.connect_to(fd, own).await.unwrap_err();
        let (mut end, syn) = bench.peer.called(own).await;
        assert!(syn.window >= 1460 && syn.option(3).is_some());
        // The window in a SYN-ACK is not scaled: 500 bytes. The window in the next segment is scaled.
        end.window = 500;
        let mut answer = end.segment(SYN | ACK, &[]);
        answer.options = vec![2, 4, 5, 180, 1, 3, 3, 4];
        bench.peer.put(&answer);
        end.seq += 1;
        bench.peer.expect("the ACK", |segment| segment.is_bare_ack()).await;
        assert_eq!(bench.dut.send(fd, &[1; 2000], 0).await, Ok(2000));
        let first = bench.peer.expect("data", |segment| !segment.payload.is_empty()).await;
        assert!(first.payload.len() <= 500, "{first:?}");
        bench.peer.silent("beyond the window", |segment| end.offset(segment) >= 500).await;
        end.take(&first);
        bench.peer.put(&end.segment(ACK, &[]));
        bench.peer.expect("more than 500 bytes", |segment| segment.payload.len() > 500).await;
    });
}

#[test]
fn a_reset_refuses_a_connection_that_is_being_opened() {
    over_both(&[], async |mut bench| {
        let own = bench.peer_addr();
        let fd = bench.dut.socket(own.ip()).await;
        let dut = bench.dut.clone();
        let call = tokio::spawn(async move { dut.connect_to(fd, own).await });
        let (end, _) = bench.peer.called(own).await;
        // A reset that does not acknowledge our SYN is ignored.
        let mut blind = end.segment(RST | ACK, &[]);
        blind.ack = end.ack.wrapping_add(1);
        bench.peer.put(&blind);
        bench.peer.put(&end.segment(RST, &[]));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!call.is_finished());
        bench.peer.put(&end.segment(RST | ACK, &[]));
        assert_eq!(call.await.unwrap(), Err(libc::ECONNREFUSED));
    });
}

#[test]
fn reset_removes_a_half_open_connection() {
    over_v4(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        let mut end = End::new(bench.peer_addr(), at);
        let mut syn = end.segment(SYN, &[]);
        syn.options = MSS_1460.to_vec();
        bench.peer.put(&syn);
        let answer = bench.peer.expect("the SYN-ACK", |segment| segment.has(SYN | ACK)).await;
        end.seq = ISN + 1;
        end.learn(&answer);
        bench.peer.put(&end.segment(RST, &[]));
        // A later acknowledgement belongs to no connection.
        bench.peer.put(&end.segment(ACK, &[]));
        let reset = bench.peer.expect("a reset", |segment| segment.has(RST)).await;
        assert_eq!(reset.seq, end.ack);
        bench.dut.set_nonblocking(listener, true).await.unwrap();
        assert_eq!(bench.dut.accept(listener).await.map(|_| ()), Err(libc::EAGAIN));
    });
}

#[test]
fn an_ack_that_completes_no_handshake_draws_a_reset() {
    over_v4(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        let mut end = End::new(bench.peer_addr(), at);
        let mut syn = end.segment(SYN, &[]);
        syn.options = MSS_1460.to_vec();
        bench.peer.put(&syn);
        let answer = bench.peer.expect("the SYN-ACK", |segment| segment.has(SYN | ACK)).await;
        end.seq = ISN + 1;
        end.learn(&answer);
        for wrong in [1u32, u32::MAX] {
            let mut ack = end.segment(ACK, &[]);
            ack.ack = end.ack.wrapping_add(wrong);
            bench.peer.put(&ack);
            let reset = bench.peer.expect("a reset", |segment| segment.has(RST)).await;
            assert_eq!(reset.seq, ack.ack);
        }
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.accept(listener).await.unwrap();
    });
}

#[test]
fn more_than_the_backlog_must_wait() {
    over_v4(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        // As in Linux, one more connection than the backlog may wait.
        for _ in 0..2 {
            let own = bench.peer_addr();
            bench.peer.open(own, at, MSS_1460).await;
        }
        let own = bench.peer_addr();
        let end = End::new(own, at);
        let mut syn = end.segment(SYN, &[]);
        syn.options = MSS_1460.to_vec();
        bench.peer.put(&syn);
        bench.peer.silent("an answer to the third", |segment| segment.to == own).await;
        bench.dut.accept(listener).await.unwrap();
        bench.peer.put(&syn);
        bench.peer.expect("the SYN-ACK", |segment| segment.to == own && segment.has(SYN | ACK)).await;
    });
}

#[test]
fn icmp_unreachable_error_ends_connect() {
    over_v4(&[], async |mut bench| {
        for (code, errno) in [(0, libc::ENETUNREACH), (1, libc::EHOSTUNREACH), (3, libc::ECONNREFUSED)] {
            let own = bench.peer_addr();
            let fd = bench.dut.socket(own.ip()).await;
            let dut = bench.dut.clone();
            let call = tokio::spawn(async move { dut.connect_to(fd, own).await });
            let (_, syn) = bench.peer.called(own).await;
            bench.peer.icmp(3, code, &syn);
            assert_eq!(call.await.unwrap(), Err(errno), "code {code}");
        }
    });
}

#[test]
fn icmp_error_does_not_end_an_established_connection() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.connected().await;
        bench.dut.send(fd, b"first", 0).await.unwrap();
        let data = bench.peer.expect("data", |segment| segment.payload == b"first").await;
        for code in [0, 1, 2, 3] {
            bench.peer.icmp(3, code, &data);
        }
        end.take(&data);
        bench.peer.put(&end.segment(ACK, &[]));
        bench.dut.send(fd, b"second", 0).await.unwrap();
        bench.peer.expect("more data", |segment| segment.payload == b"second").await;
    });
}

#[test]
fn syn_and_syn_ack_are_retransmitted() {
    over_v4(&[], async |mut bench| {
        let own = bench.peer_addr();
        let fd = bench.dut.socket(own.ip()).await;
        bench.dut.set_nonblocking(fd, true).await.unwrap();
        bench.dut.connect_to(fd, own).await.unwrap_err();
        let (_, first) = bench.peer.called(own).await;
        let (_, second) = bench.peer.called(own).await;
        assert_eq!(first.seq, second.seq);
        assert!(second.at - first.at >= Duration::from_millis(900));
        let (_, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        let other = bench.peer_addr();
        let mut syn = End::new(other, at).segment(SYN, &[]);
        syn.options = MSS_1460.to_vec();
        bench.peer.put(&syn);
        let first = bench.peer.expect("the SYN-ACK", |segment| segment.to == other).await;
        let second = bench.peer.expect("the second", |segment| segment.to == other).await;
        assert_eq!((first.seq, first.flags), (second.seq, second.flags));
    });
}

#[test]
fn writes_before_the_handshake_follow_it_and_reads_wait() {
    over_v4(&[], async |mut bench| {
        for refused in [false, true] {
            let own = bench.peer_addr();
            let fd = bench.dut.socket(own.ip()).await;
            bench.dut.set_nonblocking(fd, true).await.unwrap();
            assert_eq!(bench.dut.connect_to(fd, own).await, Err(libc::EINPROGRESS));
            assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::EAGAIN));
            bench.dut.set_nonblocking(fd, false).await.unwrap();
            let (mut end, _) = bench.peer.called(own).await;
            let (writer, reader) = (bench.dut.clone(), bench.dut.clone());
            let write = tokio::spawn(async move { writer.send(fd, b"early", libc::MSG_NOSIGNAL).await });
            let read = tokio::spawn(async move { reader.recv(fd, 10, 0).await });
            bench.peer.silent("data before the handshake", |segment| !segment.payload.is_empty()).await;
            if refused {
                bench.peer.put(&end.segment(RST | ACK, &[]));
                let outcomes = (write.await.unwrap().map(drop), read.await.unwrap().map(drop));
                // The first call returned the error; the other one finds the socket closed.
                assert!(outcomes.0 == Err(libc::ECONNREFUSED) || outcomes.1 == Err(libc::ECONNREFUSED));
                continue;
            }
            bench.peer.answer(&mut end, MSS_1460);
            let data = bench.peer.expect("the data", |segment| segment.payload == b"early").await;
            end.take(&data);
            assert_eq!(write.await.unwrap(), Ok(5));
            bench.peer.say(&mut end, PSH | ACK, b"late");
            assert_eq!(read.await.unwrap().unwrap(), b"late");
        }
    });
}

#[test]
fn a_syn_cookie_opens_a_connection() {
    over_v4(&["syn_cookies=always"], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 5).await;
        let own = bench.peer_addr();
        let (mut end, _) = bench.peer.open(own, at, MSS_1460).await;
        let (fd, _) = bench.dut.accept(listener).await.unwrap();
        bench.peer.say(&mut end, PSH | ACK, b"data");
        assert_eq!(bench.dut.recv(fd, 10, 0).await.unwrap(), b"data");
        // A SYN cookie that the listener never sent.
        let mut forged = End::new(bench.peer_addr(), at).segment(ACK, &[]);
        forged.ack = 12_345;
        bench.peer.put(&forged);
        bench.peer.expect("a reset", |segment| segment.has(RST) && segment.seq == 12_345).await;
    });
}

#[test]
fn two_syns_that_cross_open_one_connection() {
    over_v4(&[], async |mut bench| {
        let own = bench.peer_addr();
        let fd = bench.dut.socket(own.ip()).await;
        let dut = bench.dut.clone();
        let call = tokio::spawn(async move { dut.connect_to(fd, own).await });
        let (mut end, _) = bench.peer.called(own).await;
        let mut syn = end.segment(SYN, &[]);
        syn.options = MSS_1460.to_vec();
        bench.peer.put(&syn);
        end.seq += 1;
        let answer = bench.peer.expect("the SYN-ACK", |segment| segment.has(SYN | ACK)).await;
        assert_eq!((answer.seq, answer.ack), (end.isn, end.seq));
        bench.peer.put(&end.segment(ACK, &[]));
        assert_eq!(call.await.unwrap(), Ok(0));
    });
}
