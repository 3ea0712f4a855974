//! Clients whose path fails with brisk's TCP: an edge leaves them to the kernel's TCP for an hour.
//!
//! A connection has failed if the edge sent data, the client acknowledged none of it, and either [`TIMEOUTS`]
//! timeouts passed or the client reset the connection ([`Sign`]). Two failed connections in a row exempt a
//! client. The second must begin after the end of the first, and the client must not acknowledge data on a
//! connection that ends in between. The hash that the device uses identifies a client.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use brisk_packet_io::share::{Exceptions, hash};
use brisk_runtime::CloseReason;

use crate::access::{Access, ClientTcp};
use crate::end::End;

/// Number of timeouts after which a connection has failed. Even on a path without delay, they take more than
/// a second.
const TIMEOUTS: u64 = 3;
/// Time for which a client is exempt, and for which a first failure is remembered.
const MEMORY: Duration = Duration::from_secs(3600);
/// Pause between two searches for entries that have expired.
const PAUSE: Duration = Duration::from_secs(10);

/// The sign of a failed connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sign {
    /// No data was acknowledged within [`TIMEOUTS`] timeouts.
    Timeouts,
    /// A reset was the answer to the data.
    Reset,
}

impl Sign {
    pub(crate) const ALL: [Sign; 2] = [Sign::Timeouts, Sign::Reset];

    /// Returns the word for logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Sign::Timeouts => "timeouts",
            Sign::Reset => "reset",
        }
    }
}

/// The result of an ended connection, for the client's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The connection used the kernel's TCP.
    OfKernel,
    /// The client acknowledged data.
    Acknowledged,
    /// The connection gives no information.
    Unknown,
    Failed(Sign),
}

impl Outcome {
    /// Returns the outcome of a connection over brisk's TCP.
    fn of(access: &Access) -> Outcome {
        let Some(stats) = &access.hop else { return Outcome::Unknown };
        let counters = &stats.counters;
        // One of the delivered segments is the SYN-ACK.
        if counters.payload_bytes_acked > 0 || counters.delivered_segments > 1 {
            return Outcome::Acknowledged;
        }
        if access.bytes_down == 0 || counters.data_segments_out == 0 {
            return Outcome::Unknown;
        }
        let reset = matches!(&access.end, End::ClientFailed(why) if *why == CloseReason::Reset.to_string());
        match reset {
            _ if counters.timeouts >= TIMEOUTS => Outcome::Failed(Sign::Timeouts),
            // A client that has closed its socket resets the connection too if data arrives.
            true if !access.client_ended => Outcome::Failed(Sign::Reset),
            true | false => Outcome::Unknown,
        }
    }
}

/// The clients of an edge that have failed lately.
#[derive(Debug, Default)]
pub(crate) struct Exemptions {
    /// The lists of exempt clients of the devices.
    lists: Vec<Exceptions>,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    known: HashMap<u32, State>,
    /// Time of the last search for entries that have expired.
    searched: Option<Instant>,
}

/// State of a client.
#[derive(Clone, Copy, Debug)]
enum State {
    /// A connection has failed; the time of its end.
    Failed(Instant),
    /// The kernel serves the client; the time of the second failure, and the number of open connections.
    Exempt(Instant, u64),
}

impl State {
    /// True if the failure happened before `began`, the time at which a connection began.
    fn is_known_at(self, began: Instant) -> bool {
        let (State::Failed(since) | State::Exempt(since, _)) = self;
        began > since
    }
}

impl Exemptions {
    /// Creates exemptions that apply at these devices; without devices no client is exempt.
    pub(crate) fn on(lists: Vec<Exceptions>) -> Exemptions {
        Exemptions { lists, ..Exemptions::default() }
    }

    /// Records that the kernel's TCP has accepted a client.
    pub(crate) fn accepted(&self, access: &Access) {
        let known = &mut self.clients.lock().unwrap_or_else(PoisonError::into_inner).known;
        if let Some(State::Exempt(_, open)) = known.get_mut(&hash(access.peer.ip())) {
            *open += 1;
        }
    }

    /// Records the end of a connection at `now`. If this makes the client exempt, returns the sign of the
    /// failure.
    ///
    /// # Errors
    /// If the system refuses to exempt the client.
    pub(crate) fn ended(&self, access: &Access, now: Instant) -> io::Result<Option<Sign>> {
        if self.lists.is_empty() {
            return Ok(None);
        }
        let client = hash(access.peer.ip());
        let outcome = match access.tcp {
            Some(ClientTcp::Kernel(_)) => Outcome::OfKernel,
            Some(ClientTcp::Brisk) | None => Outcome::of(access),
        };
        self.record(client, access.began, outcome, now)
    }

    fn record(
        &self,
        client: u32,
        began: Instant,
        outcome: Outcome,
        now: Instant,
    ) -> io::Result<Option<Sign>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        self.expire(&mut clients, now);
        let is_full = clients.known.len() >= Exceptions::MAX as usize;
        match (clients.known.get_mut(&client), outcome) {
            (Some(State::Exempt(_, open)), Outcome::OfKernel) => *open = open.saturating_sub(1),
            (Some(State::Failed(_)), Outcome::Acknowledged) => drop(clients.known.remove(&client)),
            (Some(state @ State::Failed(_)), Outcome::Failed(sign)) if state.is_known_at(began) => {
                for list in &self.lists {
                    list.insert(client)?;
                }
                *state = State::Exempt(now, 0);
                return Ok(Some(sign));
            }
            (None, Outcome::Failed(_)) if !is_full => {
                clients.known.insert(client, State::Failed(now));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Removes entries that have expired. A client with open connections over the kernel's TCP stays exempt,
    /// because otherwise the packets of these connections would go to brisk's TCP.
    fn expire(&self, Clients { known, searched }: &mut Clients, now: Instant) {
        if searched.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            return;
        }
        *searched = Some(now);
        known.retain(|client, state| {
            let (State::Failed(since) | State::Exempt(since, _)) = *state;
            let is_over = now.saturating_duration_since(since) >= MEMORY;
            match *state {
                State::Failed(_) => !is_over,
                State::Exempt(_, open) if open > 0 || !is_over => true,
                State::Exempt(..) => {
                    // A client whose entry cannot be removed stays with the kernel.
                    self.lists.iter().for_each(|list| drop(list.remove(*client)));
                    false
                }
            }
        });
    }

    pub(crate) fn count(&self) -> usize {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.known.values().filter(|state| matches!(state, State::Exempt(..))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FAILED: Outcome = Outcome::Failed(Sign::Timeouts);

    /// Records a connection of client 7 from `began` to `ended`, in seconds; returns true if it is exempt
    /// now.
    fn record(exemptions: &Exemptions, start: Instant, outcome: Outcome, [began, ended]: [u32; 2]) -> bool {
        let [began, ended] = [began, ended].map(|at| start + at * SECOND);
        exemptions.record(7, began, outcome, ended).unwrap().is_some()
    }

    #[test]
    fn client_is_exempt_after_two_failures_in_a_row_that_did_not_overlap() {
        let start = Instant::now();
        let exemptions = Exemptions::default();
        let ended = |outcome, times| record(&exemptions, start, outcome, times);
        // Connections at the same time are one failure.
        assert!(!ended(FAILED, [0, 5]) && !ended(FAILED, [0, 6]) && !ended(FAILED, [4, 9]));
        // Data of another connection was acknowledged.
        assert!(!ended(Outcome::Acknowledged, [6, 7]));
        assert!(!ended(FAILED, [8, 12]) && !ended(Outcome::Unknown, [13, 13]));
        assert_eq!(exemptions.count(), 0);
        assert!(ended(FAILED, [13, 20]));
        assert_eq!(exemptions.count(), 1);
        // Other connections of brisk's TCP that end later change nothing.
        assert!(!ended(FAILED, [14, 21]) && !ended(Outcome::Acknowledged, [1, 22]));
        assert_eq!(exemptions.count(), 1);
    }

    #[test]
    fn exemption_ends_after_an_hour_without_connections_of_the_kernel() {
        let start = Instant::now();
        let exemptions = Exemptions::default();
        let ended = |outcome, times| record(&exemptions, start, outcome, times);
        assert!(!ended(FAILED, [0, 5]) && ended(FAILED, [6, 10]));
        let access = Access::begin(crate::Role::Edge, "192.0.2.1:1".parse().unwrap());
        let client = hash(access.peer.ip());
        let other =
            |outcome, at: u32| exemptions.record(client, start, outcome, start + at * SECOND).unwrap();
        exemptions.clients.lock().unwrap().known.insert(client, State::Exempt(start, 0));
        exemptions.accepted(&access);
        other(Outcome::Unknown, 3610);
        assert_eq!(exemptions.count(), 1, "its connection is open");
        other(Outcome::OfKernel, 3611);
        other(Outcome::Unknown, 3625);
        assert_eq!(exemptions.count(), 0);
        // A first failure is forgotten, too.
        assert!(!ended(FAILED, [3630, 3640]) && !ended(FAILED, [7300, 7310]));
        assert!(ended(FAILED, [7311, 7320]));
    }

    #[test]
    fn memory_of_failures_is_bounded() {
        let now = Instant::now();
        let exemptions = Exemptions::default();
        for client in 0..2 * Exceptions::MAX {
            exemptions.record(client, now, FAILED, now).unwrap();
        }
        assert_eq!(exemptions.clients.lock().unwrap().known.len(), Exceptions::MAX as usize);
    }
}
