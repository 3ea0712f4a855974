//! One request and its response, and the protocol between client and server.
//!
//! A request begins with its own length (4 bytes), the length of the response (8 bytes) and the server's
//! think time in microseconds (4 bytes), all big-endian; the rest is padding. So a server needs no knowledge
//! of the workload.

use std::time::Duration;

use crate::content;

/// Length of the header of a request, and minimum length of a request, bytes.
pub(crate) const HEADER: usize = 16;

/// One request and its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Bytes of the request; fewer than 16 count as 16.
    pub request: u32,
    /// Bytes of the response.
    pub response: u64,
    /// Time between the request and the response at the server.
    pub think: Duration,
    /// Time that the client waits before the request.
    pub pause: Duration,
}

impl Exchange {
    /// Returns an exchange with a request of 100 bytes and a response of `response` bytes, without think time
    /// or pause.
    pub fn of(response: u64) -> Exchange {
        Exchange { request: 100, response, think: Duration::ZERO, pause: Duration::ZERO }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let len = self.request.max(HEADER as u32);
        out.reserve(len as usize);
        out.extend(len.to_be_bytes());
        out.extend(self.response.to_be_bytes());
        out.extend(u32::try_from(self.think.as_micros()).unwrap_or(u32::MAX).to_be_bytes());
        while out.len() < len as usize {
            out.extend_from_slice(content::from(out.len() as u64, u64::from(len) - out.len() as u64));
        }
    }

    pub(crate) fn decode(header: &[u8; HEADER]) -> Exchange {
        let [a, b, c, d, response @ .., e, f, g, h] = *header;
        Exchange {
            request: u32::from_be_bytes([a, b, c, d]).max(HEADER as u32),
            response: u64::from_be_bytes(response),
            think: Duration::from_micros(u32::from_be_bytes([e, f, g, h]).into()),
            pause: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_decodes_the_request_of_the_client() {
        let asked = Exchange { think: Duration::from_millis(7), ..Exchange::of(30_000) };
        let mut request = Vec::new();
        asked.encode(&mut request);
        assert_eq!(request.len(), 100);
        assert_eq!(Exchange::decode(request[..HEADER].try_into().unwrap()), asked);
    }

    #[test]
    fn minimum_request_is_its_header() {
        let mut request = Vec::new();
        Exchange { request: 3, ..Exchange::of(1) }.encode(&mut request);
        assert_eq!(request.len(), HEADER);
    }
}
