//! Flows: which connection a packet of the script belongs to, and how its numbers map to live ones.
//!
//! Scripts count sequence numbers from each side's initial one and write time stamps of their own; the
//! stack chooses its real ones. A flow learns the difference from the first segments of the stack.

use std::net::{IpAddr, SocketAddr};

use crate::ast::Prefix;
use crate::settings::Settings;
use crate::tcp_option::Echo;

/// First port of the remote hosts.
const FIRST_PORT: u16 = 33_000;

/// One connection as the script sees it.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) name: String,
    /// Our end; `None` while an active open has not sent its SYN.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: SocketAddr,
    /// Live minus script sequence number of the stack's own stream.
    local_offset: Option<u32>,
    /// Live minus script sequence number of the peer's stream.
    pub(crate) remote_offset: u32,
    /// The SYN that began it, script sequence number.
    last_syn: Option<u32>,
    /// A new connection begins: the next SYN of the stack may have another initial sequence number.
    renewed: bool,
    /// Time stamps of the stack: script value and live value.
    stamps: Vec<(u32, u32)>,
    /// Time stamps of the stack's segments in the order in which they left, with the live sequence number of
    /// those that occupy any.
    sent_stamps: Vec<(Option<u32>, u32)>,
}

impl Flow {
    /// Notes a SYN of the peer: one with another number, or a `[new]` one, begins a new connection.
    pub(crate) fn on_syn_arrives(&mut self, seq: u32, new: bool) {
        if new || self.last_syn.is_some_and(|last| last != seq) {
            self.renewed = true;
        }
        self.last_syn = Some(seq);
    }

    /// Learns the stack's initial sequence number from a SYN that the script expects at `script`.
    pub(crate) fn on_syn_sent(&mut self, script: u32, live: u32) {
        if self.local_offset.is_none() || self.renewed {
            self.local_offset = Some(live.wrapping_sub(script));
            self.renewed = false;
            self.stamps.clear();
            self.sent_stamps.retain(|(seq, _)| *seq == Some(live));
        }
    }

    /// The number that the script would write for a live one of the stack's stream.
    pub(crate) fn local_to_script(&self, live: u32) -> u32 {
        live.wrapping_sub(self.local_offset.unwrap_or(0))
    }

    pub(crate) fn local_to_live(&self, script: u32) -> u32 {
        script.wrapping_add(self.local_offset.unwrap_or(0))
    }

    pub(crate) fn remote_to_script(&self, live: u32) -> u32 {
        live.wrapping_sub(self.remote_offset)
    }

    pub(crate) fn remote_to_live(&self, script: u32) -> u32 {
        script.wrapping_add(self.remote_offset)
    }

    /// The script calls the stack's time stamp `live` by the name `script`.
    pub(crate) fn on_stamp(&mut self, script: u32, live: u32) {
        self.stamps.push((script, live));
    }

    /// Records the time stamp of a segment that the stack sent; `seq` if it has data, SYN or FIN.
    pub(crate) fn on_stamp_sent(&mut self, seq: Option<u32>, stamp: u32) {
        self.sent_stamps.push((seq, stamp));
    }

    /// The live time stamp that the script's peer echoes.
    pub(crate) fn echo_to_live(&self, echo: Echo) -> u32 {
        let newest = || self.sent_stamps.last().map_or(0, |(_, stamp)| *stamp);
        match echo {
            Echo::Value(script) => self.stamp_to_live(script),
            Echo::Newest => newest(),
            Echo::Segment { seq, transmission } => {
                let live = self.local_to_live(seq);
                let mut sent = self.sent_stamps.iter().filter(|(sent, _)| *sent == Some(live));
                let nth = sent.nth(transmission.saturating_sub(1) as usize);
                nth.map_or_else(newest, |(_, stamp)| *stamp)
            }
        }
    }

    fn stamp_to_live(&self, script: u32) -> u32 {
        let known = self.stamps.iter().rev().find(|(known, _)| *known == script);
        known.map_or_else(|| script.wrapping_add(self.stamp_offset()), |(_, live)| *live)
    }

    /// The time stamp that a script with one clock for all segments would write.
    pub(crate) fn stamp_to_script(&self, live: u32) -> u32 {
        live.wrapping_sub(self.stamp_offset())
    }

    pub(crate) fn knows_stamps(&self) -> bool {
        !self.stamps.is_empty()
    }

    fn stamp_offset(&self) -> u32 {
        self.stamps.first().map_or(0, |(script, live)| live.wrapping_sub(*script))
    }
}

/// All flows of a script. The one without a name is what scripts with one connection use.
#[derive(Debug)]
pub(crate) struct Flows {
    flows: Vec<Flow>,
    /// Where the last listener listens.
    listening: SocketAddr,
    remote_ip: IpAddr,
    remote_offset: u32,
    next_port: u16,
}

impl Flows {
    pub(crate) fn new(settings: &Settings) -> Flows {
        Flows {
            flows: Vec::new(),
            listening: SocketAddr::new(settings.local_ip, settings.bind_port),
            remote_ip: settings.remote_ip,
            remote_offset: settings.remote_isn,
            next_port: FIRST_PORT,
        }
    }

    /// A listener was opened: the flow without a name will be a new connection to it.
    pub(crate) fn on_listen(&mut self, addr: SocketAddr) {
        self.listening = addr;
        self.flows.retain(|flow| !flow.name.is_empty());
    }

    /// An active open to `remote`: the flow without a name is this one.
    pub(crate) fn on_connect(&mut self, local: Option<SocketAddr>, remote: SocketAddr) {
        self.flows.retain(|flow| !flow.name.is_empty());
        self.add("", local, remote);
    }

    /// The flow that a packet of the script belongs to; it begins with the first one that names it.
    pub(crate) fn of(&mut self, prefix: &Prefix) -> &mut Flow {
        let name = prefix.flow.as_deref().unwrap_or("");
        let at = match self.flows.iter().position(|flow| flow.name == name) {
            Some(at) => at,
            None => {
                let remote = SocketAddr::new(prefix.from.unwrap_or(self.remote_ip), self.next_port);
                self.next_port += 1;
                self.add(name, Some(self.listening), remote)
            }
        };
        &mut self.flows[at]
    }

    /// The flow of a segment that the stack sent; a SYN to the right address completes an active open.
    pub(crate) fn of_tuple(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<&mut Flow> {
        let flow = self
            .flows
            .iter_mut()
            .find(|flow| flow.remote == remote && flow.local.is_none_or(|known| known == local))?;
        flow.local = Some(local);
        Some(flow)
    }

    fn add(&mut self, name: &str, local: Option<SocketAddr>, remote: SocketAddr) -> usize {
        self.flows.push(Flow {
            name: name.to_owned(),
            local,
            remote,
            local_offset: None,
            remote_offset: self.remote_offset,
            last_syn: None,
            renewed: false,
            stamps: Vec::new(),
            sent_stamps: Vec::new(),
        });
        self.flows.len() - 1
    }
}
