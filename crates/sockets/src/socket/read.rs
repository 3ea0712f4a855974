//! Reading: the stream, the urgent byte, the error queue.

use std::time::Duration;

use brisk_tcp::Stack;
use brisk_tcp::connection::State;
use brisk_tcp::error::ReadError;
use brisk_wire::Instant;

use super::{Family, Role, Socket};
use crate::errno::{Answer, Errno};
use crate::error_queue::{Entry, ExtendedError};

/// `TCP_CM_INQ` of linux/tcp.h.
const TCP_CM_INQ: i32 = libc::TCP_INQ;

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The data.
    pub bytes: Vec<u8>,
    /// Result of the call; more than the length of `bytes` if bytes were discarded (MSG_TRUNC).
    pub count: usize,
    /// Control messages.
    pub control: Vec<Control>,
    /// `msg_flags`.
    pub flags: i32,
}

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// Data in this machine's layout.
    pub data: Vec<u8>,
}

impl Socket {
    /// Makes one attempt of recv() or recvmsg(); `None` if there is nothing to return yet.
    pub(crate) fn read(
        &mut self,
        len: usize,
        flags: i32,
        stack: &mut Stack,
        now: Instant,
        stamp: impl Fn(Instant) -> Duration,
    ) -> Answer<Option<Received>> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            let entry = self.errors.pop().ok_or(Errno(libc::EAGAIN))?;
            return Ok(Some(self.reported(entry)));
        }
        let id = match self.role {
            Role::Connection(id) => id,
            Role::Fresh if flags & libc::MSG_OOB != 0 => return Err(Errno(libc::EINVAL)),
            Role::Fresh => {
                self.take_error()?;
                let nothing = Some(Received::default()).filter(|_| self.read_shut);
                return nothing.map(Some).ok_or(Errno(libc::ENOTCONN));
            }
            Role::Listening(_) => return Err(Errno(libc::ENOTCONN)),
        };
        if flags & libc::MSG_OOB != 0 {
            let byte = stack.read_urgent(id).map_err(|_| Errno(libc::EINVAL))?;
            return Ok(Some(Received {
                bytes: vec![byte],
                count: 1,
                flags: libc::MSG_OOB,
                ..Received::default()
            }));
        }
        let mut buffer = vec![0; len];
        let read = match flags & libc::MSG_PEEK != 0 {
            true => stack.peek(id, &mut buffer),
            false => stack.read(id, &mut buffer, now),
        };
        match read {
            Ok(count) => {
                buffer.truncate(count);
                let control = self.control(stack, count, &stamp);
                if flags & libc::MSG_TRUNC != 0 {
                    buffer.clear();
                }
                Ok(Some(Received { bytes: buffer, count, control, ..Received::default() }))
            }
            Err(ReadError::WouldBlock) if self.read_shut => Ok(Some(Received::default())),
            Err(ReadError::WouldBlock) => Ok(None),
            Err(ReadError::NoConnection) => Err(Errno(libc::EBADF)),
            Err(ReadError::Closed(_)) => {
                self.take_error()?;
                Ok(Some(Received::default()))
            }
        }
    }

    /// Returns the control messages of a read: the arrival time of the data, and the number of remaining
    /// bytes.
    fn control(&self, stack: &mut Stack, count: usize, stamp: &impl Fn(Instant) -> Duration) -> Vec<Control> {
        let mut control = Vec::new();
        if self.errors.stamps_arrivals()
            && count > 0
            && let Some(at) = self.usage.last_data
        {
            control.push(stamps(stamp(at)));
        }
        if self.options.inq
            && let Some(id) = self.conn()
        {
            // The peer's FIN counts as a byte, because the end of the stream can still be read.
            let at_end = matches!(stack.peek(id, &mut [0]), Ok(0) | Err(ReadError::Closed(_)));
            let left = stack.readable(id) as i32 + i32::from(at_end || self.usage.peer_closed());
            control.push(Control {
                level: libc::SOL_TCP,
                kind: TCP_CM_INQ,
                data: left.to_ne_bytes().to_vec(),
            });
        }
        control
    }

    fn reported(&self, entry: Entry) -> Received {
        let mut control: Vec<Control> = entry.stamp.into_iter().map(stamps).collect();
        let (level, kind) = match self.family {
            Family::V4 => (libc::SOL_IP, libc::IP_RECVERR),
            Family::V6 => (libc::SOL_IPV6, libc::IPV6_RECVERR),
        };
        control.push(Control { level, kind, data: extended_error(&entry.error, self.family) });
        let truncated = if entry.has_payload { libc::MSG_TRUNC } else { 0 };
        Received { control, flags: libc::MSG_ERRQUEUE | truncated, ..Received::default() }
    }

    /// True if the connection is in SYN-SENT and cannot carry data yet.
    pub(crate) fn in_handshake(&self, stack: &Stack) -> bool {
        !self.connected && self.conn().and_then(|id| stack.state(id)) == Some(State::SynSent)
    }
}

/// Returns SCM_TIMESTAMPING: three times; the first is the software's, the others are zero.
fn stamps(at: Duration) -> Control {
    let mut data = vec![0; 48];
    data[..8].copy_from_slice(&(at.as_secs() as i64).to_ne_bytes());
    data[8..16].copy_from_slice(&i64::from(at.subsec_nanos()).to_ne_bytes());
    Control { level: libc::SOL_SOCKET, kind: libc::SCM_TIMESTAMPING, data }
}

/// Returns `struct sock_extended_err`, followed by an empty address of the error's sender.
fn extended_error(error: &ExtendedError, family: Family) -> Vec<u8> {
    let mut data = Vec::with_capacity(44);
    data.extend(error.errno.to_ne_bytes());
    data.extend([error.origin, 0, error.code, 0]);
    data.extend(error.info.to_ne_bytes());
    data.extend(error.data.to_ne_bytes());
    let offender = match family {
        Family::V4 => 16,
        Family::V6 => 28,
    };
    data.resize(data.len() + offender, 0);
    data
}
