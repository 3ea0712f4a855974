//! Durations of exchanges on a connection: from the first byte of a client's request to the last byte of the
//! answer.
//!
//! An exchange ends when the client sends again, or when the connection ends in order. If client and server
//! send at the same time, their connection counts as many short exchanges.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The current exchange of a connection.
pub(crate) struct Exchanges<'a> {
    now: Mutex<Exchange>,
    /// Called with the duration of each exchange.
    done: &'a (dyn Fn(Duration) + Sync),
}

#[derive(Clone, Copy, Default)]
struct Exchange {
    asked: Option<Instant>,
    answered: Option<Instant>,
}

impl<'a> Exchanges<'a> {
    /// Begins to measure a connection. `asked` is the time of the client's first bytes, if they have been
    /// read already.
    pub(crate) fn new(asked: Option<Instant>, done: &'a (dyn Fn(Duration) + Sync)) -> Exchanges<'a> {
        Exchanges { now: Mutex::new(Exchange { asked, answered: None }), done }
    }

    /// Records that the client has sent bytes.
    pub(crate) fn asked(&self, at: Instant) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.answered.is_some() {
            self.finish(std::mem::take(&mut *now));
        }
        now.asked.get_or_insert(at);
    }

    /// Records that the client has received bytes. Bytes that a server sends first belong to no exchange.
    pub(crate) fn answered(&self, at: Instant) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.asked.is_some() {
            now.answered = Some(at);
        }
    }

    /// Records the end of both directions.
    pub(crate) fn ended(&self) {
        self.finish(*self.now.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn finish(&self, exchange: Exchange) {
        if let Exchange { asked: Some(asked), answered: Some(answered) } = exchange {
            (self.done)(answered.saturating_duration_since(asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the durations of the exchanges, in seconds, if client and server send at these times.
    fn took(asked: Option<u64>, events: &[(char, u64)]) -> Vec<u64> {
        let began = Instant::now();
        let at = |second: u64| began + Duration::from_secs(second);
        let took = Mutex::new(Vec::new());
        let done = |time: Duration| took.lock().unwrap().push(time.as_secs());
        let exchanges = Exchanges::new(asked.map(at), &done);
        for (what, second) in events {
            match what {
                'c' => exchanges.asked(at(*second)),
                's' => exchanges.answered(at(*second)),
                _ => exchanges.ended(),
            }
        }
        took.into_inner().unwrap()
    }

    #[test]
    fn an_exchange_lasts_from_the_first_byte_asked_to_the_last_byte_answered() {
        assert_eq!(took(Some(1), &[('c', 2), ('s', 4), ('s', 7), ('e', 9)]), [6]);
        assert_eq!(took(None, &[('c', 2), ('s', 4), ('c', 10), ('c', 11), ('s', 13), ('e', 20)]), [2, 3]);
    }

    #[test]
    fn a_greeting_and_a_request_without_an_answer_are_no_exchange() {
        assert_eq!(took(None, &[('s', 1), ('c', 5), ('s', 6), ('c', 8), ('e', 9)]), [1]);
        assert!(took(Some(0), &[('e', 9)]).is_empty());
    }
}
