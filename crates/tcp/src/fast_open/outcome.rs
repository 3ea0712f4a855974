//! Outcome of Fast Open on a connection.
//!
//! [`SynAckClass`] is the full result in the first SYN-ACK. [`FastOpenOutcome`] is for operators: it says if
//! Fast Open saved the round trip, and if not, why.

use brisk_wire::FastOpen;

/// Whether Fast Open worked on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FastOpenOutcome {
    /// It is not known yet: the SYN is not answered.
    Pending,
    /// The server took data of the SYN (on its side: the SYN opened the connection). One round trip was
    /// saved.
    Used,
    /// There was no cookie; the server gave one for the next time (on its side: it was asked for one).
    NoCookie,
    /// The server answered the cookie with another: the client's address or the key has changed (on its side:
    /// it did not take the data, for any reason).
    Refused,
    /// The answer shows no sign of the option: the peer does not know it, the path removed it, or the
    /// server is at its limit.
    Stripped,
    /// The first SYN was lost, or no SYN-ACK came at all: by chance, because the path swallows or refuses
    /// such SYNs, or because the server is down.
    SynLost,
    /// The path let the SYN pass and swallowed everything after it.
    Blackholed,
    /// It was not tried.
    Off(OffReason),
}

impl FastOpenOutcome {
    /// The name for metrics and reports.
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

/// Why Fast Open was not tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OffReason {
    /// Nobody asked for it.
    NotAsked,
    /// There was nothing to send with the SYN; the cookie travelled alone.
    NoData,
    /// The server did not take the data of three SYNs lately: the cookie travelled alone.
    Suspended,
    /// SYNs of this kind were swallowed on the way to this destination and port.
    Disabled,
    /// The server gave no cookie lately, or the request was swallowed.
    NoCookieThere,
    /// This attachment to the network is a black hole for it.
    BlackHole,
    /// Both ends opened the connection at once.
    Simultaneous,
    /// A SYN with this option and that of Corrective and Proactive was swallowed lately: this one tries the
    /// other option alone.
    OnTrial,
    /// This host does not allow it.
    NotAllowed,
}

impl OffReason {
    /// The name for metrics and reports.
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
            OffReason::NotAllowed => "off(not-allowed)",
        }
    }
}

/// Evidence that a path breaks connections that Fast Open opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlackHoleSign {
    /// Two retransmission timeouts in a row, and no progress since the connection opened.
    Timeouts,
    /// A FIN arrived out of order, and never any data: somebody removed it.
    FinOnly,
    /// The server sends its SYN-ACK again and again, and nothing else arrives.
    RepeatedSynAck,
    /// A reset within a round trip of the SYN-ACK, before any data.
    EarlyReset,
    /// The same request was answered on a plain connection that began later. A lost answer looks the same, so
    /// this tells something only the second time in a row.
    Outrun,
}

/// Content of the first acceptable SYN-ACK with regard to Fast Open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SynAckClass {
    /// It acknowledges all data of the SYN.
    Accepted,
    /// It acknowledges some of it.
    Partial,
    /// None of it, and there is a new cookie.
    SoftReject,
    /// None of it, and there is no cookie.
    SoftNegative,
    /// None of it, and there is a cookie though the plain SYN had left too: the first SYN got through.
    LateReject,
    /// None of it, no cookie, and the plain SYN had left too: the first SYN was swallowed.
    SynDrop,
    /// The cookie that was asked for.
    Granted,
    /// No cookie, though one was asked for.
    NotSupported,
    /// No cookie, and the plain SYN had left too: the request was swallowed.
    ReqDrop,
    /// The SYN carried a cookie and no data: nothing can be said.
    NoData,
}

/// Content of our SYNs, as far as the verdict on a SYN-ACK depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynSent {
    /// The first one asked for a cookie.
    pub(crate) request: bool,
    /// Bytes of data of the first one.
    pub(crate) data: u32,
    /// A plain one followed.
    pub(crate) plain: bool,
}

impl SynAckClass {
    /// Judges the SYN-ACK. `acked` is `SEG.ACK - (ISS + 1)`, at most `sent.data`.
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

    /// Returns the outcome for the application.
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
