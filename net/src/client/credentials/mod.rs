//! A client's credentials, and the authority that it trusts.

pub(crate) mod tls;
pub(crate) mod token;
