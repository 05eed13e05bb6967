//! Copies of a log that do not vote: the source that feeds them, what travels, and what applies it.

pub(crate) mod applier;
pub(crate) mod message;
pub(crate) mod source;
