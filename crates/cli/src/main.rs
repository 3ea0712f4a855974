//! The program `brisk`.
fn main() {}
