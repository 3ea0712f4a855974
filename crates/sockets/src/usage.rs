//! How long a connection was busy, and for which event it waited, as `TCP_INFO` reports it. The record is
//! updated after every action of the stack; between two actions a connection waits for the same event.

use std::time::Duration;

use brisk_tcp::connection::{ConnInfo, ConnStats, State};
use brisk_wire::{Ecn, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Waits {
    /// The program: there is nothing to send.
    #[default]
    Program,
    /// Acknowledgements or the congestion window.
    Network,
    /// The peer's window.
    PeerWindow,
    /// Space in the send buffer: everything is sent, and the program had to stop writing.
    SendBuffer,
}

/// Arrivals with an ECN codepoint, even if the ends have not agreed on ECN.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    pub(crate) ce_packets: u32,
    /// Payload bytes of packets with each codepoint.
    pub(crate) ect1_bytes: u32,
    pub(crate) ect0_bytes: u32,
    pub(crate) ce_bytes: u32,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    waits: Waits,
    since: Instant,
    pub(crate) busy: Duration,
    pub(crate) window_limited: Duration,
    pub(crate) buffer_limited: Duration,
    /// True if a write found the buffer full and no later write succeeded.
    pub(crate) refused: bool,
    pub(crate) last_data: Option<Instant>,
    /// Time of the last arrival of any segment.
    pub(crate) last_segment: Option<Instant>,
    received: u64,
    segments_in: u64,
    pub(crate) data_segments_in: u32,
    pub(crate) data_segments_out: u32,
    pub(crate) bytes_sent: u64,
    pub(crate) marks: Marks,
    state: Option<State>,
}

impl Usage {
    /// Counts a packet that left.
    pub(crate) fn on_sent(&mut self, payload: usize) {
        self.data_segments_out += u32::from(payload > 0);
        self.bytes_sent += payload as u64;
    }

    /// Counts a packet that arrived with this codepoint and this many bytes of payload.
    pub(crate) fn count_mark(&mut self, ecn: Ecn, payload: usize) {
        let bytes = match ecn {
            Ecn::NotEct => return,
            Ecn::Ect1 => &mut self.marks.ect1_bytes,
            Ecn::Ect0 => &mut self.marks.ect0_bytes,
            Ecn::Ce => &mut self.marks.ce_bytes,
        };
        *bytes = bytes.wrapping_add(payload as u32);
        self.marks.ce_packets = self.marks.ce_packets.wrapping_add(u32::from(ecn == Ecn::Ce));
    }

    /// Updates the record after an action of the stack. `data`: the packet that arrived has payload.
    pub(crate) fn update(&mut self, stats: &ConnStats, info: &ConnInfo, data: bool, now: Instant) {
        self.add_time(now);
        // A SYN or SYN-ACK alone does not make a connection busy.
        let handshake = u32::from(matches!(stats.state, State::SynSent | State::SynReceived));
        self.waits = if info.unacked <= handshake && info.unsent == 0 {
            Waits::Program
        } else if info.window_limited {
            Waits::PeerWindow
        } else if self.refused && info.unsent == 0 {
            Waits::SendBuffer
        } else {
            Waits::Network
        };
        let counters = &stats.counters;
        if counters.payload_bytes_received + counters.out_of_order > self.received {
            self.received = counters.payload_bytes_received + counters.out_of_order;
            self.last_data = Some(now);
        }
        if counters.segments_in > self.segments_in {
            self.data_segments_in += u32::from(data);
            self.segments_in = counters.segments_in;
            self.last_segment = Some(now);
        }
        self.state = Some(stats.state);
    }

    /// Adds the time since the last update.
    pub(crate) fn add_time(&mut self, now: Instant) {
        let passed = now.saturating_since(self.since);
        self.since = now;
        match self.waits {
            Waits::Program => return,
            Waits::Network => {}
            Waits::PeerWindow => self.window_limited += passed,
            Waits::SendBuffer => self.buffer_limited += passed,
        }
        self.busy += passed;
    }

    /// Returns a counter that grows with every arrival of data: each arrival is an edge for EPOLLET.
    pub(crate) fn arrivals(&self) -> u64 {
        self.received
    }

    /// True if the peer had closed its side at the last update.
    pub(crate) fn peer_closed(&self) -> bool {
        matches!(self.state, Some(State::CloseWait | State::LastAck | State::Closing | State::TimeWait))
    }

    /// True if, at the last update, the peer had closed its side and the program had not.
    pub(crate) fn waits_for_close(&self) -> bool {
        self.state == Some(State::CloseWait)
    }
}
