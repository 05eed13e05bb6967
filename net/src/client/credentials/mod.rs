//! What a client proves itself with, and what it trusts.

pub(crate) mod tls;
pub(crate) mod token;
