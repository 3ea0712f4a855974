use std::time::Duration;

use crate::bench::{over_both, over_v4};
use crate::peer::{ACK, FIN, PSH, RST, SYN};

/// Returns a time stamp option with this value and with the echo of the device's time stamp.
fn time_stamps(value: u32, echo: &[u8]) -> Vec<u8> {
    let mut options = vec![1, 1, 8, 10];
    options.extend(value.to_be_bytes());
    options.extend(echo);
    options
}

#[test]
fn segment_outside_the_window_is_acknowledged_and_dropped() {
    over_v4(&[], async |mut bench| {
        let (fd, end) = bench.accepted().await;
        let window = 1 << 24;
        for (flags, payload) in [(ACK, &b"x"[..]), (FIN | ACK, b""), (SYN, b""), (SYN | ACK, b""), (ACK, b"")]
        {
            for ahead in [window, 0u32.wrapping_sub(window)] {
                let mut outside = end.segment(flags, payload);
                outside.seq = end.seq.wrapping_add(ahead);
                bench.peer.put(&outside);
                let answer = bench.peer.expect("an ACK", |segment| segment.is_bare_ack()).await;
                assert_eq!((answer.seq, answer.ack), (end.ack, end.seq), "flags {flags}, {ahead} ahead");
                // The device sends at most one such answer in half a second (RFC 5961 section 7, and Linux's
                // limit for duplicates).
                tokio::time::sleep(Duration::from_millis(550)).await;
            }
        }
        // A reset outside the window is ignored silently.
        let mut reset = end.segment(RST, &[]);
        reset.seq = end.seq.wrapping_add(window);
        bench.peer.put(&reset);
        bench.peer.silent("an answer to a reset", |_| true).await;
        bench.dut.set_nonblocking(fd, true).await.unwrap();
        assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::EAGAIN));
    });
}

#[test]
fn ack_of_unsent_data_is_answered_and_its_payload_dropped() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        for ahead in [1u32, 100_000, 1 << 30] {
            let mut wrong = end.segment(PSH | ACK, b"forged");
            wrong.ack = end.ack.wrapping_add(ahead);
            bench.peer.put(&wrong);
            let answer = bench.peer.expect("an ACK", |segment| segment.is_bare_ack()).await;
            assert_eq!((answer.seq, answer.ack), (end.ack, end.seq), "{ahead} ahead");
            tokio::time::sleep(Duration::from_millis(550)).await;
        }
        bench.peer.say(&mut end, PSH | ACK, b"genuine");
        assert_eq!(bench.dut.recv(fd, 100, 0).await.unwrap(), b"genuine");
    });
}

#[test]
fn data_out_of_order_is_reported_by_sack_and_delivered_in_order() {
    over_both(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted_with(&[2, 4, 5, 180, 1, 1, 4, 2]).await;
        let first = end.segment(PSH | ACK, b"first ");
        end.seq += 6;
        let gap = end.seq;
        bench.peer.say(&mut end, PSH | ACK, b"second");
        let told = bench.peer.expect("a SACK", |segment| segment.option(5).is_some()).await;
        assert_eq!(told.ack, first.seq);
        let block = [gap.to_be_bytes(), end.seq.to_be_bytes()].concat();
        assert_eq!(told.option(5), Some(block));
        bench.dut.set_nonblocking(fd, true).await.unwrap();
        assert_eq!(bench.dut.recv(fd, 100, 0).await, Err(libc::EAGAIN));
        bench.peer.put(&first);
        let all = bench.peer.expect("the ACK of all", |segment| segment.ack == end.seq).await;
        assert_eq!(all.option(5), None);
        assert_eq!(bench.dut.recv(fd, 100, 0).await.unwrap(), b"first second");
        // Data that arrives again is reported as a duplicate (RFC 2883).
        bench.peer.put(&first);
        let twice = bench.peer.expect("a D-SACK", |segment| segment.option(5).is_some()).await;
        assert_eq!(twice.option(5), Some([first.seq.to_be_bytes(), gap.to_be_bytes()].concat()));
    });
}

#[test]
fn window_closes_without_reads_and_reading_opens_it() {
    over_v4(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        bench.dut.set_int(listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 8192).await;
        let own = bench.peer_addr();
        let (mut end, _) = bench.peer.open(own, at, crate::peer::MSS_1460).await;
        let (fd, _) = bench.dut.accept(listener).await.unwrap();
        let mut sent = 1;
        bench.peer.say(&mut end, PSH | ACK, b".");
        let first = bench.peer.expect("an ACK", |segment| segment.ack == end.seq).await;
        let mut window = usize::from(first.window);
        assert!(window > 0 && window < 40_000);
        while window > 0 {
            let len = window.min(1000);
            bench.peer.say(&mut end, PSH | ACK, &vec![5; len]);
            sent += len;
            let ack = bench.peer.expect("an ACK", |segment| segment.ack == end.seq).await;
            window = ack.window.into();
            assert!(sent < 100_000, "the window closes");
        }
        // A probe beyond the window is answered but not accepted.
        bench.peer.put(&end.segment(ACK, b"p"));
        let answer = bench.peer.expect("the answer to a probe", |segment| segment.is_bare_ack()).await;
        assert_eq!((answer.ack, answer.window), (end.seq, 0));
        let mut read = 0;
        while read < sent {
            read += bench.dut.recv(fd, 65_536, 0).await.unwrap().len();
        }
        let update = bench.peer.expect("the open window", |segment| segment.window > 0).await;
        assert_eq!((read, update.ack), (sent, end.seq));
    });
}

#[test]
fn a_segment_with_an_older_time_stamp_is_an_old_duplicate() {
    over_both(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        let own = bench.peer_addr();
        let mut end = crate::peer::End::new(own, at);
        let mut syn = end.segment(SYN, &[]);
        syn.options = [vec![2, 4, 5, 180], time_stamps(1000, &[0; 4])].concat();
        bench.peer.put(&syn);
        let answer = bench.peer.expect("the SYN-ACK", |segment| segment.has(SYN | ACK)).await;
        let echo = answer.option(8).unwrap()[..4].to_vec();
        end.seq += 1;
        end.learn(&answer);
        let stamped = |flags, payload: &[u8], value: u32, end: &crate::peer::End| {
            let mut segment = end.segment(flags, payload);
            segment.options = time_stamps(value, &echo);
            segment
        };
        bench.peer.put(&stamped(ACK, &[], 1001, &end));
        let (fd, _) = bench.dut.accept(listener).await.unwrap();
        bench.peer.put(&stamped(PSH | ACK, b"stale", 900, &end));
        let refused = bench.peer.expect("an ACK", |segment| segment.is_bare_ack()).await;
        assert_eq!((refused.ack, &refused.option(8).unwrap()[4..]), (end.seq, &1001u32.to_be_bytes()[..]));
        bench.peer.put(&stamped(PSH | ACK, b"fresh", 1002, &end));
        bench.peer.expect("the ACK", |segment| segment.ack == end.seq.wrapping_add(5)).await;
        assert_eq!(bench.dut.recv(fd, 10, 0).await.unwrap(), b"fresh");
    });
}

#[test]
fn data_carries_a_window_update() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        bench.peer.say(&mut end, PSH | ACK, &[1; 1000]);
        assert_eq!(
            bench.dut.recv(fd, 2000, libc::MSG_WAITALL | libc::MSG_DONTWAIT).await.map(|read| read.len()),
            Ok(1000)
        );
        bench.dut.send(fd, b"reply", 0).await.unwrap();
        let data = bench.peer.expect("the reply", |segment| segment.payload == b"reply").await;
        assert_eq!(data.ack, end.seq);
        assert!(data.window > 1460);
    });
}
