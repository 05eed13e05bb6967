//! Commands about the program itself: configuration, tokens, manual pages, completions.

pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod man;
pub(crate) mod token;
