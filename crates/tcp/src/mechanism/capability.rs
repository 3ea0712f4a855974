//! The byte on SYN and SYN-ACK that negotiates Corrective, Proactive, both or neither.
//!
//! The active side offers; the passive side answers and never offers. Some hosts copy unknown options into
//! their SYN-ACK. In profile F2 an answer has a bit that such a host does not set. In F1 an answer equals the
//! offer, and only later segments reveal such a host.

use brisk_wire::gentle::{
    CAP_ANSWER, CAP_PROACTIVE, CAP_VERSION_F1, CAP_VERSION_F2, CAP_VERSION_MASK, ENCODING_NONE,
    ENCODING_REED_SOLOMON, ENCODING_XOR, ENCODING_XOR_INTERLEAVED, encoding_type,
};

use crate::config::{FecCode, FecProfile, MechanismConfig};

/// Position of parity in the sequence space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// At the first byte that it covers, as in the paper.
    #[cfg(feature = "historical")]
    F1,
    /// Left of the window.
    F2,
}

impl Profile {
    /// True for the paper's profile, which needs the feature `historical`.
    pub(crate) const fn is_f1(self) -> bool {
        match self {
            #[cfg(feature = "historical")]
            Profile::F1 => true,
            Profile::F2 => false,
        }
    }
}

/// Result of a negotiation that agreed on Corrective, Proactive or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Agreed {
    /// Position of parity.
    pub profile: Profile,
    /// Corrective's encoding type; `ENCODING_NONE` without Corrective.
    pub encoding: u8,
    /// Proactive.
    pub proactive: bool,
}

impl Agreed {
    /// Returns the agreement on F1, which needs the feature `historical`.
    fn on_f1(encoding: u8) -> Option<Agreed> {
        #[cfg(feature = "historical")]
        let profile = Some(Profile::F1);
        #[cfg(not(feature = "historical"))]
        let profile: Option<Profile> = None;
        profile.map(|profile| Agreed { profile, encoding, proactive: false })
    }

    /// True if parity may be sent and is decoded.
    pub fn corrective(&self) -> bool {
        self.encoding != ENCODING_NONE
    }
}

/// Outcome of the option on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GentleOutcome {
    /// Neither mechanism is in use.
    Off(GentleOff),
    /// The SYN had the option and has not been answered.
    Pending,
    /// Agreed.
    On(Agreed),
}

/// Reason why neither Corrective nor Proactive is in use on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GentleOff {
    /// The configuration has neither mechanism, or SACK is off. Or timestamps are off, which all but
    /// Corrective in F2 need.
    NotAsked,
    /// The option did not fit on the SYN together with a long cookie.
    NoRoom,
    /// This path has failed before.
    Remembered,
    /// A SYN with this option was dropped recently. This SYN omits the option, to find the reason.
    OnTrial,
    /// The peer did not offer, or did not answer.
    NotAnswered,
    /// The answer was not valid: a host reflected the option, or granted more than was offered.
    IllegalAnswer,
    /// The SYN or the SYN-ACK was retransmitted.
    HandshakeRetransmitted,
    /// Both ends opened the connection at the same time.
    Simultaneous,
    /// A device on the path removes the option from segments.
    Stripped,
}

/// Reason why one direction of Corrective ended on a connection that had agreed on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ParityOff {
    /// A device removes the option from parity segments: the peer treated one as old data.
    Stripped,
    /// The peer sent STOP.
    Stop,
    /// Parity does not repair the losses of this path.
    Pattern,
    /// A device that has not seen the repaired data drops acknowledgements of it.
    AckHoles,
    /// The path rewrites payload: rebuilt data failed its checksum twice.
    Checksum,
    /// The stack is short of memory.
    Memory,
}

/// Capabilities of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capabilities {
    pub(crate) f1: bool,
    pub(crate) f2: bool,
    /// The encoding type to offer.
    pub(crate) encoding: u8,
    pub(crate) proactive: bool,
}

impl Capabilities {
    /// Returns the capabilities of the configuration; `None` if there are none.
    pub(crate) fn of(config: &MechanismConfig) -> Option<Capabilities> {
        let profile = config.corrective.map(|corrective| corrective.profile);
        let capabilities = Capabilities {
            f1: profile.is_some_and(FecProfile::has_f1),
            f2: profile.is_some_and(FecProfile::has_f2),
            encoding: match config.corrective.map(|corrective| corrective.code) {
                None => ENCODING_NONE,
                Some(FecCode::Xor) => ENCODING_XOR,
                Some(FecCode::XorInterleaved) => ENCODING_XOR_INTERLEAVED,
                Some(FecCode::ReedSolomon) => ENCODING_REED_SOLOMON,
            },
            proactive: config.proactive.is_some(),
        };
        (capabilities.f1 || capabilities.f2 || capabilities.proactive).then_some(capabilities)
    }

    /// Returns these capabilities without Corrective, for which memory is lacking.
    pub(crate) fn without_parity(self) -> Option<Capabilities> {
        let copies = Capabilities { f1: false, f2: false, encoding: ENCODING_NONE, ..self };
        self.proactive.then_some(copies)
    }

    /// Returns the byte of a SYN; `None`: no option. All but Corrective in F2 needs timestamps.
    pub(crate) fn offer(&self, timestamps: bool) -> Option<u8> {
        if self.f1 && !self.f2 {
            // The options of F1 cannot distinguish several parities, so XOR replaces Reed-Solomon.
            let larger = self.encoding == ENCODING_REED_SOLOMON;
            let encoding = if larger { ENCODING_XOR } else { self.encoding };
            return timestamps.then_some(CAP_VERSION_F1 | encoding);
        }
        let encoding = if self.f2 { self.encoding } else { ENCODING_NONE };
        let proactive = if self.proactive && timestamps { CAP_PROACTIVE } else { 0 };
        (encoding | proactive != 0).then_some(CAP_VERSION_F2 | encoding | proactive)
    }

    /// Returns the byte of the SYN-ACK after a SYN with `offered`, and the agreement. `None`: no option.
    pub(crate) fn answer(&self, offered: u8, timestamps: bool) -> Option<(u8, Agreed)> {
        let encoding = encoding_type(offered);
        match offered & CAP_VERSION_MASK {
            CAP_VERSION_F1 => {
                // Only the type may be set, and only to a type that F1 has.
                let legal =
                    offered == encoding && matches!(encoding, ENCODING_XOR | ENCODING_XOR_INTERLEAVED);
                let agreed = Agreed::on_f1(encoding).filter(|_| legal && self.f1 && timestamps)?;
                Some((offered, agreed))
            }
            CAP_VERSION_F2 if offered & CAP_ANSWER == 0 => {
                let encoding = if self.f2 { encoding } else { ENCODING_NONE };
                let proactive = self.proactive && timestamps && offered & CAP_PROACTIVE != 0;
                let granted = encoding | if proactive { CAP_PROACTIVE } else { 0 };
                (granted != 0).then_some((
                    CAP_VERSION_F2 | CAP_ANSWER | granted,
                    Agreed { profile: Profile::F2, encoding, proactive },
                ))
            }
            _ => None,
        }
    }
}

/// Returns the agreement of a SYN-ACK with `answered`, given that the SYN offered `offered`.
pub(crate) fn accept(offered: u8, answered: u8, timestamps: bool) -> Option<Agreed> {
    if offered & CAP_VERSION_MASK == CAP_VERSION_F1 {
        return Agreed::on_f1(encoding_type(answered)).filter(|_| answered == offered && timestamps);
    }
    let granted = answered & !(CAP_VERSION_F2 | CAP_ANSWER);
    let head = answered & (CAP_VERSION_MASK | CAP_ANSWER);
    let (encoding, proactive) = (granted & !CAP_PROACTIVE, granted & CAP_PROACTIVE != 0);
    // A peer may grant the XOR if Reed-Solomon was offered, because the XOR is Reed-Solomon with one parity.
    let offered_type = encoding_type(offered);
    let lesser = offered_type == ENCODING_REED_SOLOMON && encoding == ENCODING_XOR;
    let as_offered = (encoding == ENCODING_NONE || encoding == offered_type || lesser)
        && (!proactive || offered & CAP_PROACTIVE != 0);
    let legal = head == CAP_VERSION_F2 | CAP_ANSWER && granted != 0 && as_offered;
    legal.then_some(Agreed { profile: Profile::F2, encoding, proactive })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Capabilities = Capabilities { f1: true, f2: true, encoding: 1, proactive: true };
    #[cfg(feature = "historical")]
    const F1: Capabilities = Capabilities { f2: false, proactive: false, ..ALL };
    const F2: Capabilities = Capabilities { f1: false, proactive: false, ..ALL };

    #[test]
    fn offers_are_the_legal_values() {
        assert_eq!(F2.offer(false), Some(0x11));
        assert_eq!(ALL.offer(true), Some(0x51));
        assert_eq!(ALL.offer(false), Some(0x11), "Proactive needs timestamps");
        let copies = Capabilities { f1: false, f2: false, ..ALL };
        assert_eq!((copies.offer(true), copies.offer(false)), (Some(0x50), None));
    }

    /// Vectors C1 and C2, the passive side.
    #[test]
    fn answer_grants_what_both_ends_support() {
        let byte =
            |capabilities: Capabilities, offered| capabilities.answer(offered, true).map(|(byte, _)| byte);
        assert_eq!(byte(F2, 0x11), Some(0x91));
        assert_eq!(byte(F2, 0x51), Some(0x91));
        assert_eq!(byte(ALL, 0x51), Some(0xd1));
        assert_eq!(byte(ALL, 0x50), Some(0xd0));
        assert_eq!(byte(ALL, 0x12), Some(0x92), "the type of the client");
        assert_eq!(byte(F2, 0x50), None);
        assert_eq!(byte(F2, 0x91), None, "an answer is no offer");
        assert_eq!(byte(F2, 0x01), None, "not in another version");
        assert_eq!(ALL.answer(0x51, false).map(|(byte, _)| byte), Some(0x91));
        assert_eq!(byte(F2, 0x1f), None, "reserved types are none");
    }

    /// Vectors C1 and C2, the active side.
    #[test]
    fn a_reflected_offer_and_what_was_not_offered_are_refused() {
        let corrective = Some(Agreed { profile: Profile::F2, encoding: 1, proactive: false });
        assert_eq!(accept(0x11, 0x91, true), corrective);
        assert_eq!(accept(0x51, 0x91, true), corrective);
        assert!(accept(0x51, 0xd1, true).is_some_and(|agreed| agreed.proactive));
        assert_eq!(accept(0x51, 0x51, true), None, "reflected");
        assert_eq!(accept(0x11, 0x92, true), None);
        assert_eq!(accept(0x11, 0xb1, true), None);
        assert_eq!(accept(0x11, 0xd1, true), None, "Proactive was not offered");
        assert_eq!(accept(0x51, 0x90, true), None, "nothing is granted");
    }

    #[cfg(feature = "historical")]
    #[test]
    fn f1_is_answered_with_the_offer_and_needs_timestamps() {
        let byte =
            |capabilities: Capabilities, offered| capabilities.answer(offered, true).map(|(byte, _)| byte);
        assert_eq!(F1.offer(true), Some(0x01));
        assert_eq!(Capabilities { encoding: 2, ..F1 }.offer(true), Some(0x02));
        assert_eq!(Capabilities { encoding: 3, ..F1 }.offer(true), Some(0x01), "F1 has one parity");
        assert_eq!(F1.offer(false), None);
        assert_eq!(byte(F1, 0x11), None);
        assert_eq!(byte(F1, 0x01), Some(0x01));
        assert_eq!(byte(F1, 0x41), None, "F1 knows no other bits");
        assert_eq!(byte(ALL, 0x03), None, "nor a type of several parities");
        assert_eq!(F1.answer(0x01, false), None);
        assert!(accept(0x01, 0x01, true).is_some_and(|agreed| agreed.profile == Profile::F1));
        assert_eq!(accept(0x01, 0x02, true), None);
        assert_eq!(accept(0x01, 0x91, true), None);
        assert_eq!(accept(0x01, 0x01, false), None);
    }

    #[cfg(not(feature = "historical"))]
    #[test]
    fn f1_is_not_accepted() {
        assert_eq!(ALL.answer(0x01, true), None);
        assert_eq!(accept(0x01, 0x01, true), None);
    }
}
