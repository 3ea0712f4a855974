//! The hash of [`Steering`] as a kernel program, so that the kernel puts a packet on the right queue.
//!
//! The programs hash TCP over IPv4 without options, TCP directly after the IPv6 header, and datagrams. Other
//! packets go to queue 0. If that is the wrong queue, its device passes them to the right one.

use libc::sock_filter;

use crate::bpf::{LD, LDB, LDW, LDX, MUL, RET_A, RSH, TAX, TXA, XOR_X, skip_if, skip_unless, step};
use crate::udp::layout::PORTS;
use brisk_device::steering::{FACTOR, SHIFT, Steering};

/// First byte of an IPv4 header without options.
const IPV4: u32 = 0x45;
const TCP: u32 = 6;

/// Returns a program that returns the queue of an IP packet; 0 for packets that it does not hash.
pub(crate) fn for_packets(steering: &Steering) -> Vec<sock_filter> {
    let v4 = Program::of(steering).require_byte(9, TCP).mix_words(20, 1).mix_words(12, 2).finish(steering);
    let v6 = Program::of(steering)
        .then(LDB, 0)
        .then(RSH, 4)
        .demand_loaded(6)
        .require_byte(6, TCP)
        .mix_words(40, 1)
        .mix_words(8, 8)
        .finish(steering);
    let choice = [step(LDB, 0), skip_unless(IPV4, v4.len() as u8)];
    [choice.to_vec(), v4, v6].concat()
}

/// Returns a program that returns the queue of a datagram of [`udp`](crate::udp), whose connections are
/// assigned [by their ports](Steering::by_ports).
pub(crate) fn for_datagrams(steering: &Steering) -> Vec<sock_filter> {
    Program::of(steering).mix_words(PORTS, 1).finish(steering)
}

/// A program under construction. The part of the hash that it has computed is in X.
struct Program(Vec<sock_filter>);

impl Program {
    fn of(steering: &Steering) -> Program {
        Program(vec![step(LDX, steering.key()[0])])
    }

    fn then(mut self, code: u32, k: u32) -> Program {
        self.0.push(step(code, k));
        self
    }

    /// Makes the program return 0 unless byte `at` is `k`.
    fn require_byte(self, at: u32, k: u32) -> Program {
        self.then(LDB, at).demand_loaded(k)
    }

    fn demand_loaded(mut self, k: u32) -> Program {
        self.0.push(skip_if(k, 2));
        self.then(LD, 0).then(RET_A, 0)
    }

    /// Mixes the accumulator into X, as [`Steering::key`] describes.
    fn mix_loaded(self) -> Program {
        let product = self.then(XOR_X, 0).then(MUL, FACTOR).then(TAX, 0);
        product.then(RSH, SHIFT).then(XOR_X, 0).then(TAX, 0)
    }

    fn mix_words(self, start: u32, count: u32) -> Program {
        (0..count).fold(self, |program, n| program.then(LDW, start + 4 * n).mix_loaded())
    }

    /// Appends the end of the hash and the choice of the queue (see [`Steering::queue_of`]), and returns the
    /// program.
    fn finish(self, steering: &Steering) -> Vec<sock_filter> {
        let program = self.then(LD, steering.key()[1]).mix_loaded().then(TXA, 0);
        program.then(RSH, 16).then(MUL, steering.queues() as u32).then(RSH, 16).then(RET_A, 0).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_short_enough_for_their_jumps_and_for_any_kernel() {
        let steering = Steering::new(8, 7);
        assert!(for_packets(&steering).len() < 256);
        assert!(for_datagrams(&steering).len() < 256);
    }
}
