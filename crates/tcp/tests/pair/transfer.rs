//! transfer
