//! The driver: the task that moves packets between a stack and its device.
//!
//! A round is that of `brisk_tcp::stack`: packets in, due timers, events to waiting tasks, packets out. Then
//! the driver sleeps until the device is readable, a handle has acted, or a timer is due. Woken tasks have a
//! turn before any transmission that can wait: see [`READERS_TURN`]. The device is called outside the lock,
//! except for super-packets whose payload it reads in place. Packets to an address of the stack itself do not
//! reach the device: they arrive in the next round. If the device returns `WouldBlock`, the packets wait here
//! and the driver does not ask the stack for more. Writes of applications then fill the send buffers, and the
//! back-pressure reaches them.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use brisk_device::{Capabilities, ChecksumState, Counters, Device, Gathered, RxMeta, TxMeta};
use brisk_tcp::Stack;
use brisk_tcp::stack::{Rx, Transmit};
use brisk_tcp::time::{Duration, Instant};
use brisk_wire::ChecksumCheck;

use crate::clock::GRANULARITY;
use crate::observer::{Observers, Observing};
use crate::shared::{Ended, PeerMove, Shared};
use crate::timer::Timer;

/// Packets taken from the device in one round.
const RECEIVE_BUDGET: usize = 64;
/// Packets asked of the device at a time.
const RECEIVE_STEP: usize = 4;
/// Packets taken from the stack in one round.
const SEND_BATCH: usize = 32;
/// Bytes of packets taken from the device, and from the stack, in one round: who reads or writes them finds
/// them in the processor's cache, and acknowledgements are heard before everything has been sent that the
/// window allows.
const ROUND_BYTES: usize = 256 << 10;
/// The same of packets taken from the stack where the device takes their payload from where it lies: we do
/// not touch it, and what leaves in one call costs less.
const GATHERED_BYTES: usize = 512 << 10;
/// How old the counters of the device may be when somebody asks; looking costs a system call.
const COUNTERS_AGE: Duration = Duration::from_millis(100);
/// Rounds before other tasks get their turn.
const ROUNDS: usize = 8;
/// How long those have who were told that there is something to read, to write or to accept: meanwhile
/// nothing is sent that can wait, and no more taken in than a round may. They wake the driver as soon as they
/// act. So an acknowledgement leaves with the answer, or with the window that reading opens; and a runtime
/// with one thread, which would run the driver many times before its main task, does not fill the whole
/// window first. Where packets never cease to come, one turn follows the other: for those that begin so long
/// after the first of them nothing waits.
const READERS_TURN: Duration = Duration::from_millis(1);

/// A future that runs until the device fails, or until nobody holds a handle and nothing is left to be
/// delivered.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    device: Box<dyn Device>,
    timer: Timer,
    /// When the stack has a timer that is due, as it said at the end of the last round.
    due: Option<Instant>,
    /// When the next SYN leaves that has waited for a write in vain.
    deferred: Option<Instant>,
    outgoing: Outgoing,
    readers: Readers,
    woken: Vec<Waker>,
    flushed: bool,
    counting: Counting,
    observing: Option<Box<Observing>>,
}

/// Looks at the counters of the device now and then.
#[derive(Default)]
struct Counting {
    /// When that was last done.
    last: Option<Instant>,
    /// Packets have moved since.
    has_news: bool,
}

impl Counting {
    /// The counters, if the last look is long ago. `moved`: packets have come, or are about to leave.
    fn look(&mut self, device: &dyn Device, moved: bool, now: Instant) -> Option<Counters> {
        let is_time = self.last.is_none_or(|last| now.saturating_since(last) >= COUNTERS_AGE);
        let counters = is_time.then(|| device.counters());
        if is_time {
            self.last = Some(now);
        }
        self.has_news = moved || self.has_news && !is_time;
        counters
    }

    /// When to look again, though nothing may move until then.
    fn due(&self) -> Option<Instant> {
        self.last.filter(|_| self.has_news).map(|last| last + COUNTERS_AGE)
    }
}

/// Packets on their way from the stack to the device, in buffers that are used again.
#[derive(Default)]
struct Outgoing {
    packets: VecDeque<(Vec<u8>, TxMeta)>,
    /// Behind them, packets of which the payload is still with the stack; none between rounds.
    polled: Vec<(Vec<u8>, Transmit)>,
    spare: Vec<Vec<u8>>,
    /// Bytes taken from the stack in this round.
    bytes: usize,
    /// The device takes the payload of super-packets from where it lies.
    gathers: bool,
    /// The addresses of the stack, once it has connected to one of them.
    own: Vec<IpAddr>,
    /// Packets to one of these, which arrive in the next round.
    looped: VecDeque<(Vec<u8>, TxMeta)>,
}

impl Outgoing {
    fn is_full(&self) -> bool {
        let max_bytes = if self.gathers { GATHERED_BYTES } else { ROUND_BYTES };
        let waiting = self.packets.len() + self.polled.len() + self.looped.len();
        waiting >= SEND_BATCH || self.bytes >= max_bytes
    }

    /// True if a packet is for the stack that sends it.
    fn is_to_self(&self, packet: &[u8]) -> bool {
        !self.own.is_empty() && destination(packet).is_some_and(|address| self.own.contains(&address))
    }

    /// Hands the stack what it has sent to itself.
    fn deliver_looped(&mut self, stack: &mut Stack, now: Instant) {
        while let Some((packet, tx)) = self.looped.pop_front() {
            let rx = Rx { checksum: ChecksumCheck::Trust, segment_size: tx.segment_size, ..Rx::default() };
            stack.on_packet(&packet, rx, now);
            self.spare.push(packet);
        }
    }

    /// Takes from the stack what it has to send, as far as there is room.
    fn fill(&mut self, stack: &mut Stack, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        if self.gathers {
            return self.fill_gathering(stack, device, now);
        }
        self.fill_with(|buffer| stack.poll_transmit(now, buffer));
        Ok(())
    }

    /// Takes from the stack what should not wait, as far as there is room.
    fn fill_urgent(&mut self, stack: &mut Stack, now: Instant) {
        if !stack.is_urgent() {
            return;
        }
        self.fill_with(|buffer| stack.poll_urgent(now, buffer));
    }

    fn fill_with(&mut self, mut poll: impl FnMut(&mut Vec<u8>) -> Option<Transmit>) {
        while !self.is_full() {
            let mut buffer = self.spare.pop().unwrap_or_default();
            let Some(transmit) = poll(&mut buffer) else {
                self.spare.push(buffer);
                return;
            };
            self.bytes += buffer.len();
            let to = if self.is_to_self(&buffer) { &mut self.looped } else { &mut self.packets };
            to.push_back((buffer, tx(&transmit)));
        }
    }

    /// As [`Outgoing::fill`], for a device that gathers: super-packets go there at once, together, with what
    /// comes before them.
    fn fill_gathering(&mut self, stack: &mut Stack, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        while !self.is_full() {
            let mut buffer = self.spare.pop().unwrap_or_default();
            let Some(transmit) = stack.poll_transmit_in_place(now, &mut buffer) else {
                self.spare.push(buffer);
                break;
            };
            self.bytes += transmit.len;
            if self.is_to_self(&buffer) {
                stack.payload(&transmit).iter().for_each(|piece| buffer.extend_from_slice(piece));
                self.looped.push_back((buffer, tx(&transmit)));
                continue;
            }
            self.polled.push((buffer, transmit));
        }
        let is_apart = |(buffer, transmit): &(Vec<u8>, Transmit)| transmit.len > buffer.len();
        let gathered = self.polled.iter().rposition(is_apart).map_or(0, |last| last + 1);
        let taken = match gathered > 0 && self.send(device)? {
            true => send_gathered(self.polled.get(..gathered).unwrap_or_default(), stack, device)?,
            false => Vec::new(),
        };
        let Outgoing { packets, polled, spare, .. } = self;
        for (n, (mut buffer, transmit)) in polled.drain(..).enumerate() {
            if taken.get(n).is_some_and(|taken| *taken) {
                spare.push(buffer);
                continue;
            }
            stack.payload(&transmit).iter().for_each(|piece| buffer.extend_from_slice(piece));
            packets.push_back((buffer, tx(&transmit)));
        }
        Ok(())
    }

    /// Sends in order what waits; false if the device takes no more for now.
    fn send(&mut self, device: &mut dyn Device) -> io::Result<bool> {
        while let Some((packet, tx)) = self.packets.front() {
            if !taken(device.send(packet, *tx))? {
                return Ok(false);
            }
            self.pop();
        }
        Ok(true)
    }

    /// The first packet is with the device.
    fn pop(&mut self) {
        if let Some((packet, _)) = self.packets.pop_front() {
            self.spare.push(packet);
        }
    }
}

/// Sends packets of which the payload is still with the stack; answers for each whether the device took it.
fn send_gathered(
    polled: &[(Vec<u8>, Transmit)],
    stack: &Stack,
    device: &mut dyn Device,
) -> io::Result<Vec<bool>> {
    let gathered = polled.iter().map(|(headers, transmit)| Gathered {
        headers,
        payload: stack.payload(transmit),
        tx: tx(transmit),
        taken: false,
    });
    let mut packets: Vec<Gathered<'_>> = gathered.collect();
    device.send_batch(&mut packets)?;
    Ok(packets.iter().map(|packet| packet.taken).collect())
}

/// Whether the device took a packet; `WouldBlock` is a no.
fn taken(sent: io::Result<()>) -> io::Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Those who were told that there is something to do.
#[derive(Default)]
struct Readers {
    /// How long it is their turn; nobody has acted since they were told.
    turn: Option<Instant>,
    /// Bytes of packets received since somebody acted.
    untouched: usize,
    /// When the first of the turns began that have followed one another since all was sent.
    first: Option<Instant>,
    /// Deferrable transmissions wait until the turn is over.
    all_wait: bool,
}

impl Readers {
    /// Some more were told: it is their turn, too. All wait for them unless they have waited for others long
    /// enough.
    fn begin(&mut self, now: Instant) {
        if self.turn.is_none() {
            let first = *self.first.get_or_insert(now);
            self.turn = Some(now + READERS_TURN);
            self.all_wait = now.saturating_since(first) < READERS_TURN;
        }
    }

    /// One of them has acted, or time has passed.
    fn end(&mut self) {
        (self.turn, self.untouched, self.all_wait) = (None, 0, false);
    }

    /// It is their turn, and they have as much to read as a round receives.
    fn have_enough(&self) -> bool {
        self.turn.is_some() && self.untouched >= ROUND_BYTES
    }
}

/// Result of a round under the lock.
struct Round {
    /// The device was read: whoever wants to hear of what comes next has to ask it again.
    was_read: bool,
    /// The stack has more to send.
    more: bool,
    /// Much was received: whoever reads it should do so before there is more.
    much: bool,
    next_timeout: Option<Instant>,
    now: Instant,
    /// Nobody needs this stack any more.
    done: bool,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, device: Box<dyn Device>, observers: Observers) -> Driver {
        let Capabilities { gather: gathers, descriptor, .. } = device.capabilities();
        Driver {
            timer: Timer::new(shared.clock, descriptor),
            shared,
            device,
            due: None,
            deferred: None,
            outgoing: Outgoing { gathers, ..Outgoing::default() },
            readers: Readers::default(),
            woken: Vec::new(),
            flushed: true,
            counting: Counting::default(),
            observing: Observing::new(observers),
        }
    }

    /// True while those who were told have neither acted nor let the time pass. The timer tells that, not the
    /// clock: it fires only after the runtime has come round, so that they were asked whatever else there was
    /// to do.
    fn is_readers_turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(until) = self.readers.turn else { return false };
        let now = self.shared.clock.now();
        let is_theirs = !self.shared.lock().is_driver_roused() && !self.timer.has_fired(Some(until), now, cx);
        if !is_theirs {
            self.readers.end();
        }
        is_theirs
    }

    fn run(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        if self.readers.have_enough() && self.is_readers_turn(cx) {
            return Ok(Poll::Pending);
        }
        for _ in 0..ROUNDS {
            let round = self.round(cx)?;
            let blocked = self.send(cx)?;
            if round.done && self.outgoing.packets.is_empty() {
                return Ok(Poll::Ready(()));
            }
            if self.readers.have_enough() && !blocked && self.is_readers_turn(cx) {
                return Ok(Poll::Pending);
            }
            if round.much {
                break;
            }
            let arrived = round.was_read && self.is_readable(cx)?;
            if (arrived || round.more) && !blocked || !self.outgoing.looped.is_empty() {
                continue;
            }
            if !self.timer.has_fired(round.next_timeout, round.now, cx) {
                return Ok(Poll::Pending);
            }
            if self.readers.turn.is_some_and(|until| round.next_timeout == Some(until)) {
                self.readers.end();
            }
        }
        cx.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    /// Takes the reports of the stack under its lock, and hands them to the observers without it.
    fn call_observers(&mut self) {
        if let Some(observing) = &mut self.observing {
            observing.take(&mut self.shared.lock().stack);
            observing.call();
        }
    }

    fn is_readable(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        match self.device.poll_readable(cx) {
            Poll::Ready(ready) => ready.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// One turn: packets in, timers, packets out (into `outgoing`), events.
    fn round(&mut self, cx: &mut Context<'_>) -> io::Result<Round> {
        let readable = self.is_readable(cx)?;
        let mut inner = self.shared.lock();
        let now = self.shared.clock.now();
        if inner.is_driver_roused() {
            self.readers.end();
            // Events that applications themselves caused start no turn for others.
            inner.take_events(&mut self.woken);
        }
        let known = self.woken.len();
        inner.driver_runs(cx.waker(), now);
        let moves = std::mem::take(&mut inner.moves);
        if !moves.is_empty() {
            drop(inner);
            for moved in moves {
                match moved {
                    PeerMove::To { from, to } => self.device.redirect(from, to),
                    PeerMove::Forgotten(from) => self.device.forget_redirect(from),
                }
            }
            inner = self.shared.lock();
        }
        self.outgoing.bytes = 0;
        let mut received = 0;
        if readable {
            drop(inner);
            received = receive(&mut *self.device, &self.shared, now)?;
            inner = self.shared.lock();
        }
        self.readers.untouched += received;
        self.outgoing.deliver_looped(&mut inner.stack, now);
        // A timer that has become due earlier since is seen at the end of this round.
        if self.due.is_some_and(|due| due <= now) {
            inner.stack.on_timeout(now);
        }
        self.deferred = inner.send_deferred(now);
        inner.take_events(&mut self.woken);
        if self.woken.len() > known {
            self.readers.begin(now);
        }
        if inner.loops && self.outgoing.own != inner.stack.config().addresses {
            self.outgoing.own.clone_from(&inner.stack.config().addresses);
        }
        if self.readers.all_wait {
            self.outgoing.fill_urgent(&mut inner.stack, now);
        } else {
            self.flushed &= !self.outgoing.gathers;
            self.outgoing.fill(&mut inner.stack, &mut *self.device, now)?;
        }
        inner.take_events(&mut self.woken);
        let idle = inner.is_idle();
        if idle {
            inner.take_idle(&mut self.woken);
        }
        let stack_has_more = self.outgoing.is_full();
        // The readers are about to touch the same connections: it is early enough to look at timers when the
        // turn ends.
        if self.readers.all_wait {
            self.due = self.due.filter(|due| *due > now);
        } else {
            inner.stack.note_deadlines();
            self.due = inner.stack.next_timeout();
            self.readers.first = self.readers.first.filter(|_| stack_has_more);
        }
        let is_needed = (!idle || inner.has_handles()) && !inner.closed;
        drop(inner);
        self.call_observers();
        self.woken.drain(..).for_each(Waker::wake);
        // A received packet may have been handed over to another queue.
        let moved = readable || self.outgoing.bytes > 0;
        if let Some(counters) = self.counting.look(&*self.device, moved, now) {
            self.shared.lock().device = counters;
        }
        let is_empty = !stack_has_more && self.outgoing.looped.is_empty();
        Ok(Round {
            was_read: readable,
            more: stack_has_more,
            much: received > 0 && self.readers.untouched >= ROUND_BYTES,
            next_timeout: self.next_timeout(now),
            now,
            done: !is_needed && is_empty && self.readers.turn.is_none(),
        })
    }

    /// When to wake though nothing happens.
    fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let due = self.due.map(|due| due.max(now + GRANULARITY));
        due.into_iter().chain(self.deferred).chain(self.readers.turn).chain(self.counting.due()).min()
    }

    /// Sends what is outgoing; true if the device takes no more for now (and will wake us).
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        self.flushed &= self.outgoing.packets.is_empty();
        while !self.outgoing.send(&mut *self.device)? {
            if self.device.poll_writable(cx)?.is_pending() {
                return Ok(true);
            }
        }
        while !self.flushed {
            self.flushed = taken(self.device.flush())?;
            if !self.flushed && self.device.poll_writable(cx)?.is_pending() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.run(cx) {
            Ok(poll) => poll,
            Err(error) => {
                self.call_observers();
                self.woken.drain(..).for_each(Waker::wake);
                self.shared.end(Ended::Device(error.kind(), format!("the device failed: {error}")));
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.end(match std::thread::panicking() {
            false if self.shared.lock().closed => Ended::Closed,
            false => Ended::Runtime,
            // The stack is only ever touched under the lock, and the device mostly outside.
            true if self.shared.is_poisoned() => Ended::Defect,
            true if self.observing.as_ref().is_some_and(|observing| observing.is_calling) => {
                Ended::ObserverPanicked
            }
            true => Ended::DevicePanicked,
        });
        // A panic came between taking these and waking them.
        self.woken.drain(..).for_each(Waker::wake);
    }
}

/// The address that an IP packet is for.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..20)?.try_into().ok().map(|v4: [u8; 4]| v4.into()),
        6 => packet.get(24..40)?.try_into().ok().map(|v6: [u8; 16]| v6.into()),
        _ => None,
    }
}

/// Hands the stack what the device has, within the bounds of a round; answers how many bytes that were. The
/// lock is held for each packet by itself, so that a device may use its own endpoint.
fn receive(device: &mut dyn Device, shared: &Shared, now: Instant) -> io::Result<usize> {
    let (mut packets, mut bytes) = (0, 0);
    let mut strays = Vec::new();
    while packets < RECEIVE_BUDGET && bytes < ROUND_BYTES {
        let count = device.receive_shared(RECEIVE_STEP, &mut |packet, buffer, meta| {
            bytes += packet.len();
            let stack = &mut shared.lock().stack;
            match buffer {
                Some(buffer) => stack.on_packet_shared(buffer, rx(meta), now),
                None => stack.on_packet(packet, rx(meta), now),
            }
            if let Some(source) = stack.take_stray() {
                strays.extend(from_source(packet, source).map(|packet| (packet, meta)));
            }
        })?;
        strays.drain(..).for_each(|(packet, meta)| device.hand_over(packet, meta));
        packets += count;
        if count < RECEIVE_STEP {
            break;
        }
    }
    Ok(bytes)
}

/// The packet with another source address; `None` if it is not of that family.
fn from_source(packet: &[u8], source: IpAddr) -> Option<Vec<u8>> {
    let IpAddr::V6(source) = source else { return None };
    let mut packet = packet.to_vec();
    packet.get_mut(8..24)?.copy_from_slice(&source.octets());
    Some(packet)
}

fn tx(transmit: &Transmit) -> TxMeta {
    let Transmit { segment_size, partial_checksum, twice, .. } = *transmit;
    TxMeta { segment_size, partial_checksum, twice }
}

fn rx(meta: RxMeta) -> Rx {
    let checksum = match meta.checksum {
        ChecksumState::Verify => ChecksumCheck::Verify,
        ChecksumState::Trusted => ChecksumCheck::Trust,
    };
    Rx { checksum, segment_size: meta.segment_size, ..Rx::default() }
}
