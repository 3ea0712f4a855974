//! The buffer before the bottleneck: drop-tail, in bytes or packets, with an optional mark threshold.
//!
//! A packet occupies the buffer until its last bit has left. One packet always fits, even if it is larger
//! than the limit, because a buffer that admits nothing would interrupt the path. A packet that arrives while
//! the queue exceeds the mark threshold gets Congestion Experienced (RFC 3168; one fixed threshold as in
//! DCTCP, RFC 8257 section 3.1).

use crate::units::ShowSize;
use alloc::collections::VecDeque;
use core::fmt;

/// A limit of the buffer, in the grammar of `--queue` and `--ecn-mark`. Prints as `128kB` or `200p`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Bytes on the wire.
    Bytes(u64),
    /// Packets.
    Packets(u64),
}

impl Depth {
    /// The default buffer of a link with a rate: 128 kB, as in "TCP Fast Open", section 6.1.
    pub const DEFAULT: Depth = Depth::Bytes(128_000);
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Depth::Bytes(bytes) => ShowSize(*bytes).fmt(f),
            Depth::Packets(packets) => write!(f, "{packets}p"),
        }
    }
}

/// The decision of the queue on an arriving packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// There is space.
    Admitted,
    /// There is space, but the queue exceeds the threshold.
    AdmittedAboveMark,
    /// There is no space.
    Full,
}

/// The content of the buffer as lengths and departure times. The packets themselves are already in the next
/// element.
#[derive(Debug)]
pub(crate) struct Queue {
    limit: Depth,
    mark: Option<Depth>,
    inside: VecDeque<(u64, usize)>,
    bytes: u64,
}

impl Queue {
    pub(crate) fn new(limit: Depth, mark: Option<Depth>) -> Self {
        Queue { limit, mark, inside: VecDeque::new(), bytes: 0 }
    }

    /// Decides about a packet of `len` bytes that arrives at `now` (nanoseconds).
    pub(crate) fn arrive(&mut self, now: u64, len: usize) -> Admission {
        while let Some((departure, len)) = self.inside.front().copied()
            && departure <= now
        {
            self.inside.pop_front();
            self.bytes -= len as u64;
        }
        if !self.inside.is_empty() && self.exceeds(self.limit, self.bytes + len as u64, self.packets() + 1) {
            return Admission::Full;
        }
        match self.mark {
            Some(mark) if self.exceeds(mark, self.bytes, self.packets()) => Admission::AdmittedAboveMark,
            Some(_) | None => Admission::Admitted,
        }
    }

    pub(crate) fn enter(&mut self, departure: u64, len: usize) {
        self.inside.push_back((departure, len));
        self.bytes += len as u64;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn packets(&self) -> u64 {
        self.inside.len() as u64
    }

    fn exceeds(&self, depth: Depth, bytes: u64, packets: u64) -> bool {
        match depth {
            Depth::Bytes(limit) => bytes > limit,
            Depth::Packets(limit) => packets > limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_bound_counts_bytes_including_the_arriving_packet() {
        let mut queue = Queue::new(Depth::Bytes(3000), None);
        for departure in [10, 20] {
            assert_eq!(queue.arrive(0, 1500), Admission::Admitted);
            queue.enter(departure, 1500);
        }
        assert_eq!(queue.arrive(9, 1), Admission::Full);
        assert_eq!(queue.arrive(10, 1500), Admission::Admitted, "the first packet has left at 10");
    }

    #[test]
    fn the_bound_counts_packets_when_asked_to() {
        let mut queue = Queue::new(Depth::Packets(1), None);
        assert_eq!(queue.arrive(0, 9000), Admission::Admitted);
        queue.enter(10, 9000);
        assert_eq!(queue.arrive(5, 40), Admission::Full);
    }

    #[test]
    fn an_empty_buffer_takes_any_packet() {
        let mut queue = Queue::new(Depth::Bytes(100), None);
        assert_eq!(queue.arrive(0, 1500), Admission::Admitted);
    }

    #[test]
    fn packet_is_marked_if_the_queue_exceeds_the_threshold() {
        let mut queue = Queue::new(Depth::DEFAULT, Some(Depth::Packets(1)));
        let mut verdicts = [(); 3].map(|()| {
            let verdict = queue.arrive(0, 100);
            queue.enter(10, 100);
            verdict
        });
        verdicts.reverse();
        assert_eq!(verdicts, [Admission::AdmittedAboveMark, Admission::Admitted, Admission::Admitted]);
    }

    #[test]
    fn depths_print_as_they_are_written() {
        assert_eq!(Depth::DEFAULT.to_string(), "128kB");
        assert_eq!(Depth::Packets(200).to_string(), "200p");
    }
}
