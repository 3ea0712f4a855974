//! Congestion controllers that pace, and a controller of the program.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use brisk_tcp::config::{CongestionAlgorithm, ConnectConfig, ControllerFactory, ListenConfig};
use brisk_tcp::congestion::CongestionController;
use brisk_tcp::congestion::sample::{
    AckSample, CongestionEvent, ControllerStart, LostPacket, RtoEvent, Transmission,
};
use brisk_tcp::time::Instant;

use crate::harness::{A, B, Channel, Pair, pattern};

/// The input of a controller.
#[derive(Debug, Default)]
struct Log {
    sent: u64,
    acked: u64,
    lost: u64,
    rates: Vec<u64>,
}

/// A window of 300 kB and a fixed pacing rate, bytes per second.
#[derive(Debug, Clone)]
struct FixedRate(u64, Arc<Mutex<Log>>);

impl ControllerFactory for FixedRate {
    fn name(&self) -> &str {
        "fixed-rate"
    }

    fn create(&self, _start: &ControllerStart) -> Box<dyn CongestionController> {
        Box::new(self.clone())
    }
}

impl CongestionController for FixedRate {
    fn name(&self) -> &'static str {
        "fixed-rate"
    }

    fn cwnd(&self) -> u32 {
        300_000
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.0)
    }

    fn needs_delivery_rate(&self) -> bool {
        true
    }

    fn set_mss(&mut self, _mss: u32) {}

    fn start(&mut self, _window: u32) {}

    fn on_sent(&mut self, sent: &Transmission) {
        self.1.lock().unwrap().sent += u64::from(sent.len);
    }

    fn on_lost(&mut self, lost: &LostPacket) {
        self.1.lock().unwrap().lost += u64::from(lost.range.len());
    }

    fn on_ack(&mut self, ack: &AckSample) {
        let mut log = self.1.lock().unwrap();
        log.acked += u64::from(ack.newly_acked);
        let sample = ack.delivery.expect("asked for").rate.filter(|sample| !sample.app_limited);
        log.rates.extend(sample.and_then(|sample| sample.rate));
    }

    fn on_congestion(&mut self, _event: &CongestionEvent) {}

    fn on_rto(&mut self, _rto: &RtoEvent) {}

    fn on_spurious(&mut self, _now: Instant) {}
}

fn connect(congestion: CongestionAlgorithm) -> ConnectConfig {
    let mut config = ConnectConfig::default();
    config.tcp.congestion = congestion;
    config
}

#[test]
fn controller_of_the_program_sets_the_pace_and_is_told_everything() {
    let log = Arc::new(Mutex::new(Log::default()));
    let factory = FixedRate(1_000_000, Arc::clone(&log));
    let mut pair = Pair::new(1);
    pair.channel = Channel { delay: Duration::from_millis(20), loss: 20, ..Channel::default() };
    let listener = pair.listen(B, 80, ListenConfig::default());
    let (at_a, at_b) =
        pair.established_at(listener, &connect(CongestionAlgorithm::Custom(Arc::new(factory))));
    let start = pair.now;
    pair.transfer(A, at_a, at_b, &pattern(2_000_000), Duration::from_secs(10));
    let took = pair.now.saturating_since(start);
    pair.run_ms(500);
    let stats = pair.a.conn_stats(at_a).expect("open");
    assert_eq!((stats.congestion, stats.cwnd), ("fixed-rate", 300_000));
    assert!((2.0..2.4).contains(&took.as_secs_f64()), "{took:?} for 2 MB at 1 MB/s");
    let mut log = log.lock().unwrap();
    // The SYN is acknowledged too.
    assert!(log.acked >= 2_000_000 && log.sent == 2_000_000 + stats.counters.retransmitted_bytes, "{log:?}");
    assert!(log.lost >= stats.counters.retransmitted_bytes, "{log:?}");
    log.rates.sort_unstable();
    let median = log.rates[log.rates.len() / 2];
    assert!((900_000..1_100_000).contains(&median), "{median}");
}

#[test]
fn bbr_keeps_its_rate_where_random_loss_stops_cubic() {
    let took = |congestion: CongestionAlgorithm| {
        let mut pair = Pair::new(1);
        pair.channel = Channel { delay: Duration::from_millis(25), loss: 20, ..Channel::default() };
        let listener = pair.listen(B, 80, ListenConfig::default());
        let (at_a, at_b) = pair.established_at(listener, &connect(congestion));
        let start = pair.now;
        pair.transfer(A, at_a, at_b, &pattern(4_000_000), Duration::from_secs(120));
        pair.now.saturating_since(start)
    };
    let (bbr, cubic) = (took(CongestionAlgorithm::Bbr), took(CongestionAlgorithm::Cubic));
    assert!(bbr * 3 < cubic, "BBR {bbr:?}, CUBIC {cubic:?}");
}

/// The rates that a flow reaches while the peer's window limits it show nothing about the path.
#[test]
fn a_small_window_of_the_peer_limits_the_rate_as_the_application_does() {
    for (window, path_limits) in [(16_384, false), (1 << 20, true)] {
        let log = Arc::new(Mutex::new(Log::default()));
        let factory = FixedRate(4_000_000, Arc::clone(&log));
        let mut pair = Pair::new(1);
        pair.channel = Channel { delay: Duration::from_millis(20), ..Channel::default() };
        let mut listen = ListenConfig::default();
        (listen.tcp.receive_buffer.initial, listen.tcp.receive_buffer.max) = (window, window);
        let listener = pair.listen(B, 80, listen);
        let (at_a, at_b) =
            pair.established_at(listener, &connect(CongestionAlgorithm::Custom(Arc::new(factory))));
        pair.transfer(A, at_a, at_b, &pattern(500_000), Duration::from_secs(10));
        assert_eq!(!log.lock().unwrap().rates.is_empty(), path_limits, "{window}");
    }
}
