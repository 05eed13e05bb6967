//! Readers.

pub(crate) mod calls;
pub(crate) mod state;
