//! Counters of the stack: packets, and refusals by reason.

use core::ops::AddAssign;

use brisk_wire::ParseError;

/// Reason why a packet was not processed. Every packet is either processed or counted under exactly one
/// reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The packet is shorter than its headers say.
    Truncated,
    /// The IP version is neither 4 nor 6.
    Version,
    /// The IP header contradicts itself.
    IpHeader,
    /// An IP fragment.
    Fragment,
    /// The IPv4 header checksum is wrong.
    IpChecksum,
    /// An IPv6 extension header that cannot be skipped.
    Extension,
    /// The TCP data offset is below 5.
    TcpHeader,
    /// The TCP checksum is wrong.
    TcpChecksum,
    /// The ICMP checksum is wrong.
    IcmpChecksum,
    /// Neither TCP nor an ICMP error about TCP.
    NotTcp,
    /// The destination is not an address of this stack.
    NotOurs,
    /// The source is no valid host address or is our own end, or a port is 0.
    BadSource,
    /// An ICMP error about no connection of ours.
    IcmpNoConnection,
    /// An ICMP error that quotes a sequence number which is not outstanding (RFC 5927).
    IcmpStale,
    /// A reset for no connection.
    StrayReset,
    /// A segment for no connection and no listener; answered by a reset.
    NoListener,
    /// An acknowledgement at a listener that is no valid SYN cookie; answered by a reset.
    NoHandshake,
    /// A segment at a listener that is neither SYN nor ACK, or a SYN with FIN.
    NotASyn,
    /// A SYN while the half-open table of the listener is full and cookies are off or cannot help.
    HalfOpenFull,
    /// A SYN, or the end of a handshake, while the accept queue of the listener is full.
    BacklogFull,
    /// An acknowledgement without data that would complete a handshake which only data completes
    /// ([`crate::ListenConfig::defer_accept`]).
    Deferred,
    /// A SYN while the stack holds its maximum of connections.
    TooManyConnections,
    /// Data while the buffers of the stack hold their maximum.
    OutOfMemory,
    /// A SYN that repeats the SYN of a Fast Open connection. This connection has ended, or the address of its
    /// peer may have changed.
    Replayed,
    /// A reset or a plain acknowledgement in TIME-WAIT, which changes nothing there (RFC 1337).
    InTimeWait,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Refusal; 25] = [
        Refusal::Truncated,
        Refusal::Version,
        Refusal::IpHeader,
        Refusal::Fragment,
        Refusal::IpChecksum,
        Refusal::Extension,
        Refusal::TcpHeader,
        Refusal::TcpChecksum,
        Refusal::IcmpChecksum,
        Refusal::NotTcp,
        Refusal::NotOurs,
        Refusal::BadSource,
        Refusal::IcmpNoConnection,
        Refusal::IcmpStale,
        Refusal::StrayReset,
        Refusal::NoListener,
        Refusal::NoHandshake,
        Refusal::NotASyn,
        Refusal::HalfOpenFull,
        Refusal::BacklogFull,
        Refusal::Deferred,
        Refusal::TooManyConnections,
        Refusal::OutOfMemory,
        Refusal::Replayed,
        Refusal::InTimeWait,
    ];

    /// Returns the name for metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Truncated => "truncated",
            Refusal::Version => "ip_version",
            Refusal::IpHeader => "ip_header",
            Refusal::Fragment => "fragment",
            Refusal::IpChecksum => "ip_checksum",
            Refusal::Extension => "ip_extension",
            Refusal::TcpHeader => "tcp_header",
            Refusal::TcpChecksum => "tcp_checksum",
            Refusal::IcmpChecksum => "icmp_checksum",
            Refusal::NotTcp => "not_tcp",
            Refusal::NotOurs => "not_ours",
            Refusal::BadSource => "bad_source",
            Refusal::IcmpNoConnection => "icmp_no_connection",
            Refusal::IcmpStale => "icmp_stale",
            Refusal::StrayReset => "stray_reset",
            Refusal::NoListener => "no_listener",
            Refusal::NoHandshake => "no_handshake",
            Refusal::NotASyn => "not_a_syn",
            Refusal::HalfOpenFull => "half_open_full",
            Refusal::BacklogFull => "backlog_full",
            Refusal::Deferred => "deferred",
            Refusal::TooManyConnections => "too_many_connections",
            Refusal::OutOfMemory => "out_of_memory",
            Refusal::Replayed => "replayed",
            Refusal::InTimeWait => "in_time_wait",
        }
    }
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Refusal {
        match error {
            ParseError::Truncated => Refusal::Truncated,
            ParseError::Version => Refusal::Version,
            ParseError::IpHeaderLength => Refusal::IpHeader,
            ParseError::Fragment => Refusal::Fragment,
            ParseError::IpChecksum => Refusal::IpChecksum,
            ParseError::UnsupportedExtension => Refusal::Extension,
            ParseError::TcpHeaderLength => Refusal::TcpHeader,
            ParseError::TcpChecksum => Refusal::TcpChecksum,
            ParseError::IcmpChecksum => Refusal::IcmpChecksum,
        }
    }
}

/// Counters over all connections of a stack since its creation.
///
/// ```
/// # use brisk_tcp::time::Instant;
/// # use brisk_tcp::{Stack, StackConfig};
/// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
/// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
/// # let now = Instant::ZERO;
/// use brisk_tcp::stack::{FastOpenStats, Refusal};
///
/// let fast_open: &FastOpenStats = &server.stats().fast_open;
/// println!("{fast_open:?}");
/// for reason in Refusal::ALL {
///     assert_eq!(server.stats().refused(reason), 0, "{}", reason.name());
/// }
/// assert_eq!(server.stats().refused_total(), server.stats().refusals().map(|(_, count)| count).sum());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StackStats {
    /// Packets that the device handed in; a coalesced one counts once.
    pub packets_in: u64,
    /// Packets handed to the device; a super-packet counts once.
    pub packets_out: u64,
    /// Active opens.
    pub active_opens: u64,
    /// SYNs that began a connection, half-open or at once (Fast Open).
    pub passive_opens: u64,
    /// Handshakes that passive opens completed, by cookie or not.
    pub handshakes_completed: u64,
    /// Half-open connections that ended without a complete handshake.
    pub handshakes_failed: u64,
    /// Resets that answered a segment without an owner.
    pub resets_sent: u64,
    /// Such resets that the limit suppressed.
    pub resets_suppressed: u64,
    /// Challenge ACKs sent, also in TIME-WAIT.
    pub challenge_acks_sent: u64,
    /// Challenge ACKs that the host-wide limit suppressed.
    pub challenge_acks_suppressed: u64,
    /// SYN-ACKs that carried a cookie.
    pub syn_cookies_sent: u64,
    /// Connections created from a cookie.
    pub syn_cookies_accepted: u64,
    /// Connections that went into TIME-WAIT.
    pub time_waits: u64,
    /// TIME-WAITs that a new connection over the same ends replaced.
    pub time_waits_reused: u64,
    /// TIME-WAITs that ended early to make room for a new connection.
    pub time_waits_evicted: u64,
    /// ICMP errors that a connection accepted: they quote an outstanding sequence number (RFC 5927), or
    /// parity that was sent recently.
    pub icmp_believed: u64,
    /// Answers of the stack itself that were dropped because too many were waiting.
    pub answers_dropped: u64,
    /// Observations that were dropped because they were not read.
    pub observations_dropped: u64,
    /// Lifecycle changes that were dropped because they were not read.
    pub lifecycle_dropped: u64,
    /// SYNs with the option of Corrective and Proactive that the path dropped.
    pub gentle_syn_drop: u64,
    /// Opens without that option because of the memory of the destination.
    pub gentle_withheld: u64,
    /// Fast Open.
    pub fast_open: FastOpenStats,
    refused: [u64; Refusal::ALL.len()],
}

/// Counters of Fast Open. Names in brackets are those of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FastOpenStats {
    /// Client: SYNs that asked for a cookie; counted when they are answered or given up.
    pub requests_sent: u64,
    /// Client: SYNs that carried data; counted when they are answered or given up.
    pub data_sent: u64,
    /// Client: SYN-ACKs that acknowledged all data (`TCPFastOpenActive`).
    pub accepted: u64,
    /// Client: SYN-ACKs that acknowledged a part of the data.
    pub partial: u64,
    /// Client: cookies that were granted.
    pub granted: u64,
    /// Client: SYN-ACKs that brought another cookie instead of acknowledging the data.
    pub soft_reject: u64,
    /// Client: SYN-ACKs that neither acknowledged the data nor brought a cookie.
    pub soft_negative: u64,
    /// Client: as `soft_reject`, after a plain SYN had followed.
    pub late_reject: u64,
    /// Client: SYNs with data that the path dropped (`TCPFastOpenActiveFail`).
    pub syn_drop: u64,
    /// Client: cookie requests that the path dropped.
    pub req_drop: u64,
    /// Client: opens without Fast Open because of the memory of the destination.
    pub disabled: u64,
    /// Client: signs of a black hole (`TCPFastOpenBlackhole`).
    pub black_holes: u64,
    /// Server: SYNs that opened a connection (`TCPFastOpenPassive`).
    pub served: u64,
    /// Server: of these, with a cookie of the backup key (`TCPFastOpenPassiveAltKey`).
    pub served_backup_key: u64,
    /// Server: requests for a cookie (`TCPFastOpenCookieReqd`).
    pub requests: u64,
    /// Server: invalid cookies (`TCPFastOpenPassiveFail`).
    pub cookie_invalid: u64,
    /// Server: SYNs beyond the limit of pending connections (`TCPFastOpenListenOverflow`).
    pub overflow: u64,
    /// Server: SYNs beyond the limit of their client.
    pub per_ip_refused: u64,
    /// Server: SYNs whose data was refused for lack of memory.
    pub memory_refused: u64,
    /// Server: resets whose connections still count against the limit.
    pub rst_penalties: u64,
    /// Server: old SYNs recognised after their connection had ended, by the LAST-ACK hold or the replay
    /// window.
    pub replay_blocked: u64,
    /// Server: SYNs whose data was refused because the replay window was full.
    pub replay_window_full: u64,
    /// Server: one-time cookies that were used a second time.
    pub one_time_reuse: u64,
}

impl StackStats {
    /// Returns the number of packets that were refused for this reason.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns the number of packets that were refused.
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Returns every reason with its count.
    pub fn refusals(&self) -> impl Iterator<Item = (Refusal, u64)> + '_ {
        Refusal::ALL.into_iter().map(|reason| (reason, self.refused(reason)))
    }

    pub(crate) fn refuse(&mut self, reason: Refusal) {
        if let Some(count) = self.refused.get_mut(reason as usize) {
            *count += 1;
        }
    }
}

/// Adds every named counter; those after the semicolon are added separately. The pattern has every field, so
/// none is forgotten.
macro_rules! add_counters {
    ($to:expr, $from:expr, $type:ident { $($counter:ident),* ; $($rest:ident),* }) => {
        let $type { $($counter,)* $($rest: _,)* } = $from;
        $($to.$counter += $counter;)*
    };
}

/// Sum of the counters of several stacks.
impl AddAssign for StackStats {
    fn add_assign(&mut self, other: StackStats) {
        add_counters!(
            self,
            other,
            StackStats {
                packets_in,
                packets_out,
                active_opens,
                passive_opens,
                handshakes_completed,
                handshakes_failed,
                resets_sent,
                resets_suppressed,
                challenge_acks_sent,
                challenge_acks_suppressed,
                syn_cookies_sent,
                syn_cookies_accepted,
                time_waits,
                time_waits_reused,
                time_waits_evicted,
                icmp_believed,
                answers_dropped,
                observations_dropped,
                lifecycle_dropped,
                gentle_syn_drop,
                gentle_withheld ; fast_open, refused
            }
        );
        self.fast_open += other.fast_open;
        for (count, more) in self.refused.iter_mut().zip(other.refused) {
            *count += more;
        }
    }
}

impl AddAssign for FastOpenStats {
    fn add_assign(&mut self, other: FastOpenStats) {
        add_counters!(
            self,
            other,
            FastOpenStats {
                requests_sent,
                data_sent,
                accepted,
                partial,
                granted,
                soft_reject,
                soft_negative,
                late_reject,
                syn_drop,
                req_drop,
                disabled,
                black_holes,
                served,
                served_backup_key,
                requests,
                cookie_invalid,
                overflow,
                per_ip_refused,
                memory_refused,
                rst_penalties,
                replay_blocked,
                replay_window_full,
                one_time_reuse ;
            }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_and_a_name_of_its_own() {
        let mut stats = StackStats::default();
        for (index, reason) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{reason:?} stands at its own place");
            stats.refuse(reason);
        }
        assert!(stats.refusals().all(|(_, count)| count == 1));
        assert_eq!(stats.refused_total(), Refusal::ALL.len() as u64);
        let names: std::collections::BTreeSet<_> = Refusal::ALL.into_iter().map(Refusal::name).collect();
        assert_eq!(names.len(), Refusal::ALL.len());
    }

    #[test]
    fn the_counters_of_two_stacks_add_up() {
        let mut one = StackStats { packets_in: 3, ..StackStats::default() };
        one.refuse(Refusal::NotOurs);
        one.fast_open.served = 5;
        let mut sum = one;
        sum += one;
        assert_eq!((sum.packets_in, sum.refused(Refusal::NotOurs), sum.fast_open.served), (6, 2, 10));
    }
}
