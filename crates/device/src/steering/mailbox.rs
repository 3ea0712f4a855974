//! Where packets wait for a stack that another one's queue has brought.
//!
//! There is a lock, but nothing is done under it except moving a few words, and only packets that came to the
//! wrong queue pass through it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::{RxMeta, WayBack};

/// Bytes that wait for one stack at most; a few milliseconds of what a core can take in.
pub(super) const ROOM: usize = 4 << 20;
/// Bytes that a packet counts in addition to its own.
const OVERHEAD: usize = 64;

/// A packet that was read from another queue.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) packet: Vec<u8>,
    pub(super) meta: RxMeta,
    /// How its sender is reached, if the device must be told.
    pub(super) way_back: Option<WayBack>,
}

/// The packets that wait for one stack.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Packets inside, to be asked without the lock.
    len: AtomicUsize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    packets: Vec<Handed>,
    bytes: usize,
    reader: Option<Waker>,
    closed: bool,
}

impl Mailbox {
    /// Puts a packet in; gives its buffer back if there is no room. The reader is not woken yet.
    pub(super) fn put(&self, handed: Handed) -> Result<(), Vec<u8>> {
        let mut inside = self.lock();
        let bytes = inside.bytes + handed.packet.len() + OVERHEAD;
        if inside.closed || bytes > ROOM {
            return Err(handed.packet);
        }
        inside.bytes = bytes;
        inside.packets.push(handed);
        self.len.store(inside.packets.len(), Ordering::Release);
        Ok(())
    }

    /// Wakes the reader if there is something for it.
    pub(super) fn wake(&self) {
        if self.is_empty() {
            return;
        }
        // Woken after the lock is let go.
        let reader = self.lock().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Moves everything into `into`, which is empty; false if there is nothing.
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

    /// Ready if there is something; else the task is woken when there is.
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

    /// The reader has gone.
    pub(super) fn close(&self) {
        let gone = Inside { closed: true, ..Inside::default() };
        let before = std::mem::replace(&mut *self.lock(), gone);
        self.len.store(0, Ordering::Release);
        drop(before);
    }

    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// The state is whole after each call, so a panic elsewhere under the lock leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
