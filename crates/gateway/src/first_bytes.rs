//! Predicts which side sends first on connections to an origin, and so how long to wait for a client's first
//! bytes. The frontend waits because the opening of the hop (RFC 7413) can carry only bytes that arrive
//! before it.
//!
//! Browsers connect before they know their request. If clients send first, as in HTTP and TLS, the wait costs
//! nothing, because the server sends nothing before the request. If servers send first, as in SMTP, the wait
//! delays the greeting. So the frontend learns the habit of each origin from its connections:
//!
//! | habit | wait |
//! |---|---|
//! | unknown | the configured time, 5 ms by default |
//! | the client sent first, three times in a row | one round trip of the hop |
//! | the same, but clients sent only after that wait | twice as long each time, three times at most |
//! | the server sent first, three times in a row | none |
//!
//! A single connection on which the server sends first ends the habits of the second and third row. Then the
//! client must send first on twice as many connections in a row before the frontend waits for it again. That
//! wait is one round trip at most.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of connections in a row that make a habit.
const MIN_TIMES: u8 = 3;
/// Maximum of that number, which wrong guesses double.
const MAX_ENOUGH: u8 = 96;
/// Maximum number of times that the wait is doubled.
const MAX_DOUBLINGS: u8 = 3;
/// Number of habits in each half of the table.
const HALF: usize = 512;
/// A first byte of the server counts as a greeting within this time after the opening of the hop. A server
/// that sends later has given up waiting for the client.
pub(crate) const GREETING: Duration = Duration::from_secs(2);

/// Ports whose protocol determines which side sends first: the client in HTTP (RFC 9112) and TLS (RFC 8446),
/// the server in FTP, SMTP, POP3, IMAP and the submission of mail (RFC 959, 5321, 1939, 9051, 6409).
const ASSIGNED: [(u16, FirstSender); 7] = [
    (80, FirstSender::Client),
    (443, FirstSender::Client),
    (21, FirstSender::Server),
    (25, FirstSender::Server),
    (110, FirstSender::Server),
    (143, FirstSender::Server),
    (587, FirstSender::Server),
];

/// The end of a connection that sends first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstSender {
    /// The side that connected.
    Client,
    /// The origin.
    Server,
}

impl FirstSender {
    /// Returns the word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            FirstSender::Client => "client",
            FirstSender::Server => "server",
        }
    }
}

/// Recent connections to an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Habit {
    /// Side that sent first on the last connection; `None` before the first one.
    last: Option<FirstSender>,
    /// Number of connections in a row with that side.
    times: u8,
    /// Value of `times` that is needed to expect the client to send first.
    enough: u8,
    /// Number of times that the wait has been doubled.
    reach: u8,
    /// True if a backend has accepted the last connection to this origin.
    granted: bool,
}

impl Habit {
    const UNKNOWN: Habit = Habit { last: None, times: 0, enough: MIN_TIMES, reach: 0, granted: false };

    fn of_port(port: u16) -> Habit {
        let assigned = ASSIGNED.iter().find(|(assigned, _)| *assigned == port);
        assigned.map_or(Habit::UNKNOWN, |(_, last)| Habit {
            last: Some(*last),
            times: MIN_TIMES,
            ..Habit::UNKNOWN
        })
    }

    /// Returns the side that is expected to send first.
    fn expected(&self) -> Option<FirstSender> {
        let enough = match self.last? {
            FirstSender::Client => self.enough,
            FirstSender::Server => MIN_TIMES,
        };
        self.last.filter(|_| self.times >= enough)
    }

    fn learn(&mut self, who: FirstSender, guess: Guess) {
        if who == FirstSender::Server {
            self.reach = 0;
            // Only a wrong guess changes the number that is needed.
            let wrong = guess.expected == Some(FirstSender::Client);
            self.enough = if wrong { self.enough.saturating_mul(2).min(MAX_ENOUGH) } else { self.enough };
        } else if guess.late && guess.expected == Some(who) && self.enough == MIN_TIMES {
            self.reach = (self.reach + 1).min(MAX_DOUBLINGS);
        }
        self.times = if self.last == Some(who) { self.times.saturating_add(1) } else { 1 };
        self.last = Some(who);
    }
}

/// A guess about a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Guess {
    origin: u64,
    port: Option<u16>,
    expected: Option<FirstSender>,
    /// Time to wait for the client's first bytes.
    pub(crate) wait: Duration,
    late: bool,
}

impl Guess {
    /// Records that the wait was in vain.
    pub(crate) fn in_vain(self) -> Guess {
        Guess { late: true, ..self }
    }
}

/// The habits of recently requested origins, 1,024 at most.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    hasher: RandomState,
    table: Mutex<Table>,
}

/// Two halves. When the first half is full, it becomes the second, and the old second half is dropped.
#[derive(Debug, Default)]
struct Table {
    recent: HashMap<u64, Habit>,
    older: HashMap<u64, Habit>,
}

impl Table {
    fn get(&self, key: u64) -> Option<Habit> {
        self.recent.get(&key).or_else(|| self.older.get(&key)).copied()
    }

    fn put(&mut self, key: u64, habit: Habit) {
        if self.recent.len() >= HALF && !self.recent.contains_key(&key) {
            self.older = mem::take(&mut self.recent);
        }
        self.recent.insert(key, habit);
    }
}

impl Habits {
    /// Guesses how long to wait for the first bytes of a client for `origin` (`None`: the default origin).
    /// The wait is `usual`. It is longer, up to `limit`, if clients are known to send first, and zero if the
    /// server is. `round_trip` is the hop's. It is `None` if it is unknown, or if the opening cannot carry
    /// data: then an early handshake saves more than a longer wait.
    pub(crate) fn guess(
        &self,
        origin: Option<&str>,
        usual: Duration,
        limit: Duration,
        round_trip: Option<Duration>,
    ) -> Guess {
        let port = origin.and_then(|origin| origin.rsplit_once(':')).and_then(|(_, port)| port.parse().ok());
        let own = self.hasher.hash_one(HabitKey::Origin(origin));
        let habit = self.habit(&self.lock(), own, port);
        let learns = !limit.is_zero();
        let expected = habit.expected().filter(|_| learns);
        let wait = match (expected, round_trip) {
            (Some(FirstSender::Client), Some(round_trip)) => {
                usual.max((round_trip * (1 << habit.reach)).min(limit))
            }
            (Some(FirstSender::Server), _) => Duration::ZERO,
            (Some(FirstSender::Client) | None, _) => usual,
        };
        Guess { origin: own, port, expected, wait, late: false }
    }

    /// Records that `who` sent first on the connection of `guess`.
    pub(crate) fn learn(&self, who: FirstSender, guess: Guess) {
        let mut table = self.lock();
        for key in [Some(guess.origin), guess.port.map(|port| self.of_port(port))].into_iter().flatten() {
            let mut habit = self.habit(&table, key, guess.port);
            habit.learn(who, guess);
            table.put(key, habit);
        }
    }

    /// True if a backend has accepted the last connection to the origin of `guess`.
    pub(crate) fn grants(&self, guess: Guess) -> bool {
        self.lock().get(guess.origin).is_some_and(|habit| habit.granted)
    }

    /// Records whether a backend has accepted a connection to the origin of `guess`.
    pub(crate) fn answered(&self, granted: bool, guess: Guess) {
        let mut table = self.lock();
        let habit = self.habit(&table, guess.origin, guess.port);
        if habit.granted != granted {
            table.put(guess.origin, Habit { granted, ..habit });
        }
    }

    /// Returns the habit of an origin; if it has none yet, the habit of its port.
    fn habit(&self, table: &Table, key: u64, port: Option<u16>) -> Habit {
        let of_port = |port| table.get(self.of_port(port)).unwrap_or_else(|| Habit::of_port(port));
        table.get(key).unwrap_or_else(|| port.map_or(Habit::UNKNOWN, of_port))
    }

    fn of_port(&self, port: u16) -> u64 {
        self.hasher.hash_one(HabitKey::Port(port))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Entries are only replaced as a whole, so a panic leaves no partial one.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Hash)]
enum HabitKey<'a> {
    /// `HOST:PORT`, or the default origin.
    Origin(Option<&'a str>),
    /// The port, for origins without a habit.
    Port(u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(5);
    const LIMIT: Duration = Duration::from_secs(2);
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    const CLIENT: FirstSender = FirstSender::Client;
    const SERVER: FirstSender = FirstSender::Server;

    fn guess(habits: &Habits, origin: Option<&str>) -> Guess {
        habits.guess(origin, USUAL, LIMIT, Some(ROUND_TRIP))
    }

    fn wait(habits: &Habits, origin: Option<&str>) -> u128 {
        guess(habits, origin).wait.as_millis()
    }

    fn learn_times(habits: &Habits, origin: Option<&str>, who: FirstSender, times: u32) {
        (0..times).for_each(|_| habits.learn(who, guess(habits, origin)));
    }

    #[test]
    fn side_that_sent_first_three_times_is_expected_to() {
        let habits = Habits::default();
        learn_times(&habits, None, CLIENT, 2);
        assert_eq!(wait(&habits, None), 5);
        learn_times(&habits, None, CLIENT, 1);
        assert_eq!(wait(&habits, None), 100);
        assert_eq!(
            habits.guess(None, USUAL, LIMIT, None).wait,
            USUAL,
            "an early handshake saves more than a longer wait"
        );
        assert_eq!(
            habits.guess(None, USUAL, Duration::ZERO, Some(ROUND_TRIP)).wait,
            USUAL,
            "the limit switches the longer wait off"
        );
        let habits = Habits::default();
        learn_times(&habits, None, SERVER, 3);
        assert_eq!(wait(&habits, None), 0);
    }

    #[test]
    fn one_wrong_guess_ends_the_wait_and_the_next_one_needs_more() {
        let habits = Habits::default();
        learn_times(&habits, None, CLIENT, 200);
        learn_times(&habits, None, SERVER, 1);
        assert_eq!(wait(&habits, None), 5);
        learn_times(&habits, None, CLIENT, 5);
        assert_eq!(wait(&habits, None), 5);
        learn_times(&habits, None, CLIENT, 1);
        assert_eq!(wait(&habits, None), 100);
        learn_times(&habits, None, SERVER, 3);
        assert_eq!(wait(&habits, None), 0);
        learn_times(&habits, None, CLIENT, 1);
        assert_eq!(wait(&habits, None), 5, "one client that sends first ends the habit of the server");
    }

    #[test]
    fn mixed_protocols_are_guessed_wrong_more_and_more_seldom() {
        let habits = Habits::default();
        let mut wrong = 0;
        for n in 0..2000 {
            // On one of eight connections the server sends first.
            let who = if n % 8 == 7 { SERVER } else { CLIENT };
            let guess = guess(&habits, None);
            wrong += u32::from(who == SERVER && guess.wait > USUAL);
            habits.learn(who, guess);
        }
        assert_eq!(wrong, 2, "wrong after 3 and 6 in a row; 12 in a row do not occur");
    }

    #[test]
    fn late_clients_are_waited_for_unless_the_server_ever_sent_first() {
        let habits = Habits::default();
        let late = |times: u32| (0..times).for_each(|_| habits.learn(CLIENT, guess(&habits, None).in_vain()));
        late(3);
        assert_eq!(wait(&habits, None), 100, "clients that are late before the frontend waits do not count");
        late(1);
        assert_eq!(wait(&habits, None), 200);
        late(10);
        assert_eq!(wait(&habits, None), 800);
        let guessed = habits.guess(None, USUAL, LIMIT, Some(Duration::from_secs(1)));
        assert_eq!(guessed.wait, LIMIT);
        learn_times(&habits, None, SERVER, 1);
        late(100);
        assert_eq!(wait(&habits, None), 100);
    }

    #[test]
    fn origins_have_habits_of_their_own_and_new_ones_those_of_their_port() {
        let habits = Habits::default();
        for (origin, expected) in [("a:443", 100), ("a:25", 0), ("[::1]:80", 100), ("a:8080", 5)] {
            assert_eq!(wait(&habits, Some(origin)), expected, "{origin}");
        }
        learn_times(&habits, Some("a:443"), CLIENT, 1);
        assert_eq!(
            wait(&habits, Some("a:443")),
            100,
            "one connection does not replace the habit of the port"
        );
        learn_times(&habits, Some("a:8080"), CLIENT, 3);
        assert_eq!((wait(&habits, Some("a:8080")), wait(&habits, Some("b:8080"))), (100, 100));
        learn_times(&habits, Some("b:8080"), SERVER, 3);
        assert_eq!((wait(&habits, Some("a:8080")), wait(&habits, Some("b:8080"))), (100, 0));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_used() {
        let habits = Habits::default();
        for n in 0..10_000 {
            learn_times(&habits, Some(&format!("host{n}:8000")), CLIENT, 1);
            learn_times(&habits, None, CLIENT, 1);
        }
        let table = habits.lock();
        assert!(table.recent.len() <= HALF && table.older.len() <= HALF);
        drop(table);
        assert_eq!(wait(&habits, None), 100);
        assert_eq!(wait(&habits, Some("host0:9000")), 5);
    }
}
