//! Closing: shutdown, close, SO_LINGER.

use std::time::Duration;

use brisk_tcp::Stack;
use brisk_tcp::connection::State;
use brisk_wire::Instant;

use super::{Role, Socket};
use crate::errno::{Answer, Errno};

/// The part of close() that remains to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    /// Nothing.
    Done,
    /// Wait until everything is acknowledged, at most this long.
    Linger(Duration),
}

impl Socket {
    /// Shuts down a direction. `how` is SHUT_RD, SHUT_WR or SHUT_RDWR.
    pub(crate) fn shutdown(&mut self, how: i32, stack: &mut Stack, now: Instant) -> Answer<()> {
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(Errno(libc::EINVAL));
        }
        let (read, write) = (how != libc::SHUT_WR, how != libc::SHUT_RD);
        let id = match &self.role {
            Role::Listening(ids) => {
                // As in Linux, SHUT_RD ends the listening, and the socket becomes fresh.
                if read {
                    ids.iter().for_each(|id| stack.close_listener(*id, now));
                    self.become_fresh();
                }
                return Ok(());
            }
            Role::Connection(id) if !self.over => *id,
            // Linux records the shutdown although it returns an error.
            Role::Fresh | Role::Connection(_) => {
                self.read_shut |= read;
                self.write_shut |= write;
                return Err(Errno(libc::ENOTCONN));
            }
        };
        if stack.state(id) == Some(State::SynSent) && !self.options.queues_in_handshake {
            // As in Linux, an attempt to connect is abandoned.
            self.disconnect(stack, now);
            return Ok(());
        }
        self.shutdowns += 1;
        self.read_shut |= read;
        self.write_shut |= write;
        if self.read_shut {
            stack.shutdown_reading(id);
        }
        if !write {
            return Ok(());
        }
        stack.shutdown(id, now).map_err(|_| Errno(libc::ENOTCONN))
    }

    /// Resets an existing connection and makes the socket fresh, as connect() with `AF_UNSPEC`.
    pub(crate) fn disconnect(&mut self, stack: &mut Stack, now: Instant) {
        match std::mem::replace(&mut self.role, Role::Fresh) {
            Role::Fresh => {}
            Role::Listening(ids) => ids.into_iter().for_each(|id| stack.close_listener(id, now)),
            Role::Connection(id) => {
                let silent = matches!(
                    stack.state(id),
                    None | Some(State::Closing | State::LastAck | State::TimeWait | State::Closed)
                );
                if !silent {
                    self.error = Some(Errno(libc::ECONNRESET));
                }
                stack.abort(id, now);
                stack.release(id, now);
            }
        }
        self.become_fresh();
    }

    /// Performs the part of close() that happens at once.
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

    /// Closes the descriptor: the second part of close().
    pub(crate) fn finish_close(self, stack: &mut Stack, now: Instant) {
        match self.role {
            Role::Fresh => {}
            Role::Listening(ids) => ids.into_iter().for_each(|id| stack.close_listener(id, now)),
            Role::Connection(id) => stack.release(id, now),
        }
    }
}
