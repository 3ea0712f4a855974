//! Target: any bytes as the beginning of a TLS connection that is routed by the name of the server.
//!
//! The result of reading a client hello does not depend on the pieces it arrives in, and it ends within its bound.

use brisk_gateway::client_hello::{Hello, LONGEST, parse};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let whole = parse(bytes);
    match &whole {
        Hello::More(needed) => {
            assert!(*needed > bytes.len() && *needed <= LONGEST, "{needed} of {}", bytes.len())
        }
        Hello::Named(name) => assert!(!name.is_empty() && !name.contains(|c: char| c.is_ascii_uppercase())),
        Hello::Nameless | Hello::NotTls => {}
    }
    // As the frontend reads it: again when there are as many bytes as it has asked for.
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
