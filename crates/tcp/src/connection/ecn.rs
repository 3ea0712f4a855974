//! Explicit congestion notification (RFC 3168).
//!
//! Both ends agree in the handshake. From then on new data is sent ECT(0). The receiver echoes a CE mark with
//! ECE until the peer answers CWR. The sender answers ECE with one window reduction per window, and with CWR
//! on the next new data segment. Retransmissions, pure acknowledgements, probes and redundancy are never ECT
//! (RFC 3168 section 6.1.4 and 6.1.5).

use brisk_wire::{Ecn, Flags};

use crate::outcome::Origin;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EcnState {
    /// True if we want ECN: an active open asks for it, a passive open agrees to it.
    offered: bool,
    /// True if both ends agreed.
    active: bool,
    /// True if a CE mark arrived and the peer has not answered with CWR.
    echo: bool,
    /// True if we reduced the window and must send CWR.
    reduced: bool,
    /// True if a packet with an ECN codepoint has arrived, even without agreement.
    seen: bool,
}

impl EcnState {
    pub(crate) fn new(offered: bool) -> Self {
        EcnState { offered, ..EcnState::default() }
    }

    /// True once a packet with an ECN codepoint has arrived, whether ECN was agreed on or not.
    pub(crate) fn has_seen_codepoint(&self) -> bool {
        self.seen
    }

    /// Returns the flags to add to our SYN ("ECN-setup SYN": ECE and CWR).
    pub(crate) fn syn_flags(&self) -> Flags {
        if self.offered { Flags::ECE | Flags::CWR } else { Flags(0) }
    }

    /// Returns the flags to add to our SYN-ACK ("ECN-setup SYN-ACK": ECE only).
    pub(crate) fn syn_ack_flags(&self) -> Flags {
        if self.active { Flags::ECE } else { Flags(0) }
    }

    /// Processes the flags of the peer's SYN.
    pub(crate) fn on_syn(&mut self, flags: Flags) {
        // A client that offers accurate ECN sets AE on its SYN too. A server without accurate ECN ignores AE
        // (RFC 9768 section 3.1.1).
        self.active = self.offered && flags.contains(Flags::ECE | Flags::CWR);
    }

    pub(crate) fn on_syn_ack(&mut self, flags: Flags) {
        self.active = self.offered && flags.contains(Flags::ECE) && !flags.contains(Flags::CWR);
    }

    /// Stops asking for ECN on a retransmitted SYN: the first may have been lost because of it.
    pub(crate) fn withdraw(&mut self) {
        self.offered = false;
    }

    /// Processes an arrived segment. Returns true if acknowledgements should not be delayed, because the
    /// sender's window has become small. A beginning echo shows this, and so does a retransmission, which is
    /// not ECT (RFC 3168 section 6.1.5).
    pub(crate) fn on_arrived(&mut self, ecn: Ecn, flags: Flags, has_data: bool) -> bool {
        let again = self.seen && ecn == Ecn::NotEct && has_data;
        self.seen |= ecn != Ecn::NotEct;
        if !self.active {
            return false;
        }
        // RFC 3168 section 6.1.3: "the TCP receiver [...] continues to set the ECN-Echo flag in ACKs
        // [...] until it receives a CWR packet".
        if flags.contains(Flags::CWR) && has_data {
            self.echo = false;
        }
        let begins = ecn == Ecn::Ce && !self.echo;
        self.echo |= ecn == Ecn::Ce;
        begins || again
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// True if this acknowledgement's ECE means congestion.
    pub(crate) fn is_echo(&self, flags: Flags) -> bool {
        self.active && flags.contains(Flags::ECE) && !flags.contains(Flags::SYN)
    }

    /// Records a window reduction for any cause: if ECN is in use, the next new data carries CWR.
    pub(crate) fn on_reduced(&mut self) {
        self.reduced = self.active;
    }

    /// Withdraws CWR, if it has not left, after the reduction proved spurious (Linux: the same).
    pub(crate) fn on_undone(&mut self) {
        self.reduced = false;
    }

    /// Returns the flags and the IP field of a segment that leaves now.
    pub(crate) fn mark(&self, origin: Origin, has_data: bool) -> (Flags, Ecn) {
        if !self.active {
            return (Flags(0), Ecn::NotEct);
        }
        let mut flags = if self.echo { Flags::ECE } else { Flags(0) };
        let fresh = origin == Origin::New && has_data;
        if fresh && self.reduced {
            flags |= Flags::CWR;
        }
        (flags, if fresh { Ecn::Ect0 } else { Ecn::NotEct })
    }

    pub(crate) fn on_cwr_sent(&mut self) {
        self.reduced = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active() -> EcnState {
        let mut ecn = EcnState::new(true);
        ecn.on_syn_ack(Flags::SYN | Flags::ACK | Flags::ECE);
        ecn
    }

    #[test]
    fn without_an_offer_ecn_has_no_effect() {
        let mut ecn = EcnState::new(false);
        assert_eq!(ecn.syn_flags(), Flags(0));
        ecn.on_syn(Flags::SYN | Flags::ECE | Flags::CWR);
        assert_eq!(ecn.syn_ack_flags(), Flags(0));
        assert_eq!(ecn.mark(Origin::New, true), (Flags(0), Ecn::NotEct));
    }

    /// RFC 3168 section 6.1.1: an ECN-setup SYN-ACK answers an ECN-setup SYN and has ECE.
    #[test]
    fn ecn_needs_the_agreement_of_both_ends() {
        for (offered, answer) in [(false, Flags::ECE), (true, Flags(0))] {
            let mut ecn = EcnState::new(offered);
            ecn.on_syn_ack(Flags::SYN | Flags::ACK | answer);
            assert_eq!(ecn.mark(Origin::New, true), (Flags(0), Ecn::NotEct), "{offered} {answer:?}");
        }
    }

    /// RFC 9768 section 3.1.1: to a server of RFC 3168 the flag AE of a SYN is a reserved one.
    #[test]
    fn an_offer_of_accurate_ecn_is_taken_as_one_of_classic_ecn() {
        let mut ecn = EcnState::new(true);
        ecn.on_syn(Flags::SYN | Flags::ECE | Flags::CWR | Flags::AE);
        assert_eq!(ecn.syn_ack_flags(), Flags::ECE);
    }

    #[test]
    fn a_reflected_setup_is_not_an_agreement() {
        let mut ecn = EcnState::new(true);
        ecn.on_syn_ack(Flags::SYN | Flags::ACK | Flags::ECE | Flags::CWR);
        assert_eq!(ecn.mark(Origin::New, true).1, Ecn::NotEct);
    }

    #[test]
    fn congestion_experienced_is_echoed_until_cwr() {
        let mut ecn = active();
        assert!(ecn.on_arrived(Ecn::Ce, Flags::ACK, true));
        assert!(!ecn.on_arrived(Ecn::Ect0, Flags::ACK, true));
        assert!(ecn.mark(Origin::Ack, false).0.contains(Flags::ECE));
        ecn.on_arrived(Ecn::Ect0, Flags::ACK | Flags::CWR, true);
        assert!(!ecn.mark(Origin::Ack, false).0.contains(Flags::ECE));
    }

    #[test]
    fn only_the_mark_with_which_an_echo_begins_is_acknowledged_at_once() {
        let mut ecn = active();
        let begins =
            [Ecn::Ect0, Ecn::Ce, Ecn::Ce, Ecn::Ect0].map(|ecn_of| ecn.on_arrived(ecn_of, Flags::ACK, true));
        assert_eq!(begins, [false, true, false, false]);
        assert!(!ecn.on_arrived(Ecn::Ect0, Flags::ACK | Flags::CWR, true));
        assert!(ecn.on_arrived(Ecn::Ce, Flags::ACK, true), "after CWR it starts again");
    }

    #[test]
    fn retransmissions_are_not_ect_and_do_not_carry_cwr() {
        let mut ecn = active();
        ecn.on_reduced();
        assert_eq!(ecn.mark(Origin::Retransmit, true), (Flags(0), Ecn::NotEct));
        assert_eq!(ecn.mark(Origin::New, true), (Flags::CWR, Ecn::Ect0));
        ecn.on_cwr_sent();
        assert_eq!(ecn.mark(Origin::New, true), (Flags(0), Ecn::Ect0), "CWR once");
    }
}
