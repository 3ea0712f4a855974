//! A parsed script: the output of the parser and the input of the runner.

use brisk_wire::{Flags, IcmpKind};

use crate::assertion::Statement;
use crate::tcp_option::TcpOption;

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Script {
    /// The `--key=value` lines at the top.
    pub(crate) flags: Vec<Flag>,
    pub(crate) commands: Vec<(u32, String)>,
    pub(crate) events: Vec<Event>,
}

/// `--key=value`, or `--key`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Flag {
    pub(crate) line: u32,
    pub(crate) key: String,
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Event {
    pub(crate) line: u32,
    pub(crate) time: Time,
    pub(crate) action: Action,
}

/// Time of an event, microseconds since the start of the script, or since the previous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Time {
    /// `*`: any time.
    Any,
    /// `t` or `+t`.
    At(Moment),
    /// `a~b` or `+a~+b`.
    Between(Moment, Moment),
    /// `a...b`: a system call that starts at a and blocks until b.
    Blocking(Moment, Moment),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) micros: i64,
    pub(crate) relative: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Action {
    /// `< …`: a segment arrives at the stack.
    Arrives(TcpPacket),
    /// `< icmp …`: an ICMP error arrives at the stack.
    IcmpArrives(IcmpPacket),
    /// `> …`: the stack sends a segment.
    Sends(TcpPacket),
    /// A system call with its result.
    Call(Call),
    /// `%{ … }%`.
    Code(Vec<Statement>),
    /// A command in back-ticks.
    Command(String),
}

/// The text in brackets before a packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Prefix {
    pub(crate) ecn: Option<EcnBits>,
    /// `flow NAME`: the connection, if there are several.
    pub(crate) flow: Option<String>,
    /// `from ADDR`: address of the flow's remote host.
    pub(crate) from: Option<std::net::IpAddr>,
    /// `new`: this SYN begins a new connection over the same ports.
    pub(crate) new: bool,
    /// `interleaved`: the parity covers every second block.
    pub(crate) interleaved: bool,
    /// `spoiled`: a device on the path has changed the payload and corrected the checksum.
    pub(crate) spoiled: bool,
    /// `badsum`: the TCP checksum is wrong.
    pub(crate) bad_checksum: bool,
}

/// The ECN field of an arriving or an expected packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EcnBits {
    /// This value.
    Is(brisk_wire::Ecn),
    /// Either ECT.
    Ect01,
}

/// A TCP segment; sequence numbers are relative to the script's initial ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TcpPacket {
    pub(crate) prefix: Prefix,
    pub(crate) flags: Flags,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) win: Option<u16>,
    pub(crate) urg: Option<u16>,
    /// `None`: `<...>`, any options.
    pub(crate) options: Option<Vec<TcpOption>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IcmpPacket {
    pub(crate) prefix: Prefix,
    pub(crate) kind: IcmpKind,
    pub(crate) quoted_seq: u32,
    pub(crate) quoted_len: u32,
}

/// `name(arguments) = result`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) result: Expected,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// `= ?`
    Anything,
    /// `= n`
    Value(i64),
    /// `= -1 ERRNO`
    Errno(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Argument {
    /// `...`: the default value.
    Usual,
    /// A number.
    Number(i64),
    /// `NAME` or `NAME|NAME`.
    Names(Vec<String>),
    /// `"text"`.
    Text(String),
    /// `[a, b]`.
    List(Vec<Argument>),
    /// `{name=value, value}`.
    Record(Vec<(Option<String>, Argument)>),
    /// `htons(8080)`.
    Apply(String, Vec<Argument>),
}
