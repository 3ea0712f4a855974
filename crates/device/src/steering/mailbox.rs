//! Packets for one stack that arrived on another stack's queue.
//!
//! Only these packets need the lock, which is held only while a few words are moved.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::{ReturnRoute, RxMeta};

/// Limit of waiting bytes for one stack: the throughput of a core in a few milliseconds.
pub(super) const MAX_BYTES: usize = 4 << 20;
/// Bytes that a packet counts in addition to its own length.
const OVERHEAD: usize = 64;

/// A packet that was read from another queue.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) packet: Vec<u8>,
    pub(super) meta: RxMeta,
    /// Route to the sender, if the device of this queue must learn it.
    pub(super) return_route: Option<ReturnRoute>,
}

/// The packets that wait for one stack.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Number of packets, readable without the lock.
    len: AtomicUsize,
    inside: Mutex<MailboxState>,
}

#[derive(Debug, Default)]
struct MailboxState {
    packets: Vec<Handed>,
    bytes: usize,
    reader: Option<Waker>,
    closed: bool,
}

impl Mailbox {
    /// Adds a packet; returns its buffer if the limit is reached. Does not wake the reader.
    pub(super) fn put(&self, handed: Handed) -> Result<(), Vec<u8>> {
        let mut inside = self.lock();
        let bytes = inside.bytes + handed.packet.len() + OVERHEAD;
        if inside.closed || bytes > MAX_BYTES {
            return Err(handed.packet);
        }
        inside.bytes = bytes;
        inside.packets.push(handed);
        self.len.store(inside.packets.len(), Ordering::Release);
        Ok(())
    }

    /// Wakes the reader if there are packets.
    pub(super) fn wake(&self) {
        if self.is_empty() {
            return;
        }
        // The reader is woken after the lock is released.
        let reader = self.lock().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Moves all packets to `into`, which is empty; false if there are none.
    pub(super) fn take_all(&self, into: &mut Vec<Handed>) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut inside = self.lock();
        std::mem::swap(&mut inside.packets, into);
        inside.bytes = 0;
        self.len.store(0, Ordering::Release);
        !into.is_empty()
    }

    /// Ready if there are packets; otherwise the task is woken when one arrives.
    pub(super) fn poll_mail(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_empty() {
            return Poll::Ready(());
        }
        let mut inside = self.lock();
        if !inside.packets.is_empty() {
            return Poll::Ready(());
        }
        match &mut inside.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader @ None => *reader = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Closes the mailbox, because its reader has ended.
    pub(super) fn close(&self) {
        let gone = MailboxState { closed: true, ..MailboxState::default() };
        let before = std::mem::replace(&mut *self.lock(), gone);
        self.len.store(0, Ordering::Release);
        drop(before);
    }

    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Locks the state. A panic under the lock leaves no partial state, because the state is valid after each
    /// call.
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
