//! Captures packets at both ends of an emulated link. A separate thread writes the file, so that the disk
//! does not delay the link.

use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock, SystemTime, UNIX_EPOCH};

use brisk_link::Direction;
use brisk_sim::pcapng::{Heading, InterfaceId, PcapngWriter};
use brisk_wire::Instant;

struct Record {
    interface: usize,
    heading: Heading,
    time: Instant,
    packet: Vec<u8>,
}

/// A capture with two interfaces, `a` and `b`.
#[derive(Debug)]
pub struct Capture {
    records: Sender<Record>,
    writer: JoinHandle<io::Result<()>>,
    /// Start of the capture on the monotonic clock, and as time of day.
    epoch: (Clock, Duration),
}

impl Capture {
    /// Starts a capture.
    ///
    /// # Errors
    /// An error of the file while the head of the capture is written.
    pub fn new(to: impl Write + Send + 'static) -> io::Result<Capture> {
        let mut writer = PcapngWriter::new(BufWriter::with_capacity(1 << 20, to))?;
        let interfaces: [InterfaceId; 2] = [writer.interface("a")?, writer.interface("b")?];
        let (records, incoming) = channel::<Record>();
        let thread = std::thread::Builder::new().name("capture".to_owned()).spawn(move || {
            for Record { interface, heading, time, packet } in incoming {
                writer.packet(interfaces[interface], heading, time, &packet)?;
            }
            writer.flush()
        })?;
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Capture { records, writer: thread, epoch: (Clock::now(), today) })
    }

    /// Records a packet that leaves the sending end of this direction.
    pub(super) fn left(&self, direction: Direction, began: Clock, now: Instant, packet: &[u8]) {
        let interface = match direction {
            Direction::Up => 0,
            Direction::Down => 1,
        };
        self.record(interface, Heading::Out, began, now, packet);
    }

    /// Records a packet that arrives at the receiving end of this direction.
    pub(super) fn arrived(&self, direction: Direction, began: Clock, now: Instant, packet: &[u8]) {
        let interface = match direction {
            Direction::Up => 1,
            Direction::Down => 0,
        };
        self.record(interface, Heading::In, began, now, packet);
    }

    fn record(&self, interface: usize, heading: Heading, began: Clock, now: Instant, packet: &[u8]) {
        let (clock, today) = self.epoch;
        let since = began.saturating_duration_since(clock) + Duration::from_micros(now.as_micros());
        let time = Instant::from_micros((today + since).as_micros() as u64);
        // If the writer has ended with an error, `finish` reports it.
        let _ = self.records.send(Record { interface, heading, time, packet: packet.to_vec() });
    }

    /// Writes the remaining records.
    pub(super) fn finish(self) -> io::Result<()> {
        drop(self.records);
        self.writer.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the capture panicked")))
    }
}
