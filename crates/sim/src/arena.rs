//! What outlives a [`World`](crate::World): stacks, lists and buffers.
//!
//! A transaction of 5 kB takes no longer to simulate than to make and to free what it is simulated with. So who runs many
//! hands the arena from one world to the next. What comes out of it is as new: a world cannot tell whether there was
//! another one before.

use brisk_tcp::error::ConfigError;
use brisk_tcp::{Stack, StackConfig};

use crate::schedule::Schedule;

/// Bytes that an application reads at once.
const READ_CHUNK: usize = 64 << 10;
/// Packet buffers that are kept.
const SPARE_BUFFERS: usize = 512;

/// What worlds hand on, so that a thousand small ones in a row allocate little.
#[derive(Debug, Default)]
pub struct Arena {
    packets: Vec<Vec<u8>>,
    /// What applications read into.
    pub(crate) scratch: Vec<u8>,
    /// Stacks of worlds that are over, the one to be used next at the end.
    stacks: Vec<Box<Stack>>,
    schedule: Schedule,
}

impl Arena {
    /// Before a world begins: everything is there that it counts on.
    pub(crate) fn prepare(&mut self) {
        self.scratch.resize(READ_CHUNK, 0);
    }

    /// A buffer for a packet.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        self.packets.pop().unwrap_or_default()
    }

    /// Keeps the buffer of a packet that has been delivered for the next one.
    pub(crate) fn recycle(&mut self, packet: Vec<u8>) {
        if self.packets.len() < SPARE_BUFFERS {
            self.packets.push(packet);
        }
    }

    /// A stack without connections.
    ///
    /// # Errors
    /// As [`Stack::new`].
    pub(crate) fn stack(&mut self, config: StackConfig, seed: u64) -> Result<Box<Stack>, ConfigError> {
        match self.stacks.pop() {
            None => Stack::new(config, seed).map(Box::new),
            Some(mut stack) => stack.renew(config, seed).map(|()| stack),
        }
    }

    /// An empty schedule.
    pub(crate) fn schedule(&mut self) -> Schedule {
        let mut schedule = std::mem::take(&mut self.schedule);
        schedule.clear();
        schedule
    }

    /// Keeps what was given out for the next world. `stacks`: in the order in which they were asked for, so that the next
    /// world gives each to the same host if it has the same ones.
    pub(crate) fn keep(&mut self, stacks: impl DoubleEndedIterator<Item = Box<Stack>>, schedule: Schedule) {
        self.stacks.extend(stacks.rev());
        self.schedule = schedule;
    }
}
