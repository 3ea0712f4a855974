//! Corrective (Gentle Aggression section 5): a parity segment, sent a quarter of a round trip after the
//! data, from which the receiver rebuilds what the path lost. `docs/wire` specifies the wire.
//!
//! | file | idea |
//! |---|---|
//! | `gf256` | the field in which the parities are computed |
//! | `crc32c` | the checksum that proves a repair |
//! | `code` | which bytes a parity covers, the parity, the checksum: shared by both ends |
//! | `encoder` | which segments make a group, and when its parity leaves |
//! | `queue` | whether a queue stands on the path |
//! | `ring` | the parity that left last, by which answers are judged |
//! | `history` | bytes that stay readable after the application took them |
//! | `repair` | solving the equations of the parities for the lost bytes |
//! | `overtaken` | repairs whose original may only be late, and when they are reported |
//! | `decoder` | a parity segment in, the lost bytes or a verdict out |

pub mod code;
mod crc32c;
pub mod decoder;
pub(crate) mod encoder;
pub mod gf256;
pub(crate) mod history;
pub(crate) mod overtaken;
pub(crate) mod queue;
mod repair;
pub(crate) mod ring;
