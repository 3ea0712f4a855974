//! Idle connections free memory.

use std::time::Duration;

use crate::harness::{A, B, Pair};

#[test]
fn idle_connection_releases_its_buffers_after_a_second_and_goes_on() {
    let mut pair = Pair::new(3);
    let (client, server) = pair.established();
    for _ in 0..2 {
        pair.write(A, client, b"hello").expect("there is room");
        pair.run(Duration::from_millis(100));
        assert_eq!(pair.read(B, server), Ok(Some(b"hello".to_vec())));
        assert!(pair.a.memory() > 0, "the next write needs it again");
        pair.run(Duration::from_secs(3));
        assert_eq!(pair.a.memory() + pair.b.memory(), 0);
    }
}

#[test]
fn bytes_that_nobody_has_read_are_kept() {
    let mut pair = Pair::new(4);
    let (client, server) = pair.established();
    pair.write(A, client, b"hello").expect("there is room");
    pair.run(Duration::from_secs(3));
    assert!(pair.b.memory() > 0);
    assert_eq!(pair.read(B, server), Ok(Some(b"hello".to_vec())));
}
