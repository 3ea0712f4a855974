//! Outcome of Fast Open on a connection.
//!
//! [`SynAckClass`] is the full result in the first SYN-ACK. [`FastOpenOutcome`] tells operators whether Fast
//! Open saved the round trip, and if not, why.

use brisk_wire::FastOpen;

/// Outcome of Fast Open on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FastOpenOutcome {
    /// Unknown yet: the SYN has not been answered.
    Pending,
    /// The server accepted SYN data, which saved a round trip. On the server: the SYN opened the connection.
    Used,
    /// There was no cookie; the server gave one for the next connection. On the server: the client asked for
    /// one.
    NoCookie,
    /// The server answered the cookie with another one, because the client's address or the key has changed.
    /// On the server: it did not accept the data.
    Refused,
    /// The answer lacks the option: the peer does not know it, the path removed it, or the server is at its
    /// limit.
    Stripped,
    /// The first SYN was lost, or there was no SYN-ACK: by chance, because the path drops or rejects such
    /// SYNs, or because the server is down.
    SynLost,
    /// The path passed the SYN and dropped all later packets.
    Blackholed,
    /// Fast Open was not tried.
    Off(OffReason),
}

impl FastOpenOutcome {
    /// Returns the name for metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            FastOpenOutcome::Pending => "pending",
            FastOpenOutcome::Used => "used",
            FastOpenOutcome::NoCookie => "no-cookie",
            FastOpenOutcome::Refused => "refused",
            FastOpenOutcome::Stripped => "stripped",
            FastOpenOutcome::SynLost => "syn-lost",
            FastOpenOutcome::Blackholed => "blackholed",
            FastOpenOutcome::Off(reason) => reason.name(),
        }
    }
}

/// Reason why Fast Open was not tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OffReason {
    /// The program did not request it.
    NotAsked,
    /// There was no data for the SYN. It carried only the cookie.
    NoData,
    /// The server recently rejected the data of three SYNs. This SYN carried only the cookie.
    Suspended,
    /// SYNs of this kind to this destination and port were dropped.
    Disabled,
    /// The server recently gave no cookie, or the request was dropped.
    NoCookieThere,
    /// The network is a black hole for Fast Open.
    BlackHole,
    /// Both ends opened the connection at the same time.
    Simultaneous,
    /// A SYN with this option and that of Corrective and Proactive was dropped recently. This SYN carries
    /// only the other option.
    OnTrial,
}

impl OffReason {
    /// Returns the name for metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            OffReason::NotAsked => "off",
            OffReason::NoData => "off(no-data)",
            OffReason::Suspended => "off(suspended)",
            OffReason::Disabled => "off(disabled)",
            OffReason::NoCookieThere => "off(no-cookie-there)",
            OffReason::BlackHole => "off(black-hole)",
            OffReason::Simultaneous => "off(simultaneous)",
            OffReason::OnTrial => "off(on-trial)",
        }
    }
}

/// Evidence that a path breaks connections that Fast Open opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlackHoleSign {
    /// Two retransmission timeouts in a row, and no progress since the connection opened.
    Timeouts,
    /// A FIN arrived out of order but never any data: a device has removed the data.
    FinOnly,
    /// The server retransmits its SYN-ACK, and nothing else arrives.
    RepeatedSynAck,
    /// A reset within a round trip of the SYN-ACK, before any data.
    EarlyReset,
    /// A plain connection that began later was answered first. A lost answer looks the same, so this is a
    /// sign only the second time in a row.
    HedgeWon,
}

/// The result of Fast Open in the first acceptable SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SynAckClass {
    /// The SYN-ACK acknowledges all data of the SYN.
    Accepted,
    /// The SYN-ACK acknowledges a part of the data.
    Partial,
    /// The SYN-ACK acknowledges no data, and has a new cookie.
    SoftReject,
    /// The SYN-ACK acknowledges no data, and has no cookie.
    SoftNegative,
    /// The SYN-ACK acknowledges no data and has a cookie, although a plain SYN (the retransmission, without
    /// data and option) had left too: the first SYN arrived.
    LateReject,
    /// The SYN-ACK acknowledges no data and has no cookie, and a plain SYN had left too: the first SYN was
    /// dropped.
    SynDrop,
    /// The SYN-ACK has the requested cookie.
    Granted,
    /// The SYN-ACK lacks the requested cookie.
    NotSupported,
    /// The SYN-ACK has no cookie, and a plain SYN had left too. So the request was dropped.
    ReqDrop,
    /// The SYN carried a cookie and no data. The answer shows nothing.
    NoData,
}

/// Properties of the sent SYNs that determine the class of a SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynSent {
    /// True if the first SYN requested a cookie.
    pub(crate) request: bool,
    /// Bytes of data of the first SYN.
    pub(crate) data: u32,
    /// True if a plain SYN followed.
    pub(crate) plain: bool,
}

impl SynAckClass {
    /// Classifies a SYN-ACK. `acked` is `SEG.ACK - (ISS + 1)`, at most `sent.data`.
    pub(crate) fn of(sent: &SynSent, acked: u32, option: Option<&FastOpen>) -> Self {
        let cookie = option.is_some_and(|option| !option.cookie.is_empty());
        match (sent.request, sent.data, acked) {
            (true, ..) => match (cookie, sent.plain) {
                (true, _) => SynAckClass::Granted,
                (false, false) => SynAckClass::NotSupported,
                (false, true) => SynAckClass::ReqDrop,
            },
            (false, 0, _) => SynAckClass::NoData,
            (false, data, acked) if acked >= data => SynAckClass::Accepted,
            (false, _, 1..) => SynAckClass::Partial,
            (false, _, 0) => match (cookie, sent.plain) {
                (true, false) => SynAckClass::SoftReject,
                (false, false) => SynAckClass::SoftNegative,
                (true, true) => SynAckClass::LateReject,
                (false, true) => SynAckClass::SynDrop,
            },
        }
    }

    pub(crate) fn outcome(self) -> FastOpenOutcome {
        match self {
            SynAckClass::Accepted | SynAckClass::Partial => FastOpenOutcome::Used,
            SynAckClass::SoftReject | SynAckClass::LateReject => FastOpenOutcome::Refused,
            SynAckClass::SoftNegative | SynAckClass::NotSupported => FastOpenOutcome::Stripped,
            SynAckClass::SynDrop | SynAckClass::ReqDrop => FastOpenOutcome::SynLost,
            SynAckClass::Granted => FastOpenOutcome::NoCookie,
            SynAckClass::NoData => FastOpenOutcome::Off(OffReason::NoData),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_wire::Cookie;

    #[test]
    fn every_row_of_the_table() {
        use SynAckClass::*;
        let cookie = FastOpen::with_cookie(Cookie::new(&[7; 8]).expect("eight bytes"));
        let data = |plain| SynSent { request: false, data: 100, plain };
        let request = |plain| SynSent { request: true, data: 0, plain };
        for (sent, acked, option, class) in [
            (data(false), 100, None, Accepted),
            (data(true), 100, Some(&cookie), Accepted),
            (data(false), 40, None, Partial),
            (data(true), 1, Some(&cookie), Partial),
            (data(false), 0, Some(&cookie), SoftReject),
            (data(false), 0, None, SoftNegative),
            (data(false), 0, Some(&FastOpen::REQUEST), SoftNegative),
            (data(true), 0, Some(&cookie), LateReject),
            (data(true), 0, None, SynDrop),
            (request(false), 0, Some(&cookie), Granted),
            (request(true), 0, Some(&cookie), Granted),
            (request(false), 0, None, NotSupported),
            (request(true), 0, None, ReqDrop),
            (SynSent { data: 0, ..data(false) }, 0, Some(&cookie), NoData),
        ] {
            assert_eq!(SynAckClass::of(&sent, acked, option), class, "{sent:?} {acked} {option:?}");
        }
    }
}
