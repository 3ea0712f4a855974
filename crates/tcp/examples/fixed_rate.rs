//! A congestion controller from outside the crate: it sends at a fixed rate, regardless of losses.
//!
//! Two stacks exchange 2 MB over a path of 20 ms each way that drops one data packet in fifty.
//!
//! ```sh
//! cargo run -p brisk-tcp --example fixed_rate
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use brisk_tcp::congestion::sample::{AckSample, CongestionEvent, ControllerStart, RtoEvent};
use brisk_tcp::congestion::{CongestionAlgorithm, CongestionController, ControllerFactory};
use brisk_tcp::stack::Rx;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};

/// One way.
const DELAY: Duration = Duration::from_millis(20);
/// Bytes to send.
const VOLUME: usize = 2_000_000;

/// A controller that sends at a rate in bytes per second. It does not yield to other traffic, so use it only
/// on a path that you do not share.
#[derive(Debug)]
struct FixedRate(u64);

impl ControllerFactory for FixedRate {
    fn name(&self) -> &str {
        "fixed-rate"
    }

    fn create(&self, start: &ControllerStart) -> Box<dyn CongestionController> {
        Box::new(Flow { rate: self.0, window: start.initial_window })
    }
}

#[derive(Debug)]
struct Flow {
    rate: u64,
    window: u32,
}

impl CongestionController for Flow {
    fn name(&self) -> &'static str {
        "fixed-rate"
    }

    fn cwnd(&self) -> u32 {
        self.window
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.rate)
    }

    fn set_mss(&mut self, _mss: u32) {}

    fn start(&mut self, window: u32) {
        self.window = window;
    }

    /// Sets the window to two round trips, so that the rate is what limits sending.
    fn on_ack(&mut self, ack: &AckSample) {
        if let Some(srtt) = ack.srtt {
            let round = u128::from(self.rate) * u128::from(srtt.0) / 1_000_000;
            self.window = self.window.max(u32::try_from(2 * round).unwrap_or(u32::MAX));
        }
    }

    fn on_congestion(&mut self, _event: &CongestionEvent) {}

    fn on_rto(&mut self, _rto: &RtoEvent) {}

    fn on_spurious(&mut self, _now: Instant) {}
}

fn main() {
    let host = |address: &str| {
        let mut config =
            StackConfig { addresses: vec![address.parse().expect("an address")], ..Default::default() };
        config.mtu = 1500;
        config
    };
    let mut client = Stack::new(host("10.0.0.1"), 1).expect("valid");
    let mut server = Stack::new(host("10.0.0.2"), 2).expect("valid");
    let remote = "10.0.0.2:80".parse().expect("an address");
    let mut connect = ConnectConfig::default();
    connect.tcp.congestion = CongestionAlgorithm::Custom(Arc::new(FixedRate(1_000_000)));
    let listener = server.listen(remote, ListenConfig::default()).expect("free");
    let mut now = Instant::ZERO;
    let writer = client.connect(remote, &connect, now).expect("possible");

    // Packets on the path: the time of arrival, whether the client sent it, and the packet.
    let mut path: VecDeque<(Instant, bool, Vec<u8>)> = VecDeque::new();
    let (mut written, mut read, mut data_packets) = (0, 0, 0_u32);
    let mut reader = None;
    let mut packet = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while read < VOLUME {
        while path.front().is_some_and(|(due, ..)| *due <= now) {
            let Some((_, from_client, packet)) = path.pop_front() else { break };
            let to = if from_client { &mut server } else { &mut client };
            to.on_packet(&packet, Rx::default(), now);
        }
        for stack in [&mut client, &mut server] {
            if stack.next_timeout().is_some_and(|at| at <= now) {
                stack.on_timeout(now);
            }
        }
        reader = reader.or_else(|| server.accept(listener).map(|(id, _)| id));
        while let Some(read_now) = reader.and_then(|id| server.read(id, &mut buffer, now).ok()) {
            read += read_now;
        }
        while let Ok(taken) = client.write(writer, &buffer[..buffer.len().min(VOLUME - written)], now)
            && taken > 0
        {
            written += taken;
        }
        while client.poll_transmit(now, &mut packet).is_some() {
            data_packets += u32::from(packet.len() > 1000);
            if packet.len() <= 1000 || !data_packets.is_multiple_of(50) {
                path.push_back((now + DELAY, true, packet.clone()));
            }
        }
        while server.poll_transmit(now, &mut packet).is_some() {
            path.push_back((now + DELAY, false, packet.clone()));
        }
        let arrival = path.front().map(|(due, ..)| *due);
        let next = [arrival, client.next_timeout(), server.next_timeout()].into_iter().flatten().min();
        now = now.max(next.expect("something is always due until all is read"));
    }
    let stats = client.conn_stats(writer).expect("open");
    println!(
        "{VOLUME} bytes in {} ms with {}: {} retransmitted segments",
        now.saturating_since(Instant::ZERO).as_millis(),
        stats.congestion,
        stats.counters.retransmits,
    );
}
