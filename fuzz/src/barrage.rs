//! The acceptance: a million segments at a connection in every state.
