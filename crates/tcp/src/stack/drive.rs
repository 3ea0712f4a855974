//! Calls of the driver: packets in and out, events, timers.

use alloc::vec::Vec;

use brisk_wire::Packet;
use bytes::Bytes;

use super::demux::Target;
use super::slot::with_env;
use super::stats::Refusal;
use super::{Rx, Stack, Transmit};
use crate::conn_id::ConnId;
use crate::connection::{MAX_PIECES, Urgency};
use crate::event::{Event, LifecycleEvent, Observation};
use crate::outcome::Origin;
use crate::time::Instant;

/// Maximum number of packets in `Stack::early`.
const EARLY: usize = 64;

/// Selection of packets to send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All packets; with `payload_in_place` the payload of a super-packet stays in the send queue.
    All { payload_in_place: bool },
    /// Packets that must leave before applications run, or before another segment is processed.
    Urgent,
}

impl Stack {
    /// Processes one IP packet from the device. Refused packets are counted by reason in
    /// [`StackStats`](super::StackStats).
    pub fn on_packet(&mut self, packet: &[u8], rx: Rx, now: Instant) {
        self.clock = self.clock.max(now);
        self.stats.packets_in += 1;
        // The parsed packet is used in place, because it is large.
        let taken = match &brisk_wire::parse(packet, rx.checksum) {
            Ok(Packet::Tcp(segment)) => self.on_tcp(segment, packet.len(), rx.segment_size, now),
            Ok(Packet::Icmp(error)) => self.on_icmp(error, now),
            Ok(Packet::Other { .. }) => Err(Refusal::NotTcp),
            Err(error) => Err((*error).into()),
        };
        if let Err(reason) = taken {
            self.stats.refuse(reason);
        }
    }

    /// Processes an IP packet like [`Stack::on_packet`], but may leave in-order data of a long packet in its
    /// buffer, which saves a copy. A packet that is kept counts with twice its length in
    /// [`max_buffer_bytes`](crate::config::StackConfig::max_buffer_bytes), so its buffer should be at most
    /// twice as long as the packet.
    ///
    /// ```
    /// # use brisk_tcp::stack::Rx;
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// use brisk_tcp::Bytes;
    ///
    /// # client.connect(address, &ConnectConfig::default(), now)?;
    /// # let mut packet = Vec::new();
    /// # client.poll_transmit(now, &mut packet);
    /// // A device that reads each packet into a buffer of its own:
    /// let packet = Bytes::from(packet);
    /// server.on_packet_shared(&packet, Rx::default(), now);
    /// assert_eq!(server.stats().packets_in, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_packet_shared(&mut self, packet: &Bytes, rx: Rx, now: Instant) {
        self.lent = Some(packet.clone());
        self.on_packet(packet, rx, now);
        self.lent = None;
    }

    /// True if a packet must leave before the application runs: data that an acknowledgement permits in a
    /// small window, a loss report, an answer to a SYN, a transmission caused by a timer. An acknowledgement
    /// of data may wait a moment, and leaves with the response, or with the window update after a read.
    pub fn is_urgent(&self) -> bool {
        self.ready.is_urgent() || self.answers.are_waiting() || !self.early.is_empty()
    }

    /// Writes the next IP packet to send into `out`, which is cleared first; `None` if there is none. The TCP
    /// checksum is partial if the device takes super-segments
    /// ([`max_super_segment`](crate::config::StackConfig::max_super_segment)).
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        self.transmit(now, out, Which::All { payload_in_place: false })
    }

    /// Writes the next packet like [`Stack::poll_transmit`], but only an [urgent](Stack::is_urgent) one.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// use brisk_tcp::stack::Transmit;
    /// # client.connect(address, &ConnectConfig::default(), now)?;
    ///
    /// // Between the packets that arrive and the tasks that they wake:
    /// let mut packet = Vec::new();
    /// if client.is_urgent() {
    ///     // Deadlines that the packets have moved, before `next_timeout` is called.
    ///     client.refresh_deadlines();
    ///     while let Some(Transmit { len, .. }) = client.poll_urgent(now, &mut packet) {
    ///         assert_eq!(packet.len(), len);
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll_urgent(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        self.transmit(now, out, Which::Urgent)
    }

    /// Writes the next packet like [`Stack::poll_transmit`], but only the headers of a super-packet. The
    /// payload remains in the send buffer, where a device that gathers it reads it with [`Stack::payload`].
    /// For devices with super-segments.
    #[inline]
    pub fn poll_transmit_in_place(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        self.transmit(now, out, Which::All { payload_in_place: self.partial_checksum() })
    }

    /// Returns the payload, in two pieces, that [`Stack::poll_transmit_in_place`] left in place. Only further
    /// polls are permitted between the two calls.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// # let mut gathering = Stack::new(StackConfig { max_super_segment: 65_535, ..at("10.0.0.1") }, 1)?;
    /// # let id = gathering.connect(address, &ConnectConfig::default(), now)?;
    /// // A stack with `max_super_segment`, whose device gathers headers and payload:
    /// let mut headers = Vec::new();
    /// while let Some(transmit) = gathering.poll_transmit_in_place(now, &mut headers) {
    ///     let [first, second] = gathering.payload(&transmit);
    ///     assert_eq!(headers.len() + first.len() + second.len(), transmit.len);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn payload(&self, transmit: &Transmit) -> [&[u8]; 2] {
        let connection = transmit.conn.and_then(|id| self.slots.at(id)).map(|slot| &slot.connection);
        let pieces =
            transmit.in_place.zip(connection).map(|(range, connection)| connection.tx.queue.pieces(range));
        let mut pieces = pieces.into_iter().flatten();
        [(); MAX_PIECES].map(|()| pieces.next().unwrap_or_default())
    }

    /// True if there is certainly nothing to send, as in most calls.
    #[inline]
    fn is_silent(&self, now: Instant) -> bool {
        self.ready.is_empty()
            && self.early.is_empty()
            && !self.answers.are_waiting()
            && self.half_open.is_idle(now)
    }

    #[inline]
    fn transmit(&mut self, now: Instant, out: &mut Vec<u8>, which: Which) -> Option<Transmit> {
        out.clear();
        if self.is_silent(now) { None } else { self.next_packet(now, out, which) }
    }

    /// Writes the next packet: first the early packets, then the stack's own answers, then those of ready
    /// connections.
    fn next_packet(&mut self, now: Instant, out: &mut Vec<u8>, which: Which) -> Option<Transmit> {
        if let Some((mut packet, transmit)) = self.early.pop_front() {
            core::mem::swap(out, &mut packet);
            self.answers.recycle(packet);
            return Some(transmit);
        }
        if self.answers.are_waiting() && self.answers.pop_into(out) {
            self.stats.packets_out += 1;
            return Some(Transmit {
                len: out.len(),
                segment_size: None,
                twice: false,
                partial_checksum: self.partial_checksum(),
                conn: None,
                origin: Origin::Ack,
                in_place: None,
            });
        }
        loop {
            let id = match which {
                Which::All { .. } => self.next_ready(now)?,
                Which::Urgent => self.next_urgent(now)?,
            };
            if let Some(transmit) = self.ask(id, which, now, out) {
                return Some(transmit);
            }
        }
    }

    /// Polls a connection with urgent packets before it processes another segment, so each segment of a batch
    /// is answered on its own. The packets wait and leave next.
    pub(super) fn send_early(&mut self, id: ConnId, now: Instant) {
        while self.early.len() < EARLY {
            let mut packet = self.answers.buffer();
            match self.ask(id, Which::Urgent, now, &mut packet) {
                Some(transmit) => self.early.push_back((packet, transmit)),
                None => return self.answers.recycle(packet),
            }
        }
    }

    /// Polls a connection for a packet. The connection was taken from the queue of ready connections or, for
    /// urgent packets only, remains there.
    fn ask(&mut self, id: ConnId, which: Which, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        let partial_checksum = self.partial_checksum();
        let slot = self.slots.at_mut(id)?;
        let (payload_in_place, is_queued) = match which {
            Which::All { payload_in_place } => (payload_in_place, false),
            Which::Urgent => (false, true),
        };
        let connection = &mut *slot.connection;
        if let Some(member) = &slot.member {
            self.controllers.lend(id, member, connection, now);
        }
        if connection.wants_path_window() {
            match connection.tx.may_jump() {
                true => {
                    let redundancy = self.allowances.share(connection.tuple().remote.ip(), now);
                    self.paths.start(connection, redundancy, now)
                }
                false => connection.path.start_as_unknown(),
            }
        }
        let turns = connection.turns(now);
        if turns.is_empty() {
            // Nearly every segment causes such a poll. It changes nothing that an aftermath reports.
            connection.become_idle(now);
            self.allowances.update_reservation(connection, now);
            if slot.member.is_some() {
                self.take_back(id, Urgency::Idle, now);
            }
            let slot = self.slots.at_mut(id)?;
            match is_queued {
                true => slot.urgency = Urgency::Normal,
                false => self.schedule(id, Urgency::Idle, now),
            }
            return None;
        }
        let planner = connection.gentle.planner_config().filter(|_| connection.expects_losses());
        let planned = planner.map(|planner| {
            let remote = connection.tuple().remote.ip();
            (remote, self.allowances.available(remote, planner, now))
        });
        if let Some((_, allowance)) = planned {
            connection.gentle.set_destination_allowance(allowance);
        }
        let built = with_env(&self.config, &mut self.challenges, &mut self.stats, |env| {
            env.payload_in_place = payload_in_place;
            connection.transmit_in(turns, now, env, out)
        });
        let len = built.map_or(0, |built| out.len() + built.in_place_len());
        if let Some((built, (remote, _))) = built.zip(planned) {
            self.allowances.record(remote, built.origin, len, now);
        }
        self.allowances.update_reservation(connection, now);
        let aftermath = connection.after_poll(built.is_some(), now);
        match built {
            Some(_) => {
                slot.record_sent(now);
                self.stats.packets_out += 1;
            }
            None if is_queued => slot.urgency = Urgency::Normal,
            None => {}
        }
        self.apply_aftermath(id, aftermath, now);
        built.map(|built| Transmit {
            len,
            segment_size: built.segment_size,
            twice: built.twice,
            partial_checksum,
            conn: Some(id),
            origin: built.origin,
            in_place: built.in_place,
        })
    }

    /// Returns the next event for the application.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { self.next_event() }
    }

    fn next_event(&mut self) -> Option<Event> {
        while let Some(event) = self.events.pop() {
            let is_known = match event {
                Event::Incoming(listener) => self.listeners.at(listener).is_some(),
                Event::Connected(id) | Event::Readable(id) | Event::Writable(id) | Event::Closed(id, _) => {
                    self.owned(id).is_some()
                }
            };
            if is_known {
                return Some(event);
            }
        }
        None
    }

    /// Returns the next observation, if [`StackConfig::observe`](crate::config::StackConfig::observe) is set.
    pub fn poll_observation(&mut self) -> Option<(ConnId, Instant, Observation)> {
        self.reports.observations.pop_front()
    }

    /// Returns the next change in the life of a connection, in chronological order, if
    /// [`StackConfig::lifecycle`](crate::config::StackConfig::lifecycle) is set.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// # let observed = StackConfig { observe: true, lifecycle: true, ..at("10.0.0.1") };
    /// # let mut client = Stack::new(observed, 1)?;
    /// // A stack with `observe` and `lifecycle`:
    /// client.connect(address, &ConnectConfig::default(), now)?;
    /// while let Some((id, when, observation)) = client.poll_observation() {
    ///     println!("{when:?} {id:?} {observation:?}");
    /// }
    /// while let Some(change) = client.poll_lifecycle() {
    ///     println!("{:?} {:?}", change.ends, change.change);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_lifecycle(&mut self) -> Option<LifecycleEvent> {
        self.reports.lifecycle.pop_front()
    }

    /// Returns the time at which [`Stack::on_timeout`] is to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.deadlines.next(),
            self.time_wait.next_timeout(),
            self.memory.next_timeout(),
            self.half_open.next_timeout(),
            self.controllers.next_timeout(),
        ];
        let first = deadlines.into_iter().fold(None, Instant::earlier);
        if self.ready.is_empty() {
            return first;
        }
        self.ready.moved_deadlines(&self.slots).fold(first, Instant::earlier)
    }

    /// Runs every timer that is due, each connection once.
    pub fn on_timeout(&mut self, now: Instant) {
        self.clock = self.clock.max(now);
        while let Some((index, entry)) = self.time_wait.pop_expired(now) {
            self.demux.remove(&entry.tuple(), Target::TimeWait(index));
        }
        self.refresh_deadlines();
        let mut due = Vec::new();
        while let Some(index) = self.deadlines.pop_due(now) {
            due.push(index);
        }
        for index in due {
            if let Some(id) = self.slots.key_at(index) {
                self.on_conn_timeout(id, now);
            }
        }
        self.serve_paths(now);
        self.half_open.on_timeout(now);
        self.memory.on_timeout(&mut self.slots, &mut self.events, now);
    }

    pub(super) fn on_conn_timeout(&mut self, id: ConnId, now: Instant) {
        self.refresh_path(id, now);
        self.lend(id, now);
        if let Some(slot) = self.slots.at_mut(id) {
            slot.record_timeout(now);
            let aftermath = slot.connection.on_timeout(now);
            self.apply_aftermath(id, aftermath, now);
        }
    }
}
