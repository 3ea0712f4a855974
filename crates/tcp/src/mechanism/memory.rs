//! Memory of destinations to which an option of a SYN does not pass. It may be the option of Corrective and
//! Proactive ("the option" below) or that of Fast Open.
//!
//! A dropped SYN shows that the path rejects something in it, but not what. If the SYN had both options, the
//! next connections carry one of the two each, in turn. An option that is dropped alone is left out by the
//! rule below. When both have passed alone, one more SYN carries both. If that SYN is dropped too, the path
//! rejects the combination, and the option is left out for a day. So two connections find the cause, and the
//! other option stays in use.
//!
//! After the second dropped SYN in a row the option is left out for an hour, doubled each time. If a device
//! removes the option from later segments or rewrites payload, the option is left out for a day.
//! [`crate::fast_open::client`] remembers failures of Fast Open alone.
//!
//! A random loss looks the same. On a path that loses 2 % in each direction, a SYN stays unanswered in 4 of
//! 100 connections. This happens twice in a row after some 600. With a limit of two, a busy client would
//! leave out the option most of the time on the very paths where it helps. So more dropped SYNs are needed
//! for a destination that has passed the option before. After two in a row the options are tried one by one,
//! because a connection without an option is slower. After six the option is left out.
//!
//! "In a row" means that each of these connections was opened when the drop before it was known. SYNs that
//! leave together count as one, because a moment without a link drops all of them. If chance drops some,
//! these are answered last, after a retransmission. They would otherwise look like drops in a row.
//!
//! A connection on which no SYN is answered, not even a plain one, shows nothing by itself: the server may be
//! down, or start later than its client. The next connection has neither option. If it opens, the SYN before
//! it counts as dropped; if it fails as well, the server was to blame.

use crate::fast_open::client::{FastOpenReport, Mode};
use crate::four_tuple::KeyedHash;
use crate::lru::Lru;
use crate::path::Ends;
use crate::time::{Duration, Instant};

/// Number of dropped SYNs in a row after which the option is left out.
const LIMIT: u8 = 2;
/// The same for a destination that has passed the option before. If one open in ten is not answered by
/// chance, six in a row have a probability of one in a million.
const LIMIT_OF_KNOWN: u8 = 6;
/// Number of dropped SYNs with both options after which the combination counts as blocked, if each option
/// passes alone. [`ROUNDS_OF_KNOWN`] is for destinations that have passed the option before.
const ROUNDS: u8 = 1;
const ROUNDS_OF_KNOWN: u8 = 3;
/// Number of answered SYNs with the option after which a destination counts as known to pass it.
const KNOWN: u8 = 4;
/// Time for which the option is left out; it doubles each time, up to 32 times this value.
const SUSPENSION: Duration = Duration::from_secs(3600);
const MAX_DOUBLINGS: u8 = 5;
/// Time for which the option is left out if the combination is blocked or the path damages later segments.
const LONG_SUSPENSION: Duration = Duration::from_secs(24 * 3600);

/// A destination: the two addresses, and the port of the remote one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Destination {
    pub(crate) ends: Ends,
    pub(crate) port: u16,
}

/// The options that a SYN may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SynOptions {
    /// Both options.
    Together,
    /// Only the option of Fast Open.
    FastOpen,
    /// Only the option of Corrective and Proactive.
    Gentle,
    /// All options except the one of Corrective and Proactive.
    NoGentle,
    /// Neither option.
    Plain,
}

/// The answered SYN of an active open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    First,
    /// The SYN-ACK answers a later, plain SYN: the first was dropped.
    Later,
    /// There was no SYN-ACK: the connection failed.
    Never,
}

/// A connection's report on its first SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opened {
    /// Set if the SYN carried the option of Fast Open, or data.
    pub(crate) fast_open: Option<Mode>,
    /// True if the SYN carried the option of Corrective and Proactive.
    pub(crate) gentle: bool,
    pub(crate) answer: Answer,
    /// Number of dropped SYNs in a row, as known when the connection was opened.
    pub(crate) known_drops: u8,
}

impl Opened {
    /// True if the first SYN was dropped and either of two options may be the reason.
    pub(crate) fn is_cause_ambiguous(&self) -> bool {
        self.answer == Answer::Later && self.fast_open.is_some() && self.gentle
    }

    /// True if the first SYN carried neither option.
    fn is_plain(&self) -> bool {
        self.fast_open.is_none() && !self.gentle
    }

    /// Returns the report for the memory of Fast Open about a dropped SYN.
    fn fast_open_report(&self) -> Option<FastOpenReport> {
        let report = FastOpenReport::Failed(self.fast_open?);
        Some(if self.is_cause_ambiguous() { report.doubted() } else { report })
    }
}

/// State of the search for the rejected option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum OptionSearch {
    /// No search: both options are sent together.
    #[default]
    Idle,
    /// A SYN with both options was dropped. The next SYN has only the option of Fast Open.
    FastOpenNext,
    /// The next SYN has only the option of Corrective and Proactive.
    GentleNext { fast_open_passed: bool },
    /// Each option has passed alone. The next SYN has both once more.
    OnceMore,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct OptionRecord {
    /// Answered SYNs with the option, up to [`KNOWN`].
    passed: u8,
    /// Dropped SYNs with the option, in a row.
    drops: u8,
    /// Searches in a row that found only the combination blocked.
    rounds: u8,
    away_until: Option<Instant>,
    search: OptionSearch,
    /// The first SYN of a failed connection, until a plain SYN shows whether the server is up.
    suspect: Option<Opened>,
}

/// The memory of a stack.
#[derive(Debug)]
pub(crate) struct GentleMemory {
    records: Lru<Destination, OptionRecord, KeyedHash>,
}

impl GentleMemory {
    /// Returns an empty memory for this number of destinations.
    pub(crate) fn new(entries: usize, hash: KeyedHash) -> Self {
        GentleMemory { records: Lru::new(entries, hash) }
    }

    /// Resets to the state after [`GentleMemory::new`], and keeps the storage.
    pub(crate) fn renew(&mut self, entries: usize, hash: KeyedHash) {
        self.records.renew(entries, hash);
    }

    /// Returns the options that the SYN of a new connection may carry, and the dropped SYNs in a row.
    pub(crate) fn syn_options(&self, to: &Destination, now: Instant) -> (SynOptions, u8) {
        let Some(record) = self.records.peek(to) else { return (SynOptions::Together, 0) };
        (record.syn_options(now), record.drops)
    }

    /// Records the outcome of a first SYN. Returns a report for the memory of Fast Open if this outcome
    /// explains the failure of an earlier connection.
    pub(crate) fn on_opened(
        &mut self,
        to: Destination,
        opened: &Opened,
        now: Instant,
    ) -> Option<FastOpenReport> {
        let is_suspect = opened.answer == Answer::Never && !opened.is_plain();
        if !opened.gentle && !is_suspect && self.records.peek(&to).is_none() {
            return None;
        }
        let (_, record) = self.records.touch_or_insert(to, OptionRecord::default)?;
        match (opened.answer, opened.is_plain()) {
            (Answer::Never, false) => {
                record.suspect.get_or_insert(*opened);
                None
            }
            (Answer::Never, true) => {
                record.suspect = None;
                None
            }
            (Answer::First | Answer::Later, true) => {
                let dropped = Opened { answer: Answer::Later, ..record.suspect.take()? };
                record.learn(&dropped, now);
                dropped.fast_open_report()
            }
            (Answer::First | Answer::Later, false) => {
                record.suspect = None;
                record.learn(opened, now);
                None
            }
        }
    }

    /// Records that the path passed the option in the handshake and damaged later segments.
    pub(crate) fn on_interference(&mut self, to: Destination, now: Instant) {
        if let Some((_, record)) = self.records.touch_or_insert(to, OptionRecord::default) {
            record.suspend(LONG_SUSPENSION, now);
        }
    }

    /// Forgets every destination. Called when the network changes.
    pub(crate) fn flush(&mut self) {
        self.records.retain(|_, _| false);
    }
}

impl OptionRecord {
    fn syn_options(&self, now: Instant) -> SynOptions {
        if self.suspect.is_some() {
            return SynOptions::Plain;
        }
        if self.away_until.is_some_and(|until| until > now) {
            return SynOptions::NoGentle;
        }
        match self.search {
            OptionSearch::Idle | OptionSearch::OnceMore => SynOptions::Together,
            OptionSearch::FastOpenNext => SynOptions::FastOpen,
            OptionSearch::GentleNext { .. } => SynOptions::Gentle,
        }
    }

    fn learn(&mut self, opened: &Opened, now: Instant) {
        let was_dropped = opened.answer != Answer::First;
        match (opened.fast_open.is_some(), opened.gentle, was_dropped) {
            (true, true, false) => {
                self.record_pass();
                *self = OptionRecord { passed: self.passed, ..OptionRecord::default() };
            }
            (true, true, true) if self.search == OptionSearch::OnceMore => {
                self.record_blocked_combination(now)
            }
            (true, true, true) if self.search == OptionSearch::Idle => {
                self.record_drop_of_both(opened.known_drops)
            }
            // The connection began before the search.
            (true, true, true) => {}
            (true, false, _) if self.search == OptionSearch::FastOpenNext => {
                self.search = OptionSearch::GentleNext { fast_open_passed: !was_dropped };
            }
            (true, false, _) => {}
            (false, true, true) => self.record_drop(opened.known_drops, now),
            (false, true, false) => self.record_pass_alone(),
            (false, false, _) => {}
        }
    }

    fn is_known(&self) -> bool {
        self.passed >= KNOWN
    }

    fn record_pass(&mut self) {
        self.passed = KNOWN.min(self.passed + 1);
        self.drops = 0;
    }

    /// Processes a dropped SYN with both options. If both have passed before, one drop is probably random.
    fn record_drop_of_both(&mut self, known_drops: u8) {
        if self.is_known() && known_drops.min(self.drops) == 0 {
            self.drops = 1;
        } else {
            (self.drops, self.search) = (0, OptionSearch::FastOpenNext);
        }
    }

    fn record_blocked_combination(&mut self, now: Instant) {
        self.rounds += 1;
        if self.rounds < if self.is_known() { ROUNDS_OF_KNOWN } else { ROUNDS } {
            self.search = OptionSearch::FastOpenNext;
            return;
        }
        self.suspend(LONG_SUSPENSION, now);
        (self.rounds, self.search) = (0, OptionSearch::Idle);
    }

    fn record_drop(&mut self, known_drops: u8, now: Instant) {
        let row = known_drops.min(self.drops).saturating_add(1);
        if row <= self.drops {
            return;
        }
        self.drops = row;
        let limit = if self.is_known() { LIMIT_OF_KNOWN } else { LIMIT };
        let beyond = self.drops.checked_sub(limit);
        match (beyond, self.search) {
            (Some(beyond), _) => {
                self.suspend(SUSPENSION.saturating_mul(1 << beyond.min(MAX_DOUBLINGS)), now);
                self.search = OptionSearch::Idle;
            }
            (None, OptionSearch::Idle) => {}
            (None, _) => self.search = OptionSearch::FastOpenNext,
        }
    }

    fn record_pass_alone(&mut self) {
        self.record_pass();
        self.search = match self.search {
            OptionSearch::GentleNext { fast_open_passed: true } => OptionSearch::OnceMore,
            OptionSearch::GentleNext { fast_open_passed: false } => OptionSearch::FastOpenNext,
            search @ (OptionSearch::Idle | OptionSearch::FastOpenNext | OptionSearch::OnceMore) => search,
        };
    }

    fn suspend(&mut self, time: Duration, now: Instant) {
        let until = now + time;
        self.away_until = Some(self.away_until.map_or(until, |before| before.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const BOTH: (bool, bool) = (true, true);
    const FAST_OPEN: (bool, bool) = (true, false);
    const GENTLE: (bool, bool) = (false, true);
    const PLAIN: (bool, bool) = (false, false);

    struct World {
        memory: GentleMemory,
        now: Instant,
    }

    fn to(port: u16) -> Destination {
        let ip = |text: &str| text.parse().expect("an address");
        Destination { ends: Ends { local: ip("192.0.2.1"), remote: ip("198.51.100.9") }, port }
    }

    impl World {
        fn new() -> World {
            World { memory: GentleMemory::new(2, KeyedHash::new(&1.into())), now: Instant::from_millis(0) }
        }

        fn opened(&mut self, carried: (bool, bool), was_dropped: bool) {
            self.answered(carried, if was_dropped { Answer::Later } else { Answer::First });
        }

        fn answered(&mut self, carried: (bool, bool), answer: Answer) -> Option<FastOpenReport> {
            let known_drops = self.known_drops();
            self.answered_knowing(known_drops, carried, answer)
        }

        fn answered_knowing(
            &mut self,
            known_drops: u8,
            (fast_open, gentle): (bool, bool),
            answer: Answer,
        ) -> Option<FastOpenReport> {
            let fast_open = fast_open.then_some(Mode::Data);
            self.memory.on_opened(to(80), &Opened { fast_open, gentle, answer, known_drops }, self.now)
        }

        fn turn(&self) -> SynOptions {
            self.memory.syn_options(&to(80), self.now).0
        }

        fn known_drops(&self) -> u8 {
            self.memory.syn_options(&to(80), self.now).1
        }

        fn pass(&mut self, secs: u64) {
            self.now += Duration::from_secs(secs);
        }
    }

    #[test]
    fn options_are_tried_alone_then_together_then_separated_for_a_day() {
        let mut world = World::new();
        assert_eq!(world.turn(), SynOptions::Together);
        world.opened(BOTH, true);
        assert_eq!(world.turn(), SynOptions::FastOpen);
        world.opened(FAST_OPEN, false);
        assert_eq!(world.turn(), SynOptions::Gentle);
        world.opened(GENTLE, false);
        assert_eq!(world.turn(), SynOptions::Together, "each passed alone: once more");
        world.opened(BOTH, true);
        assert_eq!(world.turn(), SynOptions::NoGentle);
        world.pass(24 * HOUR - 1);
        assert_eq!(world.turn(), SynOptions::NoGentle);
        world.pass(1);
        assert_eq!(world.turn(), SynOptions::Together);
    }

    #[test]
    fn syn_that_left_before_the_search_does_not_restart_it() {
        let mut world = World::new();
        world.opened(BOTH, true);
        world.opened(FAST_OPEN, false);
        world.opened(BOTH, true);
        assert_eq!(world.turn(), SynOptions::Gentle);
        world.opened(GENTLE, false);
        assert_eq!(world.turn(), SynOptions::Together, "each passed alone");
    }

    #[test]
    fn option_dropped_alone_is_left_out_for_an_hour_then_longer() {
        let mut world = World::new();
        world.opened(BOTH, true);
        world.opened(FAST_OPEN, false);
        world.opened(GENTLE, true);
        assert_eq!(world.turn(), SynOptions::FastOpen, "one failure may be a lost packet");
        world.opened(FAST_OPEN, false);
        world.opened(GENTLE, true);
        for hours in [1, 2, 4, 8, 16, 32, 32] {
            assert_eq!(world.turn(), SynOptions::NoGentle);
            world.pass(hours * HOUR - 1);
            assert_eq!(world.turn(), SynOptions::NoGentle);
            world.pass(1);
            assert_eq!(world.turn(), SynOptions::Together);
            world.opened(GENTLE, true);
        }
    }

    #[test]
    fn server_that_is_down_for_a_while_costs_one_plain_connection() {
        for carried in [BOTH, FAST_OPEN, GENTLE] {
            let mut world = World::new();
            for _ in 0..20 {
                assert_eq!(world.turn(), SynOptions::Together);
                assert_eq!(world.answered(carried, Answer::Never), None);
                assert_eq!(world.answered(carried, Answer::Never), None, "one that began at the same time");
                assert_eq!(world.turn(), SynOptions::Plain);
                assert_eq!(world.answered(PLAIN, Answer::Never), None);
            }
            world.answered(carried, Answer::Never);
            world.answered(carried, Answer::First);
            assert_eq!(world.turn(), SynOptions::Together, "it was answered with the option");
        }
    }

    #[test]
    fn connections_without_the_option_use_no_entry() {
        let mut world = World::new();
        for (carried, answer) in [
            (FAST_OPEN, Answer::First),
            (FAST_OPEN, Answer::Later),
            (PLAIN, Answer::First),
            (PLAIN, Answer::Never),
        ] {
            assert_eq!(world.answered(carried, answer), None);
            assert_eq!(world.memory.records.peek(&to(80)), None, "{carried:?} {answer:?}");
        }
    }

    #[test]
    fn plain_connection_that_opens_blames_the_options_of_the_one_that_failed() {
        let mut world = World::new();
        world.answered(BOTH, Answer::Never);
        assert_eq!(world.answered(PLAIN, Answer::First), Some(FastOpenReport::Doubted));
        assert_eq!(world.turn(), SynOptions::FastOpen, "the search begins");
        world.answered(FAST_OPEN, Answer::Never);
        assert_eq!(world.answered(PLAIN, Answer::First), Some(FastOpenReport::Failed(Mode::Data)));
        assert_eq!(world.turn(), SynOptions::Gentle);
        world.answered(GENTLE, Answer::Never);
        assert_eq!(world.answered(PLAIN, Answer::First), None);
        world.answered(GENTLE, Answer::Never);
        assert_eq!(world.answered(PLAIN, Answer::First), None);
        assert_eq!(world.turn(), SynOptions::NoGentle);
    }

    #[test]
    fn if_fast_open_is_dropped_the_other_option_stays() {
        let mut world = World::new();
        world.opened(BOTH, true);
        world.opened(FAST_OPEN, true);
        assert_eq!(world.turn(), SynOptions::Gentle);
        world.opened(GENTLE, false);
        assert_eq!(world.turn(), SynOptions::FastOpen, "not together before it has passed alone");
        // Fast Open is off for this destination by its own rule; the other option continues.
        world.opened(GENTLE, false);
        assert_eq!(world.turn(), SynOptions::FastOpen);
        world.opened(FAST_OPEN, false);
        world.opened(GENTLE, false);
        world.opened(BOTH, false);
        let record = world.memory.records.peek(&to(80)).copied();
        let clean = OptionRecord { passed: KNOWN, ..OptionRecord::default() };
        assert_eq!(record, Some(clean), "nothing is held against it any more");
    }

    #[test]
    fn known_option_is_left_out_after_six_dropped_syns_in_a_row() {
        let mut world = World::new();
        (0..KNOWN).for_each(|_| world.opened(GENTLE, false));
        for _ in 1..LIMIT_OF_KNOWN {
            world.opened(GENTLE, true);
            assert_eq!(world.turn(), SynOptions::Together);
        }
        for hours in [1, 2, 4] {
            world.opened(GENTLE, true);
            assert_eq!(world.turn(), SynOptions::NoGentle);
            world.pass(hours * HOUR - 1);
            assert_eq!(world.turn(), SynOptions::NoGentle);
            world.pass(1);
        }
        world.opened(GENTLE, false);
        world.opened(GENTLE, true);
        assert_eq!(world.turn(), SynOptions::Together, "it passes again");
    }

    #[test]
    fn search_for_known_options_begins_with_the_second_drop_in_a_row() {
        let mut world = World::new();
        (0..KNOWN).for_each(|_| world.opened(BOTH, false));
        for _ in 0..3 {
            world.opened(BOTH, true);
            assert_eq!(world.turn(), SynOptions::Together, "one may be a lost packet");
            world.opened(BOTH, false);
        }
        world.opened(BOTH, true);
        world.opened(BOTH, true);
        assert_eq!(world.turn(), SynOptions::FastOpen);
        world.opened(FAST_OPEN, false);
        for _ in 1..LIMIT_OF_KNOWN {
            assert_eq!(world.turn(), SynOptions::Gentle);
            world.opened(GENTLE, true);
            assert_eq!(world.turn(), SynOptions::FastOpen, "the two do not count");
            world.opened(FAST_OPEN, false);
        }
        world.opened(GENTLE, true);
        assert_eq!(world.turn(), SynOptions::NoGentle);
    }

    /// One open in 25 is not answered, by chance, as with a loss of 2 % in each direction.
    #[test]
    fn random_loss_does_not_suspend_the_option() {
        use rand_chacha::ChaCha8Rng;
        use rand_chacha::rand_core::{RngCore, SeedableRng};

        for with_fast_open in [false, true] {
            let mut world = World::new();
            let mut chance = ChaCha8Rng::seed_from_u64(3);
            let mut offered = 0;
            (0..KNOWN).for_each(|_| world.opened((with_fast_open, true), false));
            for _ in 0..100_000 {
                let carried = match world.turn() {
                    SynOptions::Together => (with_fast_open, true),
                    SynOptions::FastOpen => (with_fast_open, !with_fast_open),
                    SynOptions::Gentle => GENTLE,
                    SynOptions::NoGentle | SynOptions::Plain => {
                        panic!("it is kept away after {offered} offers")
                    }
                };
                offered += u32::from(carried.1);
                world.opened(carried, chance.next_u32() % 25 == 0);
                world.pass(1);
            }
            assert!(offered > 99_500, "{offered}");
        }
    }

    #[test]
    fn syns_that_left_together_count_as_one_drop() {
        for carried in [BOTH, GENTLE] {
            let mut world = World::new();
            (0..KNOWN).for_each(|_| world.opened(carried, false));
            for generation in 1..LIMIT_OF_KNOWN {
                let known = world.known_drops();
                for _ in 0..100 {
                    world.answered_knowing(known, carried, Answer::Later);
                }
                if carried == BOTH && generation == 2 {
                    assert_eq!(world.turn(), SynOptions::FastOpen, "the second in a row");
                    break;
                }
                assert_eq!((world.turn(), world.known_drops()), (SynOptions::Together, generation));
            }
        }
    }

    #[test]
    fn occasional_lost_syns_are_ignored_and_memory_is_bounded() {
        let mut world = World::new();
        for _ in 0..5 {
            world.opened(GENTLE, true);
            world.opened(GENTLE, false);
        }
        world.opened(FAST_OPEN, true);
        assert_eq!((world.turn(), world.memory.records.len()), (SynOptions::Together, 1));
        world.memory.on_interference(to(80), world.now);
        world.memory.on_interference(to(81), world.now);
        world.memory.on_interference(to(82), world.now);
        assert_eq!(world.turn(), SynOptions::Together, "the oldest made way");
        assert_eq!(world.memory.syn_options(&to(82), world.now).0, SynOptions::NoGentle);
        world.memory.flush();
        assert_eq!(world.memory.syn_options(&to(82), world.now).0, SynOptions::Together);
    }
}
