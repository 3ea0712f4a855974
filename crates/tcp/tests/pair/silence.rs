//! silence
