//! Flows: the connection of each packet of the script, and the mapping between its numbers and live ones.
//!
//! Scripts count sequence numbers from the initial one of each side and have their own time stamps; the stack
//! chooses the live values. A flow computes the difference from the first segments of the stack.

use std::net::{IpAddr, SocketAddr};

use crate::ast::Prefix;
use crate::settings::Settings;
use crate::tcp_option::Echo;

const FIRST_PORT: u16 = 33_000;

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) name: String,
    /// The local end; `None` before the SYN of an active open.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: SocketAddr,
    /// Live minus script sequence number of the stack's stream.
    local_offset: Option<u32>,
    /// Live minus script sequence number of the peer's stream.
    pub(crate) remote_offset: u32,
    /// Script sequence number of the SYN that began the connection.
    last_syn: Option<u32>,
    /// True if a new connection begins: the next SYN of the stack may have another initial sequence number.
    renewed: bool,
    /// Time stamps of the stack: script value and live value.
    stamps: Vec<(u32, u32)>,
    /// Time stamps of the stack's segments in the order of departure. The live sequence number is present if
    /// the segment has data, SYN or FIN.
    sent_stamps: Vec<(Option<u32>, u32)>,
}

impl Flow {
    /// Records a SYN of the peer. A SYN with another number, or a `[new]` one, begins a new connection.
    pub(crate) fn on_syn_arrives(&mut self, seq: u32, new: bool) {
        if new || self.last_syn.is_some_and(|last| last != seq) {
            self.renewed = true;
        }
        self.last_syn = Some(seq);
    }

    /// Computes the stack's initial sequence number from its SYN: `live` is the actual number, `script` the
    /// expected one.
    pub(crate) fn on_syn_sent(&mut self, script: u32, live: u32) {
        if self.local_offset.is_none() || self.renewed {
            self.local_offset = Some(live.wrapping_sub(script));
            self.renewed = false;
            self.stamps.clear();
            self.sent_stamps.retain(|(seq, _)| *seq == Some(live));
        }
    }

    /// Converts a live sequence number of the stack's stream to the script's.
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

    /// Records that `script` is the script's value for the stack's time stamp `live`.
    pub(crate) fn on_stamp(&mut self, script: u32, live: u32) {
        self.stamps.push((script, live));
    }

    /// Records the time stamp of a segment that the stack sent; `seq` if it has data, SYN or FIN.
    pub(crate) fn on_stamp_sent(&mut self, seq: Option<u32>, stamp: u32) {
        self.sent_stamps.push((seq, stamp));
    }

    /// Returns the live time stamp that the script's peer echoes.
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

    /// Converts a live time stamp to the value in a script with one clock for all segments.
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

/// All flows of a script. Scripts with one connection use the flow without a name.
#[derive(Debug)]
pub(crate) struct Flows {
    flows: Vec<Flow>,
    /// Address of the last listener.
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

    /// Records a new listener: the flow without a name becomes a new connection to it.
    pub(crate) fn on_listen(&mut self, addr: SocketAddr) {
        self.listening = addr;
        self.flows.retain(|flow| !flow.name.is_empty());
    }

    /// Records an active open to `remote`, which becomes the flow without a name.
    pub(crate) fn on_connect(&mut self, local: Option<SocketAddr>, remote: SocketAddr) {
        self.flows.retain(|flow| !flow.name.is_empty());
        self.add("", local, remote);
    }

    /// Returns the flow of a packet of the script; the first packet with its name creates it.
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

    /// Returns the flow of a segment of the stack; a SYN to the right address completes an active open.
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
