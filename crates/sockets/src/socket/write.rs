//! Writing to the stream, and the flags of a write.

use brisk_tcp::Stack;
use brisk_tcp::error::WriteError;
use brisk_wire::Instant;

use super::{Role, Socket};
use crate::errno::{Answer, Errno};

/// Bytes that Linux puts into one buffer before it checks the limit of unsent bytes again.
const MAX_AT_ONCE: usize = 65_536;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sending<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) flags: i32,
    /// Flags of SO_TIMESTAMPING in a control message.
    pub(crate) stamping: Option<u32>,
    /// True if the call blocks until all bytes are accepted.
    pub(crate) waits: bool,
    pub(crate) done: usize,
    /// True if the buffer was full. The caller then waits until a third of it is free.
    pub(crate) blocked: bool,
}

impl Socket {
    /// Accepts as many bytes as fit; returns true once all are accepted. As in Linux, a caller that found the
    /// buffer full is woken when poll() would report the socket as writable.
    pub(crate) fn write(
        &mut self,
        sending: &mut Sending<'_>,
        stack: &mut Stack,
        now: Instant,
    ) -> Answer<bool> {
        if sending.done == 0 {
            self.take_error()?;
        }
        let Role::Connection(id) = self.role else { return Err(Errno(libc::EPIPE)) };
        if self.write_shut || self.over {
            return Err(Errno(libc::EPIPE));
        }
        if self.in_handshake(stack) && !self.options.queues_in_handshake {
            // Even a write of zero bytes waits for the handshake.
            let is_done = sending.done == sending.data.len() && !sending.data.is_empty();
            if sending.waits && !is_done {
                stack.await_write(id);
            }
            return Ok(is_done);
        }
        if sending.blocked && !self.is_writable(stack) {
            return Ok(false);
        }
        if let Some(mut conn) = stack.conn_mut(id) {
            conn.set_more(sending.flags & libc::MSG_MORE != 0);
        }
        while sending.done < sending.data.len() && self.has_room(stack) {
            let rest = &sending.data[sending.done..];
            let taken = self.push(rest, sending.flags, stack, now)?;
            if taken == 0 {
                break;
            }
            sending.done += taken;
            self.written += taken as u64;
        }
        let all = sending.done == sending.data.len();
        self.usage.refused = !all;
        sending.blocked = !all;
        Ok(all)
    }

    /// Records the last byte of a write for time stamps and completions.
    pub(crate) fn record_write(&mut self, sending: &Sending<'_>) {
        let zerocopy =
            self.options.zerocopy && sending.flags & libc::MSG_ZEROCOPY != 0 && !sending.data.is_empty();
        self.errors.on_write(self.written, sending.stamping, zerocopy);
    }

    fn push(&mut self, data: &[u8], flags: i32, stack: &mut Stack, now: Instant) -> Answer<usize> {
        let Some(id) = self.conn() else { return Err(Errno(libc::EPIPE)) };
        let part = if self.unsent_limit().is_some() { data.get(..MAX_AT_ONCE).unwrap_or(data) } else { data };
        let ends_record = flags & libc::MSG_EOR != 0;
        let written = match flags & libc::MSG_OOB != 0 {
            true => stack.write_urgent(id, part, now),
            false => stack.write(id, part, now),
        };
        match written {
            Ok(taken) => {
                if ends_record && taken == data.len() {
                    stack.end_record(id);
                }
                Ok(taken)
            }
            Err(WriteError::WouldBlock) => Ok(0),
            Err(WriteError::NoConnection) => Err(Errno(libc::EBADF)),
            Err(WriteError::AfterClose | WriteError::Closed(_)) => Err(Errno(libc::EPIPE)),
        }
    }

    /// Returns TCP_NOTSENT_LOWAT, the limit of unsent bytes.
    fn unsent_limit(&self) -> Option<u32> {
        self.options.notsent_lowat
    }

    /// True if a write would accept at least one byte.
    pub(crate) fn has_room(&self, stack: &Stack) -> bool {
        let Some(id) = self.conn() else { return false };
        let unsent = stack.conn_info(id).map_or(0, |info| info.unsent);
        stack.writable(id) > 0 && self.unsent_limit().is_none_or(|limit| unsent < limit)
    }

    /// True if poll() reports the socket as writable: a third of the buffer is free, and few bytes are
    /// unsent.
    pub(crate) fn is_writable(&self, stack: &Stack) -> bool {
        let Some(id) = self.conn() else { return false };
        let (Some(stats), Some(info)) = (stack.conn_stats(id), stack.conn_info(id)) else { return false };
        let capacity = stats.send_queue + info.send_room;
        let roomy = stats.send_queue * 3 <= capacity * 2;
        self.deferred || (roomy && self.unsent_limit().is_none_or(|limit| info.unsent < limit))
    }
}
