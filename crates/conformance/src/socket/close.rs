//! Closing: shutdown, close, SO_LINGER.

use std::time::Duration;

use brisk_tcp::Stack;
use brisk_tcp::connection::State;
use brisk_wire::Instant;

use super::{Role, Socket};
use crate::errno::{Answer, Errno};

/// What close() has still to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    /// Nothing.
    Done,
    /// Wait until everything is acknowledged, at most so long.
    Linger(Duration),
}

impl Socket {
    /// shutdown(). `how`: SHUT_RD, SHUT_WR or SHUT_RDWR.
    pub(crate) fn shutdown(&mut self, how: i32, stack: &mut Stack, now: Instant) -> Answer<()> {
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(Errno(libc::EINVAL));
        }
        let id = match &self.role {
            Role::Fresh => return Err(Errno(libc::ENOTCONN)),
            Role::Listening(ids) => {
                // Linux: reading is what a listener does; it stops listening and the socket is fresh again.
                if how != libc::SHUT_WR {
                    ids.iter().for_each(|id| stack.close_listener(*id, now));
                    self.role = Role::Fresh;
                }
                return Ok(());
            }
            Role::Connection(id) => *id,
        };
        if self.over {
            return Err(Errno(libc::ENOTCONN));
        }
        if how != libc::SHUT_WR {
            self.read_shut = true;
        }
        if how == libc::SHUT_RD {
            return Ok(());
        }
        self.write_shut = true;
        if stack.state(id) == Some(State::SynSent) {
            // Nothing was agreed on yet: Linux forgets the attempt.
            stack.abort(id, now);
            return Ok(());
        }
        self.flush_held(stack, now);
        stack.shutdown(id, now).map_err(|_| Errno(libc::ENOTCONN))
    }

    /// The first half of close(): everything that happens at once.
    pub(crate) fn begin_close(&mut self, stack: &mut Stack, now: Instant) -> Closing {
        let Some(id) = self.conn() else { return Closing::Done };
        match self.options.linger {
            Some(Duration::ZERO) => {
                stack.abort(id, now);
                Closing::Done
            }
            Some(limit)
                if !self.over && stack.readable(id) == 0 && stack.state(id) != Some(State::SynSent) =>
            {
                self.flush_held(stack, now);
                let _ = stack.shutdown(id, now);
                self.write_shut = true;
                Closing::Linger(limit)
            }
            Some(_) | None => Closing::Done,
        }
    }

    /// True once the peer has acknowledged everything, the FIN included.
    pub(crate) fn is_delivered(&self, stack: &Stack) -> bool {
        let state = self.conn().and_then(|id| stack.state(id));
        !matches!(
            state,
            Some(State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck)
        )
    }

    /// The second half: the descriptor is gone.
    pub(crate) fn finish_close(mut self, stack: &mut Stack, now: Instant) {
        self.flush_held(stack, now);
        match self.role {
            Role::Fresh => {}
            Role::Listening(ids) => ids.into_iter().for_each(|id| stack.close_listener(id, now)),
            Role::Connection(id) => stack.release(id, now),
        }
    }

    /// What waited for a record boundary goes into the stream: nothing may follow it.
    fn flush_held(&mut self, stack: &mut Stack, now: Instant) {
        if let Some(id) = self.conn() {
            for held in std::mem::take(&mut self.held) {
                let _ = stack.write(id, &held.bytes, now);
            }
        }
    }
}
