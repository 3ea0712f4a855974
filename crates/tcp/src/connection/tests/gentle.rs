//! What SYN and SYN-ACK agree on about Corrective and Proactive, on two whole connections.

use super::*;
use crate::config::{CorrectiveConfig, FecProfile, MechanismConfig, PlannerConfig, ProactiveConfig};
use crate::mechanism::{Agreed, GentleOff, GentleOutcome, Profile};

fn with(corrective: Option<CorrectiveConfig>, proactive: Option<ProactiveConfig>) -> TcpConfig {
    let mechanisms = MechanismConfig { corrective, proactive, ..MechanismConfig::default() };
    TcpConfig { mechanisms, ..TcpConfig::default() }
}

/// The outcomes of a client and a server with these configurations.
fn outcomes(client: TcpConfig, server: TcpConfig) -> [GentleOutcome; 2] {
    let mut world = World::new(client);
    world.config[S] = Arc::new(server);
    world.run(Instant::from_millis(300));
    [C, S].map(|who| world.end(who).stats().gentle)
}

#[test]
fn of_a_path_of_which_nothing_is_known_the_assumed_loss_is_expected() {
    for assumed_loss in [0, 10_000, 200_000] {
        let mut config = TcpConfig::planned(5);
        config.mechanisms.planner = Some(PlannerConfig { assumed_loss, ..PlannerConfig::default() });
        let losses = World::new(config).end(C).expected_losses();
        // Five segments of the assumed loss, and the SYN, which is not lost yet.
        let of_six = assumed_loss * 5 / 6;
        assert_eq!((losses.per_million, losses.burst_milli, losses.queue), (of_six, 1000, false));
    }
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

#[test]
fn the_paper_s_profile_is_answered_by_who_accepts_both() {
    let f1 = with(Some(CorrectiveConfig::of_the_paper()), None);
    let both =
        with(Some(CorrectiveConfig { profile: FecProfile::Both, ..CorrectiveConfig::default() }), None);
    let agreed = Agreed { profile: Profile::F1, ..F2 };
    assert_eq!(outcomes(f1.clone(), both), [GentleOutcome::On(agreed); 2]);
    let f2 = with(Some(CorrectiveConfig::default()), None);
    assert_eq!(outcomes(f1, f2), [GentleOutcome::Off(GentleOff::NotAnswered); 2]);
}

#[test]
fn one_end_alone_gets_nothing() {
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
