//! Conversions between Python and Rust: arguments, errors, buffers, Arrow.

pub(crate) mod arrow;
pub(crate) mod errors;
pub(crate) mod even;
pub(crate) mod export;
pub(crate) mod input;
pub(crate) mod values;
