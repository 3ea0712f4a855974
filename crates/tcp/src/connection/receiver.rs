//! The receiving half: the parts that [`crate::receive`] provides.

use brisk_wire::SeqNum;

use crate::config::TcpConfig;
use crate::receive::ack::AckPolicy;
use crate::receive::assembler::Assembler;
use crate::receive::queue::RecvQueue;
use crate::receive::sack::SackReporter;
use crate::receive::timestamps::Timestamps;
use crate::receive::window::RecvWindow;
use crate::time::Instant;

/// The parts of the receiver.
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
    /// ACK field last sent (Last.ACK.sent of RFC 7323).
    pub(crate) last_ack_sent: SeqNum,
    /// When the last acknowledgement outside the window was answered (rate limit).
    pub(crate) last_out_of_window_ack: Option<Instant>,
    /// The application has no reader any more.
    pub(crate) closed: bool,
}

impl Receiver {
    pub(crate) fn new(config: &TcpConfig, ts_offset: u32, now: Instant) -> Self {
        Receiver {
            queue: RecvQueue::new(config.receive_buffer),
            assembler: Assembler::new(SeqNum(0)),
            sack: SackReporter::new(),
            ack: AckPolicy::new(config.delack_max),
            window: RecvWindow::new(config.receive_buffer),
            timestamps: Timestamps::new(ts_offset, now),
            read_next: SeqNum(0),
            last_ack_sent: SeqNum(0),
            last_out_of_window_ack: None,
            closed: false,
        }
    }

    /// The peer's SYN tells where its sequence numbers begin.
    pub(crate) fn start(&mut self, irs: SeqNum) {
        self.assembler = Assembler::new(irs + 1);
        self.read_next = irs + 1;
        self.last_ack_sent = irs + 1;
        self.window.start(irs + 1);
    }

    /// RCV.NXT, the FIN included once it has been reached.
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.assembler.rcv_nxt()
    }

    /// Bytes in order that the application has not read.
    pub(crate) fn in_order(&self) -> u32 {
        self.assembler.data_end().since(self.read_next)
    }

    /// True once everything up to the peer's FIN has been read.
    pub(crate) fn at_end(&self) -> bool {
        self.assembler.fin_reached() && self.in_order() == 0
    }
}
