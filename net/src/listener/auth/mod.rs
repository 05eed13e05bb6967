//! Authorization: tokens, their roles and accounts, and the end of calls whose token is revoked.

pub(crate) mod audit;
pub(crate) mod methods;
pub(crate) mod revocation;
pub mod roles;
pub(crate) mod tokens;
