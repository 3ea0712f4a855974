//! Reads the blocks of a capture file. Memory is bounded by [`LONGEST_BLOCK`], regardless of the lengths that
//! the file declares.

use std::io::Read;

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use thiserror::Error;

/// Maximum length of a block in bytes: several packets of 64 KiB with their options.
pub const LONGEST_BLOCK: usize = 1 << 20;
/// Minimum length of a pcapng block in bytes: its type and two lengths.
const SHORTEST_BLOCK: u32 = 12;
const MAX_INTERFACES: usize = 4096;

/// Reason why a capture cannot be analysed.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The file has neither of the two formats.
    #[error("is neither pcap nor pcapng; compressed captures have to be unpacked first")]
    Format,
    /// The file has no packet.
    #[error("holds no packet")]
    Empty,
    /// The file has packets, but none of them is TCP.
    #[error("holds {packets} packets and no TCP segment among them; see the capture filter")]
    NoTcp {
        /// Packets in the file.
        packets: u64,
    },
}

/// One packet of the file.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Nanoseconds since the epoch.
    pub at: u64,
    /// Number of the interface, over all sections.
    pub interface: u32,
    /// The link type.
    pub linktype: Linktype,
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Length on the wire in bytes.
    pub original: u32,
}

/// The amount of a file that was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Packets read.
    pub packets: u64,
    /// Reason why the reader stopped before the end of the file.
    pub stopped: Option<String>,
}

#[derive(Clone, Copy)]
struct Interface {
    linktype: Linktype,
    /// Ticks per second.
    resolution: u64,
    /// Seconds to add to each time.
    offset: i64,
}

/// State from earlier blocks that later blocks need.
#[derive(Default)]
struct State {
    /// Interfaces of the current section.
    interfaces: Vec<Interface>,
    /// Number of interfaces of earlier sections.
    earlier: u32,
    /// True if the section is big-endian; `None` for a file in pcap format.
    big_endian: Option<bool>,
    /// Link type and ticks per second of a file in pcap format.
    legacy: Option<(Linktype, u64)>,
    last: u64,
}

/// Calls `frame` with every packet of a capture. Packets behind damage are omitted and reported in
/// [`Reading::stopped`].
///
/// # Errors
/// [`CaptureError::Read`] and [`CaptureError::Format`] if the beginning cannot be read.
pub fn read(input: impl Read + Send, frame: &mut dyn FnMut(Frame<'_>)) -> Result<Reading, CaptureError> {
    let mut input = Watched { input, failed: None };
    let reading = read_blocks(&mut input, frame);
    match (input.failed, reading) {
        (None, reading) => reading,
        (Some(error), Ok(reading)) if reading.packets > 0 => {
            Ok(Reading { stopped: Some(format!("reading fails ({error})")), ..reading })
        }
        (Some(error), _) => Err(error.into()),
    }
}

fn read_blocks(
    input: &mut Watched<impl Read + Send>,
    frame: &mut dyn FnMut(Frame<'_>),
) -> Result<Reading, CaptureError> {
    let mut reading = Reading::default();
    let mut blocks = create_reader(LONGEST_BLOCK, input).map_err(|error| match error {
        PcapError::Eof => CaptureError::Empty,
        _ => CaptureError::Format,
    })?;
    let mut state = State::default();
    let mut refilled_at = None;
    loop {
        if state.is_too_short(blocks.data()) {
            reading.stopped = Some("the file is damaged".to_owned());
            return Ok(reading);
        }
        match blocks.next() {
            Ok((len, block)) => {
                if let Some(packet) = state.take(&block) {
                    reading.packets += 1;
                    frame(packet);
                }
                drop(block);
                blocks.consume(len);
            }
            Err(PcapError::Eof) => return Ok(reading),
            Err(PcapError::Incomplete(_)) => {
                let here = (blocks.consumed(), blocks.data().len());
                // A block is longer than the buffer, or the file ends inside a block.
                if refilled_at == Some(here) || blocks.refill().is_err() {
                    reading.stopped = Some("the file ends, or its next block is too long,".to_owned());
                    return Ok(reading);
                }
                refilled_at = Some(here);
            }
            Err(PcapError::UnexpectedEof) => {
                reading.stopped = Some("the file ends in the middle of a packet".to_owned());
                return Ok(reading);
            }
            Err(_) => {
                reading.stopped = Some("the file is damaged".to_owned());
                return Ok(reading);
            }
        }
    }
}

impl State {
    /// True if the block at the start of `bytes` declares a length below the minimum. The parser subtracts
    /// [`SHORTEST_BLOCK`] from the length of some blocks without a check.
    fn is_too_short(&self, bytes: &[u8]) -> bool {
        let Some(big_endian) = self.big_endian else { return false };
        let Some(length) = bytes.get(4..).and_then(<[u8]>::first_chunk) else { return false };
        let length = if big_endian { u32::from_be_bytes(*length) } else { u32::from_le_bytes(*length) };
        length < SHORTEST_BLOCK
    }

    fn take<'a>(&mut self, block: &'a PcapBlockOwned<'a>) -> Option<Frame<'a>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let ticks = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
                self.legacy = Some((header.network, ticks));
                None
            }
            PcapBlockOwned::Legacy(packet) => {
                let (linktype, ticks) = self.legacy?;
                let ns = u64::from(packet.ts_usec) * (1_000_000_000 / ticks);
                let bytes = packet.data.get(..packet.caplen as usize).unwrap_or(packet.data);
                let at = u64::from(packet.ts_sec).saturating_mul(1_000_000_000).saturating_add(ns);
                Some(Frame { at, interface: 0, linktype, bytes, original: packet.origlen })
            }
            PcapBlockOwned::NG(block) => self.take_ng(block),
        }
    }

    fn take_ng<'a>(&mut self, block: &'a Block<'a>) -> Option<Frame<'a>> {
        match block {
            Block::SectionHeader(header) => {
                self.big_endian = Some(header.big_endian());
                self.earlier = self.earlier.saturating_add(self.interfaces.len() as u32);
                self.interfaces.clear();
                None
            }
            Block::InterfaceDescription(described) => {
                if self.interfaces.len() < MAX_INTERFACES {
                    self.interfaces.push(Interface {
                        linktype: described.linktype,
                        resolution: described.ts_resolution().filter(|ticks| *ticks > 0).unwrap_or(1_000_000),
                        offset: described.ts_offset(),
                    });
                }
                None
            }
            Block::EnhancedPacket(packet) => {
                let interface = self.interfaces.get(packet.if_id as usize)?;
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                self.last = interface.nanoseconds(ticks);
                Some(Frame {
                    at: self.last,
                    interface: self.earlier.saturating_add(packet.if_id),
                    linktype: interface.linktype,
                    bytes: packet.packet_data(),
                    original: packet.origlen,
                })
            }
            Block::SimplePacket(packet) => {
                // The packet has no time. The time of the previous packet keeps the order.
                let interface = self.interfaces.first()?;
                Some(Frame {
                    at: self.last,
                    interface: self.earlier,
                    linktype: interface.linktype,
                    bytes: packet.packet_data(),
                    original: packet.origlen,
                })
            }
            _ => None,
        }
    }
}

impl Interface {
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.resolution);
        let offset = i128::from(self.offset) * 1_000_000_000;
        u64::try_from((ns as i128).saturating_add(offset).max(0)).unwrap_or(u64::MAX)
    }
}

/// Stores the I/O error, because the parser reports it without its cause.
struct Watched<R> {
    input: R,
    failed: Option<std::io::Error>,
}

impl<R: Read> Read for &mut Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.input.read(buffer) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                self.failed = Some(error);
                Ok(0)
            }
            other => other,
        }
    }
}
