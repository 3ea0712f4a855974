//! Finds the owner of an arriving packet.
//!
//! The packet is parsed, its addresses and ports are checked, and it is passed to a connection, a TIME-WAIT,
//! a listener, or none of them. A rejected packet returns the reason.

use core::net::{IpAddr, SocketAddr};

use brisk_wire::{
    ChecksumFill, Flags, IcmpError, IpMeta, Segment, SeqNum, TcpHeader, Timestamps as TimestampOption,
};

use super::demux::{Demux, Target};
use super::half_open::HalfOpenTable;
use super::half_open::record::HalfOpen;
use super::listener::Listener;
use super::slot::{Ownership, Slot, with_env};
use super::stats::Refusal;
use super::time_wait::{TimeWaitEntry, TimeWaitTable, TimeWaitVerdict};
use super::{Stack, reset};
use crate::conn_id::{ConnId, Slots};
use crate::connection::{State, Urgency};
use crate::four_tuple::{self, FourTuple};
use crate::mechanism::ParityOff;
use crate::outcome::Arrived;
use crate::time::Instant;

/// The owners of packets: the table of four-tuples, and the connections.
#[derive(Clone, Copy)]
pub(super) struct Owners<'a> {
    pub(super) demux: &'a Demux,
    pub(super) slots: &'a Slots<Slot>,
    pub(super) half_open: &'a HalfOpenTable,
    pub(super) time_wait: &'a TimeWaitTable,
}

impl Owners<'_> {
    pub(super) fn of(&self, tuple: &FourTuple) -> Option<Target> {
        self.demux.get(tuple, |target| match target {
            Target::Connection(slot) => self.slots.at_index(slot).is_some_and(|slot| slot.tuple.is(tuple)),
            Target::HalfOpen(index) => self.half_open.entry(index).is_some_and(|entry| entry.is_of(tuple)),
            Target::TimeWait(index) => self.time_wait.entry(index).is_some_and(|entry| entry.is_of(tuple)),
        })
    }

    /// True if a SYN with this sequence number has opened the connection at `tuple`.
    pub(super) fn has_opened(&self, tuple: &FourTuple, seq: SeqNum) -> bool {
        let Some(Target::Connection(slot)) = self.of(tuple) else { return false };
        self.slots.at_index(slot).is_some_and(|slot| {
            let handshake = &slot.connection.handshake;
            !handshake.active && handshake.irs == seq
        })
    }
}

impl Stack {
    pub(super) fn owners(&self) -> Owners<'_> {
        let Stack { demux, slots, half_open, time_wait, .. } = self;
        Owners { demux, slots, half_open, time_wait }
    }

    pub(super) fn on_tcp(
        &mut self,
        segment: &Segment<'_>,
        wire_len: usize,
        segment_size: Option<u16>,
        now: Instant,
    ) -> Result<(), Refusal> {
        let Segment { ip, tcp, .. } = segment;
        let tuple = FourTuple {
            local: SocketAddr::new(ip.dst, tcp.dst_port),
            remote: SocketAddr::new(ip.src, tcp.src_port),
        };
        let arrived = Arrived {
            seq: tcp.seq,
            ack: tcp.ack,
            flags: tcp.flags,
            window: tcp.window,
            urgent: tcp.urgent,
            options: &tcp.options,
            payload: segment.payload,
            ecn: ip.ecn,
            segment_size: segment_size.map_or(segment.payload.len(), usize::from),
        };
        let owner = match self.owner_of(&tuple, now) {
            None => {
                let Stack { moves, demux, slots, half_open, time_wait, .. } = self;
                let owners = Owners { demux, slots, half_open, time_wait };
                // A SYN opens a connection at the present address, unless it repeats one from an earlier
                // address.
                let has_owner = |earlier: &FourTuple| match is_opening(&arrived) {
                    true => owners.has_opened(earlier, arrived.seq),
                    false => owners.of(earlier).is_some(),
                };
                moves.find(&tuple, has_owner).and_then(|earlier| self.owner_of(&earlier, now))
            }
            owner => owner,
        };
        match owner {
            Some(Target::Connection(slot)) => {
                let id = self.slots.key_at(slot).ok_or(Refusal::NoListener)?;
                self.on_segment(id, &arrived, wire_len, now)
            }
            Some(Target::HalfOpen(index)) => {
                let listener = self.half_open.entry(index).map(HalfOpen::listener);
                let is_full = |slot| self.listeners.at_index(slot).is_some_and(Listener::is_full);
                if ends_handshake(&arrived) && listener.is_some_and(is_full) {
                    return Err(Refusal::BacklogFull);
                }
                let id = self.restore_half_open(index, now).ok_or(Refusal::NoListener)?;
                self.on_segment(id, &arrived, wire_len, now)
            }
            Some(Target::TimeWait(index)) => self.on_segment_in_time_wait(index, &arrived, wire_len, now),
            // The ends of a known four-tuple were checked when its entry was created.
            None => match self.check_ends(&tuple).map(|()| self.listener_for(tuple.local))? {
                Some(listener) => {
                    self.on_segment_in_listen(listener, tuple, segment, &arrived, wire_len, now)?;
                    self.on_opened(&tuple, wire_len, &arrived, now);
                    Ok(())
                }
                None => match self.queue_request(tuple, &arrived, wire_len, None) {
                    Some(queued) => queued,
                    None => self.answer_with_reset(segment, Refusal::NoListener, now),
                },
            },
        }
    }

    /// Returns the owner of a segment. A connection that must send before it processes another segment sends
    /// now, and may end by that.
    #[inline(always)]
    fn owner_of(&mut self, tuple: &FourTuple, now: Instant) -> Option<Target> {
        let owner = self.owners().of(tuple);
        if let Some(Target::Connection(slot)) = owner
            && self.slots.at_index(slot).is_some_and(|slot| slot.urgency >= Urgency::BeforeNextRx)
            && let Some(id) = self.slots.key_at(slot)
        {
            self.send_early(id, now);
            return self.owners().of(tuple);
        }
        owner
    }

    /// Checks that both ends of a segment can be the ends of a connection of this stack.
    fn check_ends(&self, tuple: &FourTuple) -> Result<(), Refusal> {
        let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
        if !self.is_local(&local) || !four_tuple::is_unicast(&local) {
            return Err(Refusal::NotOurs);
        }
        // An IPv4-mapped address must not be on the wire, and would alias an IPv4 connection.
        let is_mapped = |ip: IpAddr| ip.to_canonical() != ip;
        let ports = tuple.local.port() != 0 && tuple.remote.port() != 0;
        if !ports
            || !four_tuple::is_unicast(&remote)
            || is_mapped(remote)
            || is_mapped(local)
            || tuple.is_loop()
        {
            return Err(Refusal::BadSource);
        }
        Ok(())
    }

    /// True if the address belongs to the stack.
    pub(super) fn is_local(&self, ip: &IpAddr) -> bool {
        self.config.any_address || self.config.addresses.contains(ip)
    }

    /// Counts the packet that opened a connection among those that the connection received.
    pub(super) fn on_opened(
        &mut self,
        tuple: &FourTuple,
        wire_len: usize,
        arrived: &Arrived<'_>,
        now: Instant,
    ) {
        if let Some(Target::Connection(slot)) = self.owners().of(tuple)
            && let Some(id) = self.slots.key_at::<ConnId>(slot)
            && let Some(slot) = self.slots.at_mut(id)
        {
            slot.connection.counters.count_arrival(wire_len, arrived.payload.len(), arrived.segment_size);
            self.schedule(id, Urgency::BeforeApp, now);
        }
    }

    fn on_segment(
        &mut self,
        id: ConnId,
        arrived: &Arrived<'_>,
        wire_len: usize,
        now: Instant,
    ) -> Result<(), Refusal> {
        let memory_left = self.memory.left();
        let slot = self.slots.at_mut(id).ok_or(Refusal::NoListener)?;
        if let Ownership::HalfOpen(listener) = slot.phase
            && ends_handshake(arrived)
            && let Some(at) = self.listeners.at(listener)
        {
            if at.is_full() {
                return Err(Refusal::BacklogFull);
            }
            if slot.connection.defers_handshake(arrived, at.defer_accept) {
                slot.half_open = None;
                return Err(Refusal::Deferred);
            }
        }
        // Data that arrives before its SYN-ACK cannot enter the buffer yet; it is kept only if there is
        // memory.
        let is_early = slot.connection.state() == State::SynSent && !arrived.flags.contains(Flags::SYN);
        if is_early && !arrived.payload.is_empty() && memory_left == 0 {
            return Err(Refusal::OutOfMemory);
        }
        if let Some(member) = &slot.member {
            self.controllers.lend(id, member, &mut slot.connection, now);
        }
        // Without memory for data the acknowledgement is still processed, because it may free some. If the
        // application has nothing to read, the next bytes in order are accepted too (Linux:
        // sk_forced_mem_schedule). They may fill the gap before data that uses up the memory. Or both ends
        // may have filled their memory with unsent data.
        let connection = &mut *slot.connection;
        let takes_memory = !arrived.payload.is_empty() && !connection.rx.has_storage_for(arrived);
        let no_memory = takes_memory && memory_left == 0 && !connection.rx.awaits(arrived);
        let is_lent = self.lent.as_ref().is_some_and(|packet| 2 * packet.len() <= memory_left);
        if is_lent {
            connection.rx.queue.lend_packet(self.lent.take());
        } else if takes_memory && !no_memory {
            self.memory.spares.lend(&mut connection.rx.queue);
        }
        let bare;
        let taken = if no_memory {
            connection.with_gentle(|gentle, parts| gentle.stop_repair(ParityOff::Memory, parts));
            bare = Arrived { payload: &[], flags: arrived.flags.without(Flags::FIN), ..*arrived };
            &bare
        } else {
            arrived
        };
        connection.counters.count_arrival(wire_len, arrived.payload.len(), arrived.segment_size);
        let mut aftermath = with_env(&self.config, &mut self.challenges, &mut self.stats, |env| {
            connection.on_segment(taken, now, env)
        });
        if no_memory {
            aftermath.urgency = connection.answer_refused_data();
        }
        if is_lent {
            connection.rx.queue.lend_packet(None);
        }
        slot.half_open = None;
        self.apply_aftermath(id, aftermath, now);
        if no_memory { Err(Refusal::OutOfMemory) } else { Ok(()) }
    }

    fn on_segment_in_time_wait(
        &mut self,
        index: u32,
        arrived: &Arrived<'_>,
        wire_len: usize,
        now: Instant,
    ) -> Result<(), Refusal> {
        let entry = self.time_wait.entry(index).ok_or(Refusal::InTimeWait)?;
        let tuple = entry.tuple();
        match entry.check(arrived) {
            TimeWaitVerdict::Reset if self.config.time_wait_resets => {
                self.time_wait.remove(index);
                self.demux.remove(&tuple, Target::TimeWait(index));
            }
            TimeWaitVerdict::Ignore | TimeWaitVerdict::Reset => return Err(Refusal::InTimeWait),
            TimeWaitVerdict::AckAndRestart => {
                self.time_wait.restart(index, arrived.options.timestamps.map(|stamps| stamps.value), now);
                self.answer_in_time_wait(index, false, now);
            }
            TimeWaitVerdict::Ack => self.answer_in_time_wait(index, true, now),
            TimeWaitVerdict::Reopen(floor) => match self.listener_for(tuple.local) {
                Some(listener) => {
                    self.on_syn(listener, tuple, arrived, wire_len, Some(floor), now)?;
                    // The connection may have taken the slot of this entry.
                    if self.time_wait.entry(index).is_some_and(|entry| entry.is_of(&tuple)) {
                        self.end_time_wait(index);
                    }
                    self.stats.time_waits_reused += 1;
                }
                None => match self.queue_request(tuple, arrived, wire_len, Some(floor)) {
                    Some(queued) => return queued,
                    None => self.answer_in_time_wait(index, true, now),
                },
            },
        }
        Ok(())
    }

    /// Answers a segment in TIME-WAIT by an acknowledgement. A challenge ACK must be within the limit of the
    /// entry before it counts towards the limit of the host. So a flood on one TIME-WAIT does not use up the
    /// challenge ACKs of every connection.
    fn answer_in_time_wait(&mut self, index: u32, is_challenge: bool, now: Instant) {
        let Some(entry) = self.time_wait.entry_mut(index) else { return };
        if !entry.may_answer(now) {
            return;
        }
        let (ip, tcp) = time_wait_ack(entry, now);
        if is_challenge {
            let allowed = self.challenges.allows(now);
            self.stats.challenge_acks_sent += u64::from(allowed);
            self.stats.challenge_acks_suppressed += u64::from(!allowed);
            if !allowed {
                return;
            }
        }
        self.answer(&ip, &tcp);
    }

    /// Rejects a segment for `reason` and answers it with a reset, unless the segment is a reset.
    pub(super) fn answer_with_reset(
        &mut self,
        segment: &Segment<'_>,
        reason: Refusal,
        now: Instant,
    ) -> Result<(), Refusal> {
        let (ip, tcp) = reset::reset_for(segment).ok_or(Refusal::StrayReset)?;
        let is_withheld = self.moves.withholds_reset(segment.ip.src, segment.tcp.flags, now);
        if !is_withheld && self.resets.allows(now) {
            self.stats.resets_sent += 1;
            self.answer(&ip, &tcp);
        } else {
            self.stats.resets_suppressed += 1;
        }
        Err(reason)
    }

    pub(super) fn answer(&mut self, ip: &IpMeta, tcp: &TcpHeader) {
        let fill = if self.partial_checksum() { ChecksumFill::Partial } else { ChecksumFill::Full };
        if !self.answers.push_header(ip, tcp, fill) {
            self.stats.answers_dropped += 1;
        }
    }
}

/// True for the SYN of a client.
fn is_opening(arrived: &Arrived<'_>) -> bool {
    arrived.flags.contains(Flags::SYN) && !arrived.flags.contains(Flags::ACK)
}

/// True if the segment may complete a handshake. Such a segment is refused while the accept queue is full.
fn ends_handshake(arrived: &Arrived<'_>) -> bool {
    arrived.flags.contains(Flags::ACK) && !arrived.flags.intersects(Flags::RST | Flags::SYN)
}

/// Returns `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>` for a connection in TIME-WAIT.
fn time_wait_ack(entry: &TimeWaitEntry, now: Instant) -> (IpMeta, TcpHeader) {
    let numbers = entry.numbers();
    let tuple = entry.tuple();
    let mut ip = IpMeta::new(tuple.local.ip(), tuple.remote.ip());
    ip.hop_limit = entry.hop_limit;
    ip.dscp = entry.dscp;
    let mut tcp = TcpHeader {
        src_port: tuple.local.port(),
        dst_port: tuple.remote.port(),
        seq: numbers.snd_nxt,
        ack: numbers.rcv_nxt,
        flags: Flags::ACK,
        window: numbers.window,
        ..TcpHeader::default()
    };
    tcp.options.timestamps = numbers.ts_recent.map(|echo| {
        let value = ((now.as_micros() / 1000) as u32).wrapping_add(numbers.ts_offset);
        TimestampOption { value, echo }
    });
    (ip, tcp)
}

impl Stack {
    /// Processes an ICMP error (RFC 9293 section 3.9.2.2, RFC 5927), which quotes the packet that caused it.
    /// The quoted ends must be those of a connection, and the quoted sequence number must be outstanding
    /// there. An attacker who cannot see the traffic cannot guess them. The reaction of the connection
    /// depends on its state.
    pub(super) fn on_icmp(&mut self, error: &IcmpError, now: Instant) -> Result<(), Refusal> {
        let tuple = FourTuple { local: error.src, remote: error.dst };
        let id = match self.owners().of(&tuple) {
            Some(Target::Connection(slot)) => self.slots.key_at(slot),
            Some(Target::HalfOpen(index)) => {
                // A forged error must not turn a record into a whole connection, which takes more memory.
                let is_genuine = |entry: &HalfOpen| entry.is_outstanding(error.seq);
                if !self.half_open.entry(index).is_some_and(is_genuine) {
                    return Err(Refusal::IcmpStale);
                }
                self.restore_half_open(index, now)
            }
            Some(Target::TimeWait(_)) | None => None,
        };
        let id = id.ok_or(Refusal::IcmpNoConnection)?;
        self.lend(id, now);
        let slot = self.slots.at_mut(id).ok_or(Refusal::IcmpStale)?;
        let (believed, aftermath) =
            slot.connection.act(now, |connection| connection.on_icmp(error.kind, error.seq, now));
        slot.half_open.take_if(|_| believed);
        self.apply_aftermath(id, aftermath, now);
        if !believed {
            return Err(Refusal::IcmpStale);
        }
        self.stats.icmp_believed += 1;
        Ok(())
    }
}
