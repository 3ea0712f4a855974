//! Content of a SYN-ACK, and SYNs that cross. Times as in the parent module.

use super::*;

/// A part of the data is acknowledged.
#[test]
fn refused_data_follows_at_once() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(4000));
    assert_eq!(peer.world.sent(A)[0], (0, "S", 1420, true));
    peer.world.until(100);
    peer.answer(101, &[], 1000, &[]);
    let iss = peer.syn().seq;
    let after: Vec<_> = peer.world.pair.seen.iter().filter(|seen| seen.from == A).skip(1).cloned().collect();
    let mut next = iss + 101;
    for seen in &after {
        assert!(seen.len <= 1000 && seen.tcp.seq == next && seen.tcp.flags.contains(Flags::ACK));
        assert!(!seen.tcp.flags.contains(Flags::SYN));
        next += seen.len as u32;
    }
    assert_eq!(next, iss + 4001);
    assert_eq!(
        (peer.world.class(id), peer.world.outcome(id)),
        (Some(SynAckClass::Partial), FastOpenOutcome::Used)
    );
    assert_eq!(peer.world.pair.a.conn_stats(id).expect("held").counters.retransmits, 0);
    peer.world.pair.abort(A, id);
    let (len, cookie) = peer.next_syn(2000);
    assert_eq!((len, cookie.map(|option| option.cookie.len())), (960, Some(8)), "the cookie stays");
}

/// An acknowledgement of data never sent has no effect on the memory.
#[test]
fn an_impossible_syn_ack_is_reset_and_not_learnt_from() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(100));
    peer.answer(100_101, &[9; 8], 1000, &[]);
    let reset = &peer.world.pair.last(A).tcp;
    assert_eq!((reset.flags, reset.seq), (RST, peer.syn().seq + 100_101));
    assert_eq!(peer.world.pair.a.state(id), Some(State::SynSent));
    peer.world.pair.abort(A, id);
    assert_eq!(peer.next_syn(2000), (1420, Cookie::new(&[1; 8]).map(FastOpen::with_cookie)));
}

/// A SYN-ACK that echoes a foreign timestamp is refused as well.
#[test]
fn a_syn_ack_with_a_foreign_timestamp_is_not_learnt_from() {
    let mut peer = Peer::known(quick(), 1460);
    peer.open(&pattern(100));
    let mut tcp = peer.header(SYN_ACK, 101, Some(1000));
    tcp.options.timestamps =
        tcp.options.timestamps.map(|sent| Timestamps { echo: sent.echo - 500_000, ..sent });
    tcp.options.fast_open = Cookie::new(&[9; 8]).map(FastOpen::with_cookie);
    peer.world.pair.forge(A, &tcp, &[]);
    assert_eq!(peer.world.pair.last(A).tcp.flags, RST);
    assert_eq!(peer.next_syn(2000), (1420, Cookie::new(&[1; 8]).map(FastOpen::with_cookie)));
}

/// Cookies of legal length are kept; the MSS is always kept.
#[test]
fn cookies_of_legal_length_are_kept() {
    let one = Cookie::new(&[1; 8]).map(FastOpen::with_cookie);
    for (cookie, kept) in [(&[5u8; 4][..], true), (&[0; 8], true), (&[5; 16], true), (&[], false)] {
        let mut peer = Peer::known(bare(), 1460);
        let id = peer.open(&pattern(100));
        peer.answer(101, cookie, 940, &[]);
        assert_eq!(peer.world.outcome(id), FastOpenOutcome::Used);
        peer.world.pair.abort(A, id);
        let expected = if kept { Cookie::new(cookie).map(FastOpen::with_cookie) } else { one };
        assert_eq!(peer.next_syn(2000), (900, expected));
    }
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(100));
    peer.answer(101, &[], 1460, &[]);
    let mut data = peer.header(Flags::ACK, 101, None);
    data.seq += 1;
    data.options.fast_open = Cookie::new(&[5; 8]).map(FastOpen::with_cookie);
    peer.world.pair.forge(A, &data, b"x");
    assert_eq!(peer.world.read(A, id), b"x");
    peer.world.pair.abort(A, id);
    assert_eq!(peer.next_syn(2000).1, one, "outside the handshake the option means nothing");
}

#[test]
fn an_unsolicited_cookie_is_ignored() {
    let mut peer = Peer::new(bare());
    let plain = ConnectConfig { tcp: bare(), ..ConnectConfig::default() };
    let id = peer.world.open(&plain, b"");
    peer.world.pair.run_ms(1);
    peer.answer(1, &[5; 8], 1460, &[]);
    assert_eq!(peer.world.pair.a.state(id), Some(State::Established));
    assert_eq!(peer.next_syn(100), (0, Some(FastOpen::REQUEST)));
}

#[test]
fn crossing_syns_open_one_connection_without_fast_open() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(1000));
    peer.world.until(5);
    let mut theirs = peer.header(Flags::SYN, 0, Some(1040));
    theirs.ack = SeqNum(0);
    theirs.options.window_scale = Some(6);
    theirs.options.fast_open = Cookie::new(&[7; 8]).map(FastOpen::with_cookie);
    peer.world.pair.forge(A, &theirs, &pattern(500));
    let answer = peer.world.pair.last(A).clone();
    assert_eq!((answer.tcp.flags, answer.len, answer.tcp.options.fast_open), (SYN_ACK, 0, None));
    assert_eq!((answer.tcp.seq, answer.tcp.ack), (peer.syn().seq, SeqNum(9001)));
    peer.world.until(50);
    let taken = peer.header(SYN_ACK, 1001, Some(1040));
    peer.world.pair.forge(A, &taken, &[]);
    assert_eq!(peer.world.pair.a.state(id), Some(State::Established));
    assert_eq!(peer.world.read(A, id), [], "data of a SYN that nobody listens for is not delivered");
    peer.world.until(2000);
    assert!(peer.world.sent(A).iter().skip(1).all(|&(_, _, len, _)| len == 0), "not sent again");
    assert_eq!(peer.world.outcome(id), FastOpenOutcome::Off(OffReason::Simultaneous));
}

#[test]
fn crossing_syns_send_again_what_was_not_taken() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(1000));
    peer.world.until(5);
    let mut theirs = peer.header(Flags::SYN, 0, Some(1040));
    theirs.ack = SeqNum(0);
    peer.world.pair.forge(A, &theirs, &[]);
    peer.world.until(50);
    let not_taken = peer.header(SYN_ACK, 1, Some(1040));
    peer.world.pair.forge(A, &not_taken, &[]);
    let again = peer.world.pair.last(A).clone();
    assert_eq!((again.tcp.seq, again.len), (peer.syn().seq + 1, 1000));
    assert_eq!(peer.world.pair.a.state(id), Some(State::Established));
}

#[test]
fn a_syn_ack_may_carry_data_and_a_fin() {
    for fin in [false, true] {
        let mut peer = Peer::known(bare(), 1460);
        let id = peer.open(&pattern(100));
        let flags = if fin { SYN_ACK | Flags::FIN } else { SYN_ACK };
        let tcp = peer.header(flags, 101, Some(1460));
        peer.world.pair.forge(A, &tcp, &pattern(1400));
        let ack = &peer.world.pair.last(A).tcp;
        assert_eq!((ack.flags, ack.ack), (Flags::ACK, SeqNum(9000) + 1401 + u32::from(fin)));
        assert_eq!(peer.world.read(A, id), pattern(1400));
        let state = if fin { State::CloseWait } else { State::Established };
        assert_eq!(peer.world.pair.a.state(id), Some(state));
    }
}

/// A program waits for the end of the handshake and has more data to write. The acknowledgement of the
/// SYN-ACK waits for that data, for a limited time.
#[test]
fn the_acknowledgement_of_a_syn_ack_rides_on_data_that_waits() {
    for (writes, expected) in [(true, (100, ".", 50, false)), (false, (140, ".", 0, false))] {
        let mut world = World::known(FastOpenListen::default());
        world.restart();
        let config = ConnectConfig { tcp: TcpConfig::default(), ..asking() };
        let id = world.open(&config, &pattern(100));
        world.pair.a.await_write(id);
        world.until(100);
        if writes {
            world.pair.write(A, id, &pattern(50)).expect("room");
        }
        world.until(200);
        assert_eq!(world.sent(A)[..2], [(0, "S", 100, true), expected]);
    }
}
