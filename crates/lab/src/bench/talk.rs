//! The protocol between the two ends of a measurement, and between an end and the process that started it.

use std::io::{self, Read, Write};

/// Bytes of one write or read in bulk.
pub(super) const PIECE: usize = 256 << 10;
pub(super) static PATTERN: [u8; PIECE] = [b'x'; PIECE];

/// The request of a client: the first bytes of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    Upload,
    Delivery,
    Download,
    Handover,
    Exchange { request: u32, response: u32 },
    PingPong,
}

impl Head {
    pub(super) const LEN: usize = 16;

    pub(super) fn encode(self) -> [u8; Head::LEN] {
        let (kind, request, response) = match self {
            Head::Upload => (0, 0, 0),
            Head::Download => (1, 0, 0),
            Head::Exchange { request, response } => (2, request, response),
            Head::PingPong => (3, 0, 0),
            Head::Delivery => (4, 0, 0),
            Head::Handover => (5, 0, 0),
        };
        let mut bytes = [0; Head::LEN];
        for (place, word) in bytes.chunks_exact_mut(4).zip([kind, request, response]) {
            place.copy_from_slice(&u32::to_be_bytes(word));
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; Head::LEN]) -> io::Result<Head> {
        let [k0, k1, k2, k3, q0, q1, q2, q3, s0, s1, s2, s3, ..] = *bytes;
        match u32::from_be_bytes([k0, k1, k2, k3]) {
            0 => Ok(Head::Upload),
            1 => Ok(Head::Download),
            2 => Ok(Head::Exchange {
                request: u32::from_be_bytes([q0, q1, q2, q3]),
                response: u32::from_be_bytes([s0, s1, s2, s3]),
            }),
            3 => Ok(Head::PingPong),
            4 => Ok(Head::Delivery),
            5 => Ok(Head::Handover),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Ends the process when its standard input ends. The process that started it holds the other end of the
/// pipe, so both processes end together.
pub(super) fn end_with_input() {
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// Writes a line to standard output and flushes it.
pub(super) fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_parsed_as_written() {
        let exchange = Head::Exchange { request: 100, response: 5000 };
        let bulk = [Head::Upload, Head::Delivery, Head::Download, Head::Handover];
        for head in bulk.into_iter().chain([exchange, Head::PingPong]) {
            assert_eq!(Head::parse(&head.encode()).unwrap(), head);
        }
        assert!(Head::parse(&[9; Head::LEN]).is_err());
    }
}
