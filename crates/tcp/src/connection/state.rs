//! The state diagram of RFC 9293 section 3.3.2.
//!
//! LISTEN belongs to the listener. A connection that enters TIME-WAIT is replaced by an entry in a compact
//! table of the stack. An [`Input`] moves a connection from one state to the next, or changes nothing if the
//! diagram has no arrow for it.

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// No connection.
    Closed,
    /// A SYN was sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// Our FIN is sent, or queued behind data, and not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer's FIN was received; we may still send.
    CloseWait,
    /// Both FINs are sent, ours is not acknowledged.
    Closing,
    /// The peer's FIN was received, ours is sent and not acknowledged.
    LastAck,
    /// Both FINs are acknowledged; old duplicates are waited out.
    TimeWait,
}

/// Event that moves a connection through the diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// A SYN without ACK arrived in SYN-SENT: simultaneous open.
    Syn,
    /// Our SYN was acknowledged (and, in SYN-SENT, the peer's SYN arrived with it).
    SynAcked,
    /// The application closed for writing.
    Close,
    /// The peer's FIN arrived in order.
    Fin,
    /// Our FIN was acknowledged.
    FinAcked,
}

impl State {
    pub(crate) fn after(self, input: Input) -> State {
        use State::*;
        match (input, self) {
            (Input::Syn, SynSent) => SynReceived,
            (Input::SynAcked, SynSent | SynReceived) => Established,
            (Input::Close, SynReceived | Established) => FinWait1,
            (Input::Close, CloseWait) => LastAck,
            (Input::Fin, SynReceived | Established) => CloseWait,
            (Input::Fin, FinWait1) => Closing,
            (Input::Fin, FinWait2) => TimeWait,
            (Input::FinAcked, FinWait1) => FinWait2,
            (Input::FinAcked, Closing) => TimeWait,
            (Input::FinAcked, LastAck) => Closed,
            (Input::Syn | Input::SynAcked | Input::Close | Input::Fin | Input::FinAcked, same) => same,
        }
    }

    /// True from ESTABLISHED on: both initial sequence numbers are known and acknowledged.
    pub fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::SynSent | State::SynReceived)
    }

    /// True until the handshake is complete.
    pub(crate) fn is_opening(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived)
    }

    /// True if the peer may still send data to us.
    pub(crate) fn receives(self) -> bool {
        matches!(self, State::SynReceived | State::Established | State::FinWait1 | State::FinWait2)
    }

    /// True after the handshake while data or a FIN of ours may be outstanding or unsent.
    pub(crate) fn sends(self) -> bool {
        matches!(
            self,
            State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck
        )
    }

    /// Returns the name that RFC 9293 and `ss` use.
    pub fn name(self) -> &'static str {
        match self {
            State::Closed => "CLOSED",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrow_of_the_diagram() {
        use Input::*;
        use State::*;
        for (from, input, to) in [
            (SynSent, Syn, SynReceived),
            (SynSent, SynAcked, Established),
            (SynReceived, SynAcked, Established),
            (SynReceived, Close, FinWait1),
            (Established, Close, FinWait1),
            (Established, Fin, CloseWait),
            (FinWait1, FinAcked, FinWait2),
            (FinWait1, Fin, Closing),
            (FinWait2, Fin, TimeWait),
            (Closing, FinAcked, TimeWait),
            (CloseWait, Close, LastAck),
            (LastAck, FinAcked, Closed),
        ] {
            assert_eq!(from.after(input), to, "{from:?} {input:?}");
        }
    }

    #[test]
    fn an_input_without_an_arrow_changes_nothing() {
        assert_eq!(State::Established.after(Input::FinAcked), State::Established);
        assert_eq!(State::FinWait2.after(Input::Close), State::FinWait2);
        assert_eq!(State::TimeWait.after(Input::Fin), State::TimeWait);
    }
}
