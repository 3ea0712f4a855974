//! `struct tcp_info` of linux/tcp.h, field by field, with Linux's units and meanings. One field differs:
//! Linux measures `tcpi_delivery_rate`, brisk calculates it from the window and the round-trip time.

use brisk_tcp::Stack;
use brisk_tcp::congestion::CongestionState;
use brisk_tcp::connection::{ConnInfo, ConnStats, State};
use brisk_tcp::fast_open::SynAckClass;
use brisk_wire::Instant;
use std::time::Duration;

use crate::socket::{Role, Socket};

/// Length of the time stamp option with padding, bytes.
const TIMESTAMPS_LEN: u32 = 12;
/// Linux's infinite slow-start threshold.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// Maximum reordering in Linux (`tcp_max_reordering`).
const MAX_REORDERING: u32 = 300;
/// Bits of `tcpi_options`: TIMESTAMPS, SACK, WSCALE, ECN, ECN_SEEN, SYN_DATA and TFO_CHILD.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WSCALE: u8 = 4;
const ECN: u8 = 8;
const ECN_SEEN: u8 = 16;
const SYN_DATA: u8 = 32;
const TFO_CHILD: u8 = 128;
/// State of a socket without a connection (`TCP_CLOSE`) and of a listener.
const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;

/// The bytes of the structure, in this machine's layout.
#[derive(Debug, Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }

    fn all(&mut self, values: impl IntoIterator<Item = u32>) {
        values.into_iter().for_each(|value| self.u32(value));
    }
}

/// Returns the bytes of `getsockopt(TCP_INFO)`.
pub(crate) fn bytes(socket: &mut Socket, stack: &Stack, now: Instant) -> Vec<u8> {
    let conn = socket.conn();
    match conn.and_then(|id| Some((stack.conn_stats(id)?, stack.conn_info(id)?))) {
        Some((stats, info)) => {
            socket.usage.add_time(now);
            of_connection(socket, &stats, &info, now)
        }
        None => of_none(socket),
    }
}

/// Returns the structure of a socket without a connection: all fields but the state are zero.
fn of_none(socket: &Socket) -> Vec<u8> {
    let mut fields = Fields::default();
    fields.u8(if matches!(socket.role, Role::Listening(_)) { TCP_LISTEN } else { TCP_CLOSE });
    fields.0.resize(LEN, 0);
    fields.0
}

/// Size of the structure in Linux 6.18, bytes.
pub(crate) const LEN: usize = 280;

fn of_connection(socket: &Socket, stats: &ConnStats, info: &ConnInfo, now: Instant) -> Vec<u8> {
    let mut fields = Fields::default();
    write_head(&mut fields, stats, info);
    write_state(&mut fields, stats, info, socket, now);
    write_paths(&mut fields, stats, info, socket);
    write_counters(&mut fields, stats, info, socket);
    write_totals(&mut fields, stats, info, socket);
    fields.0
}

/// Writes the fields from `tcpi_state` through the bit fields.
fn write_head(fields: &mut Fields, stats: &ConnStats, info: &ConnInfo) {
    fields.u8(state_number(stats.state));
    fields.u8(match stats.recovery {
        CongestionState::Open => 0,
        CongestionState::Disorder => 1,
        CongestionState::Cwr => 2,
        CongestionState::Recovery => 3,
        CongestionState::Loss => 4,
    });
    fields.u8(saturated(info.timeouts_in_row));
    fields.u8(saturated(info.unanswered_probes));
    fields.u8(saturated(info.backoffs));
    fields.u8(options(stats, info));
    let (theirs, ours) = info.scales.unwrap_or((0, 0));
    fields.u8(theirs & 15 | ours << 4);
    // tcpi_fastopen_client_fail: 1 cookie unavailable, 2 data not acknowledged, 3 SYN retransmitted.
    let failed = match stats.syn_ack {
        Some(SynAckClass::Granted | SynAckClass::NotSupported) => 1,
        Some(SynAckClass::SoftReject | SynAckClass::SoftNegative) => 2,
        Some(SynAckClass::LateReject | SynAckClass::SynDrop | SynAckClass::ReqDrop) => 3,
        Some(_) | None => 0,
    };
    fields.u8(failed << 1);
}

fn options(stats: &ConnStats, info: &ConnInfo) -> u8 {
    let syn_data = stats.syn_data_taken || stats.syn_ack == Some(SynAckClass::Accepted);
    let options = [
        (TIMESTAMPS, info.timestamps),
        (SACK, info.sack),
        (WSCALE, info.scales.is_some()),
        (ECN, info.ecn),
        (ECN_SEEN, info.ecn_seen),
        (SYN_DATA, syn_data),
        (TFO_CHILD, stats.syn_data_taken),
    ];
    options.into_iter().filter(|(_, holds)| *holds).map(|(bit, _)| bit).sum()
}

/// Writes the fields from `tcpi_rto` through `tcpi_last_ack_recv`.
fn write_state(fields: &mut Fields, stats: &ConnStats, info: &ConnInfo, socket: &Socket, now: Instant) {
    let since = |at: Option<Instant>| at.map_or(0, |at| now.saturating_since(at).as_millis() as u32);
    let (sacked, lost) = (info.sacked, info.lost);
    fields.all([micros(stats.rto), info.ack_delay.map_or(0, micros), stats.mss, info.rcv_mss]);
    // In Linux the SYN-ACK is not one of the connection's segments.
    let unacked = info.unacked - u32::from(stats.state == State::SynReceived && info.unacked > 0);
    fields.all([unacked, sacked, lost, info.retransmitted, 0]);
    let usage = &socket.usage;
    let opened = stats.established.or(Some(stats.opened));
    fields.all([
        since(Some(info.last_sent).max(opened)),
        0,
        since(usage.last_data.or(opened)),
        since(usage.last_segment.or(opened)),
    ]);
}

/// Writes the fields from `tcpi_pmtu` through `tcpi_total_retrans`.
fn write_paths(fields: &mut Fields, stats: &ConnStats, info: &ConnInfo, socket: &Socket) {
    let segments = |bytes: u32| bytes / stats.mss.max(1);
    let ssthresh = if stats.ssthresh == u32::MAX { INFINITE_SSTHRESH } else { segments(stats.ssthresh) };
    let counters = &stats.counters;
    let probes_again = counters.probes.saturating_sub(counters.probes_of_new_data);
    let syn_data_again = u64::from(info.syn_data_again.div_ceil(stats.mss.max(1)));
    let retransmits = counters.retransmits + probes_again + counters.handshake_retransmits + syn_data_again;
    let reordering = info.reordering_degree.max(socket.tcp.dup_thresh).min(MAX_REORDERING);
    // Linux subtracts the length of a time stamp.
    let advertised_mss = info.advertised_mss - if info.timestamps { TIMESTAMPS_LEN } else { 0 };
    fields.all([info.path_mtu, stats.rcv_wnd, stats.srtt.map_or(0, micros), micros(stats.rttvar)]);
    fields.all([ssthresh, segments(stats.cwnd), advertised_mss, reordering]);
    fields.all([0, stats.rcv_wnd, retransmits as u32]);
}

/// Writes the fields from `tcpi_pacing_rate` through `tcpi_delivered_ce`.
fn write_counters(fields: &mut Fields, stats: &ConnStats, info: &ConnInfo, socket: &Socket) {
    let (counters, usage) = (&stats.counters, &socket.usage);
    fields.u64(info.pacing_rate.unwrap_or(u64::MAX));
    fields.u64(u64::MAX);
    // Linux counts the SYN of an active open and our FIN as acknowledged bytes, and the peer's FIN as a
    // received byte.
    let active = socket.opens_actively();
    let fin_acked = matches!(stats.state, State::FinWait2 | State::TimeWait);
    let syn_acked = active && stats.established.is_some();
    fields.u64(counters.payload_bytes_acked + u64::from(syn_acked) + u64::from(fin_acked));
    fields.u64(counters.payload_bytes_received + u64::from(usage.peer_closed()));
    // For a passive open, Linux's count of sent segments begins when the handshake completes, so SYN-ACKs are
    // not counted.
    let passive_syn = u64::from(!active && stats.established.is_some());
    let segments_out = counters.segments_out.saturating_sub(passive_syn + counters.handshake_retransmits);
    let segments_out = if active { counters.segments_out } else { segments_out };
    fields.all([segments_out as u32, counters.segments_in as u32, info.unsent]);
    fields.all([stats.min_rtt.map_or(u32::MAX, micros), usage.data_segments_in, usage.data_segments_out]);
    fields.u64(delivery_rate(stats));
    for span in [usage.busy, usage.window_limited, usage.buffer_limited] {
        fields.u64(span.as_micros() as u64);
    }
    fields.all([counters.delivered_segments as u32, counters.delivered_segments_ce as u32]);
}

/// Writes the fields from `tcpi_bytes_sent` to the end of the structure.
fn write_totals(fields: &mut Fields, stats: &ConnStats, info: &ConnInfo, socket: &Socket) {
    let counters = &stats.counters;
    fields.u64(socket.usage.bytes_sent);
    fields.u64(counters.retransmitted_bytes + counters.probe_bytes_again + u64::from(info.syn_data_again));
    fields.all([counters.dsacks as u32, info.reorderings, counters.out_of_order as u32]);
    fields.all([stats.snd_wnd, stats.rcv_wnd, 0]);
    fields.u16(counters.timeouts.min(u64::from(u16::MAX)) as u16);
    fields.u16(0);
    fields.u32(0);
    // Fields that only AccECN reports are 0: bytes delivered with each codepoint, and the bit fields at the
    // end.
    let marks = socket.usage.marks;
    fields.all([marks.ce_packets, 0, 0, 0, marks.ect1_bytes, marks.ect0_bytes, marks.ce_bytes, 0]);
}

fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        // In Linux, TIME-WAIT is separate from the socket, which is closed.
        State::TimeWait | State::Closed => TCP_CLOSE,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// Returns the bytes per second that the window and the round-trip time allow: cwnd / SRTT. Linux has the
/// measured rate of delivery here.
fn delivery_rate(stats: &ConnStats) -> u64 {
    let srtt = stats.srtt.map_or(0, |srtt| srtt.as_micros() as u64);
    (u64::from(stats.cwnd) * 1_000_000).checked_div(srtt).unwrap_or(0)
}

fn saturated(value: u32) -> u8 {
    value.min(255) as u8
}

fn micros(span: Duration) -> u32 {
    span.as_micros().min(u128::from(u32::MAX)) as u32
}
