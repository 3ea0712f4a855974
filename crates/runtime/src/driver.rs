//! The driver: the task that moves packets between a stack and its device.
//!
//! In a round the driver passes arrived packets to the stack, serves due timers, wakes tasks for events, and
//! sends packets; `brisk_tcp::stack` explains this order. Then it sleeps until the device is readable, a
//! handle has acted, or a timer is due. Woken tasks run before any transmission that can wait: see
//! [`READERS_TURN`]. The driver calls the device without the lock, except for super-packets whose payload the
//! device reads in place. Packets to an address of the stack itself do not reach the device: they arrive in
//! the next round.
//!
//! If the device returns `WouldBlock`, the packets wait here and the driver asks the stack for no more. Then
//! the send buffers fill, and the applications' writes wait.

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
/// Packets that the driver requests from the device at a time.
const RECEIVE_STEP: usize = 4;
/// Packets taken from the stack in one round.
const SEND_BATCH: usize = 32;
/// Maximum number of bytes that the driver takes from the device in one round, and from the stack. Within
/// this limit the data is still in the processor's cache when applications use it. Also, acknowledgements are
/// processed before the whole window is sent.
const ROUND_BYTES: usize = 256 << 10;
/// The same limit for packets from the stack if the device gathers their payload. It is higher because the
/// driver does not copy that payload, and fewer calls cost less.
const GATHERED_BYTES: usize = 512 << 10;
/// Maximum age of the device's counters; reading them costs a system call.
const COUNTERS_AGE: Duration = Duration::from_millis(100);
/// Rounds before the driver lets other tasks run.
const ROUNDS: usize = 8;
/// Maximum duration of the *turn* of woken tasks: the time for which the driver delays packets that can wait.
/// A task that acts ends the turn at once, so an acknowledgement leaves with the response, or with the window
/// update that reading causes.
///
/// During a turn the driver receives at most as much as in one round. A runtime with one thread runs the
/// driver many times before its main task. Without this limit, received data would fill the window before
/// that task reads.
///
/// If packets arrive without pause, one turn follows another. Only turns that begin within `READERS_TURN` of
/// the first one delay transmissions.
const READERS_TURN: Duration = Duration::from_millis(1);

/// A future that runs until the device fails, the endpoint is closed, or no handle is left and all is
/// delivered.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    device: Box<dyn Device>,
    timer: Timer,
    /// Next deadline of the stack at the end of the last round.
    due: Option<Instant>,
    /// When the next deferred SYN leaves even without a write.
    deferred: Option<Instant>,
    outgoing: Outgoing,
    readers: Readers,
    woken: Vec<Waker>,
    flushed: bool,
    counting: Counting,
    observing: Option<Box<Observing>>,
}

/// Schedule for reading the counters of the device.
#[derive(Default)]
struct Counting {
    /// Time of the last reading.
    last: Option<Instant>,
    /// True if packets have moved since the last reading.
    has_moved: bool,
}

impl Counting {
    /// Reads the counters if the last reading is too old. `moved` is true if packets have arrived or are
    /// about to leave.
    fn read_if_due(&mut self, device: &dyn Device, moved: bool, now: Instant) -> Option<Counters> {
        let is_time = self.last.is_none_or(|last| now.saturating_since(last) >= COUNTERS_AGE);
        let counters = is_time.then(|| device.counters());
        if is_time {
            self.last = Some(now);
        }
        self.has_moved = moved || self.has_moved && !is_time;
        counters
    }

    /// Returns when to read the counters again, even if nothing moves until then.
    fn due(&self) -> Option<Instant> {
        self.last.filter(|_| self.has_moved).map(|last| last + COUNTERS_AGE)
    }
}

/// Packets on their way from the stack to the device, in reused buffers.
#[derive(Default)]
struct Outgoing {
    packets: VecDeque<(Vec<u8>, TxMeta)>,
    /// Packets that follow those in `packets`, with their payload still in the stack; empty between rounds.
    polled: Vec<(Vec<u8>, Transmit)>,
    spare: Vec<Vec<u8>>,
    /// Bytes taken from the stack in this round.
    bytes: usize,
    /// True if the device gathers the payload of super-packets in place.
    gathers: bool,
    /// The addresses of the stack, once it has connected to one of them.
    own: Vec<IpAddr>,
    /// Packets to an address in `own`, which arrive in the next round.
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

    /// Hands the stack the packets that it sent to itself.
    fn deliver_looped(&mut self, stack: &mut Stack, now: Instant) {
        while let Some((packet, tx)) = self.looped.pop_front() {
            let rx = Rx { checksum: ChecksumCheck::Trust, segment_size: tx.segment_size, ..Rx::default() };
            stack.on_packet(&packet, rx, now);
            self.spare.push(packet);
        }
    }

    /// Takes packets from the stack until the limits of a round are reached.
    fn fill(&mut self, stack: &mut Stack, device: &mut dyn Device, now: Instant) -> io::Result<()> {
        if self.gathers {
            return self.fill_gathering(stack, device, now);
        }
        self.fill_with(|buffer| stack.poll_transmit(now, buffer));
        Ok(())
    }

    /// Takes urgent packets from the stack until the limits of a round are reached.
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

    /// Like [`Outgoing::fill`], for a device that gathers: a super-packet and the packets before it go to the
    /// device at once, together.
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

    /// Sends the waiting packets in order; false if the device accepts no more for now.
    fn send(&mut self, device: &mut dyn Device) -> io::Result<bool> {
        while let Some((packet, tx)) = self.packets.front() {
            if !taken(device.send(packet, *tx))? {
                return Ok(false);
            }
            self.pop();
        }
        Ok(true)
    }

    /// Removes the first packet, which the device has accepted.
    fn pop(&mut self) {
        if let Some((packet, _)) = self.packets.pop_front() {
            self.spare.push(packet);
        }
    }
}

/// Sends packets whose payload is still in the stack; returns for each whether the device accepted it.
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

/// Returns whether the device accepted a packet; `WouldBlock` means no.
fn taken(sent: io::Result<()>) -> io::Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// The tasks that were woken by the latest events.
#[derive(Default)]
struct Readers {
    /// End of their turn; `None` if a task has acted since the wake-up.
    turn: Option<Instant>,
    /// True if the driver has yielded to ready tasks in this turn. They usually act at once, so the timer for
    /// the end of the turn is set only after that.
    have_run: bool,
    /// Bytes of packets received since a task last acted.
    untouched: usize,
    /// Start of the first turn since the stack last had nothing more to send.
    first: Option<Instant>,
    /// True if deferrable transmissions wait until the turn is over.
    all_wait: bool,
}

impl Readers {
    /// Begins the turn of newly woken tasks. Transmissions that can wait are delayed, unless earlier turns
    /// have already delayed them for too long.
    fn begin(&mut self, now: Instant) {
        if self.turn.is_none() {
            let first = *self.first.get_or_insert(now);
            (self.turn, self.have_run) = (Some(now + READERS_TURN), false);
            self.all_wait = now.saturating_since(first) < READERS_TURN;
        }
    }

    /// Ends the turn, because a task has acted or the time is over.
    fn end(&mut self) {
        (self.turn, self.untouched, self.all_wait) = (None, 0, false);
    }

    /// True if it is the tasks' turn, and as much data waits for them as one round receives.
    fn have_enough(&self) -> bool {
        self.turn.is_some() && self.untouched >= ROUND_BYTES
    }
}

/// Result of a round under the lock.
struct Round {
    /// True if the device was read: the driver must poll it again to be woken for later packets.
    was_read: bool,
    /// True if the stack has more to send.
    more: bool,
    /// True if so much was received that applications should read before more arrives.
    much: bool,
    next_timeout: Option<Instant>,
    now: Instant,
    /// True if the driver may end: the stack has nothing more to send, and either the endpoint was closed or
    /// neither a handle nor a connection is left.
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

    /// True while no woken task has acted and the turn is not over. The timer decides this, not the clock:
    /// even on a busy machine the timer fires only after the runtime has polled all ready tasks.
    fn is_readers_turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(until) = self.readers.turn else { return false };
        let now = self.shared.clock.now();
        let is_theirs = !self.shared.lock().is_driver_woken() && !self.timer.has_fired(Some(until), now, cx);
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
                let counters = self.device.counters();
                self.shared.lock().device = counters;
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
            if self.readers.turn.is_some() && !std::mem::replace(&mut self.readers.have_run, true) {
                cx.waker().wake_by_ref();
                return Ok(Poll::Pending);
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

    /// Takes the reports of the stack under its lock, and passes them to the observers without the lock.
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

    /// Runs one round: packets in, timers, packets out (into `outgoing`), events.
    fn round(&mut self, cx: &mut Context<'_>) -> io::Result<Round> {
        let readable = self.is_readable(cx)?;
        let mut inner = self.shared.lock();
        let now = self.shared.clock.now();
        if inner.is_driver_woken() {
            self.readers.end();
            // Events that an application's own call caused do not begin a turn.
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
        // A deadline that has become earlier since the last round is noticed at the end of this one.
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
        // The woken tasks will change the same connections soon, so the deadlines are updated after the turn.
        if self.readers.all_wait {
            self.due = self.due.filter(|due| *due > now);
        } else {
            inner.stack.refresh_deadlines();
            self.due = inner.stack.next_timeout();
            self.readers.first = self.readers.first.filter(|_| stack_has_more);
        }
        let is_needed = (!idle || inner.has_handles()) && !inner.closed;
        drop(inner);
        self.call_observers();
        self.woken.drain(..).for_each(Waker::wake);
        // Packets that were read may be for the stack of another queue, so a readable device counts as
        // movement.
        let moved = readable || self.outgoing.bytes > 0;
        if let Some(counters) = self.counting.read_if_due(&*self.device, moved, now) {
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

    /// Returns when to wake if nothing happens.
    fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let due = self.due.map(|due| due.max(now + GRANULARITY));
        due.into_iter().chain(self.deferred).chain(self.readers.turn).chain(self.counting.due()).min()
    }

    /// Sends the outgoing packets; true if the device accepts no more for now (it will wake the driver).
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
            // A poisoned lock means a panic in the stack; most calls of the device run without the lock.
            true if self.shared.is_poisoned() => Ended::Defect,
            true if self.observing.as_ref().is_some_and(|observing| observing.is_calling) => {
                Ended::ObserverPanicked
            }
            true => Ended::DevicePanicked,
        });
        // After a panic some wakers have been taken but not woken.
        self.woken.drain(..).for_each(Waker::wake);
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..20)?.try_into().ok().map(|v4: [u8; 4]| v4.into()),
        6 => packet.get(24..40)?.try_into().ok().map(|v6: [u8; 16]| v6.into()),
        _ => None,
    }
}

/// Hands the stack the packets of the device, within the limits of a round; returns their total size, bytes.
/// Takes the lock for each packet separately, so that a device may use its own endpoint.
fn receive(device: &mut dyn Device, shared: &Shared, now: Instant) -> io::Result<usize> {
    let (mut packets, mut bytes) = (0, 0);
    while packets < RECEIVE_BUDGET && bytes < ROUND_BYTES {
        let count = device.receive_shared(RECEIVE_STEP, &mut |packet, buffer, meta| {
            bytes += packet.len();
            let stack = &mut shared.lock().stack;
            match buffer {
                Some(buffer) => stack.on_packet_shared(buffer, rx(meta), now),
                None => stack.on_packet(packet, rx(meta), now),
            }
        })?;
        packets += count;
        if count < RECEIVE_STEP {
            break;
        }
    }
    Ok(bytes)
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
