//! Target: any bytes as the PROXY header in front of a connection.
//!
//! The parsed header does not depend on the pieces in which it arrives, its length is bounded, and its
//! addresses are written and read as the same, in both versions.

use brisk_gateway::proxy::{MAX_LENGTH, Parsed, ProxyVersion, header, parse};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let whole = parse(bytes);
    let ends = match whole {
        Parsed::Header(_, length) => {
            assert!(length <= bytes.len().min(MAX_LENGTH), "{length} of {} bytes", bytes.len());
            length
        }
        Parsed::More => {
            assert!(bytes.len() < MAX_LENGTH, "it waits for ever: {} bytes are here", bytes.len());
            bytes.len()
        }
        Parsed::Bad(_) => bytes.len(),
    };
    for cut in (0..ends.min(MAX_LENGTH)).step_by(1 + ends / 64) {
        let piece = parse(&bytes[..cut]);
        match whole {
            Parsed::Bad(_) => {
                assert!(!matches!(piece, Parsed::Header(..)), "{cut} of {ends} bytes: {piece:?}")
            }
            _ => assert_eq!(piece, Parsed::More, "{cut} of {ends} bytes"),
        }
    }
    if let Parsed::Header(addresses, _) = whole {
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            let written = header(version, addresses);
            let again = parse(&written);
            // Once written, a pair of two families has become one of a single family.
            let Parsed::Header(read, length) = again else { panic!("{written:02x?}: {again:?}") };
            assert_eq!((length, header(version, read)), (written.len(), written.clone()));
            assert_eq!(read.is_some(), addresses.is_some());
        }
    }
}
