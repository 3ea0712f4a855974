//! Requests: SYNs that no listener takes, held until the program has decided about them.
//!
//! A program that forwards connections (a tunnel, a proxy for every address) first connects to the
//! destination and then accepts or refuses the SYN. Nothing is sent until it decides: a retransmitted SYN
//! only updates the held request. A stack that does not forward holds no requests.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

use brisk_wire::{Ecn, Flags, IpMeta, Options, Segment, SeqNum, TcpHeader};

use super::Stack;
use super::demux::Target;
use super::slot::Ownership;
use super::stats::Refusal;
use crate::config::TcpConfig;
use crate::conn_id::ConnId;
use crate::connection::Connection;
use crate::error::RequestError;
use crate::four_tuple::FourTuple;
use crate::outcome::Arrived;
use crate::time::Instant;

/// A connection request of a peer for which there is no listener: see [`Stack::set_forwarding`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The ends: `local` is the destination that the peer named.
    pub tuple: FourTuple,
    /// The options of its SYN.
    pub options: Options,
    number: u64,
}

#[derive(Debug)]
struct PendingSyn {
    number: u64,
    seq: SeqNum,
    flags: Flags,
    window: u16,
    options: Options,
    ecn: Ecn,
    wire_len: usize,
    /// Minimum of the new initial sequence number, if the SYN replaces a TIME-WAIT.
    floor: Option<SeqNum>,
}

/// The requests of a stack that forwards.
#[derive(Debug)]
pub(super) struct Requests {
    max_pending: usize,
    pending: BTreeMap<FourTuple, PendingSyn>,
    /// Requests that were not handed out yet, the oldest first.
    fresh: VecDeque<FourTuple>,
    count: u64,
}

impl Requests {
    fn insert(
        &mut self,
        tuple: FourTuple,
        syn: &Arrived<'_>,
        wire_len: usize,
        floor: Option<SeqNum>,
    ) -> Result<(), Refusal> {
        let known = self.pending.get(&tuple).map(|pending| pending.number);
        if known.is_none() {
            if self.pending.len() >= self.max_pending {
                return Err(Refusal::BacklogFull);
            }
            self.count += 1;
            self.fresh.push_back(tuple);
        }
        let number = known.unwrap_or(self.count);
        let Arrived { seq, flags, window, options, ecn, .. } = *syn;
        let options = options.clone();
        self.pending.insert(tuple, PendingSyn { number, seq, flags, window, options, ecn, wire_len, floor });
        Ok(())
    }

    fn next(&mut self) -> Option<Request> {
        while let Some(tuple) = self.fresh.pop_front() {
            if let Some(pending) = self.pending.get(&tuple) {
                return Some(Request { tuple, options: pending.options.clone(), number: pending.number });
            }
        }
        None
    }

    fn take(&mut self, request: &Request) -> Option<PendingSyn> {
        let pending = self.pending.get(&request.tuple)?;
        if pending.number != request.number {
            return None;
        }
        self.pending.remove(&request.tuple)
    }
}

/// True if a segment asks for a connection.
pub(super) fn is_request(arrived: &Arrived<'_>) -> bool {
    arrived.flags.contains(Flags::SYN) && !arrived.flags.intersects(Flags::ACK | Flags::RST | Flags::FIN)
}

impl Stack {
    /// Holds SYNs to ports without a listener until the program decides about each, instead of answering them
    /// with a reset. The destination is an address of this stack, or any address with
    /// [`any_address`](crate::StackConfig::any_address). At most `max_pending` are held; further ones are
    /// dropped, so that their peers ask again. The default, 0, ends forwarding and forgets the held requests.
    ///
    /// Data on such a SYN is not accepted, and the peer gets no answer before the decision.
    ///
    /// ```
    /// # use brisk_tcp::stack::Rx;
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # fn pass(from: &mut Stack, to: &mut Stack) {
    /// #     let mut packet = Vec::new();
    /// #     while from.poll_transmit(Instant::ZERO, &mut packet).is_some() {
    /// #         to.on_packet(&packet, Rx::default(), Instant::ZERO);
    /// #     }
    /// # }
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// use brisk_tcp::stack::Request;
    /// use brisk_tcp::TcpConfig;
    ///
    /// server.set_forwarding(1024);
    /// client.connect(address, &ConnectConfig::default(), now)?;
    /// # pass(&mut client, &mut server);
    /// assert!(server.has_request());
    /// let request: Request = server.next_request().expect("the SYN is held");
    /// match request.tuple.local.port() {
    ///     25 => server.ignore_request(&request),
    ///     80 => drop(server.accept_request(&request, &TcpConfig::default(), now)?),
    ///     _ => assert!(server.refuse_request(&request, now)),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_forwarding(&mut self, max_pending: usize) {
        if max_pending == 0 {
            self.requests = None;
            return;
        }
        let new = || Requests { max_pending, pending: BTreeMap::new(), fresh: VecDeque::new(), count: 0 };
        self.requests.get_or_insert_with(|| Box::new(new())).max_pending = max_pending;
    }

    /// True if [`Stack::next_request`] returns a request.
    pub fn has_request(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| !requests.fresh.is_empty())
    }

    /// Hands out the oldest request that was not handed out yet. It is held until it is accepted, refused or
    /// ignored.
    pub fn next_request(&mut self) -> Option<Request> {
        self.requests.as_mut()?.next()
    }

    /// Answers a request with a SYN-ACK. The connection belongs to the program at once;
    /// [`Event::Connected`](crate::Event::Connected) or [`Event::Closed`](crate::Event::Closed) follows.
    ///
    /// # Errors
    /// The reason why the connection cannot exist. The request is forgotten unless the configuration is
    /// invalid.
    pub fn accept_request(
        &mut self,
        request: &Request,
        config: &TcpConfig,
        now: Instant,
    ) -> Result<ConnId, RequestError> {
        config.validate()?;
        let tuple = request.tuple;
        let requests = self.requests.as_mut().ok_or(RequestError::Gone(tuple.remote))?;
        let pending = requests.take(request).ok_or(RequestError::Gone(tuple.remote))?;
        if !self.evict_if_full() {
            return Err(RequestError::TooMany(self.config.max_connections));
        }
        match self.owners().of(&tuple) {
            None => {}
            Some(Target::TimeWait(index)) if pending.floor.is_some() => {
                self.end_time_wait(index);
                self.stats.time_waits_reused += 1;
            }
            Some(_) => return Err(RequestError::Gone(tuple.remote)),
        }
        let syn = Arrived {
            seq: pending.seq,
            ack: SeqNum(0),
            flags: pending.flags,
            window: pending.window,
            urgent: 0,
            options: &pending.options,
            payload: &[],
            ecn: pending.ecn,
            segment_size: 0,
        };
        let mut secrets = self.secrets.secrets(&tuple, now);
        secrets.iss = pending.floor.map_or(secrets.iss, |floor| secrets.iss.max(floor));
        let tcp = Arc::new(config.clone());
        let mut connection = Connection::accept(tuple, &tcp, secrets, self.host(), &syn, now);
        self.start_on_path(&mut connection, now);
        let id = self.insert(connection, &tcp, Ownership::Owned, now);
        self.stats.passive_opens += 1;
        self.on_opened(&tuple, pending.wire_len, &syn, now);
        Ok(id)
    }

    /// Answers a request with a reset. Returns false if the request was already decided.
    pub fn refuse_request(&mut self, request: &Request, now: Instant) -> bool {
        let Some(pending) = self.requests.as_mut().and_then(|requests| requests.take(request)) else {
            return false;
        };
        let FourTuple { local, remote } = request.tuple;
        let tcp = TcpHeader {
            src_port: remote.port(),
            dst_port: local.port(),
            seq: pending.seq,
            flags: Flags::SYN,
            ..TcpHeader::default()
        };
        let syn = Segment { ip: IpMeta::new(remote.ip(), local.ip()), tcp, payload: &[] };
        // The refusal is not counted: the packet of the request has been counted.
        let _ = self.answer_with_reset(&syn, Refusal::NoListener, now);
        true
    }

    /// Forgets a request without an answer. If its peer sends the SYN again, that is a new request.
    pub fn ignore_request(&mut self, request: &Request) {
        if let Some(requests) = &mut self.requests {
            requests.take(request);
        }
    }

    /// Holds a SYN if this stack forwards; returns `None` if it does not.
    pub(super) fn queue_request(
        &mut self,
        tuple: FourTuple,
        syn: &Arrived<'_>,
        wire_len: usize,
        floor: Option<SeqNum>,
    ) -> Option<Result<(), Refusal>> {
        let requests = self.requests.as_mut().filter(|_| is_request(syn))?;
        Some(requests.insert(tuple, syn, wire_len, floor))
    }
}
