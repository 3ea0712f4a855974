//! Packet captures in pcapng, the format that Wireshark and tcpdump read
//! (draft-ietf-opsawg-pcapng: sections 4.1 section header, 4.2 interface description, 4.3 enhanced
//! packet).
//!
//! Packets are raw IP (LINKTYPE_RAW) and times are microseconds. The bytes are little-endian on every
//! machine, and there is no host name or date, so the same packets give the same bytes.

use std::io::{self, Write};

use brisk_wire::Instant;

/// LINKTYPE_RAW: the packet begins with its IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;
const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const OPTION_END: u16 = 0;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_EPB_FLAGS: u16 = 2;

/// The number of an interface of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceId(u32);

/// Direction in which a packet crossed the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heading {
    /// Towards the interface's host.
    In,
    /// Away from the interface's host.
    Out,
}

/// The writer of one capture.
pub struct PcapngWriter<W> {
    to: W,
    interfaces: u32,
    block: Vec<u8>,
}

impl<W> std::fmt::Debug for PcapngWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PcapngWriter").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

impl<W: Write> PcapngWriter<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn new(to: W) -> io::Result<Self> {
        let mut writer = PcapngWriter { to, interfaces: 0, block: Vec::with_capacity(2048) };
        writer.begin(SECTION_HEADER);
        writer.u32(BYTE_ORDER_MAGIC);
        writer.u16(1); // major version
        writer.u16(0); // minor version
        writer.block.extend(u64::MAX.to_le_bytes()); // section length: unspecified
        writer.end()?;
        Ok(writer)
    }

    /// Adds an interface.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn interface(&mut self, name: &str) -> io::Result<InterfaceId> {
        self.begin(INTERFACE_DESCRIPTION);
        self.u16(LINKTYPE_RAW);
        self.u16(0);
        self.u32(0); // no limit on the packet length
        self.option(OPTION_IF_NAME, name.as_bytes());
        self.option(OPTION_IF_TSRESOL, &[6]); // 10^-6 s
        self.option(OPTION_END, &[]);
        self.end()?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Records one IP packet.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn packet(
        &mut self,
        at: InterfaceId,
        heading: Heading,
        time: Instant,
        packet: &[u8],
    ) -> io::Result<()> {
        let micros = time.as_micros();
        let len = u32::try_from(packet.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.begin(ENHANCED_PACKET);
        self.u32(at.0);
        self.u32((micros >> 32) as u32);
        self.u32(micros as u32);
        self.u32(len); // captured
        self.u32(len); // on the wire
        self.padded(packet);
        let direction: u32 = match heading {
            Heading::In => 1,
            Heading::Out => 2,
        };
        self.option(OPTION_EPB_FLAGS, &direction.to_le_bytes());
        self.option(OPTION_END, &[]);
        self.end()
    }

    /// Flushes the writer.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.to
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.u32(kind);
        self.u32(0); // length, filled in at the end
    }

    fn end(&mut self) -> io::Result<()> {
        let len = self.block.len() as u32 + 4;
        self.block[4..8].copy_from_slice(&len.to_le_bytes());
        self.u32(len);
        self.to.write_all(&self.block)
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn u16(&mut self, value: u16) {
        self.block.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.block.extend(value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the blocks of a capture as (type, total length), after a check that both lengths agree.
    fn blocks(mut capture: &[u8]) -> Vec<(u32, usize)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut found = Vec::new();
        while !capture.is_empty() {
            let len = word(&capture[4..]) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(&capture[len - 4..]) as usize, len, "the two lengths of the block differ");
            found.push((word(capture), len));
            capture = &capture[len..];
        }
        found
    }

    #[test]
    fn a_capture_is_a_header_then_interfaces_then_packets() {
        let mut writer = PcapngWriter::new(Vec::new()).unwrap();
        let near = writer.interface("client").unwrap();
        let far = writer.interface("server!").unwrap();
        writer.packet(near, Heading::Out, Instant::from_micros(5), &[0x45; 21]).unwrap();
        writer.packet(far, Heading::In, Instant::from_micros(1 << 40), &[0x45; 40]).unwrap();
        let capture = writer.into_inner();
        let kinds: Vec<u32> = blocks(&capture).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(
            kinds,
            [SECTION_HEADER, INTERFACE_DESCRIPTION, INTERFACE_DESCRIPTION, ENHANCED_PACKET, ENHANCED_PACKET]
        );
    }

    #[test]
    fn a_packet_carries_its_time_in_two_words_and_its_length_unpadded() {
        let mut writer = PcapngWriter::new(Vec::new()).unwrap();
        let near = writer.interface("client").unwrap();
        let before = writer.to.len();
        writer.packet(near, Heading::In, Instant::from_micros((7 << 32) | 9), &[0x45; 21]).unwrap();
        let block = &writer.to[before..];
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        assert_eq!([word(8), word(12), word(16), word(20), word(24)], [0, 7, 9, 21, 21]);
        assert_eq!(block.len(), 28 + 24 + 8 + 4 + 4);
    }
}
