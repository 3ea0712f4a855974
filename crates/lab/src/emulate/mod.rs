//! A link in real time between two ends: TUN devices in two network namespaces, or UDP sockets.
//!
//! One thread reads both ends, passes every packet through the elements of [`brisk_link`], and writes it to
//! the other end when it is due. It sleeps until shortly before the next due time and then polls in a busy
//! loop, under SCHED_FIFO if permitted. The lateness of every packet is measured; a run with too much
//! lateness is reported as invalid.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use brisk_link::{Counters, Direction, Link, LinkPacket, LinkSpec};
use brisk_packet_io::realtime::{Priority, SPIN, Waiter, request_fifo, set_finest_timer_slack};
use brisk_wire::Instant;

mod capture;
pub mod ends;
mod lateness;
mod outcome;
mod report;

pub use capture::Capture;
pub use ends::{Between, EndError, EndSpec, TunEnd, UdpEnd};
pub use lateness::{Lateness, Percentiles};
pub use outcome::{Outcome, Validity};
pub use report::Ticker;

/// One end of an emulated link, which sends and receives packets.
pub trait End {
    /// Returns a descriptor that becomes readable when a packet is available.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Receives one packet, or returns [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// An error of the device.
    fn receive(&mut self, packet: &mut Vec<u8>) -> io::Result<()>;

    /// Sends one packet. Never blocks.
    ///
    /// # Errors
    /// An error of the device; the packet is then lost.
    fn send(&mut self, packet: &[u8]) -> io::Result<()>;

    /// Returns the bytes that each packet has on the wire beyond those that [`End::receive`] returns.
    fn overhead(&self) -> usize {
        0
    }
}

/// A packet on the emulated link.
#[derive(Clone, Debug)]
struct Frame {
    bytes: Vec<u8>,
    /// Bytes on the wire that are not in `bytes`: headers of a tunnel. Zero means that `bytes` is an IP
    /// packet.
    overhead: usize,
}

impl LinkPacket for Frame {
    fn wire_len(&self) -> usize {
        self.bytes.len() + self.overhead
    }

    fn bytes(&self) -> Option<&[u8]> {
        (self.overhead == 0).then_some(&self.bytes)
    }

    fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        (self.overhead == 0).then_some(&mut self.bytes)
    }

    fn duplicate(&self) -> Self {
        self.clone()
    }
}

/// Intermediate state, which [`Emulation::run`] reports every second.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Time since the beginning.
    pub elapsed: Duration,
    /// Counters from A to B.
    pub up: &'a Counters,
    /// Counters from B to A.
    pub down: &'a Counters,
    /// Lateness in the last second, microseconds.
    pub late: Percentiles,
}

/// An emulated link between two ends.
#[derive(Debug)]
pub struct Emulation<A, B> {
    a: A,
    b: B,
    link: Link<Frame>,
    base_rtt: Duration,
    capture: Option<Capture>,
    began: Clock,
    fifo: bool,
    lateness: Lateness,
    second: Lateness,
    send_errors: u64,
    last_send_error: Option<io::Error>,
    spare: Vec<Vec<u8>>,
}

/// Maximum number of packets that are read from one end before the other end is read and due packets are
/// sent.
const BATCH: usize = 32;
/// Maximum delay of a request to stop.
const ATTENTION: Duration = Duration::from_millis(50);
const SPARE_BUFFERS: usize = 4096;
/// Real-time priority: low, so that threads of the system run first.
const FIFO_PRIORITY: u8 = 10;

impl<A: End, B: End> Emulation<A, B> {
    /// Returns a link between `a`, the clients' end, and `b`. No packet moves before [`Emulation::run`].
    pub fn new(a: A, b: B, spec: &LinkSpec, seed: u64) -> Self {
        Emulation {
            a,
            b,
            link: Link::new(spec, seed),
            base_rtt: spec.base_rtt(),
            capture: None,
            began: Clock::now(),
            fifo: false,
            lateness: Lateness::default(),
            second: Lateness::default(),
            send_errors: 0,
            last_send_error: None,
            spare: Vec::new(),
        }
    }

    /// Records the packets at both ends.
    pub fn capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Requests SCHED_FIFO for the calling thread, which must be the one that then calls [`Emulation::run`].
    pub fn prioritise(&mut self) {
        self.fifo = match request_fifo(FIFO_PRIORITY) {
            Priority::Fifo => true,
            Priority::Ordinary(_) => false,
        };
    }

    /// Moves packets until `stop` is set or `limit` has passed. Calls `every_second` with the intermediate
    /// state.
    ///
    /// # Errors
    /// An end that cannot be read any more, or an error of the capture.
    pub fn run(
        mut self,
        limit: Option<Duration>,
        stop: &AtomicBool,
        every_second: &mut dyn FnMut(Progress<'_>),
    ) -> io::Result<Outcome> {
        set_finest_timer_slack()?;
        let mut waiter = Waiter::new(SPIN);
        self.began = Clock::now();
        let mut next_second = Duration::from_secs(1);
        while !stop.load(Ordering::Relaxed) {
            self.deliver();
            let read = self.receive(Direction::Up)? + self.receive(Direction::Down)?;
            let elapsed = self.began.elapsed();
            if elapsed >= next_second {
                next_second += Duration::from_secs(1);
                every_second(Progress {
                    elapsed,
                    up: &self.link.up.counters(),
                    down: &self.link.down.counters(),
                    late: self.second.percentiles(),
                });
                self.second.clear();
            }
            if limit.is_some_and(|limit| elapsed >= limit) {
                break;
            }
            if read == 0 {
                self.wait(&mut waiter, limit.map_or(next_second, |limit| limit.min(next_second)))?;
            }
        }
        self.finish(&waiter)
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.began.elapsed().as_micros() as u64)
    }

    /// Sleeps until a packet can be read or is due.
    fn wait(&mut self, waiter: &mut Waiter, next_report: Duration) -> io::Result<()> {
        let limit = (self.began.elapsed() + ATTENTION).min(next_report);
        let departure = self.link.next_departure().map(|due| Duration::from_micros(due.as_micros()));
        let due = departure.map_or(limit, |departure| departure.min(limit));
        waiter.wait([self.a.fd(), self.b.fd()], Some(self.began + due)).map(drop)
    }

    /// Receives packets from an end, one batch at most; returns their number.
    fn receive(&mut self, direction: Direction) -> io::Result<usize> {
        for read in 0..BATCH {
            let mut bytes = self.spare.pop().unwrap_or_default();
            let (received, overhead) = match direction {
                Direction::Up => (self.a.receive(&mut bytes), self.a.overhead()),
                Direction::Down => (self.b.receive(&mut bytes), self.b.overhead()),
            };
            match received {
                Ok(()) => {}
                Err(error) => {
                    self.recycle(bytes);
                    return match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(read),
                        _ => Err(error),
                    };
                }
            }
            let now = self.now();
            if let Some(capture) = &self.capture {
                capture.left(direction, self.began, now, &bytes);
            }
            self.offer(direction, Frame { bytes, overhead }, now);
        }
        Ok(BATCH)
    }

    fn offer(&mut self, direction: Direction, frame: Frame, now: Instant) {
        let (forward, back) = match direction {
            Direction::Up => (&mut self.link.up, &mut self.link.down),
            Direction::Down => (&mut self.link.down, &mut self.link.up),
        };
        if let Some(bytes) = forward.offer(frame, now).answer() {
            back.offer(Frame { bytes, overhead: 0 }, now);
        }
    }

    fn deliver(&mut self) {
        for direction in [Direction::Up, Direction::Down] {
            loop {
                let now = self.now();
                let link = match direction {
                    Direction::Up => &mut self.link.up,
                    Direction::Down => &mut self.link.down,
                };
                let Some((due, frame)) = link.poll(now) else { break };
                let late = self.began.elapsed().saturating_sub(Duration::from_micros(due.as_micros()));
                self.lateness.record(late);
                self.second.record(late);
                let sent = match direction {
                    Direction::Up => self.b.send(&frame.bytes),
                    Direction::Down => self.a.send(&frame.bytes),
                };
                if let Some(capture) = &self.capture {
                    capture.arrived(direction, self.began, now, &frame.bytes);
                }
                if let Err(error) = sent {
                    self.send_errors += 1;
                    self.last_send_error = Some(error);
                }
                self.recycle(frame.bytes);
            }
        }
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(bytes);
        }
    }

    fn finish(self, waiter: &Waiter) -> io::Result<Outcome> {
        let elapsed = self.began.elapsed();
        if let Some(capture) = self.capture {
            capture.finish()?;
        }
        let late = self.lateness.percentiles();
        Ok(Outcome {
            elapsed,
            up: self.link.up.counters(),
            down: self.link.down.counters(),
            late,
            validity: Validity::of(late, self.base_rtt),
            fifo: self.fifo,
            spun: waiter.spun(),
            send_errors: self.send_errors,
            last_send_error: self.last_send_error.map(|error| error.to_string()),
        })
    }
}

impl<T: End + ?Sized> End for Box<T> {
    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> io::Result<()> {
        (**self).receive(packet)
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        (**self).send(packet)
    }

    fn overhead(&self) -> usize {
        (**self).overhead()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn pair() -> (UdpSocket, UdpEnd) {
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        program.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let end = UdpEnd::bind("127.0.0.1:0".parse().unwrap(), Some(program.local_addr().unwrap())).unwrap();
        program.connect(end.local_addr().unwrap()).unwrap();
        (program, end)
    }

    #[test]
    fn packets_cross_in_both_directions_after_their_delay() {
        let (client, a) = pair();
        let (server, b) = pair();
        let spec = LinkSpec::parse("--rtt 40ms --loss up:list:2").unwrap();
        let stop = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let emulation = scope.spawn(|| Emulation::new(a, b, &spec, 1).run(None, &stop, &mut |_| {}));
            let mut buffer = [0; 100];
            let sent = Clock::now();
            client.send(b"first").unwrap();
            client.send(b"lost").unwrap();
            client.send(b"third").unwrap();
            assert_eq!(server.recv(&mut buffer).unwrap(), 5);
            assert!(sent.elapsed() >= Duration::from_millis(20), "{:?}", sent.elapsed());
            assert_eq!(server.recv(&mut buffer).unwrap(), 5);
            assert_eq!(&buffer[..5], b"third");
            server.send(b"answer").unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 6);
            assert!(sent.elapsed() >= Duration::from_millis(40));
            stop.store(true, Ordering::Relaxed);
            emulation.join().unwrap().unwrap()
        });
        assert_eq!((outcome.up.offered, outcome.up.dropped_loss, outcome.up.delivered), (3, 1, 2));
        assert_eq!((outcome.down.offered, outcome.down.delivered), (1, 1));
        assert_eq!(outcome.up.offered_bytes, 5 + 4 + 5 + 3 * 28, "IP and UDP headers count on the wire");
    }
}
