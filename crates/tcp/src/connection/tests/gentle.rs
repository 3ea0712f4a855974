//! Negotiation of Corrective and Proactive in SYN and SYN-ACK, on two whole connections.

use super::*;
#[cfg(feature = "historical")]
use crate::config::FecProfile;
use crate::config::{CorrectiveConfig, MechanismConfig, PlannerConfig, ProactiveConfig};
use crate::connection::gentle::Gentle;
use crate::mechanism::plan::Losses;
use crate::mechanism::{Agreed, GentleOff, GentleOutcome, ParityOff, Profile};
use crate::outcome::CongestionState;
use crate::send::budget::Budget;

fn with(corrective: Option<CorrectiveConfig>, proactive: Option<ProactiveConfig>) -> TcpConfig {
    let mechanisms = MechanismConfig { corrective, proactive, ..MechanismConfig::default() };
    TcpConfig { mechanisms, ..TcpConfig::default() }
}

/// Returns the outcomes of a client and a server with these configurations.
fn outcomes(client: TcpConfig, server: TcpConfig) -> [GentleOutcome; 2] {
    let mut world = World::new(client);
    world.config[S] = Arc::new(server);
    world.run(Instant::from_millis(300));
    [C, S].map(|who| world.end(who).stats().gentle)
}

fn expected_losses(connection: &mut Connection) -> Losses {
    connection.with_gentle(|gentle, parts| {
        gentle.planner.as_ref().expect("there is a planner").expected_losses(parts)
    })
}

#[test]
fn an_unknown_path_has_the_assumed_loss() {
    for assumed_loss in [0, 10_000, 200_000] {
        let mut config = TcpConfig::planned(5);
        config.mechanisms.planner = Some(PlannerConfig { assumed_loss, ..PlannerConfig::default() });
        let losses = expected_losses(World::new(config).end(C));
        // The assumed loss has the weight of five segments; the sixth is the SYN, which is not lost so far.
        let of_six = assumed_loss * 5 / 6;
        assert_eq!((losses.per_million, losses.burst_milli, losses.queue), (of_six, 1000, false));
    }
}

#[test]
fn a_flight_leaves_at_once_unless_the_peer_s_window_holds_its_end_back() {
    let flight = |peer: u32, segments: u32| {
        let mut world = World::new(TcpConfig::planned(5));
        let client = world.end(C);
        let mss = client.payload_limit();
        let data = [0; 20 * 1460];
        assert_eq!(
            client.write(&data[..(segments * mss) as usize], Instant::ZERO),
            Ok((segments * mss) as usize)
        );
        let budget = Budget {
            cwnd: 10 * mss,
            pipe: 0,
            others: 0,
            redundancy_in_flight: 0,
            peer: peer * mss,
            paced: u32::MAX,
            redundancy: 0,
            mss,
        };
        let flight = client.tx.next_flight(&budget, mss, 0);
        (flight.bytes / mss, flight.followed, flight.at_once)
    };
    assert_eq!(flight(20, 5), (5, 0, true));
    assert_eq!(flight(3, 5), (5, 0, false));
    // Data beyond the congestion window follows a round trip later, and is planned then.
    assert_eq!(flight(20, 15), (10, 1_500, true));
}

/// Nothing more can be written to a closed stream, as to one with a full buffer.
#[test]
fn no_data_follows_the_end_of_the_stream() {
    let mut world = World::new(TcpConfig::planned(5));
    let client = world.end(C);
    client.write(&[0; 5_000], Instant::ZERO).unwrap();
    client.shutdown(Instant::ZERO).unwrap();
    assert_eq!(client.tx.next_flight(&client.budget(Instant::ZERO), client.payload_limit(), 0).followed, 0);
}

#[test]
fn a_full_buffer_is_a_sign_of_more_data() {
    let mut world = World::new(TcpConfig::planned(5));
    let client = world.end(C);
    let written = client.write(&[0; 1 << 20], Instant::ZERO).unwrap() as u32;
    let budget = Budget { cwnd: 1 << 20, ..client.budget(Instant::ZERO) };
    let flight = client.tx.next_flight(&budget, client.payload_limit(), 0);
    assert_eq!(flight.bytes, written);
    assert!(flight.followed >= 1_000, "{flight:?}");
}

const F2: Agreed = Agreed { profile: Profile::F2, encoding: 1, proactive: false };

#[test]
fn both_ends_that_want_it_agree() {
    let corrective = || with(Some(CorrectiveConfig::default()), None);
    assert_eq!(outcomes(corrective(), corrective()), [GentleOutcome::On(F2); 2]);
    let both = with(Some(CorrectiveConfig::default()), Some(ProactiveConfig::default()));
    assert_eq!(outcomes(both.clone(), corrective()), [GentleOutcome::On(F2); 2]);
    assert_eq!(outcomes(both.clone(), both), [GentleOutcome::On(Agreed { proactive: true, ..F2 }); 2]);
}

#[cfg(feature = "historical")]
#[test]
fn the_papers_profile_is_accepted_by_an_end_with_both() {
    let f1 = with(Some(CorrectiveConfig::of_the_paper()), None);
    let both =
        with(Some(CorrectiveConfig { profile: FecProfile::Both, ..CorrectiveConfig::default() }), None);
    let agreed = Agreed { profile: Profile::F1, ..F2 };
    assert_eq!(outcomes(f1.clone(), both), [GentleOutcome::On(agreed); 2]);
    let f2 = with(Some(CorrectiveConfig::default()), None);
    assert_eq!(outcomes(f1, f2), [GentleOutcome::Off(GentleOff::NotAnswered); 2]);
}

#[test]
fn mechanism_needs_both_ends() {
    let corrective = || with(Some(CorrectiveConfig::default()), None);
    let off = GentleOutcome::Off(GentleOff::NotAnswered);
    let absent = GentleOutcome::Off(GentleOff::NotAsked);
    assert_eq!(outcomes(corrective(), TcpConfig::default()), [off, absent]);
    assert_eq!(outcomes(TcpConfig::default(), corrective()), [absent, off]);
    let no_sack = TcpConfig { sack: false, ..corrective() };
    assert_eq!(outcomes(no_sack, corrective()), [absent, off], "what was lost is what SACK leaves out");
}

#[test]
fn a_retransmitted_syn_or_syn_ack_goes_without_it() {
    let corrective = || with(Some(CorrectiveConfig::default()), None);
    for lost in [C, S] {
        let mut world = World::new(corrective());
        world.lose = if lost == C { |who, n| who == C && n == 1 } else { |who, n| who == S && n == 1 };
        world.run(Instant::from_millis(3000));
        let off = |who: usize| match world.ends[who].as_ref().unwrap().stats().gentle {
            GentleOutcome::Off(why) => Some(why),
            GentleOutcome::Pending | GentleOutcome::On(_) => None,
        };
        assert!(off(C).is_some() && off(S).is_some(), "lost from {lost}: {:?} {:?}", off(C), off(S));
    }
}

#[test]
fn a_simultaneous_open_says_nothing_about_the_option() {
    let mut world = World::new(with(Some(CorrectiveConfig::default()), None));
    let tuple = FourTuple { local: "10.0.0.2:80".parse().unwrap(), remote: "10.0.0.1:1000".parse().unwrap() };
    let secrets = Secrets { iss: SeqNum(9000), ts_offset: 5 };
    world.ends[S] = Some(*Connection::connect(tuple, &world.config[S], secrets, HOST, Instant::ZERO));
    world.run_for(400);
    for who in [C, S] {
        assert_eq!(world.end(who).state(), State::Established);
        assert_eq!(world.end(who).take_syn_report().0, None, "no listener has judged the SYN");
    }
}

#[test]
fn removal_of_the_option_is_reported_once() {
    let mut world = World::open(with(Some(CorrectiveConfig::default()), None));
    assert!(!world.end(C).take_syn_report().1, "nothing is wrong");
    world.end(C).with_gentle(|gentle, parts| gentle.stop_parity(ParityOff::Stripped, parts));
    assert!(world.end(C).take_syn_report().1);
    assert!(!world.end(C).take_syn_report().1);
}

#[test]
fn losses_in_a_queue_are_expected_to_go_on() {
    let queue_after_loss_at = |longer: u64| {
        let mut world = World::open(TcpConfig { nodelay: true, ..TcpConfig::planned(5) });
        world.transfer(20_000);
        world.hold_from(C, Duration::from_millis(longer));
        world.transfer(20_000);
        world.lose = |who, n| who == C && n % 5 == 0;
        world.transfer(100_000);
        world.hold_from(C, Duration::ZERO);
        world.lose = |_, _| false;
        expected_losses(world.end(C)).queue
    };
    assert!(!queue_after_loss_at(0), "the path itself loses");
    assert!(queue_after_loss_at(150), "what was lost had waited");
}

#[test]
fn parity_leaves_in_recovery_after_a_loss_without_a_queue() {
    let mut world = World::new(TcpConfig::planned(25));
    let client = world.end(C);
    let mut withholds_after_loss_with_queue = |is_queued: bool| {
        client.path.known.is_queued = is_queued;
        client.with_gentle(Gentle::record_loss);
        client.gentle.withholds_parity(CongestionState::Recovery)
    };
    assert!(!withholds_after_loss_with_queue(false));
    assert!(withholds_after_loss_with_queue(true));
    assert!(!withholds_after_loss_with_queue(false));
    let mut unplanned = World::new(TcpConfig::default());
    unplanned.end(C).with_gentle(Gentle::record_loss);
    assert!(unplanned.end(C).gentle.withholds_parity(CongestionState::Recovery));
}

/// Cost and allowance count IP bytes: once the planned redundancy has left, nothing of it stays reserved.
#[test]
fn planned_redundancy_spends_the_whole_cost_of_its_plan() {
    for parity in [true, false] {
        let mut config = TcpConfig::planned(50);
        config.mechanisms.planner =
            Some(PlannerConfig { max_overhead: 50, assumed_loss: 100_000, ..PlannerConfig::default() });
        if !parity {
            config.mechanisms.corrective = None;
        }
        let mut world = World::open(config);
        world.end(C).gentle.set_destination_allowance(1 << 20);
        let now = world.now;
        world.end(C).write(&[7; 2_500], now).unwrap();
        world.end(C).shutdown(now).unwrap();
        world.run_for(40);
        let client = world.end(C);
        let redundancy = client.counters.parity.sent + client.counters.copies_sent;
        assert!(redundancy > 0, "parity {parity}");
        assert_eq!(client.tx.redundancy_left(), 0, "parity {parity}, {redundancy} segments");
    }
}

#[test]
fn acknowledgements_are_copied_while_the_allowance_of_the_destination_lasts() {
    for (allowance, copies) in [(0, false), (10_000, true)] {
        let mut config = TcpConfig::planned(5);
        let proactive = config.mechanisms.proactive.unwrap_or_default();
        config.mechanisms.proactive = Some(ProactiveConfig { copy_acks: true, ..proactive });
        let mut world = World::open(config);
        world.end(S).gentle.set_destination_allowance(allowance);
        world.transfer(20_000);
        assert_eq!(world.end(S).counters.copies_sent > 0, copies, "allowance of {allowance} bytes");
    }
}
