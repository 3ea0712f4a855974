//! Target: any bytes as the beginning of a TLS connection that is routed by the server name.
//!
//! The result of parsing a client hello does not depend on the pieces in which it arrives, and its length is
//! bounded.

use brisk_gateway::client_hello::{Hello, MAX_LENGTH, parse};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let whole = parse(bytes);
    match &whole {
        Hello::More(needed) => {
            assert!(*needed > bytes.len() && *needed <= MAX_LENGTH, "{needed} of {}", bytes.len())
        }
        Hello::Named(name) => assert!(!name.is_empty() && !name.contains(|c: char| c.is_ascii_uppercase())),
        Hello::Nameless | Hello::NotTls => {}
    }
    // The frontend reads again when it has as many bytes as the parser requested.
    let mut needed = 0;
    while needed < bytes.len() {
        match parse(&bytes[..needed]) {
            Hello::More(more) => {
                assert!(more > needed, "it asks for what it has: {more} after {needed}");
                needed = more;
            }
            told => {
                assert_eq!(told, whole, "after {needed} of {} bytes", bytes.len());
                return;
            }
        }
    }
    if needed > bytes.len() {
        assert!(matches!(whole, Hello::More(_)) || matches!(whole, Hello::NotTls), "{whole:?}");
    }
}
