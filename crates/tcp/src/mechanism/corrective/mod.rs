//! Corrective (Gentle Aggression section 5): parity segments follow the data, and the receiver rebuilds lost
//! data from them. `docs/wire` specifies the wire.
//!
//! | file | content |
//! |---|---|
//! | `gf256` | the field in which the parities are computed |
//! | `crc32c` | the checksum that proves a repair |
//! | `code` | the bytes that a parity covers, the parity, the checksum: shared by both ends |
//! | `encoder` | the segments of a group, and the time of its parity |
//! | `queue` | detection of a standing queue on the path |
//! | `ring` | the last parity segments, with which answers are compared |
//! | `history` | bytes that stay readable after the application has read them |
//! | `repair` | solving the equations of the parities for the lost bytes |
//! | `overtaken` | repairs whose original may only be late, and when they are reported |
//! | `decoder` | from a parity segment to the lost bytes, or to the reason of a failure |

pub(crate) mod code;
mod crc32c;
pub(crate) mod decoder;
pub(crate) mod encoder;
mod gf256;
pub(crate) mod history;
pub(crate) mod overtaken;
pub(crate) mod queue;
mod repair;
pub(crate) mod ring;
