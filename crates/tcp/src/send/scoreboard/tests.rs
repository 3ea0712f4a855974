use std::vec::Vec;

use brisk_wire::SackBlock;

use super::sent_twice::MAX_SENT_TWICE;
use super::*;
use crate::outcome::DsackOf;

mod model;

const ISS: SeqNum = SeqNum(u32::MAX - 2000);
const MSS: u32 = 1000;

fn range(from: u32, to: u32) -> SeqRange {
    SeqRange::new(ISS + from, ISS + to)
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn sent(origin: Origin, from: u32, to: u32, at: Instant) -> Sent {
    Sent { range: range(from, to), segment_size: MSS, origin, syn: false, fin: false, at }
}

fn info(now: Instant) -> AckInfo {
    AckInfo { now, ece: false, window_changed: false, len: 0, max_snd_wnd: 1 << 16, ts_echo_rtt: None }
}

fn blocks(ranges: &[(u32, u32)]) -> SackBlocks {
    ranges.iter().map(|&(from, to)| SackBlock { start: ISS + from, end: ISS + to }).collect()
}

/// Returns a scoreboard with `count` segments of 1000 bytes sent at 0 ms, 1 ms, 2 ms, ...
fn board(count: u32, sack: bool) -> Scoreboard {
    let mut board = Scoreboard::new(ISS, sack);
    for index in 0..count {
        board.on_sent(&sent(Origin::New, index * MSS, (index + 1) * MSS, ms(u64::from(index))));
    }
    board
}

#[test]
fn a_super_segment_is_recorded_segment_by_segment() {
    let mut board = Scoreboard::new(ISS, true);
    let syn = Sent { range: range(0, 1), syn: true, ..sent(Origin::New, 0, 1, ms(0)) };
    board.on_sent(&syn);
    board.on_sent(&Sent { fin: true, ..sent(Origin::New, 1, 2502, ms(1)) });
    let records: Vec<_> = board.records().map(|record| (record.range, record.syn, record.fin)).collect();
    let expected = [
        (range(0, 1), true, false),
        (range(1, 1001), false, false),
        (range(1001, 2001), false, false),
        (range(2001, 2502), false, true),
    ];
    assert_eq!(records, expected);
    assert_eq!((board.pipe(), board.outstanding(), board.nxt()), (2502, 2502, ISS + 2502));
}

#[test]
fn a_fin_rides_on_a_full_segment_and_may_also_come_alone() {
    let mut board = Scoreboard::new(ISS, true);
    board.on_sent(&Sent { fin: true, ..sent(Origin::New, 0, 1001, ms(0)) });
    assert_eq!(board.records().count(), 1);
    assert_eq!(board.tail().map(|tail| (tail.payload(), tail.fin)), Some((1000, true)));
    let mut board = self::board(1, true);
    board.on_sent(&Sent { fin: true, ..sent(Origin::New, 1000, 1001, ms(0)) });
    assert_eq!(board.tail().map(|tail| (tail.payload(), tail.fin)), Some((0, true)));
}

#[test]
fn a_cumulative_acknowledgement_delivers_what_it_covers() {
    let mut board = board(3, true);
    let outcome = board.on_ack(ISS + 1500, &blocks(&[]), info(ms(50)));
    assert_eq!((outcome.advanced, outcome.delivered_bytes, outcome.newly_sacked), (1500, 1500, 0));
    assert_eq!(outcome.una_before, ISS);
    assert_eq!((outcome.pipe_before, outcome.undelivered_before), (3000, 3000));
    assert_eq!(board.head().map(|head| head.range), Some(range(1500, 2000)));
    assert_eq!(board.pipe(), 1500);
}

#[test]
fn acknowledgements_outside_the_outstanding_range_are_ignored() {
    let mut board = board(3, true);
    board.on_ack(ISS + 1000, &blocks(&[]), info(ms(50)));
    for ack in [ISS, ISS + 3001, ISS + 0x7000_0000] {
        let outcome = board.on_ack(ack, &blocks(&[]), info(ms(51)));
        assert_eq!((outcome.advanced, outcome.delivered_bytes, outcome.duplicate), (0, 0, false));
    }
    assert_eq!((board.una(), board.pipe()), (ISS + 1000, 2000));
}

#[test]
fn sacked_segments_leave_the_pipe_and_are_delivered_once() {
    let mut board = board(4, true);
    let outcome = board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
    assert_eq!((outcome.newly_sacked, outcome.delivered_bytes, outcome.duplicate), (1000, 1000, true));
    let outcome = board.on_ack(ISS, &blocks(&[(1000, 3000)]), info(ms(51)));
    assert_eq!((outcome.newly_sacked, outcome.undelivered_before), (1000, 3000));
    assert_eq!((board.pipe(), board.sacked_bytes(), board.sacked_segments()), (2000, 2000, 2));
    assert_eq!(board.highest_sacked(), Some(ISS + 3000));
    let outcome = board.on_ack(ISS + 4000, &blocks(&[]), info(ms(52)));
    assert_eq!((outcome.advanced, outcome.delivered_bytes), (4000, 2000));
    assert!(board.is_empty() && board.sacked_bytes() == 0 && board.highest_sacked().is_none());
}

#[test]
fn a_block_that_covers_part_of_a_segment_splits_its_record() {
    let mut board = board(2, true);
    let outcome = board.on_ack(ISS, &blocks(&[(500, 1500)]), info(ms(50)));
    assert_eq!(outcome.newly_sacked, 1000);
    let records: Vec<_> = board.records().map(|record| (record.range, record.sacked)).collect();
    let expected = [
        (range(0, 500), false),
        (range(500, 1000), true),
        (range(1000, 1500), true),
        (range(1500, 2000), false),
    ];
    assert_eq!(records, expected);
}

#[test]
fn a_peer_cannot_split_records_without_end() {
    let mut board = Scoreboard::new(ISS, true);
    board.on_sent(&Sent { segment_size: 9000, ..sent(Origin::New, 0, 9000, ms(0)) });
    for byte in 0..4000 {
        board.on_ack(ISS, &blocks(&[(2 * byte + 1, 2 * byte + 2)]), info(ms(50)));
    }
    assert!(board.records().count() <= MAX_SACK_SPLITS as usize + 1);
    // Above the limit of splits it ignores SACK blocks.
    assert_eq!(board.sacked_bytes(), MAX_SACK_SPLITS / 2);
    let outcome = board.on_ack(ISS, &blocks(&[(1, 9000)]), info(ms(51)));
    assert_eq!(outcome.newly_sacked, 9000 - 1 - MAX_SACK_SPLITS / 2);
}

#[test]
fn blocks_outside_of_the_window_are_ignored() {
    let mut board = board(3, true);
    let beyond = board.on_ack(ISS, &blocks(&[(2000, 3001)]), info(ms(50)));
    let reversed = board.on_ack(ISS, &blocks(&[(2000, 1000)]), info(ms(50)));
    let translated = board.on_ack(ISS, &blocks(&[(0x4000_0000, 0x4000_1000)]), info(ms(50)));
    for outcome in [beyond, reversed, translated] {
        assert_eq!((outcome.newly_sacked, outcome.dsack), (0, None));
    }
    let small = AckInfo { max_snd_wnd: 500, ..info(ms(51)) };
    board.on_ack(ISS + 2000, &blocks(&[]), small);
    let outcome = board.on_ack(ISS + 2000, &blocks(&[(1000, 2000)]), small);
    assert_eq!(outcome.dsack, None, "further below SND.UNA than the window ever was");
}

#[test]
fn without_sack_blocks_are_not_read() {
    let mut board = board(3, false);
    let outcome = board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
    assert_eq!((outcome.newly_sacked, board.sacked_bytes()), (0, 0));
}

#[test]
fn a_duplicate_acknowledgement_is_what_rfc_5681_says() {
    // RFC 5681 section 2: "(a) the receiver of the ACK has outstanding data, (b) the incoming
    // acknowledgment carries no data, (c) the SYN and FIN bits are both off, (d) the
    // acknowledgment number is equal to the greatest acknowledgment received on the given
    // connection and (e) the advertised window [...] equals the advertised window in the last
    // incoming acknowledgment."
    let plain = info(ms(50));
    let duplicate = |board: &mut Scoreboard, ack, info| board.on_ack(ack, &blocks(&[]), info).duplicate;
    assert!(!duplicate(&mut Scoreboard::new(ISS, true), ISS, plain), "(a)");
    assert!(!duplicate(&mut board(2, true), ISS, AckInfo { len: 1, ..plain }), "(b), (c)");
    assert!(!duplicate(&mut board(2, true), ISS + 1000, plain), "(d)");
    assert!(!duplicate(&mut board(2, true), ISS, AckInfo { window_changed: true, ..plain }), "(e)");
    let mut board = board(2, true);
    assert!(duplicate(&mut board, ISS, plain) && duplicate(&mut board, ISS, plain));
    assert_eq!(board.dupacks(), 2);
    board.on_ack(ISS + 1000, &blocks(&[]), plain);
    assert_eq!(board.dupacks(), 0);
}

#[test]
fn the_round_trip_is_that_of_the_earliest_segment_acknowledged() {
    let mut board = board(4, true);
    let outcome = board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
    assert_eq!(outcome.rtt, Some(Micros::from_millis(50)));
    let outcome = board.on_ack(ISS + 2000, &blocks(&[(3000, 4000)]), info(ms(60)));
    assert_eq!(outcome.rtt, Some(Micros::from_millis(57)), "SACK gives a sample too");
}

#[test]
fn a_retransmitted_segment_gives_no_sample_unless_timestamps_do() {
    // RFC 6298 section 3: "RTT samples MUST NOT be made using segments that were retransmitted
    // (and thus for which it is ambiguous whether the reply was for the first instance of the
    // packet or a later instance)", unless "the TCP timestamp option" is in use.
    let retransmitted = || {
        let mut board = board(2, true);
        board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(40)));
        board
    };
    let outcome = retransmitted().on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
    assert_eq!(outcome.rtt, None);
    let echo = AckInfo { ts_echo_rtt: Some(Micros::from_millis(10)), ..info(ms(50)) };
    let outcome = retransmitted().on_ack(ISS + 2000, &blocks(&[]), echo);
    assert_eq!(outcome.rtt, Some(Micros::from_millis(10)));
    let outcome = retransmitted().on_ack(ISS, &blocks(&[]), echo);
    assert_eq!(outcome.rtt, None, "an acknowledgement of nothing new is no sample");
    assert_eq!(outcome.echoed_rtt, Some(Micros::from_millis(10)));
}

/// Linux in TIME-WAIT answers a repeated FIN with the timestamp of the first.
#[test]
fn a_repeated_fin_gives_no_sample() {
    let mut board = board(1, true);
    let fin = |origin, at| Sent { fin: true, ..sent(origin, 1000, 1001, at) };
    board.on_sent(&fin(Origin::New, ms(10)));
    board.on_sent(&fin(Origin::Retransmit, ms(300)));
    let echo = AckInfo { ts_echo_rtt: Some(Micros::from_millis(390)), ..info(ms(400)) };
    assert_eq!(board.on_ack(ISS + 1001, &blocks(&[]), echo).rtt, None);
}

#[test]
fn deliveries_come_in_the_order_of_transmission() {
    let mut board = board(3, true);
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(40)));
    let outcome = board.on_ack(ISS + 1000, &blocks(&[(2000, 3000)]), info(ms(90)));
    let order: Vec<_> =
        outcome.delivered.iter().map(|segment| (segment.range, segment.retransmitted)).collect();
    assert_eq!(order, [(range(2000, 3000), false), (range(0, 1000), true)]);
}

#[test]
fn lost_data_leaves_the_pipe_until_it_is_sent_again() {
    let mut board = board(4, true);
    assert_eq!(board.mark_lost(range(0, 2000)), 2000);
    assert_eq!(board.mark_lost(range(1000, 3000)), 1000, "only what was not lost before");
    assert_eq!((board.pipe(), board.lost_bytes(), board.has_lost()), (1000, 3000, true));
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(10)));
    assert_eq!((board.pipe(), board.lost_bytes()), (2000, 2000));
    let head = board.head().copied();
    assert_eq!(head.map(|head| (head.transmissions, head.sent_at)), Some((2, ms(10))));
    assert_eq!(head.map(|head| head.first_sent_at), Some(ms(0)));
    assert_eq!(board.unmark_lost(), 2000);
    assert_eq!((board.pipe(), board.has_lost()), (4000, false));
}

#[test]
fn lost_data_is_missing_until_it_arrives_or_is_taken_back() {
    let mut board = board(4, true);
    board.mark_lost(range(0, 3000));
    board.on_sent(&sent(Origin::Retransmit, 0, 2000, ms(10)));
    assert_eq!(board.missing_segments(), 3, "two of them were sent again");
    board.on_ack(ISS + 1500, &blocks(&[(2000, 3000)]), info(ms(20)));
    assert_eq!(board.missing_segments(), 1, "the second half of one");
    board.unmark_lost();
    assert_eq!(board.missing_segments(), 0);
    assert!(board.has_gaps(), "SACK reports one segment");
}

#[test]
fn sacked_data_is_never_lost() {
    let mut board = board(3, true);
    board.mark_lost(range(0, 3000));
    board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
    assert_eq!((board.lost_bytes(), board.sacked_bytes(), board.pipe()), (2000, 1000, 0));
    assert_eq!(board.mark_all_lost(), 0);
    assert_eq!(board.lost_bytes(), 2000);
}

#[test]
fn the_next_retransmission_joins_whole_lost_segments() {
    let mut board = Scoreboard::new(ISS, true);
    for (from, to) in [(0, 300), (300, 700), (700, 1600), (1600, 1700)] {
        board.on_sent(&sent(Origin::New, from, to, ms(0)));
    }
    assert_eq!(board.next_lost(1000), None);
    board.mark_lost(range(0, 1700));
    assert_eq!(board.next_lost(1000), Some(range(0, 700)), "900 more do not fit");
    assert_eq!(board.next_lost(10_000), Some(range(0, 1700)));
    assert_eq!(board.next_lost(200), Some(range(0, 200)), "a longer segment is cut");
    assert_eq!(board.next_lost(0), None);
    board.on_ack(ISS, &blocks(&[(300, 700)]), info(ms(50)));
    assert_eq!(board.next_lost(10_000), Some(range(0, 300)), "not across what arrived");
}

#[test]
fn a_syn_is_retransmitted_alone_and_a_fin_with_its_segment() {
    let mut board = Scoreboard::new(ISS, true);
    board.on_sent(&Sent { syn: true, fin: true, ..sent(Origin::New, 0, 1002, ms(0)) });
    board.mark_all_lost();
    assert_eq!(board.next_lost(1000), Some(range(0, 1)));
    board.on_ack(ISS + 1, &blocks(&[]), info(ms(50)));
    assert_eq!(board.next_lost(1000), Some(range(1, 1002)));
}

#[test]
fn cause_of_a_dsack_is_found_in_the_log_of_retransmissions() {
    // RFC 2883 section 4: a first block below the cumulative acknowledgement reports a duplicate.
    let cases = [
        (Origin::Retransmit, DsackOf::Retransmit),
        (Origin::TailLossProbe, DsackOf::TailLossProbe),
        (Origin::Duplicate, DsackOf::Duplicate),
    ];
    for (origin, of) in cases {
        let mut board = board(2, true);
        board.on_sent(&sent(origin, 1000, 2000, ms(10)));
        board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
        let report = blocks(&[(1000, 2000)]);
        let outcome = board.on_ack(ISS + 2000, &report, info(ms(60)));
        assert_eq!(
            outcome.dsack,
            Some(Dsack { range: range(1000, 2000), of, sent_twice: 1000, reported_before: false })
        );
        assert_eq!((outcome.newly_sacked, outcome.delivered_bytes), (0, 0));
        let again = board.on_ack(ISS + 2000, &report, info(ms(61)));
        assert_eq!(
            again.dsack.map(|dsack| dsack.of),
            Some(DsackOf::NeverSentTwice),
            "one transmission is one duplicate; this one is of the network's making"
        );
    }
}

#[test]
fn a_dsack_of_what_was_reported_and_sent_twice_is_marked() {
    let mut board = board(4, true);
    board.on_sent(&sent(Origin::Retransmit, 1000, 2000, ms(10)));
    board.on_ack(ISS, &blocks(&[(1000, 4000)]), info(ms(50)));
    let mut reported_before = |from, to| {
        let outcome = board.on_ack(ISS, &blocks(&[(from, to), (1000, 4000)]), info(ms(60)));
        outcome.dsack.map(|dsack| dsack.reported_before)
    };
    assert_eq!(reported_before(1000, 2000), Some(true));
    assert_eq!(reported_before(2000, 3000), Some(false), "it was sent once");
}

#[test]
fn a_dsack_that_ends_behind_what_was_sent_is_not_believed() {
    let mut board = board(2, true);
    board.on_sent(&sent(Origin::Retransmit, 1000, 2000, ms(10)));
    board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
    let outcome = board.on_ack(ISS + 2000, &blocks(&[(1000, 2001)]), info(ms(60)));
    assert_eq!(outcome.dsack, None);
}

#[test]
fn a_dsack_within_the_second_block_is_recognised() {
    // RFC 2883 section 4: above the cumulative acknowledgement "the second SACK block in that SACK
    // option should specify that (possibly larger) block" that the duplicate is part of.
    let mut board = board(5, true);
    board.on_sent(&sent(Origin::Retransmit, 2000, 3000, ms(10)));
    let outcome = board.on_ack(ISS, &blocks(&[(2000, 3000), (1000, 4000)]), info(ms(60)));
    assert_eq!(
        outcome.dsack,
        Some(Dsack {
            range: range(2000, 3000),
            of: DsackOf::Retransmit,
            sent_twice: 1000,
            reported_before: false
        })
    );
    assert_eq!(outcome.newly_sacked, 3000);
}

#[test]
fn a_copy_changes_nothing_but_the_log() {
    let mut board = board(2, true);
    let before = board.clone();
    board.on_sent(&sent(Origin::Duplicate, 0, 2000, ms(20)));
    assert_eq!((board.pipe(), board.nxt()), (before.pipe(), before.nxt()));
    assert!(board.records().eq(before.records()), "transmission times and counts are untouched");
    let outcome = board.on_ack(ISS + 1000, &blocks(&[]), info(ms(100)));
    assert!(outcome.rtt.is_some() && !outcome.delivered[0].retransmitted, "a sample as without the copy");
}

/// Acknowledges two segments, and then reports a duplicate of these bytes.
fn reported(board: &mut Scoreboard, from: u32, to: u32) -> (DsackOf, u32) {
    board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
    let outcome = board.on_ack(ISS + 2000, &blocks(&[(from, to)]), info(ms(60)));
    outcome.dsack.map(|dsack| (dsack.of, dsack.sent_twice)).expect("a DSACK")
}

#[test]
fn dsack_is_attributed_to_a_copy_only_without_retransmission() {
    let mut board = board(2, true);
    board.on_sent(&sent(Origin::Duplicate, 0, 2000, ms(2)));
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(10)));
    assert_eq!(reported(&mut board, 0, 1000).0, DsackOf::Retransmit);
    assert_eq!(reported(&mut board, 0, 1000).0, DsackOf::Duplicate);
    assert_eq!(reported(&mut board, 1000, 2000).0, DsackOf::Duplicate);
    assert_eq!(reported(&mut board, 1000, 2000).0, DsackOf::NeverSentTwice);
}

/// A peer without an agreement reports copies too. If the original was lost, the copy and the retransmission
/// cause one DSACK, which must not undo the reduction of the window.
#[test]
fn first_dsack_is_attributed_to_the_copy_that_the_peer_reports() {
    let mut board = board(2, true);
    board.expect_dsack_of_copies();
    board.on_sent(&sent(Origin::Duplicate, 0, 2000, ms(2)));
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(10)));
    assert_eq!(reported(&mut board, 0, 1000).0, DsackOf::Duplicate);
    assert_eq!(reported(&mut board, 0, 1000).0, DsackOf::Retransmit);
    assert_eq!(reported(&mut board, 1000, 2000).0, DsackOf::Duplicate);
    assert_eq!(reported(&mut board, 1000, 2000).0, DsackOf::NeverSentTwice);
}

#[test]
fn copy_that_leaves_later_makes_the_round_trip_ambiguous() {
    for (later, rtt) in [(1, Some(Micros::from_millis(50))), (9, None)] {
        let mut board = board(1, true);
        board.expect_dsack_of_copies();
        board.on_sent(&sent(Origin::Duplicate, 0, 1000, ms(later)));
        assert_eq!(board.on_ack(ISS + 1000, &blocks(&[]), info(ms(50))).rtt, rtt, "{later} ms later");
    }
}

#[test]
fn dsack_of_retransmitted_and_copied_bytes_counts_the_retransmitted_ones() {
    let mut board = board(2, true);
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(10)));
    board.on_sent(&sent(Origin::Duplicate, 1000, 2000, ms(11)));
    assert_eq!(reported(&mut board, 0, 2000), (DsackOf::Retransmit, 1000));
    let again = reported(&mut board, 1000, 2000);
    assert_eq!(again, (DsackOf::NeverSentTwice, 0), "the first report was about the copy too");
}

#[test]
fn the_log_of_what_was_sent_twice_is_bounded() {
    let mut board = board(500, true);
    for index in 0..250 {
        board.on_sent(&sent(Origin::Retransmit, index * 2000, index * 2000 + 1000, ms(600)));
    }
    assert_eq!(board.tags.sent_twice.len(), MAX_SENT_TWICE);
    let mut board = self::board(500, true);
    for index in 0..500 {
        board.on_sent(&sent(Origin::Retransmit, index * 1000, index * 1000 + 1000, ms(600)));
    }
    assert_eq!(board.tags.sent_twice.len(), 1, "a window sent again in order is one entry");
}

#[test]
fn reneging_receiver_is_detected() {
    // RFC 2018 section 8: "the data receiver is permitted to discard data in its queue that has not been
    // acknowledged to the data sender, even if the data has already been reported".
    let mut board = board(3, true);
    board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
    let outcome = board.on_ack(ISS + 1000, &blocks(&[]), info(ms(60)));
    assert!(outcome.reneged);
    board.clear_sacked();
    assert_eq!((board.pipe(), board.sacked_bytes(), board.sacked_segments()), (2000, 0, 0));
    let outcome = board.on_ack(ISS + 3000, &blocks(&[]), info(ms(70)));
    assert!(!outcome.reneged);
    assert_eq!(outcome.delivered_bytes, 2000);
}

#[test]
fn without_sack_each_duplicate_takes_a_segment_from_the_pipe() {
    let mut board = board(5, false);
    for duplicates in 1..=3 {
        let outcome = board.on_ack(ISS, &blocks(&[]), info(ms(50)));
        assert_eq!((outcome.duplicate, outcome.delivered_bytes), (true, 1000));
        assert_eq!((board.dupacks(), board.pipe()), (duplicates, 5000 - duplicates * 1000));
    }
    assert_eq!(board.mark_head_lost(MSS), 1000);
    assert_eq!((board.pipe(), board.next_lost(MSS)), (1000, Some(range(0, 1000))));
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(51)));
    let outcome = board.on_ack(ISS + 4000, &blocks(&[]), info(ms(90)));
    assert_eq!(outcome.delivered_bytes, 1000, "three of the four were announced by duplicates");
    assert_eq!(board.pipe(), 1000);
}

/// RecoverFS of RFC 9937 excludes data delivered before the recovery, so it does not count again.
#[test]
fn without_sack_data_counted_by_duplicates_is_delivered() {
    let mut board = board(5, false);
    board.on_ack(ISS, &blocks(&[]), info(ms(50)));
    board.on_ack(ISS, &blocks(&[]), info(ms(51)));
    let third = board.on_ack(ISS, &blocks(&[]), info(ms(52)));
    assert_eq!(third.undelivered_before, 3000);
    assert_eq!((board.arrived_segments(), third.delivered_segments), (3, 1));
    let all = board.on_ack(ISS + 5000, &blocks(&[]), info(ms(90)));
    assert_eq!(
        (board.arrived_segments(), all.delivered_segments),
        (0, 2),
        "three of the five were announced"
    );
}

#[test]
fn without_sack_duplicates_do_not_count_lost_data_as_arrived() {
    let mut board = board(3, false);
    board.mark_all_lost();
    board.on_sent(&sent(Origin::Retransmit, 0, 3000, ms(300)));
    let outcome = board.on_ack(ISS, &blocks(&[]), info(ms(310)));
    assert_eq!((outcome.delivered_bytes, board.pipe()), (0, 3000), "it was sent again and has not arrived");
}

#[test]
fn without_sack_duplicates_cannot_announce_more_than_was_sent() {
    let mut board = board(3, false);
    let delivered: u32 = (0..20).map(|_| board.on_ack(ISS, &blocks(&[]), info(ms(50))).delivered_bytes).sum();
    assert_eq!((delivered, board.pipe()), (2000, 1000), "the hole itself has not arrived");
}

#[test]
fn duplicates_without_sack_do_not_announce_data_after_the_repair() {
    let mut board = board(4, false);
    let duplicates = |board: &mut Scoreboard, una, count: u32| -> u32 {
        (0..count).map(|_| board.on_ack(ISS + una, &blocks(&[]), info(ms(50))).delivered_bytes).sum()
    };
    assert_eq!(duplicates(&mut board, 0, 3), 3000);
    board.mark_head_lost(MSS);
    board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(51)));
    board.on_sent(&sent(Origin::New, 4000, 9000, ms(52)));
    assert_eq!(duplicates(&mut board, 0, 20), 0, "all four are accounted for");
    board.on_ack(ISS + 1000, &blocks(&[]), info(ms(90)));
    assert_eq!(duplicates(&mut board, 1000, 20), 4000, "the next repair is due");
}

#[test]
fn duplicates_without_sack_are_forgotten_with_the_next_advance() {
    let mut board = board(5, false);
    board.on_ack(ISS, &blocks(&[]), info(ms(50)));
    board.on_ack(ISS + 1000, &blocks(&[]), info(ms(51)));
    assert_eq!((board.dupacks(), board.pipe()), (0, 4000));
}

#[test]
fn segments_are_cut_when_the_path_takes_less() {
    let mut board = board(2, true);
    board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
    board.resplit(400);
    let lengths: Vec<_> = board.records().map(|record| record.range.len()).collect();
    assert_eq!(lengths, [400, 400, 200, 400, 400, 200]);
    assert_eq!((board.sacked_segments(), board.sacked_bytes(), board.pipe()), (3, 1000, 1000));
}

#[test]
fn a_probe_may_carry_new_data() {
    let mut board = board(1, true);
    board.on_sent(&sent(Origin::TailLossProbe, 1000, 2000, ms(10)));
    assert_eq!((board.nxt(), board.pipe()), (ISS + 2000, 2000));
    assert_eq!(board.tail().map(|tail| (tail.transmissions, tail.origin)), Some((1, Origin::TailLossProbe)));
}
