//! The receiving half: the parts that [`crate::receive`] provides.

use brisk_wire::{Flags, SeqNum};

use crate::config::TcpConfig;
use crate::connection::urgent_pointer::{AtMark, UrgentPointer};
use crate::outcome::Arrived;
use crate::receive::{
    AckPolicy, Arrival, ArrivalKind, Assembler, RecvQueue, RecvWindow, SackReporter, Timestamps,
};
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Maximum number of duplicate acknowledgements owed.
const MAX_DUPLICATES_OWED: u32 = 64;

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) queue: RecvQueue,
    pub(crate) assembler: Assembler,
    pub(crate) sack: SackReporter,
    pub(crate) ack: AckPolicy,
    pub(crate) window: RecvWindow,
    pub(crate) timestamps: Timestamps,
    /// Sequence number of the next byte that the application reads.
    pub(crate) read_next: SeqNum,
    /// Duplicate acknowledgements that are still due to a peer without SACK. Such a peer counts them, so each
    /// segment of a batch is acknowledged on its own.
    pub(crate) duplicates_owed: u32,
    /// True if the application has released the connection, so that nobody will read.
    pub(crate) closed: bool,
    /// True if the application has shut down reading: it reads only data that has already arrived.
    pub(crate) refuses: bool,
}

impl Receiver {
    /// Returns a receiver that announced a maximum of `mss` bytes per segment.
    pub(crate) fn new(config: &TcpConfig, ts_offset: u32, mss: u32) -> Self {
        let window = RecvWindow::new(config.receive_buffer, config.window, mss);
        Receiver {
            queue: RecvQueue::new(config.receive_buffer.initial),
            assembler: Assembler::new(SeqNum(0)),
            sack: SackReporter::default(),
            ack: AckPolicy::new(config.delack_max, mss, u32::from(window.syn_window())),
            window,
            timestamps: Timestamps::new(ts_offset),
            read_next: SeqNum(0),
            duplicates_owed: 0,
            closed: false,
            refuses: false,
        }
    }

    /// Takes over the initial sequence number of the peer's SYN.
    pub(crate) fn start(&mut self, irs: SeqNum, now: Instant) {
        self.assembler = Assembler::new(irs + 1);
        self.read_next = irs + 1;
        self.ack.start(irs + 1);
        self.window.start(irs + 1, now);
    }

    /// Frees the memory that an idle receiver does not need.
    pub(crate) fn release_memory(&mut self) {
        self.queue.release_memory();
        self.assembler.release_memory();
        self.sack.release_memory();
    }

    /// Returns RCV.NXT, including the FIN once it has been reached.
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.assembler.rcv_nxt()
    }

    pub(crate) fn rcv_wnd(&self) -> u32 {
        self.window.rcv_wnd(self.rcv_nxt())
    }

    /// True once everything up to the peer's FIN has been read.
    pub(crate) fn at_end(&self) -> bool {
        self.assembler.is_complete() && self.queue.readable() == 0
    }

    /// Returns the number of readable bytes, up to the urgent mark if one is ahead.
    pub(crate) fn readable_run(
        &mut self,
        urgent: &mut UrgentPointer,
        min_rtt: Option<Micros>,
        now: Instant,
    ) -> u32 {
        loop {
            let available = self.queue.readable() as u32;
            match urgent.at_mark(self.read_next) {
                AtMark::ReadUpTo(mark) => return mark.map_or(available, |mark| mark.min(available)),
                AtMark::Skip if available == 0 => return 0,
                AtMark::Skip => {
                    self.queue.skip(1);
                    self.consumed(1, min_rtt, now);
                }
            }
        }
    }

    /// Returns the part of a segment before the right edge of the window, and whether its FIN lies there too.
    pub(crate) fn trim<'a>(&self, segment: &Arrived<'a>) -> (SeqRange, &'a [u8], bool) {
        let edge = self.window.right_edge(self.rcv_nxt());
        let space = if segment.seq.lt(edge) { edge.since(segment.seq) as usize } else { 0 };
        let kept = &segment.payload[..segment.payload.len().min(space)];
        let range = SeqRange::with_len(segment.seq, kept.len() as u32);
        let fin = segment.flags.contains(Flags::FIN) && kept.len() == segment.payload.len();
        (range, kept, fin)
    }

    /// Adds payload to the stream.
    pub(crate) fn take(&mut self, range: SeqRange, payload: &[u8], fin: bool) -> Arrival {
        let arrival = self.assembler.on_data(range, fin);
        if !arrival.store.is_empty() {
            let skip = arrival.store.start.since(range.start) as usize;
            let len = arrival.store.len() as usize;
            let bytes = payload.get(skip..skip + len).unwrap_or(&[]);
            let offset = arrival.store.start.since(self.read_next) as usize;
            if arrival.advanced as usize == bytes.len() && self.queue.keep(offset, bytes) {
                return arrival;
            }
            self.queue.write_at(offset, bytes);
        }
        self.queue.advance(arrival.advanced as usize);
        arrival
    }

    /// Records the part of a segment that had arrived before, for the next acknowledgement to report. Data on
    /// a SYN does not count as sent twice.
    pub(crate) fn report_old(&mut self, segment: &Arrived<'_>) {
        let old = SeqRange::new(segment.seq, segment.end().min(self.rcv_nxt()));
        if !old.is_empty() && !segment.flags.contains(Flags::SYN) {
            self.sack.on_duplicate(old);
            self.ack.on_old_data(self.rcv_wnd());
        }
    }

    /// True if all of a segment has arrived before, and it ends at or after the last acknowledgement sent. A
    /// peer that has received no acknowledgement probes the tail of its data. Only this segment may show how
    /// much that peer has received, so its acknowledgement and timestamp are processed, as in Linux. Older
    /// segments are ignored.
    pub(crate) fn is_tail_probe(&self, segment: &Arrived<'_>) -> bool {
        let rcv_nxt = self.rcv_nxt();
        let end = segment.end();
        segment.flags.contains(Flags::ACK)
            && !segment.flags.intersects(Flags::SYN | Flags::RST)
            && segment.seq.lt(rcv_nxt)
            && end.le(rcv_nxt)
            && end.ge(self.ack.last_ack_sent())
    }

    /// Records a segment from a peer without SACK. RFC 5681 section 4.2: "A TCP receiver SHOULD send an
    /// immediate duplicate ACK when an out-of-order segment arrives."
    pub(crate) fn owe_duplicates(&mut self, arrival: &Arrival, segments: u32) {
        match arrival.kind {
            ArrivalKind::OutOfOrder => {
                self.duplicates_owed = (self.duplicates_owed + segments).min(MAX_DUPLICATES_OWED);
            }
            ArrivalKind::InOrder | ArrivalKind::FillsHole => self.duplicates_owed = 0,
            ArrivalKind::Empty | ArrivalKind::Duplicate => {}
        }
    }

    /// True if there is nothing to read and the segment brings the next byte.
    pub(crate) fn awaits(&self, segment: &Arrived<'_>) -> bool {
        let next = self.rcv_nxt();
        self.queue.readable() == 0 && segment.seq.le(next) && segment.end().gt(next)
    }

    /// True if the receive buffer has enough storage for the segment.
    pub(crate) fn has_storage_for(&self, segment: &Arrived<'_>) -> bool {
        let (next, end) = (self.rcv_nxt(), segment.end());
        let beyond = if end.gt(next) { end.since(next) as usize } else { 0 };
        self.queue.has_storage_for(beyond)
    }

    /// Records that an acknowledgement left; a peer that counts duplicates may need another.
    pub(crate) fn on_ack_sent(&mut self) {
        self.ack.on_ack_sent(self.rcv_nxt());
        self.sack.on_ack_sent();
        self.duplicates_owed = self.duplicates_owed.saturating_sub(1);
        if self.duplicates_owed > 0 {
            self.ack.force();
        }
    }

    /// Removes `count` bytes that the application has read (or must not see).
    pub(crate) fn consumed(&mut self, count: usize, min_rtt: Option<Micros>, now: Instant) {
        self.read_next += count as u32;
        if let Some(capacity) = self.window.on_read(count, min_rtt, now) {
            self.queue.grow(capacity);
        }
    }

    /// True if the application's reading has opened the window so far that the peer should learn of it.
    /// `irs`: the peer's initial sequence number.
    pub(crate) fn update_worthwhile(&self, irs: SeqNum) -> bool {
        self.window.update_worthwhile(irs, self.rcv_nxt(), self.queue.free(), self.ack.rcv_mss())
    }

    /// Returns the window field of a segment that leaves now.
    pub(crate) fn window_field(&self) -> u16 {
        self.window.field(self.rcv_nxt(), self.queue.free(), self.ack.rcv_mss())
    }

    /// Records the window field of a sent segment, which moves the right edge of the window.
    pub(crate) fn on_window_sent(&mut self, field: u16) {
        self.window.on_sent(self.rcv_nxt(), field);
    }
}
