//! Commands that append, read and discard records.

pub(crate) mod append;
pub(crate) mod discard;
pub(crate) mod read;
